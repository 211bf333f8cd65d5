"""The selector in one launch against loops, and against tables and walk as CUDA takes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch  # type: ignore[import-not-found]  # on the machine with the device

from tests.gpu.machine import DEVICE, HALF, captured
from tests.gpu.selector import RANK, SLOTS, TOP_K, VOCAB, Ways
from tests.tree.drivers.selector_loops import Given, draw, tables, walk

ROUNDING = 1e-4  # FP32 sums and the device's own exp against FP64
BF16_SCORES = 0.05  # tables round each score, of a few units, to BF16


@pytest.fixture(scope="module")
def ways(composed: Path) -> Ways:
    return Ways(composed)


def check(ways: Ways, given: Given) -> None:
    tokens, q = (value.cpu() for value in ways.ours(given.on(DEVICE)))
    expected, distributions, margin = walk(given, tables(given))
    sure = (margin > ROUNDING).cumprod(dim=1).bool()  # after a choice that a rounding decides the paths may part
    assert sure.float().mean() > 0.9
    assert torch.equal(tokens[sure], expected[sure])
    assert float((q.double() - distributions)[sure].abs().max()) < ROUNDING


@pytest.mark.parametrize("batch", range(1, 9))
def test_production_shapes_follow_the_loops(ways: Ways, batch: int) -> None:
    check(ways, draw(batch, SLOTS, TOP_K, RANK, VOCAB, HALF, seed=batch))


@pytest.mark.parametrize(("slots", "top_k", "rank"), [(1, 16, 256), (7, 1, 256), (3, 12, 40), (15, 16, 64)])
def test_other_shapes_follow_the_loops(ways: Ways, slots: int, top_k: int, rank: int) -> None:
    check(ways, draw(3, slots, top_k, rank, 512, torch.float32, seed=2))


def test_exact_ties_take_the_first_candidate(ways: Ways) -> None:
    given = draw(6, SLOTS, TOP_K, 8, 512, HALF, seed=3, integers=True)
    given = replace(given, greedy_mask=torch.ones(6, dtype=torch.bool))
    tokens, q = (value.cpu() for value in ways.ours(given.on(DEVICE)))
    expected, distributions, margin = walk(given, tables(given))
    assert int((margin == 0).sum()) > 10
    assert torch.equal(tokens, expected)
    assert torch.equal(q.double(), distributions)


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "sampled"])
def test_nan_rows_stay_within_the_candidates(ways: Ways, greedy: bool) -> None:
    clean = draw(3, SLOTS, TOP_K, RANK, 512, torch.float32, seed=5)
    clean = replace(clean, greedy_mask=torch.full((3,), greedy))
    unary = clean.unary_logits.clone()
    unary[1] = float("nan")
    tokens, q = (value.cpu() for value in ways.ours(replace(clean, unary_logits=unary).on(DEVICE)))
    unspoiled = [value.cpu() for value in ways.ours(clean.on(DEVICE))]
    assert torch.equal(tokens[1], clean.candidate_ids[1, :, 0])
    for other in (0, 2):
        assert torch.equal(tokens[other], unspoiled[0][other])
        assert torch.equal(q[other], unspoiled[1][other])


@pytest.mark.parametrize("batch", [1, 8])
def test_it_agrees_with_tables_and_walk(composed: Path, ways: Ways, batch: int) -> None:
    """What it replaces, on the same inputs; where the choice is not within the tables' rounding."""
    given = draw(batch, SLOTS, TOP_K, RANK, VOCAB, HALF, seed=20 + batch)
    there = given.on(DEVICE)
    _, _, margin = walk(given, tables(given))
    sure = (margin > BF16_SCORES).cumprod(dim=1).bool()
    assert sure.any()
    tokens, _ = ways.ours(there)
    scores = ways.tables(there)
    for other in (ways.triton_walk(there, scores), ways.torch_walk(composed)(there, scores)):
        assert torch.equal(tokens.cpu()[sure], other[0].cpu()[sure])


def test_no_state_is_left_between_launches(ways: Ways) -> None:
    """The same inputs give the same bits."""
    given = draw(8, SLOTS, TOP_K, RANK, VOCAB, HALF, seed=9).on(DEVICE)
    first = ways.ours(given)
    for _ in range(3):
        for again, value in zip(ways.ours(given), first, strict=True):
            assert torch.equal(again, value)


@pytest.mark.cuda_graph
def test_every_replay_of_a_graph_walks_anew(ways: Ways) -> None:
    """The launch can be captured, and a replay reads what the buffers hold by then."""
    buffers = draw(8, SLOTS, TOP_K, RANK, VOCAB, HALF, seed=9).on(DEVICE)
    made: list[tuple[torch.Tensor, torch.Tensor]] = []
    graph = captured([lambda: made.append(ways.ours(buffers))])
    found = []
    for seed in (10, 11):
        given = draw(8, SLOTS, TOP_K, RANK, VOCAB, HALF, seed=seed).on(DEVICE)
        for name, value in given.arguments().items():
            buffers.arguments()[name].copy_(value)
        graph.replay()
        for replay, launch in zip(made[-1], ways.ours(given), strict=True):
            assert torch.equal(replay, launch)
        found.append(made[-1][0].clone())
    assert not torch.equal(*found)
