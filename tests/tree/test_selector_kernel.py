"""Oracle of the selector kernel (overlays/dflash-selector): one launch equals tables and walk written as loops.

The kernel file needs torch and triton only, so it is imported from the composed tree alone, without SGLang. It runs
in Triton's interpreter, in FP16 and FP32: the interpreter computes BF16 wrongly.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch  # type: ignore[import-not-found]  # in the base image only
from drivers.selector_loops import Given, draw, tables, walk  # type: ignore[import-not-found]  # beside this file
from drivers.standalone import kernel_module  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

pytestmark = pytest.mark.patch("dflash-selector-triton.patch")

FILE = "sglang/kernels/ops/speculative/dflash_selector.py"
UPSTREAM_WALK = "sglang/kernels/ops/speculative/dflash.py"
SLOTS, TOP_K, RANK = 7, 16, 256  # of the Qwen3.8 draft: a block of eight, the top 16, the codebooks' width
VOCAB = 512  # rows of a codebook that a test needs; its size changes nothing but the ids

# FP32 sums of 256 products of halves against FP64; q inherits the error of its scores.
ROUNDING = 2e-5


@pytest.fixture(scope="module")
def propose(composed: Tree) -> Any:
    return kernel_module(composed.root, FILE).selector_propose_triton


@pytest.fixture(scope="module")
def upstream_walk(upstream: Tree) -> Any:
    return kernel_module(upstream.root, UPSTREAM_WALK).selector_walk_triton


def check(propose: Any, given: Given) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens equal the loops' where no choice hangs by a rounding, and so do the distributions."""
    tokens, q = propose(**given.arguments())
    expected, distributions, margin = walk(given, tables(given))
    assert float(margin.min()) > ROUNDING, "choose another seed: a decision hangs by a rounding"
    assert torch.equal(tokens, expected)
    assert q.dtype == torch.float32
    assert float((q.double() - distributions).abs().max()) < ROUNDING
    return tokens, q


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_production_shapes_greedy_and_sampled(propose: Any, batch: int) -> None:
    given = draw(batch, SLOTS, TOP_K, RANK, VOCAB, torch.float16, seed=batch)
    tokens, q = check(propose, given)
    assert torch.isin(tokens, given.candidate_ids).all()
    for b in range(batch):
        for s in range(SLOTS):
            assert tokens[b, s] in given.candidate_ids[b, s]
    assert torch.allclose(q.sum(-1), torch.ones(batch, SLOTS))
    assert set(q[given.greedy_mask].unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(("slots", "top_k", "rank"), [(1, 16, 256), (7, 1, 256), (3, 12, 40), (15, 16, 64)])
def test_other_shapes(propose: Any, slots: int, top_k: int, rank: int) -> None:
    """Top-k one, and widths that are no power of two."""
    check(propose, draw(3, slots, top_k, rank, VOCAB, torch.float32, seed=2))


def test_exact_ties_take_the_first_candidate(propose: Any) -> None:
    given = draw(6, SLOTS, TOP_K, 8, VOCAB, torch.float16, seed=3, integers=True)
    given = replace(given, greedy_mask=torch.ones(6, dtype=torch.bool))
    tokens, q = propose(**given.arguments())
    expected, distributions, margin = walk(given, tables(given))
    assert int((margin == 0).sum()) > 10
    assert torch.equal(tokens, expected)
    assert torch.equal(q.double(), distributions)


def test_a_uniform_number_on_a_step_passes_it(propose: Any) -> None:
    """Equal scores: 16 steps of exactly 1/16. A number on a step belongs to the next candidate, 0 to the first."""
    given = draw(1, SLOTS, TOP_K, RANK, VOCAB, torch.float16, seed=4)
    given = replace(
        given,
        unary_logits=torch.zeros(1, SLOTS, TOP_K),
        hidden=torch.zeros_like(given.hidden),
        uniforms=torch.tensor([[0.0, 1 / 16, 0.5, 15 / 16, 1.0, 0.24, 0.26]]),
        greedy_mask=torch.tensor([False]),
    )
    tokens, q = propose(**given.arguments())
    picked = [int((given.candidate_ids[0, s] == tokens[0, s]).nonzero()) for s in range(SLOTS)]
    assert picked == [0, 1, 8, 15, 15, 3, 4]
    assert torch.equal(q, torch.full_like(q, 1 / 16))


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "sampled"])
@pytest.mark.parametrize("where", ["all", "first slot", "one candidate"])
def test_nan_rows_stay_within_the_candidates(propose: Any, upstream_walk: Any, where: str, greedy: bool) -> None:
    """A NaN must not turn into an index outside the candidates, nor reach another request."""
    clean = draw(3, 3, TOP_K, 32, VOCAB, torch.float32, seed=5)
    clean = replace(clean, greedy_mask=torch.full((3,), greedy))
    unary = clean.unary_logits.clone()
    unary[{"all": (1,), "first slot": (1, 0), "one candidate": (1, 2, 9)}[where]] = float("nan")
    given = replace(clean, unary_logits=unary)
    tokens, q = propose(**given.arguments())
    reference = upstream_walk(
        candidate_ids=given.candidate_ids,
        scores=tables(given).float(),
        uniforms=given.uniforms,
        temperatures=given.temperatures,
        greedy_mask=given.greedy_mask,
    )
    assert torch.equal(tokens, reference[0])
    assert torch.allclose(q, reference[1], atol=ROUNDING, equal_nan=True)
    for s in range(3):
        assert tokens[1, s] in given.candidate_ids[1, s]
    for other in (0, 2):
        same = propose(**clean.arguments())
        assert torch.equal(tokens[other], same[0][other])
        assert torch.equal(q[other], same[1][other])


def test_upstreams_walk_over_the_loops_tables_agrees(propose: Any, upstream_walk: Any) -> None:
    """What CUDA does today, tables and then a walk, gives the same tokens and distributions."""
    given = draw(4, SLOTS, TOP_K, RANK, VOCAB, torch.float16, seed=6)
    tokens, q = check(propose, given)
    reference = upstream_walk(
        candidate_ids=given.candidate_ids,
        scores=tables(given).float(),
        uniforms=given.uniforms,
        temperatures=given.temperatures,
        greedy_mask=given.greedy_mask,
    )
    assert torch.equal(tokens, reference[0])
    assert torch.allclose(q, reference[1], atol=ROUNDING)


@pytest.mark.parametrize("table", ["predecessor_table", "successor_table"])
def test_the_loops_see_a_codebook_left_at_zero(propose: Any, table: str) -> None:
    """The oracle has teeth: with a codebook that no checkpoint filled, the distributions differ."""
    given = draw(2, SLOTS, TOP_K, RANK, VOCAB, torch.float16, seed=7)
    _, distributions, _ = walk(given, tables(given))
    empty = replace(given, **{table: torch.zeros_like(given.predecessor_table)})
    _, q = propose(**empty.arguments())
    assert float((q.double() - distributions).abs().max()) > 0.1


def test_ids_of_the_engine_may_be_narrow(propose: Any) -> None:
    given = draw(2, SLOTS, TOP_K, 32, VOCAB, torch.float32, seed=8)
    narrow = replace(given, anchor_token_ids=given.anchor_token_ids.int())
    for ours, theirs in zip(propose(**narrow.arguments()), propose(**given.arguments()), strict=True):
        assert torch.equal(ours, theirs)
