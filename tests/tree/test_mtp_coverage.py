"""Oracle of mtp-load-coverage.patch: an MTP head that its checkpoint did not fill is refused at start, and only that.

The driver presets every parameter (NaN, or a number that no checkpoint holds) before the real loader runs, so what
nothing wrote is known independently of what the guard recorded. Upstream starts with every one of these heads.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

import pytest
from draft_starts import draft_starts  # type: ignore[import-not-found]  # these three lie beside this file
from gate import gate_module  # type: ignore[import-not-found]
from mtp_checkpoints import (  # type: ignore[import-not-found]
    BY_PARTS,
    COMPLETE,
    EXPERT,
    EXPERTS_EXCLUDED,
    INCOMPLETE,
    LAYER,
    UNDECODED,
)

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

pytestmark = pytest.mark.patch("mtp-load-coverage.patch")

naming = gate_module("naming")

SHARED = {"lm_head.weight", "model.embed_tokens.weight"}
DEFAULTED = ("k_scale", "v_scale", "weight_shape", "g_idx", "g_idx_sort_indices")
"""Suffixes that no checkpoint has to fill: scales of the KV cache, a shape that nothing reads, an order of channels."""


@pytest.fixture(scope="module")
def ours(composed: Tree) -> Any:
    return draft_starts(composed)


@pytest.fixture(scope="module")
def theirs(upstream: Tree) -> Any:
    return draft_starts(upstream)


@pytest.fixture(scope="module")
def parts_known(upstream: Tree) -> bool:
    """Whether the unpatched class says which parts its fused modules have."""
    return "packed_modules_mapping" in upstream.source("sglang/srt/models/qwen3_5_mtp.py")


def unfilled(measured: dict[str, Any]) -> set[str]:
    return {name for name in measured["unfilled"] if name not in SHARED and not name.endswith(DEFAULTED)}


def named(error: str) -> list[str]:
    """The missing parameters of a message, each with its shards."""
    found = re.search(r"missing: (.*?)(?:, and \d+ more)?\. Such a head", error)
    assert found is not None
    return re.split(r", (?![^(]*\))", found[1])


def entries(error: str, do: str = "add to") -> list[str]:
    """The exclusions that a message asks for, or wants off the list."""
    _, found, text = error.partition(f"{do} its ignore list (modules_to_not_convert for FP8 and AWQ): ")
    return text.removesuffix(".").split(", ") if found else []


@pytest.mark.parametrize("each", COMPLETE, ids=lambda each: each["name"])
def test_a_complete_head_is_loaded_as_before(
    ours: dict[str, Any],
    theirs: dict[str, Any],
    parts_known: bool,
    each: dict[str, Any],
) -> None:
    measured = ours[each["name"]]
    assert measured["error"] is None
    assert [name for name in unfilled(measured) if "scale" not in name] == []
    if not unfilled(measured) and (parts_known or each is not BY_PARTS):
        assert measured["digest"] == theirs[each["name"]]["digest"]


@pytest.mark.parametrize("each", INCOMPLETE, ids=lambda each: each["name"])
def test_an_incomplete_head_is_refused_by_what_is_missing(ours: dict[str, Any], each: dict[str, Any]) -> None:
    measured = ours[each["name"]]
    assert measured["error"] is not None
    count = re.search(r"filled (\d+) of (\d+) parameters", measured["error"])
    assert count is not None
    assert int(count[2]) - int(count[1]) == len(unfilled(measured))
    shown = [text.partition(" (")[0] for text in named(measured["error"])]
    assert len(shown) == min(len(unfilled(measured)), 8)
    assert set(shown) <= unfilled(measured)


@pytest.mark.parametrize("each", INCOMPLETE, ids=lambda each: each["name"])
def test_upstream_serves_it(theirs: dict[str, Any], each: dict[str, Any]) -> None:
    measured = theirs[each["name"]]
    assert measured["error"] is None
    assert unfilled(measured)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("q alone", ["model.layers.0.qkv_proj.weight (k, v)"]),
        ("without mtp.layers.0.mlp.up_proj.weight", ["model.layers.0.mlp.gate_up_proj.weight (1)"]),
        ("packed, without one scale", ["model.layers.0.qkv_proj.weight_scale (k)"]),
        ("one part of one expert", ["model.layers.0.mlp.experts.w13_weight (expert 1 w3)"]),
        (
            "one expert",
            [
                "model.layers.0.mlp.experts.w13_weight (expert 2 w1, expert 2 w3)",
                "model.layers.0.mlp.experts.w2_weight (expert 2 w2)",
            ],
        ),
        ("packed, and k plain", [f"model.layers.0.qkv_proj.{name} (k)" for name in ("weight_packed", "weight_scale")]),
        ("block FP8, without one scale", ["model.layers.0.qkv_proj.weight_scale_inv (k)"]),
        ("block FP8, without a scale of one part", ["model.layers.0.mlp.down_proj.weight_scale_inv"]),
        (
            "experts in block FP8, without one scale",
            ["model.layers.0.mlp.experts.w13_weight_scale_inv (expert 1 w3)"],
        ),
        ("experts packed, without one scale", ["model.layers.0.mlp.experts.w13_weight_scale (expert 1 w3)"]),
        (
            "static FP8, without scales of inputs",
            [
                f"model.layers.0.{name}.input_scale"
                for name in ("qkv_proj", "o_proj", "mlp.gate_up_proj", "mlp.down_proj")
            ],
        ),
        ("static FP8 by compressed-tensors, without one of them", ["model.layers.0.qkv_proj.input_scale (k)"]),
        (
            "experts in static FP8, without one of them",
            ["model.layers.0.mlp.experts.w13_input_scale (expert 1 w1, expert 1 w3)"],
        ),
        ("half a shared expert", ["model.layers.0.mlp.shared_expert.gate_up_proj.weight (1)"]),
    ],
)
def test_the_message_names_shards_and_experts(ours: dict[str, Any], name: str, missing: list[str]) -> None:
    assert named(ours[f"MTP {name}"]["error"]) == missing
    assert entries(ours[f"MTP {name}"]["error"]) == []
    assert "Use a checkpoint that has them" in ours[f"MTP {name}"]["error"]


@pytest.mark.parametrize("name", ["plain, and not excluded", "plain, under block FP8"])
def test_the_message_asks_for_the_exclusions_that_the_gate_knows(ours: dict[str, Any], name: str) -> None:
    """They are the checkpoint gate's own list, but for ``mtp.fc``, which SGLang never quantises."""
    assert entries(ours[f"MTP {name}"]["error"]) == sorted(set(naming.MTP_EXCLUSIONS) - {naming.MTP_FC})


def test_the_gate_and_the_guard_know_packed_modules_alike(composed: Tree) -> None:
    guard = ast.parse(composed.source("sglang/srt/model_loader/load_coverage.py"))
    values = [
        row.value
        for row in guard.body
        if isinstance(row, ast.Assign) and ast.unparse(row.targets[0]) == "_QUANTIZED_SUFFIXES"
    ]
    assert [f".{suffix}" for suffix in ast.literal_eval(values[0])] == list(naming.SCALE_SUFFIXES)


@pytest.mark.parametrize(
    "name", ["packed, without one scale", "block FP8, without one scale", "static FP8, without scales of inputs"]
)
def test_the_gate_lacks_the_same_scales(name: str) -> None:
    """Scales of inputs are the guard's alone: the gate passes no static FP8 at all."""
    (each,) = [each for each in INCOMPLETE if each["name"] == f"MTP {name}"]
    stored = {"float8_e4m3fn": "F8_E4M3", "bfloat16": "BF16"}
    dtypes = {tensor: stored.get(dtype, "I32") for tensor, (dtype, _) in each["tensors"].items()}
    lacking = {part: found for part in naming.MTP_PARTS if (found := naming.lacks(part, dtypes))}
    assert {naming.on_disk(part, dtypes) for part in naming.MTP_PARTS} == {"packed"}
    assert lacking == ({} if "inputs" in name else {f"{LAYER}.self_attn.k_proj": "scale"})


def test_the_message_asks_only_for_what_lacks(ours: dict[str, Any]) -> None:
    found = entries(ours["MTP plain, and excluded by fused names alone"]["error"])
    assert found == [f"{LAYER}.mlp.down_proj", f"{LAYER}.self_attn.o_proj"]


def test_the_message_knows_experts(ours: dict[str, Any]) -> None:
    found = entries(ours["MTP plain experts, under block FP8"]["error"])
    assert {EXPERT, r"re:^mtp\.layers\.0\.mlp[.]experts[.].*", f"{LAYER}.mlp.shared_expert.gate_up_proj"} <= set(found)
    assert not any("experts.0" in entry for entry in found)


BUILT = sorted(set(naming.MTP_EXCLUSIONS) - {naming.MTP_FC})


@pytest.mark.parametrize("each", UNDECODED, ids=lambda each: each["name"])
def test_codes_without_their_scales_are_refused(ours: dict[str, Any], each: dict[str, Any]) -> None:
    """The mirror of a plain head that is not excluded: every parameter is filled, and none of them decoded."""
    measured = ours[each["name"]]
    assert measured["error"] is not None
    assert unfilled(measured) == set()
    assert "without a place for their scales: mtp." in measured["error"]
    assert "missing:" not in measured["error"]
    assert entries(measured["error"]) == []


@pytest.mark.parametrize("each", UNDECODED, ids=lambda each: each["name"])
def test_upstream_serves_the_codes(theirs: dict[str, Any], each: dict[str, Any]) -> None:
    assert theirs[each["name"]]["error"] is None


@pytest.mark.parametrize(
    ("name", "excess"),
    [
        ("block FP8, and excluded", BUILT),
        ("static FP8, and excluded", BUILT),
        ("packed, and excluded", BUILT),
        ("block FP8, and excluded by a parent", ["mtp"]),
        ("FP8 by compressed-tensors, and excluded", ["re:^mtp.*"]),
        ("block FP8, and down_proj is excluded", [f"{LAYER}.mlp.down_proj"]),
        ("experts in block FP8, and excluded", [EXPERTS_EXCLUDED]),
        ("block FP8, without a config", []),
        ("fc in block FP8", []),
    ],
)
def test_the_message_names_the_exclusions_that_are_too_many(ours: dict[str, Any], name: str, excess: list[str]) -> None:
    error = ours[f"MTP {name}"]["error"]
    assert entries(error, "take off") == excess
    assert ("the model builds them plain: mtp." in error) == (not excess)
    assert "Use a checkpoint" not in error


def test_a_class_that_inherits_the_method_is_not_judged(
    composed: Tree, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    if not (composed.root / "sglang/srt/models/qwen4_exp_mtp.py").is_file():
        pytest.skip("no class of this release inherits the method")
    assert ours["MTP inherited"]["error"] is None
    assert ours["MTP inherited"]["digest"] == theirs["MTP inherited"]["digest"]
    assert ours["MTP q alone"]["error"] is not None


@pytest.mark.parametrize("name", ["complete", "experts", "dummy"])
def test_a_partial_update_and_a_dummy_start_pass(ours: dict[str, Any], name: str) -> None:
    assert ours[f"MTP {name}"]["error"] is None
    assert ours[f"MTP {name}"]["updated"] is True
