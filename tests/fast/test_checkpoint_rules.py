"""Every rule: a good checkpoint passes all of them, and one planted fault fails exactly its own."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.checkpoint import gate, ignore
from pipeline.checkpoint.checkpoint import load
from pipeline.checkpoint.naming import MTP_BUILT, MTP_EXCLUSIONS, ONE_BYTE
from pipeline.checkpoint.releases import KNOWN, Release
from pipeline.checkpoint.report import Report
from pipeline.checkpoint.rule import Case, Severity
from pipeline.checkpoint.rules import RULES
from pipeline.checkpoint.safetensors_header import BITS
from tests.fast import small_checkpoints as small
from tests.fast.checkpoints import (
    Made,
    card,
    draft,
    edit_header,
    failed,
    in_memory,
    packed_head,
    profile,
    statuses,
    target,
)
from tests.fast.small_checkpoints import with_header

Plant = Callable[[Made], object]
SHARD = "model.safetensors"
SPLIT_ONLY = [name for name in MTP_EXCLUSIONS if not name.endswith(("qkv_proj", "gate_up_proj"))]
BLOCK_FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
CODEBOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")
NAN = b"\xc0\x7f"


def two_shards(made: Made) -> Made:
    names = list(made.tensors)
    first, second = ({name: made.tensors[name] for name in part} for part in (names[:5], names[5:]))
    made.shards = {"a.safetensors": first, "b.safetensors": second}
    made.index = index_of(made)
    return made


def index_of(made: Made) -> dict[str, str]:
    return {name: shard for shard, tensors in made.shards.items() for name in tensors}


def raw(shard: str, change: Callable[[bytes], bytes]) -> Plant:
    return lambda made: made.raw.update({shard: change})


def header(change: Callable[[dict[str, Any]], object], shard: str = SHARD) -> Plant:
    return raw(shard, edit_header(change))


def quantisation(**changes: Any) -> Plant:
    return lambda made: made.quantisation.update(changes)


def weights(**changes: Any) -> Plant:
    return lambda made: made.quantisation["config_groups"]["group_0"]["weights"].update(changes)


def unindexed(made: Made) -> None:
    two_shards(made)
    made.shards["c.safetensors"] = {"stray.weight": ("BF16", (2, 2))}


def lost_from_shard(made: Made) -> None:
    """sglang#29006, vllm#53537: indexed, and missing from its shard."""
    two_shards(made)
    for tensors in made.shards.values():
        tensors.pop("mtp.fc.weight", None)


def doubled(made: Made) -> None:
    two_shards(made)
    made.shards["b.safetensors"]["mtp.fc.weight"] = ("BF16", (4, 4))
    made.shards["a.safetensors"]["mtp.fc.weight"] = ("BF16", (4, 4))
    made.index["mtp.fc.weight"] = "a.safetensors"  # type: ignore[index]


def without(*names: str) -> Plant:
    def plant(made: Made) -> None:
        for name in names:
            del made.tensors[name]

    return plant


def half_packed(made: Made) -> None:
    """q packed, k and v plain."""
    module = "mtp.layers.0.self_attn.q_proj."
    del made.tensors[module + "weight"]
    made.tensors.update({module + "weight_packed": ("I32", (4, 4)), module + "weight_scale": ("BF16", (4, 1))})


def fp8_head(*excluded: str, scales: bool = True) -> Plant:
    """The head in block FP8: codes under the name of a plain weight, and a scale per block."""

    def plant(made: Made) -> None:
        for name in [name for name in made.tensors if "_proj." in name and name.startswith("mtp.")]:
            made.tensors[name] = ("F8_E4M3", (4, 4))
            if scales:
                made.tensors[name + "_scale_inv"] = ("F32", (1, 1))
        made.config["quantization_config"] = {**BLOCK_FP8, "modules_to_not_convert": list(excluded)}
        made.card = card(excluded)

    return plant


def move_last(by: int) -> Plant:
    """The last tensor's bytes moved; the file's end moves with it."""

    def change(entries: dict[str, Any]) -> None:
        offsets = list(entries.values())[-1]["data_offsets"]
        offsets[:] = [offset + by for offset in offsets]

    edit = edit_header(change)
    return raw(SHARD, lambda data: edit(data + bytes(by) if by > 0 else data[:by]))


TARGET_FAULTS: list[tuple[str, str, Plant]] = [
    ("CFG-01", "config is a list", raw("config.json", lambda _: b"[]")),
    ("CFG-01", "config is cut", raw("config.json", lambda data: data[:-9])),
    ("CFG-01", "config doubles a key", raw("config.json", lambda _: b'{"architectures": [], "architectures": []}')),
    ("INT-01", "zeroed header", raw(SHARD, lambda data: bytes(8) + data[8:])),
    ("INT-01", "header longer than the file", raw(SHARD, lambda data: data[:40])),
    ("INT-01", "empty file", raw(SHARD, lambda _: b"")),
    ("INT-02", "header is zeroed behind its length", raw(SHARD, lambda data: data[:8] + bytes(64) + data[72:])),
    ("INT-02", "header names a tensor twice", raw(SHARD, lambda _: with_header(b'{"a":{},"a":{}}'))),
    ("INT-02", "entry without dtype", header(lambda entries: next(iter(entries.values())).pop("dtype"))),
    ("INT-05", "cut shard", raw(SHARD, lambda data: data[:-7])),
    ("INT-05", "trailing bytes", raw(SHARD, lambda data: data + b"xyz")),
    ("INT-06", "no index for two shards", lambda made: setattr(two_shards(made), "index", {})),
    ("INT-07", "indexed tensor missing from its shard", lost_from_shard),
    ("INT-08", "shard that is not in the index", unindexed),
    ("INT-09", "tensor in two shards", doubled),
    ("TGT-01", "unknown class", lambda made: made.config.update(architectures=["NobodyForCausalLM"])),
    ("TGT-01", "no class", lambda made: made.config.update(architectures=None)),
    ("TGT-02", "3 bits", weights(num_bits=3)),
    ("TGT-02", "asymmetric", weights(symmetric=False)),
    ("TGT-02", "group of 16", weights(group_size=16)),
    ("TGT-02", "channelwise", weights(group_size=None, strategy="channel")),
    ("TGT-02", "act-order", weights(actorder="group")),
    ("TGT-02", "other layout", quantisation(format="marlin-24")),
    (
        "TGT-03",
        "YaRN that does not reach",
        lambda made: made.text.update(rope_parameters={**small.YARN, "factor": 0.5}),
    ),
    ("TGT-03", "no positions", lambda made: made.text.pop("max_position_embeddings")),
    ("MTP-01", "declared and absent", lambda made: without(*[n for n in made.tensors if "mtp." in n])(made)),
    ("MTP-03", "no fc", without("mtp.fc.weight")),
    ("MTP-03", "no k", without("mtp.layers.0.self_attn.k_proj.weight")),
    (
        "MTP-03",
        "scales without their weight",
        lambda made: without("mtp.layers.0.mlp.down_proj.weight_packed")(packed_head(made)),
    ),
    (
        "MTP-03",
        "packed, without its scale",
        lambda made: without("mtp.layers.0.mlp.down_proj.weight_scale")(packed_head(made)),
    ),
    ("MTP-03", "FP8 codes without a scale", fp8_head("lm_head", scales=False)),
    ("MTP-04", "a number among the exclusions", quantisation(ignore=[1])),
    ("MTP-04", "no expression", quantisation(ignore=["re:mtp.("])),
    ("MTP-04", "text instead of a list", quantisation(ignore="mtp")),
    ("MTP-05", "glob", lambda made: made.exclude(*MTP_EXCLUSIONS, "mtp.*")),
    ("MTP-05", "parent", lambda made: made.exclude(*MTP_EXCLUSIONS, "mtp")),
    ("MTP-05", "layer", lambda made: made.exclude(*MTP_EXCLUSIONS, "mtp.layers.0")),
    ("MTP-05", "wrong prefix", lambda made: made.exclude(*MTP_EXCLUSIONS, "model.mtp.fc")),
    (
        "MTP-06",
        "q without k and v",
        lambda made: made.exclude(*[n for n in SPLIT_ONLY if n[-6:] not in ("k_proj", "v_proj")]),
    ),
    ("MTP-08", "the published defect: vision only", lambda made: made.exclude("lm_head", "re:.*visual.*")),
    ("MTP-08", "down is not excluded", lambda made: made.exclude(*[n for n in MTP_EXCLUSIONS if "down" not in n])),
    ("MTP-09", "excluded, and packed on disk", lambda made: packed_head(made).exclude(*MTP_EXCLUSIONS)),
    ("MTP-09", "excluded, and in block FP8 on disk", fp8_head(*MTP_EXCLUSIONS)),
    (
        "MTP-09",
        "fc is quantised",
        lambda made: made.tensors.update({"mtp.fc.weight": ("F8_E4M3", (4, 4)), "mtp.fc.weight_scale": ("F32", (1,))}),
    ),
    ("MTP-10", "second layer", lambda made: made.tensors.update({"mtp.layers.1.mlp.up_proj.weight": ("BF16", (4, 4))})),
    ("CARD-01", "no card", lambda made: setattr(made, "card", None)),
    ("CARD-01", "no front matter", lambda made: setattr(made, "card", "# A model\n")),
    ("CARD-01", "broken YAML", lambda made: setattr(made, "card", "---\na: [\n---\n")),
    ("CARD-01", "list", lambda made: setattr(made, "card", "---\n- a\n---\n")),
    ("CARD-01", "not UTF-8", raw("README.md", lambda data: data + b"\xff")),
    ("CARD-02", "no base model", lambda made: setattr(made, "card", card().replace("base_model:", "base:"))),
    (
        "CARD-03",
        "no revision",
        lambda made: setattr(made, "card", card().replace("base_model_revision", "x").replace("0" * 40, "1")),
    ),
    ("CARD-04", "card without the list", lambda made: setattr(made, "card", card(()))),
    ("CARD-04", "card lists more", lambda made: setattr(made, "card", card([*MTP_EXCLUSIONS, "mtp.norm"]))),
    (
        "CARD-04",
        "list below another heading",
        lambda made: setattr(made, "card", card().replace("Quantization", "Files")),
    ),
]

DRAFT_FAULTS: list[tuple[str, str, Plant]] = [
    ("INT-03", "gap", move_last(2)),
    ("INT-03", "overlap", move_last(-2)),
    ("INT-03", "backwards", header(lambda e: next(iter(e.values()))["data_offsets"].reverse())),
    ("INT-04", "unknown dtype", header(lambda e: next(iter(e.values())).update(dtype="BF17"))),
    (
        "DFL-01",
        "classic class over DFlash2 weights",
        lambda made: made.config.update(architectures=["DFlashDraftModel"]),
    ),
    ("DFL-01", "alias", lambda made: made.config.update(architectures=["DFlash2BeamDraftModel"])),
    ("DFL-02", "no rank", lambda made: made.config["dflash_config"].pop("selector_rank")),
    ("DFL-02", "no convolution", lambda made: made.config["dflash_config"].update(conv_kernel_size=0)),
    ("DFL-02", "group that does not divide", lambda made: made.config["dflash_config"].update(conv_group_size=5)),
    ("DFL-02", "block size is text", lambda made: made.config.update(block_size="8")),
    ("DFL-03", "both codebooks dropped", without(*CODEBOOKS)),
    ("DFL-03", "classic weights", lambda made: made.shards.update({SHARD: {"norm.weight": ("BF16", (32,))}})),
    ("DFL-03", "a layer less", lambda made: made.config.update(num_hidden_layers=2)),
    ("DFL-04", "another vocabulary", lambda made: made.config.update(vocab_size=65)),
    ("DFL-04", "quantised codebook", lambda made: made.tensors.update({CODEBOOKS[0]: ("I8", (64, 8))})),
    ("DFL-05", "zero codebook", lambda made: made.payload.update({CODEBOOKS[0]: b"\0"})),
    ("DFL-05", "minus zero", lambda made: made.payload.update({CODEBOOKS[0]: b"\x00\x80"})),
    ("DFL-06", "NaN", lambda made: made.payload.update({CODEBOOKS[1]: NAN})),
    (
        "DFL-07",
        "untrained kernel",
        lambda made: made.payload.update({"layers.0.mlp_conv.base_kernel": b"\x80\x3f" * 32 + bytes(64)}),
    ),
    (
        "DFL-09",
        "a layer more",
        lambda made: made.tensors.update({"layers.1.mlp_conv.base_kernel": ("BF16", (2, 2, 32))}),
    ),
]


def ids(faults: list[tuple[str, str, Plant]]) -> Any:
    return [pytest.param(rule, plant, id=f"{rule} {what}") for rule, what, plant in faults]


def only(report: Report) -> str:
    """The one rule that failed."""
    found = list(failed(report))
    assert len(found) == 1, failed(report)
    return found[0]


@pytest.mark.parametrize("pin", ["0.5.21", "0.5.22", "0.5.23"])
def test_good_target_passes_every_rule(pin: str) -> None:
    report = target().check(pin)
    assert set(statuses(report).values()) <= {"passed", "skipped"}
    assert report.publishable_and_servable
    assert report.bytes_read < 10_000


@pytest.mark.parametrize("pin", ["0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"])
def test_good_draft_passes_every_rule(pin: str) -> None:
    report = draft().check(pin, profile=None)
    assert set(statuses(report).values()) <= {"passed", "skipped"}


@pytest.mark.parametrize(("rule", "plant"), ids(TARGET_FAULTS))
def test_fault_of_a_target_fails_exactly_its_rule(rule: str, plant: Plant) -> None:
    made = target()
    plant(made)
    report = made.check()
    assert only(report) == rule
    severity = next(known.severity for known in RULES if known.id == rule)
    assert report.refused_by == ((rule,) if severity is Severity.ERROR else ())


@pytest.mark.parametrize(("rule", "plant"), ids(DRAFT_FAULTS))
def test_fault_of_a_draft_fails_exactly_its_rule(rule: str, plant: Plant) -> None:
    made = draft()
    plant(made)
    assert only(made.check()) == rule


def test_parts_of_unequal_form_fail() -> None:
    made = target()
    half_packed(made)
    assert only(made.check()) == "MTP-07"


def test_declared_and_absent_is_a_note_for_other_modes() -> None:
    made = target()
    without(*[name for name in made.tensors if name.startswith("mtp.")])(made)
    report = made.check(mode="plain")
    assert only(report) == "MTP-02"
    assert report.publishable_and_servable


# What the reports from the field were about.


@pytest.mark.parametrize("pin", KNOWN)
def test_split_names_alone_hold_from_0_5_21_on(pin: str) -> None:
    """sglang#35797: refused before, naming the fused modules that would be built packed."""
    report = target().exclude(*SPLIT_ONLY).check(pin)
    findings = " ".join(failed(report).get("MTP-08", ()))
    expected = pin in ("0.5.17", "0.5.18", "0.5.19", "0.5.20")
    assert ("qkv_proj" in findings, "gate_up_proj" in findings, "o_proj:" in findings) == (expected, expected, False)


@pytest.mark.parametrize("pin", KNOWN)
@pytest.mark.parametrize("entries", [MTP_EXCLUSIONS, ("re:^mtp.*",), ("re:.*mtp.*",)])
def test_forms_that_hold_in_every_release(pin: str, entries: tuple[str, ...]) -> None:
    found = failed(target().exclude(*entries).check(pin))
    assert [rule for rule in found if rule.startswith("MTP")] == []


@pytest.mark.parametrize("pin", KNOWN)
def test_q_alone_fails_in_every_release(pin: str) -> None:
    names = [name for name in MTP_EXCLUSIONS if not name.endswith((".k_proj", ".v_proj"))]
    assert "MTP-06" in failed(target().exclude(*names).check(pin))


@pytest.mark.parametrize("pin", ["0.5.21", "0.5.23"])
def test_quantised_head_needs_no_exclusion(pin: str) -> None:
    assert packed_head(target()).check(pin).publishable_and_servable


def test_block_fp8_head_needs_no_exclusion() -> None:
    made = target()
    fp8_head("lm_head")(made)
    assert failed(made.check()) == {}


def test_static_fp8_is_not_decided_and_not_passed() -> None:
    """So its scales of activations, which the load guard demands, need no rule here."""
    made = target()
    fp8_head("lm_head")(made)
    del made.config["quantization_config"]["weight_block_size"]
    made.config["quantization_config"]["activation_scheme"] = "static"
    report = made.check()
    assert statuses(report)["TGT-02"] == "not decided"
    assert not report.publishable_and_servable


def test_dtypes_of_codes_are_those_of_one_byte() -> None:
    assert {dtype for dtype, bits in BITS.items() if bits == 8} == ONE_BYTE


def test_target_group_that_misses_the_head_stops_the_server() -> None:
    made = packed_head(target())
    made.quantisation["config_groups"]["group_0"]["targets"] = ["re:.*layers.0.mlp.*"]
    report = made.check()
    assert only(report) == "MTP-09"
    assert "would stop" in failed(report)["MTP-09"][0]


@pytest.mark.parametrize(
    ("format_", "good", "bad"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, ["mtp."], SPLIT_ONLY),
        (BLOCK_FP8, ["mtp"], ["mtp.fc", "mtp.layers.0.mlp.down_proj"]),
    ],
    ids=["awq", "fp8"],
)
def test_other_formats_have_rules_of_their_own(format_: dict[str, Any], good: list[str], bad: list[str]) -> None:
    made = target()
    for entries, expected in ((good, set()), (bad, {"MTP-08"})):
        made.config["quantization_config"] = {**format_, "modules_to_not_convert": entries}
        made.card = card(entries)
        assert set(failed(made.check())) == expected


def test_awq_of_split_names_does_not_cover_the_fused_module() -> None:
    """``q_proj`` is no piece of ``qkv_proj``."""
    made = target()
    made.config["quantization_config"] = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 128,
        "modules_to_not_convert": SPLIT_ONLY,
    }
    findings = failed(made.check())["MTP-08"]
    assert len(findings) == 2


def test_auto_round_reads_extra_config_only() -> None:
    made = target()
    base = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}
    made.config["quantization_config"] = {**base, "modules_to_not_convert": ["mtp"]}
    assert {"TGT-02", "MTP-08"} <= set(failed(made.check()))
    made.config["quantization_config"] = {**base, "extra_config": {"mtp\\..*": {"bits": 16}}}
    made.card = card(["mtp\\..*"])
    assert set(failed(made.check())) == {"TGT-02"}


@pytest.mark.parametrize("method", ["gptq", "modelopt", "quark", "somebody's"])
def test_unknown_format_is_not_decided_and_not_passed(method: str) -> None:
    made = target()
    made.config["quantization_config"] = {"quant_method": method, "bits": 4, "group_size": 128}
    report = made.check()
    assert statuses(report)["MTP-04"] == "not decided"
    assert {statuses(report)[rule] for rule in ("MTP-05", "MTP-08", "MTP-09")} == {"not run"}
    assert "MTP-04" in report.refused_by


def test_head_with_experts_is_not_decided() -> None:
    made = target()
    made.tensors["mtp.layers.0.mlp.experts.0.up_proj.weight"] = ("BF16", (4, 4))
    report = made.check()
    assert {statuses(report)[rule] for rule in ("MTP-03", "MTP-04")} == {"not decided"}
    assert statuses(report)["MTP-08"] == "not run"
    assert not report.publishable_and_servable


def test_endless_expression_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignore, "SECONDS", 0.1)
    (finding,) = failed(target().exclude("re:(([a-z._0-9]+)+)+!").check())["MTP-04"]
    assert finding.startswith("matching takes more than 0.1 s")


def test_slow_reads_are_no_endless_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit is for matching; reading may take as long as the network does."""
    monkeypatch.setattr(ignore, "SECONDS", 0.05)
    slow = draft().source()
    read = slow._read

    def read_slowly(file: str, start: int, stop: int) -> bytes:
        time.sleep(0.03)
        return read(file, start, stop)

    monkeypatch.setattr(slow, "_read", read_slowly)
    assert gate.check(slow, "draft", Release("0.5.23"), full=True).publishable_and_servable


def test_messages_name_byte_counts() -> None:
    made = target()
    made.raw[SHARD] = lambda data: data[:-7]
    (finding,) = failed(made.check())["INT-05"]
    size = len(target().files()[SHARD])
    assert f"{size - 7} of {size} bytes, 7 are missing" in finding


def test_unindexed_shard_is_found_and_named() -> None:
    made = target()
    unindexed(made)
    assert failed(made.check())["INT-08"] == ("c.safetensors: no tensor of it is in the index (1 tensors)",)


def test_index_that_names_no_shard_of_here_is_refused() -> None:
    made = two_shards(target())
    made.index = {**index_of(made), "x.weight": "../../etc/passwd"}
    assert failed(made.check())["INT-07"] == ("x.weight: the index names ../../etc/passwd, which is not there",)


# Draft against target and profile.


def check_draft(made: Made, against: Made, **changes: Any) -> Report:
    case = Case(
        load(made.source()), "draft", "dflash2", Release("0.5.23"), profile(**changes)[1], load(against.source())
    )
    return gate.verdict(case, "native", 0.0)


def test_draft_that_fits_target_and_profile_passes() -> None:
    assert failed(check_draft(draft(), target())) == {}


@pytest.mark.parametrize(
    ("rule", "plant"),
    [
        ("DFL-10", lambda made: made.config.update(block_size=4)),
        ("DFL-10", lambda made: made.config.update(sliding_window=4096)),
        ("DFL-11", lambda made: made.config["dflash_config"].update(target_layer_ids=[5, 64])),
        ("DFL-11", lambda made: made.config["dflash_config"].update(target_layer_ids=[])),
        ("DFL-11", lambda made: made.config["dflash_config"].update(num_target_layers=48)),
        ("DFL-12", lambda made: made.config.update(rope_parameters={**small.NATIVE, "rope_theta": 10000})),
    ],
)
def test_draft_that_does_not_fit_fails(rule: str, plant: Plant) -> None:
    made = draft()
    plant(made)
    assert only(check_draft(made, target())) == rule


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size"])
def test_target_of_another_width_fails(key: str) -> None:
    other = target()
    other.text[key] = 48
    assert only(check_draft(draft(), other)) == "DFL-11"


def stretched(made: Made) -> Made:
    made.text.update(max_position_embeddings=1048576, rope_parameters=dict(small.YARN))
    return made


def test_native_draft_is_refused_for_the_1m_profile() -> None:
    report = check_draft(draft(), stretched(target()), context_length=1048576)
    assert set(failed(report)) == {"DFL-12", "DFL-13"}
    assert failed(check_draft(stretched(draft()), stretched(target()), context_length=1048576)) == {}


def test_stretched_draft_is_refused_for_the_native_profile() -> None:
    assert set(failed(check_draft(stretched(draft()), stretched(target())))) == {"DFL-13"}


@pytest.mark.parametrize(
    ("made", "context", "rules"),
    [
        (target(), 262144, set()),
        (target(), 1048576, {"TGT-04"}),
        (stretched(target()), 1048576, set()),
        (stretched(target()), 262144, {"TGT-04"}),
    ],
)
def test_target_is_the_revision_of_the_profile(made: Made, context: int, rules: set[str]) -> None:
    assert set(failed(made.check(profile=profile(context_length=context)))) == rules


def test_dflash2_needs_a_release_that_has_it() -> None:
    assert only(draft().check("0.5.18")) == "DFL-01"


def test_draft_without_profile_says_what_was_not_compared() -> None:
    found = statuses(draft().check())
    assert {found[rule] for rule in ("DFL-10", "DFL-11", "DFL-12", "DFL-13")} == {"skipped"}


# --full


def test_full_finds_zero_rows_and_late_nan() -> None:
    made = draft()
    row = b"\x80\x3f" * 8
    made.payload[CODEBOOKS[0]] = row * 63 + bytes(16)
    report = made.check(full=True)
    assert failed(report) == {"DFL-08": ("candidate_selector.predecessor_codebook: 1 of 64 rows are zero",)}


def test_full_finds_dead_scales() -> None:
    made = target()
    name = "model.language_model.layers.0.mlp.down_proj.weight_scale"
    for payload, finding in ((bytes(2), "4 zero, 0 NaN or infinite, of 4"), (NAN, "0 zero, 4 NaN or infinite, of 4")):
        made.payload[name] = payload
        assert failed(made.check()) == {}
        assert failed(made.check(full=True)) == {"TGT-05": (f"{name}: {finding}",)}


def test_every_rule_has_a_planted_fault() -> None:
    planted = {rule for rule, _, _ in (*TARGET_FAULTS, *DRAFT_FAULTS)}
    elsewhere = {"MTP-02", "MTP-07", "DFL-08", "DFL-10", "DFL-11", "DFL-12", "DFL-13", "TGT-04", "TGT-05"}
    assert planted | elsewhere == {rule.id for rule in RULES}


def test_rules_are_named_once_and_need_earlier_ones() -> None:
    names = [rule.id for rule in RULES]
    assert len(set(names)) == len(names)
    for at, rule in enumerate(RULES):
        assert set(rule.needs) <= set(names[:at]), rule.id
        assert rule.title
        assert rule.remedy
        assert "\n" not in rule.remedy


def test_folder_without_anything_is_refused_without_a_traceback() -> None:
    report = gate.check(in_memory({}), "target", Release("0.5.23"))
    assert {"CFG-01", "INT-01", "CARD-01"} <= set(report.refused_by)


def test_built_modules_are_those_of_the_class() -> None:
    assert [built.name.removeprefix("mtp.layers.0.") for built in MTP_BUILT] == [
        "self_attn.qkv_proj",
        "self_attn.o_proj",
        "mlp.gate_up_proj",
        "mlp.down_proj",
    ]
