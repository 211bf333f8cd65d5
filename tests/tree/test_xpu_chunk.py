"""Prefill on XPU leaves the states that the gated delta rule defines, also at each chunk's start.

XPU has two chunk kernels of its own, chosen when SGLang is imported. The states at the chunks' starts are what the
radix cache's checkpoints inside a prompt are copied from: a wrong one costs no error, only the answers after a hit.
The tiny models of tests/e2e run the generic kernels, so here are XPU's, in Triton's interpreter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

FOLDER = "sglang.srt.hardware_backend.xpu.kernels.fla"
MEASURES = ("outputs", "states", "pool", "resumed")


def case(name: str, lengths: list[int], **fields: Any) -> dict[str, Any]:
    service = {"heads": [1, 2], "dtype": "float32", "decay": 0.2, "altered": None}
    return {"name": name, "lengths": lengths, **service, **fields}


# A chunk has 64 tokens: below, at and above it, one token, and several chunks.
LENGTHS = [63, 1, 65, 64, 192]
SOUND = [
    case("lengths", LENGTHS),
    # Gates down to exp(-5): over a chunk their product is zero in FP32, and its inverse would be infinite.
    case("strong decay, two groups of heads", [70], heads=[2, 4], decay=5.0),
    case("float16", [70], dtype="float16"),
]
# Measured: 4e-7, 1.4e-6 under strong decay (sums of large logarithms round more), and 6e-4.
BOUNDS = {"float32": 5e-6, "float16": 2e-3}
SEEN = 100 * BOUNDS["float32"]
# What an operand of the last token of a chunk reaches; a query is no part of any state.
REACH = {"q": {"outputs"}, **{operand: set(MEASURES) for operand in ("k", "v", "gate", "beta", "pool")}}
ALTERED = {operand: case(f"altered {operand}", LENGTHS, altered=operand) for operand in REACH}
CASES = [*SOUND, *ALTERED.values()]


@pytest.fixture(scope="module")
def measured(composed: Tree) -> dict[str, Any]:
    return composed.measure("xpu_chunk", CASES)


@pytest.mark.parametrize("each", SOUND, ids=lambda each: each["name"])
def test_states_and_outputs_follow_the_fp64_recurrence(measured: dict[str, Any], each: dict[str, Any]) -> None:
    differences = {name: measured[each["name"]][name] for name in MEASURES}
    assert all(value < BOUNDS[each["dtype"]] for value in differences.values()), differences


def test_the_kernels_are_those_of_xpu(measured: dict[str, Any]) -> None:
    assert measured["lengths"]["kernels"] == [f"{FOLDER}.chunk_delta_h", f"{FOLDER}.chunk_fwd"]


@pytest.mark.parametrize("operand", REACH)
def test_another_token_at_the_end_of_a_chunk_is_seen(measured: dict[str, Any], operand: str) -> None:
    """The comparison has teeth: against a reference with another value there, all that the value reaches is off."""
    found = measured[ALTERED[operand]["name"]]
    assert {name for name in MEASURES if found[name] > SEEN} == REACH[operand]
    assert all(found[name] < BOUNDS["float32"] for name in set(MEASURES) - REACH[operand])
