"""The exclusion rules by themselves; ``tests/tree/test_ignore_matcher.py`` compares them with SGLang's own."""

import json
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.checkpoint import gate, ignore, mtp_head
from pipeline.checkpoint.checkpoint import load
from pipeline.checkpoint.naming import MTP_BUILT, MTP_EXCLUSIONS, MTP_PARTS
from pipeline.checkpoint.releases import KNOWN, Release, release
from pipeline.checkpoint.rule import MODES, Case
from pipeline.errors import CheckpointError
from tests.fast.checkpoints import card, draft, profile, target
from tests.fast.test_checkpoint_header import JSON

BUILT = [built.name for built in MTP_BUILT]
SPLIT = [name for name in MTP_EXCLUSIONS if name not in BUILT or name in MTP_PARTS]


def verdicts(entries: list[str], fused: ignore.Fused) -> list[bool]:
    return [ignore.compressed_tensors(name, entries, fused) for name in BUILT]


@pytest.mark.parametrize(
    ("entries", "without_table", "with_table"),
    [
        ([], "....", "...."),
        (["re:.*visual.*"], "....", "...."),
        (SPLIT, ".x.x", "xxxx"),
        (list(MTP_EXCLUSIONS), "xxxx", "xxxx"),
        (["mtp.layers.0.self_attn.qkv_proj", "mtp.layers.0.mlp.gate_up_proj"], "x.x.", "x.x."),
        (["mtp"], "....", "...."),
        (["mtp.*"], "....", "...."),
        (["mtp.layers.0"], "....", "...."),
        (["re:^mtp.*"], "xxxx", "xxxx"),
        (["o_proj"], ".x..", ".x.."),
        ([f"self_attn.{part}_proj" for part in "qkvo"], ".x..", "xx.."),
    ],
)
def test_compressed_tensors(entries: list[str], without_table: str, with_table: str) -> None:
    """Columns: qkv, o, gate_up, down; x is left unquantised."""
    assert verdicts(entries, {}) == [mark == "x" for mark in without_table]
    assert verdicts(entries, ignore.QWEN3_5_FUSED) == [mark == "x" for mark in with_table]


def test_mixed_parts_stop_the_server_where_there_is_a_table() -> None:
    entries = ["mtp.layers.0.self_attn.q_proj"]
    assert not any(verdicts(entries, {}))
    with pytest.raises(ignore.Refused, match="some of its parts"):
        verdicts(entries, ignore.QWEN3_5_FUSED)


def test_awq_matches_any_piece_of_text() -> None:
    assert all(ignore.awq(name, ["mtp"]) for name in BUILT)
    assert not ignore.awq(BUILT[0], ["q_proj"])
    assert ignore.awq(BUILT[0], ["v_proj"])


def test_fp8_matches_components_and_parts() -> None:
    assert all(ignore.fp8(name, ["mtp"], {}) for name in BUILT)
    assert not ignore.fp8(BUILT[0], [BUILT[0]], {})
    assert ignore.fp8("a.mlp.gate", ["mlp.gate"], {})
    assert not ignore.fp8("a.mlp.gate_proj", ["mlp.gate"], {})
    assert ignore.fp8(BUILT[1], [f"model.{BUILT[1]}"], {})


def test_auto_round_fuses_settings() -> None:
    config = {"bits": 4, "group_size": 128, "sym": True}
    assert not ignore.auto_round(BUILT[0], config, {})
    assert ignore.auto_round(BUILT[0], {**config, "block_name_to_quantize": "model.layers"}, {})
    part = "mtp.layers.0.self_attn.q_proj"
    with pytest.raises(ignore.Refused):
        ignore.auto_round(BUILT[0], {**config, "extra_config": {part: {"bits": 16}}}, ignore.QWEN3_5_FUSED)


def test_expression_that_is_none_is_refused_as_such() -> None:
    for pattern in ("(", "a{99999999999999999999}", "(?P<a>x)(?P<a>y)"):
        with pytest.raises(ignore.Refused, match="no regular expression"):
            ignore.expression(pattern)


def test_time_limit_leaves_other_threads_alone() -> None:
    seen: list[str] = []

    def work() -> None:
        with ignore.time_limit():
            seen.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == ["done"]


ENTRY = (
    st.text(max_size=12)
    | st.sampled_from(
        [*MTP_EXCLUSIONS, "mtp", "mtp.*", "re:^mtp.*", "re:(", "re:[[a", "re:", "", "model.mtp.fc", "re:.*"]
    )
    | st.text(max_size=12).map("re:".__add__)
)
EXCLUSIONS = st.lists(ENTRY, max_size=8)
METHODS = ("compressed-tensors", "awq", "fp8", "auto-round")
EVERYTHING = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=60)


@EVERYTHING
@given(EXCLUSIONS, st.sampled_from(KNOWN), st.sampled_from(["ignore", "modules_to_not_convert"]))
def test_arbitrary_exclusions_get_an_answer(entries: list[str], pin: str, key: str) -> None:
    made = target()
    made.quantisation.pop("ignore")
    made.quantisation[key] = entries
    made.quantisation["quant_method"] = "compressed-tensors" if key == "ignore" else "awq"
    made.card = card(entries)
    assert made.check(pin).results


@EVERYTHING
@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(("ignore", "modules_to_not_convert", "extra_config"), JSON)),
    JSON,
)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", MODES)
def test_arbitrary_quantisation_gets_an_answer(method: str, mode: Any, lists: dict[str, Any], anything: Any) -> None:
    made = target()
    made.config["quantization_config"] = {
        "quant_method": method,
        "config_groups": anything,
        "weight_block_size": anything,
        "block_name_to_quantize": anything,
        "bits": 4,
        "group_size": anything,
        **lists,
    }
    assert made.check(mode=mode).results


@EVERYTHING
@given(JSON)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_arbitrary_config_gets_an_answer(role: str, document: Any) -> None:
    made = target()
    made.raw["config.json"] = lambda _: json.dumps(document).encode()
    made.role = role  # type: ignore[assignment]
    assert made.check().results


@EVERYTHING
@given(st.text(max_size=200), st.binary(max_size=50))
def test_arbitrary_card_gets_an_answer(text: str, more: bytes) -> None:
    made = target()
    made.card = f"---\n{text}\n---\n## Quantization\n```\n{text}\n"
    assert made.check().results
    made.raw["README.md"] = lambda data: data + more
    assert made.check().results


def test_releases_are_those_that_were_read() -> None:
    assert [bool(Release(version).mtp_fused) for version in KNOWN] == [False] * 4 + [True] * 3
    assert release("sglang==0.5.20").version == "0.5.20"
    assert release("0.5.20").version == "0.5.20"
    for unknown in ("0.5.24", "vllm==0.1", ""):
        with pytest.raises(CheckpointError, match=r"0\.5\.17"):
            release(unknown)


def test_classes_appear_with_their_release() -> None:
    first = {
        name: next(version for version in KNOWN if name in Release(version).architectures)
        for name in ("Qwen3_5ForConditionalGeneration", "DFlash2DraftModel", "DFlash2BeamDraftModel")
    }
    assert list(first.values()) == ["0.5.17", "0.5.19", "0.5.23"]


def test_list_keys_follow_sglang() -> None:
    assert mtp_head.list_key({"quant_method": "fp8", "ignored_layers": None, "modules_to_not_convert": ["a"]}) == (
        "modules_to_not_convert"
    )
    assert mtp_head.list_key({"quant_method": "compressed_tensors"}) == "ignore"


def paths(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value of a JSON document is."""
    rows = document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    below = [found for key, value in rows for found in paths(value, (*path, key))]
    return [path, *below] if path else below


VALUES = JSON | st.sampled_from([10**400, -1, 0, 1e308, float("nan"), float("inf"), [], {}, [[]], ["re:("], "re:("])


@settings(deadline=None, max_examples=300)
@given(st.data())
@pytest.mark.parametrize("role", ["target", "draft"])
def test_any_one_value_of_a_config_may_be_anything(role: str, data: st.DataObject) -> None:
    made = target() if role == "target" else draft()
    if role == "target" and data.draw(st.booleans()):
        made.quantisation.update(quant_method="auto-round", bits=4, group_size=128, sym=True)
        made.quantisation["extra_config"] = {"mtp.fc": {"bits": 16}}
    if data.draw(st.booleans()):
        stretched = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 262144}
        made.text["rope_parameters"] = stretched
    place = data.draw(st.sampled_from(paths(made.config)))
    holder = made.config
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = data.draw(VALUES)
    for mode in MODES:
        case = Case(
            load(made.source()), made.role, mode, Release("0.5.23"), profile()[1], load(made.source(), config_only=True)
        )
        assert gate.verdict(case, None, 0.0).results
