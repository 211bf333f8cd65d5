"""``--fix-ignore``: only the exclusions change, they become right for the tensors, and the gate then agrees."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from pipeline.checkpoint import fix
from pipeline.checkpoint.checkpoint import CONFIG, load
from pipeline.checkpoint.naming import MTP_EXCLUSIONS
from pipeline.checkpoint.releases import KNOWN, Release
from pipeline.checkpoint.source import open_folder
from pipeline.errors import CheckpointError
from tests.fast.builders import write_files
from tests.fast.checkpoints import Made, card, failed, packed_head, target
from tests.fast.test_checkpoint_ignore import EXCLUSIONS

PIN = Release("0.5.23")


def fixed_list(made: Made, pin: Release = PIN) -> list[str]:
    fixed = fix.corrected(made.quantisation, load(made.source()), pin)
    found: list[str] = fixed["ignore"]
    return found


def test_a_list_of_the_vision_tower_becomes_complete() -> None:
    made = target().exclude("re:.*visual.*", "lm_head")
    assert fixed_list(made) == ["re:.*visual.*", "lm_head", *MTP_EXCLUSIONS]


def test_entries_that_match_nothing_go_and_what_is_missing_comes() -> None:
    made = target().exclude("mtp", "mtp.fc", "mtp.*", "mtp.layers.0.self_attn.q_proj", "lm_head")
    found = fixed_list(made)
    assert found[:3] == ["mtp.fc", "mtp.layers.0.self_attn.q_proj", "lm_head"]
    assert set(found) == {"lm_head", *MTP_EXCLUSIONS}


def test_a_packed_head_loses_its_exclusions() -> None:
    made = packed_head(target()).exclude("lm_head", "mtp.fc", *MTP_EXCLUSIONS[1:])
    assert fixed_list(made) == ["lm_head", "mtp.fc"]


def test_a_good_list_stays_as_it_is() -> None:
    for entries in (MTP_EXCLUSIONS, ("re:^mtp.*", "lm_head")):
        before, after = fix.correction(target().exclude(*entries).source(), PIN)
        assert before == after


@pytest.mark.parametrize("pin", KNOWN)
@pytest.mark.parametrize(
    "format_",
    [
        {"quant_method": "compressed-tensors", "ignore": ["mtp.*"], "config_groups": {"g": {"targets": ["Linear"]}}},
        {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["visual"]},
        {"quant_method": "awq", "bits": 4, "group_size": 128},
        {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", "mtp.x"]},
        {"quant_method": "fp8", "weight_block_size": [128, 128], "ignored_layers": ["lm_head"]},
        {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True},
    ],
    ids=["compressed-tensors", "awq", "awq without a list", "fp8", "fp8 ignored_layers", "auto-round"],
)
def test_each_format_is_corrected_for_each_release(pin: str, format_: dict[str, Any]) -> None:
    made = target()
    made.config["quantization_config"] = format_
    fixed = fix.corrected(format_, load(made.source()), Release(pin))
    assert list(fixed)[: len(format_)] == list(format_)
    made.config["quantization_config"] = fixed
    assert [rule for rule in failed(made.check(pin)) if rule.startswith("MTP")] == []


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(EXCLUSIONS)
def test_a_corrected_list_passes_the_gate_or_there_is_a_reason(entries: list[str]) -> None:
    made = target().exclude(*entries)
    try:
        corrected = fixed_list(made)
    except CheckpointError:
        return
    report = made.exclude(*corrected).check()
    assert [rule for rule in failed(report, severity="error") if rule.startswith("MTP")] == []
    assert [entry for entry in corrected if "mtp" not in entry.lower()] == [
        e for e in entries if "mtp" not in e.lower()
    ]


def test_codes_without_a_scale_are_no_plain_weight() -> None:
    """To exclude them would make the release read codes as numbers."""
    made = target()
    made.config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    for name in [name for name in made.tensors if "_proj." in name and name.startswith("mtp.")]:
        made.tensors[name] = ("F8_E4M3", (4, 4))
    assert fix.corrected(made.quantisation, load(made.source()), PIN).get("ignored_layers") in ([], None)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"quant_method": "gptq"}, "not decided"),
        ({"ignore": ["re:("]}, "no regular expression"),
        ({"ignore": 7}, "no list of texts"),
    ],
)
def test_what_cannot_be_corrected_says_why(change: dict[str, Any], says: str) -> None:
    made = target()
    made.quantisation.update(change)
    with pytest.raises(CheckpointError, match=says):
        fix.correction(made.source(), PIN)


def test_expression_that_takes_in_too_much_needs_a_hand() -> None:
    made = packed_head(target()).exclude("re:.*_proj")
    with pytest.raises(CheckpointError, match="no entry that speaks of MTP decides"):
        fix.correction(made.source(), PIN)


def test_no_quantisation_is_nothing_to_correct() -> None:
    made = target()
    del made.config["quantization_config"]
    with pytest.raises(CheckpointError, match="no quantization_config"):
        fix.correction(made.source(), PIN)


def test_damaged_header_is_not_guessed_at() -> None:
    made = target()
    made.raw["model.safetensors"] = lambda data: bytes(8) + data[8:]
    with pytest.raises(CheckpointError, match="INT-01"):
        fix.correction(made.source(), PIN)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("indent", [2, 4])
def test_written_config_keeps_order_unknown_keys_and_style(tmp_path: Path, indent: int, nested: bool) -> None:
    made = target().exclude("lm_head")
    made.config = {"zeta": "ü", **made.config, "alpha": [1e-6, None]}
    if nested:
        made.text["quantization_config"] = made.config.pop("quantization_config")
    made.raw[CONFIG] = lambda _: json.dumps(made.config, indent=indent, ensure_ascii=False).encode()
    folder = write_files(tmp_path / "model", made.files())
    others = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != CONFIG}
    opened = open_folder(folder)
    before, after = fix.correction(opened, PIN)
    assert fix.write(opened, after) == folder / CONFIG
    written = (folder / CONFIG).read_text(encoding="utf-8")
    assert written == after
    expected = json.loads(before)
    holder = expected["text_config"] if nested else expected
    holder["quantization_config"]["ignore"] = ["lm_head", *MTP_EXCLUSIONS]
    assert written == json.dumps(expected, indent=indent, ensure_ascii=False)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != CONFIG} == others


def test_diff_shows_the_quantisation_config_only() -> None:
    before, after = fix.correction(target().exclude("mtp.*", *MTP_EXCLUSIONS[:9]).source(), PIN)
    text = fix.diff(before, after, "model")
    changed = [line for line in text.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed[0].strip("- ,") == '"mtp.*"'
    assert changed[-1].strip("+ ,") == f'"{MTP_EXCLUSIONS[9]}"'
    assert "architectures" not in text
    assert fix.diff(before, before, "model") == ""


def test_a_hub_repository_is_not_written_to() -> None:
    with pytest.raises(CheckpointError, match="--write needs a folder"):
        fix.write(target().source(), "{}")


def test_card_is_left_to_the_card() -> None:
    made = target().exclude("lm_head")
    made.exclude(*fixed_list(made))
    made.card = card(["lm_head"])
    assert set(failed(made.check())) == {"CARD-04"}
