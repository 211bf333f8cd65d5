"""Oracle of mtp-load-coverage.patch: an MTP head that its checkpoint did not fill is refused at start, and only that.

The driver presets every parameter (NaN, or a number that no checkpoint holds) before the real loader runs, so what
nothing wrote is known independently of what the guard recorded. Upstream starts with every one of these heads.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from draft_starts import draft_starts  # type: ignore[import-not-found]  # these three lie beside this file
from gate import gate_module  # type: ignore[import-not-found]
from mtp_checkpoints import BY_PARTS, COMPLETE, EXPERT, INCOMPLETE, LAYER  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

pytestmark = pytest.mark.patch("mtp-load-coverage.patch")

naming = gate_module("naming")

SHARED = {"lm_head.weight", "model.embed_tokens.weight"}
DEFAULTED = ("k_scale", "v_scale", "weight_shape")
"""Suffixes that no checkpoint has to fill: scales of the KV cache, and a shape that nothing reads."""


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


def entries(error: str) -> list[str]:
    """The exclusions that a message asks for."""
    _, found, text = error.partition("modules_to_not_convert for FP8 and AWQ): ")
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
        ("half a shared expert", ["model.layers.0.mlp.shared_expert.gate_up_proj.weight (1)"]),
    ],
)
def test_the_message_names_shards_and_experts(ours: dict[str, Any], name: str, missing: list[str]) -> None:
    assert named(ours[f"MTP {name}"]["error"]) == missing
    assert entries(ours[f"MTP {name}"]["error"]) == []


@pytest.mark.parametrize("name", ["plain, and not excluded", "plain, under block FP8"])
def test_the_message_asks_for_the_exclusions_that_the_gate_knows(ours: dict[str, Any], name: str) -> None:
    """They are the checkpoint gate's own list, but for ``mtp.fc``, which SGLang never quantises."""
    assert entries(ours[f"MTP {name}"]["error"]) == sorted(set(naming.MTP_EXCLUSIONS) - {naming.MTP_FC})


def test_the_message_asks_only_for_what_lacks(ours: dict[str, Any]) -> None:
    found = entries(ours["MTP plain, and excluded by fused names alone"]["error"])
    assert found == [f"{LAYER}.mlp.down_proj", f"{LAYER}.self_attn.o_proj"]


def test_the_message_knows_experts(ours: dict[str, Any]) -> None:
    found = entries(ours["MTP plain experts, under block FP8"]["error"])
    assert {EXPERT, r"re:^mtp\.layers\.0\.mlp[.]experts[.].*", f"{LAYER}.mlp.shared_expert.gate_up_proj"} <= set(found)
    assert not any("experts.0" in entry for entry in found)


@pytest.mark.parametrize("name", ["complete", "experts", "dummy"])
def test_a_partial_update_and_a_dummy_start_pass(ours: dict[str, Any], name: str) -> None:
    assert ours[f"MTP {name}"]["error"] is None
    assert ours[f"MTP {name}"]["updated"] is True
