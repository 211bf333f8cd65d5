"""Capacity arithmetic: published figures come out, and a card that is too small is said to be."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline import capacity, cli, model_weights, pool_sizes
from pipeline.errors import ManifestError
from pipeline.manifest import DEFAULT_LINE, Line, lines, load_line

LINE = load_line(DEFAULT_LINE)
LINES = {name: load_line(name) for name in lines()}
OURS = [
    pytest.param(LINES[line], name, id=f"{line} {name}")
    for line in LINES
    for name, profile in LINES[line].profiles.profiles.items()
    if profile.image is None
]
INT4, BF16 = LINE.config("Qwen3.8-27B-AWQ-INT4"), LINES["qwen3.8-27b-20260819"].config("Qwen3.8-27B")
DRAFT = LINE.config("Qwen3.8-27B-DFlash2")
GIB, MIB = 1 << 30, 1 << 20


def sizes(name: str, **card: float) -> dict[str, int]:
    return {part.what: part.bytes for part in capacity.plan(LINE, name, **card).parts}  # type: ignore[arg-type]


def test_row_of_the_target_is_what_one_layer_reads_at_262144_tokens() -> None:
    """268 MB were measured for one attention layer of one rank of four."""
    assert pool_sizes.kv_row(1, 4, 256, tp=4) * 262_144 == 268_435_456


def test_draft_of_a_million_tokens_needs_five_gib_and_eight_rings_85_mib() -> None:
    assert pool_sizes.ring_stride(window=2048, page=64, block=8) == 2176
    row = pool_sizes.kv_row(5, 8, 128, tp=4)
    assert row == 5120
    assert 1_048_576 * row == 5 * GIB
    assert 8 * 2176 * row == 85 * MIB


@pytest.mark.parametrize(("strategy", "slots"), [("extra_buffer", 5), ("extra_buffer_lazy", 4)])
def test_slots_of_a_request(strategy: str, slots: int) -> None:
    assert pool_sizes.slots_per_request(strategy) == slots


def test_strategy_without_pages_is_no_case() -> None:
    with pytest.raises(KeyError):
        pool_sizes.slots_per_request("no_buffer")


def test_ring_takes_rows_for_what_runs_and_shared_indices_one_for_each_token() -> None:
    million = LINE.profiles.profiles["1m-dflash2"]
    ring = capacity.serving(million, {})
    shared = capacity.serving(million.model_copy(update={"environment": {}}), {})
    assert pool_sizes.draft_rows(ring) == ring.running * 2176
    assert pool_sizes.draft_rows(shared) == 1_048_576


def test_switch_in_the_image_counts_like_one_of_the_profile() -> None:
    profile = LINE.profiles.profiles["1m-mtp"]
    assert capacity.serving(profile, {capacity.VERIFY_ROWS: "1"}).verify_rows
    assert not capacity.serving(profile, {}).verify_rows


def test_page_tables_of_verification_rows_are_4_mib_for_eight_requests() -> None:
    """64 rows of 16,386 pages, four bytes each; without graphs there is none."""
    profile = LINE.profiles.profiles["1m-mtp"].model_copy(update={"max_mamba_cache_size": 40})
    wanted = capacity.serving(profile, {capacity.VERIFY_ROWS: "1"})
    drafts = 7 * 8
    assert pool_sizes.graph_tables(wanted) == (8 * 8 + drafts) * 16_386 * 4
    arguments = {**profile.arguments, "cuda-graph-config": "{}"}
    eager = profile.model_copy(update={"arguments": arguments})
    assert pool_sizes.graph_tables(capacity.serving(eager, {})) == 0


@pytest.mark.parametrize(("line", "name"), OURS)
def test_profile_fits_the_cards_that_it_was_made_for(line: Line, name: str) -> None:
    plan = capacity.plan(line, name)
    assert plan.is_enough
    assert plan.total == sum(part.bytes for part in plan.parts) <= plan.card
    assert plan.fits >= plan.wanted


def test_smaller_card_or_fewer_cards_do_not_fit() -> None:
    assert not capacity.plan(LINE, "1m-mtp", memory_gib=24).is_enough
    assert not capacity.plan(LINE, "1m-mtp", tp=2).is_enough
    assert "does not fit" in capacity.verdict(capacity.plan(LINE, "1m-mtp", tp=2))


def test_two_cards_take_twice_what_four_take_of_what_is_shared() -> None:
    four, two = sizes("1m-dflash2"), sizes("1m-dflash2", tp=2)
    assert two["target KV"] == 2 * four["target KV"]
    assert two["recurrent states"] == 2 * four["recurrent states"]
    assert two["weights, shared out"] == pytest.approx(2 * four["weights, shared out"], rel=1e-4)
    for part in ("request tables", "weights, whole on each", "rotary tables"):
        assert two[part] == four[part]


def test_more_cards_than_key_heads_hold_each_key_head_more_than_once() -> None:
    assert pool_sizes.kv_row(1, 4, 256, tp=8) == pool_sizes.kv_row(1, 4, 256, tp=4)


@pytest.mark.parametrize(
    ("tp", "words"),
    [
        (3, "a divisor of the 16 linear key heads"),
        (5, "a divisor of the 24 query heads"),
        (6, "a divisor of the 16 linear key heads"),
        (16, "a divisor of the 24 query heads"),
        (32, "a divisor of the 24 query heads"),
    ],
)
def test_cards_that_cannot_share_the_heads_are_refused_in_one_line(tp: int, words: str) -> None:
    with pytest.raises(ManifestError, match=f"--tp {tp}: expected {words}; take 4"):
        capacity.plan(LINE, "1m-mtp", tp=tp)


@pytest.mark.parametrize(
    ("model", "key", "heads", "tp", "words"),
    [
        ("target", "num_attention_heads", 20, 8, "a divisor of the 20 query heads"),
        ("target", "linear_num_value_heads", 4, 8, "a divisor of the 4 linear value heads"),
        ("target", "num_key_value_heads", 3, 4, "a divisor or a multiple of the 3 key heads"),
        ("draft", "num_attention_heads", 30, 4, "a divisor of the 30 query heads of the draft"),
        ("draft", "num_key_value_heads", 6, 4, "a divisor or a multiple of the 6 key heads of the draft"),
    ],
)
def test_each_kind_of_heads_counts(model: str, key: str, heads: int, tp: int, words: str) -> None:
    configs = {"target": copy.deepcopy(INT4), "draft": copy.deepcopy(DRAFT)}
    configs[model].get("text_config", configs[model])[key] = heads
    with pytest.raises(ManifestError, match=words):
        capacity.Models(**configs).require_shares(tp)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_cards_that_can_share_them_are_not(tp: int) -> None:
    capacity.Models(INT4, DRAFT).require_shares(tp)


def parameters(model: Any, config: dict[str, Any]) -> float:
    """Billions of parameters of a model in BF16, on one rank."""
    return float(model({**config, "quantization_config": None}, 1).total / 2 / 1e9)


def test_target_has_the_parameters_of_its_name() -> None:
    """26.9 of the language model and 0.46 of the vision tower; the MTP head 0.42, a draft of five layers 1.98.

    By hand: three layers of four (16,384 + 96) × 5,120 in and 6,144 × 5,120 out; the fourth 14,336 × 5,120 in and
    6,144 × 5,120 out; each an MLP of 3 × 17,408 × 5,120. Embedding and head 248,320 × 5,120 each.
    """
    layers = 48 * (16_384 + 96 + 6_144) * 5_120 + 16 * (14_336 + 6_144) * 5_120 + 64 * 3 * 17_408 * 5_120
    language = layers + 2 * 248_320 * 5_120
    assert language / 1e9 == pytest.approx(26.89, abs=0.01)
    assert parameters(model_weights.target, BF16) == pytest.approx(language / 1e9 + 0.46, abs=0.01)
    head = (2 * 5_120 + 14_336 + 6_144 + 3 * 17_408) * 5_120
    assert parameters(model_weights.mtp_head, BF16) == pytest.approx(head / 1e9, abs=0.001)
    layer = (40 * 128 + 2 * 8 * 128 + 40 * 128 + 3 * 17_408 + 2 * 2 * 2 * 320) * 5_120
    draft = 5 * layer + 5 * 5_120**2 + 2 * 248_320 * 256
    assert parameters(model_weights.draft, DRAFT) == pytest.approx(draft / 1e9, abs=0.002)


def test_four_bits_are_a_little_more_than_a_quarter_of_sixteen() -> None:
    """Groups of 128 take three bytes each; embedding, lm_head and vision tower stay as they are."""
    packed, plain = (model_weights.target(config, 4).total for config in (INT4, BF16))
    kept = 2 * 248_320 * 5_120 * 2 // 4 + model_weights._vision(BF16["vision_config"], model_weights.Linears(4)).total
    assert (packed - kept) / (plain - kept) == pytest.approx((1 / 2 + 3 / 128) / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("ignore", "is_packed"), [(["re:^mtp.*"], False), (["mtp.layers.0.mlp.down_proj"], False), (["lm_head"], True)]
)
def test_mtp_head_is_packed_unless_the_config_ignores_it(ignore: list[str], is_packed: bool) -> None:
    config = copy.deepcopy(INT4)
    config["quantization_config"]["ignore"] = ignore
    assert (model_weights.mtp_head(config, 4).split < model_weights.mtp_head(BF16, 4).split) is is_packed


def test_what_every_card_holds_of_a_draft_does_not_shrink() -> None:
    """fc 250 MiB, codebooks 242.5 MiB, kernel projections 125 MiB."""
    whole = model_weights.draft(DRAFT, 4).whole
    assert whole / MIB == pytest.approx(250 + 242.5 + 125 + 2.5 + 0.6, abs=0.3)
    assert whole == model_weights.draft(DRAFT, 1).whole == model_weights.draft(DRAFT, 8).whole


def test_rotary_tables_of_a_million_positions() -> None:
    stretched = [LINE.config(f"{name}-1m") for name in ("Qwen3.8-27B-AWQ-INT4", "Qwen3.8-27B-DFlash2")]
    vision = 8192 * 36 * 4
    assert [model_weights.rotary_table(config) for config in stretched] == [256 * MIB + vision, 512 * MIB]
    assert [model_weights.rotary_table(config) for config in (INT4, DRAFT)] == [64 * MIB + vision, 128 * MIB]


@pytest.mark.parametrize(
    ("folder", "keys", "value", "parts"),
    [
        ("Qwen3.8-27B-AWQ-INT4-1m", ("text_config", "linear_num_value_heads"), 32, {"recurrent states"}),
        ("Qwen3.8-27B-AWQ-INT4-1m", ("text_config", "num_key_value_heads"), 8, {"target KV"}),
        ("Qwen3.8-27B-DFlash2-1m", ("num_hidden_layers",), 6, {"draft KV", "weights, whole on each"}),
    ],
)
def test_dimensions_come_from_the_config_of_the_mounted_folder(
    tmp_path: Path, folder: str, keys: tuple[str, ...], value: int, parts: set[str]
) -> None:
    shutil.copytree(LINE.folder, tmp_path / LINE.name)
    path = tmp_path / LINE.name / "configs" / folder / "config.json"
    config = json.loads(path.read_text())
    inner = config
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(config))
    changed = {part.what: part.bytes for part in capacity.plan(load_line(LINE.name, tmp_path), "1m-dflash2").parts}
    before = sizes("1m-dflash2")
    assert {name for name, size in changed.items() if size != before[name]} >= parts


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_configs_agree_with_themselves_and_each_other(line: Line) -> None:
    """One target and one draft in all revisions and lines: what differs is how weights are packed, and RoPE."""
    for path in sorted(line.folder.glob("configs/*/config.json")):
        config = line.config(path.parent.name)
        if "text_config" not in config:
            assert model_weights.draft(config, 4) == model_weights.draft(DRAFT, 4)
            assert config["vocab_size"] == INT4["text_config"]["vocab_size"]
            assert config["num_target_layers"] == INT4["text_config"]["num_hidden_layers"]
            continue
        text = config["text_config"]
        kinds = [
            "full_attention" if number % text["full_attention_interval"] == 0 else "linear_attention"
            for number in range(1, text["num_hidden_layers"] + 1)
        ]
        assert text["layer_types"] == kinds
        assert pool_sizes.Target.of(config) == pool_sizes.Target.of(INT4)
        plain = {**config, "quantization_config": None}
        assert model_weights.target(plain, 4) == model_weights.target(BF16, 4)


def test_folder_without_a_config_is_one_line() -> None:
    with pytest.raises(ManifestError, match=r"put the config\.json of the model that profiles mount as nothing there"):
        LINE.config("nothing")


def test_command_prints_a_table_or_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["capacity", "--profile", "1m-dflash2", "--tp", "4", "--memory-gib", "32"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert "1,048,576 tokens asked for: fits" in out
    assert cli.run(["capacity", "--profile", "1m-dflash2", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["sum"] == sum(part["bytes"] for part in document["parts"])
    assert document["requests_at_a_time"] == capacity.plan(LINE, "1m-dflash2").running
