"""Oracle of dflash2-walk-nan.patch, and reference for a base that has it: the walk stays inside its candidates.

The kernel file is imported alone and runs in Triton's interpreter. Candidates and scores lie in larger buffers, so that
what is read past their end is seen and not somebody else's memory.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch  # type: ignore[import-not-found]  # in the base image only
from drivers.standalone import kernel_module  # type: ignore[import-not-found]  # beside this file

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

pytestmark = pytest.mark.patch("dflash2-walk-nan.patch")

LINE = os.environ.get("SGX_LINE", "qwen3.8-27b")
FILE = "sglang/kernels/ops/speculative/dflash.py"
BATCH, SLOTS, TOP_K = 3, 4, 16
OUTSIDE = -1
NAN, INFINITY = float("nan"), float("inf")


@pytest.fixture(scope="module")
def walk(composed: Tree) -> Any:
    return kernel_module(composed.root, FILE).selector_walk_triton


@pytest.fixture(scope="module")
def upstream_walk(upstream: Tree) -> Any:
    return kernel_module(upstream.root, FILE).selector_walk_triton


def within(values: torch.Tensor, around: float) -> torch.Tensor:
    """The same values at the start of a buffer with as much again behind them."""
    buffer = torch.full((2 * values.numel(),), around, dtype=values.dtype)
    buffer[: values.numel()] = values.flatten()
    return buffer[: values.numel()].view(values.shape)


def given(*, greedy: bool) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(17)
    ids = torch.arange(BATCH * SLOTS * TOP_K).view(BATCH, SLOTS, TOP_K)
    return {
        "candidate_ids": within(ids, OUTSIDE),
        "scores": within(torch.randn(BATCH, SLOTS, TOP_K, TOP_K, generator=random), 0.0),
        "uniforms": torch.rand(BATCH, SLOTS, generator=random),
        "temperatures": torch.ones(BATCH),
        "greedy_mask": torch.full((BATCH,), greedy),
    }


def by_argmax(inputs: dict[str, torch.Tensor]) -> list[list[int]]:
    """The greedy walk, one slot after the other."""
    tokens = []
    for ids, scores in zip(inputs["candidate_ids"], inputs["scores"], strict=True):
        previous, path = 0, []
        for slot in range(SLOTS):
            previous = int(scores[slot, previous].argmax())
            path.append(int(ids[slot, previous]))
        tokens.append(path)
    return tokens


# Where the second request's scores are not numbers, and what they are there.
SPOILED: dict[str, tuple[Any, float]] = {
    "all NaN": ((1,), NAN),
    "the first slot NaN": ((1, 0), NAN),
    "the last slot NaN": ((1, SLOTS - 1), NAN),
    "one candidate NaN": ((1, 2, slice(None), 9), NAN),
    "all -infinity": ((1,), -INFINITY),
    "one candidate +infinity": ((1, 2, slice(None), 5), INFINITY),
}


def spoiled(where: str, *, greedy: bool) -> dict[str, torch.Tensor]:
    inputs = given(greedy=greedy)
    place, value = SPOILED[where]
    inputs["scores"][place] = value
    return inputs


@pytest.mark.parametrize("where", SPOILED)
def test_the_greedy_walk_picks_as_argmax(walk: Any, where: str) -> None:
    inputs = spoiled(where, greedy=True)
    tokens, q = walk(**inputs)
    assert tokens.tolist() == by_argmax(inputs)
    assert q.sum(-1).tolist() == [[1.0] * SLOTS] * BATCH


@pytest.mark.parametrize("where", SPOILED)
def test_the_sampled_walk_stays_inside(walk: Any, where: str) -> None:
    inputs = spoiled(where, greedy=False)
    tokens, _ = walk(**inputs)
    for token, ids in zip(tokens.flatten(), inputs["candidate_ids"].flatten(0, 1), strict=True):
        assert token in ids


def test_without_nan_every_bit_is_upstreams(walk: Any, upstream_walk: Any) -> None:
    for greedy in (True, False):
        for ours, theirs in zip(walk(**given(greedy=greedy)), upstream_walk(**given(greedy=greedy)), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.skipif(LINE == "qwen3.8-27b", reason="its upstream picks as argmax")
def test_upstream_leaves_its_candidates(upstream_walk: Any) -> None:
    inputs = spoiled("the last slot NaN", greedy=True)
    inputs["scores"][2, SLOTS - 1] = NAN  # the last request too: past its last candidate lies the buffer's rest
    tokens, _ = upstream_walk(**inputs)
    assert tokens[1, -1] not in inputs["candidate_ids"][1, -1]
    assert tokens[2, -1] == OUTSIDE
