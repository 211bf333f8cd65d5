"""Oracle of dflash-selector-triton.patch's hooks and of dflash2-conv-nan.patch, and references for what DFlash2 has.

SGLang's own classes run on a CPU (``drivers/dflash_models.py``): the worker's two ways to propose, the grouped
convolution, and the candidates of four tensor-parallel ranks over gloo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conftest import LINE, MAIN  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

selector = pytest.mark.patch("dflash-selector-triton.patch")
convolution = pytest.mark.patch("dflash2-conv-nan.patch")
one_launch = pytest.mark.skipif(not MAIN, reason=f"{LINE} does not carry dflash-selector-triton.patch")

BLOCK, TOP_K = 8, 16
LATTICE_AND_WALK = {
    "cuda": ["_score_edges", "selector_walk_triton"],
    "cpu": ["_score_edges", "_follow_maps"],
}
ROUNDING = 2e-5  # FP32 against FP64, or against FP32 in another order

SELECTOR = [{"name": device, "kind": "selector", "device": device} for device in ("cpu", "cuda", "xpu")]


def conv(block: int, taps: int, group: int, channels: int, requests: int, fault: str = "") -> dict[str, Any]:
    name = f"block {block} taps {taps} group {group} requests {requests} {fault}".strip()
    shape = {"block": block, "taps": taps, "group": group, "channels": channels, "requests": requests}
    return {"name": name, "kind": "convolution", **shape, "fault": fault}


# The draft has blocks of eight, two taps and groups of 16; other sizes show that none of them is built in.
CONVOLUTIONS = [conv(8, 2, 16, 64, 3), conv(8, 2, 16, 32, 8), conv(5, 3, 4, 24, 3), conv(16, 4, 8, 32, 2)]
LEAKING = conv(8, 2, 16, 64, 3, "mask by product")
BORDERLESS = conv(8, 2, 16, 64, 3, "no border")


def ranked(name: str, *, ties: bool, vocab: int = 1000, fault: str = "") -> dict[str, Any]:
    return {"name": name, "kind": "candidates", "ranks": 4, "vocab": vocab, "ties": ties, "fault": fault}


DISTINCT, TIED = ranked("distinct", ties=False), ranked("tied", ties=True)
LOCAL_IDS = ranked("local ids", ties=False, fault="local ids")


@pytest.fixture(scope="module")
def ours(composed: Tree) -> dict[str, Any]:
    cases = [*SELECTOR, *CONVOLUTIONS, LEAKING, BORDERLESS, DISTINCT, TIED, LOCAL_IDS]
    return composed.measure("dflash_models", cases)


@pytest.fixture(scope="module")
def theirs(upstream: Tree) -> dict[str, Any]:
    return upstream.measure("dflash_models", [*SELECTOR, *CONVOLUTIONS])


@selector
@one_launch
def test_xpu_proposes_in_one_launch(ours: dict[str, Any]) -> None:
    assert ours["xpu"]["folded"] == ours["xpu"]["eager"] == ["selector_propose_triton"]


@selector
@one_launch
def test_upstream_takes_the_torch_path_on_xpu(theirs: dict[str, Any]) -> None:
    assert theirs["xpu"]["folded"] == theirs["xpu"]["eager"] == LATTICE_AND_WALK["cpu"]


@selector
@one_launch
def test_the_proposals_on_xpu_are_upstreams(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["xpu"]["tokens"] == theirs["xpu"]["tokens"]
    assert ours["xpu"]["greedy"] == theirs["xpu"]["greedy"]
    for block, expected in zip(ours["xpu"]["q"], theirs["xpu"]["q"], strict=True):
        for row, expected_row in zip(block, expected, strict=True):
            assert row == pytest.approx(expected_row, abs=ROUNDING)


@selector
@pytest.mark.parametrize("device", ["cpu", "cuda"] if MAIN else ["cpu", "cuda", "xpu"])
def test_other_devices_keep_their_steps_and_every_bit(
    ours: dict[str, Any], theirs: dict[str, Any], device: str
) -> None:
    steps = LATTICE_AND_WALK["cuda" if device == "cuda" else "cpu"]
    assert ours[device]["folded"] == ours[device]["eager"] == steps
    assert theirs[device]["folded"] == theirs[device]["eager"] == steps
    assert ours[device]["sha256"] == theirs[device]["sha256"]


def test_the_worker_accepts_with_triton_on_xpu(composed: Tree) -> None:
    """Why compute_dflash_correct_drafts_and_bonus keeps its is_cuda condition: XPU does not come by there."""
    source = composed.source("sglang/srt/speculative/dflash_worker_v2.py")
    assert "supports_gpu_triton = is_cuda() or is_hip() or is_xpu()" in source
    assert source.count("self._use_triton_accept_bonus = False") == 1


@convolution
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda case: case["name"])
def test_grouped_convolution_is_the_loops_over_taps_and_groups(ours: dict[str, Any], case: dict[str, Any]) -> None:
    measured = ours[case["name"]]
    for errors in (measured["errors"], measured["first_slots"]):
        assert all(error < ROUNDING for error in errors.values())


@convolution
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda case: case["name"])
def test_a_nan_stays_in_its_block(ours: dict[str, Any], case: dict[str, Any]) -> None:
    assert ours[case["name"]]["leaks"] == [False] * case["block"]


def test_a_mask_by_product_is_seen_to_leak(ours: dict[str, Any]) -> None:
    """The last slot's NaN reaches the next request, as it did before SGLang 0.5.22."""
    measured = ours[LEAKING["name"]]
    assert measured["leaks"] == [False] * 7 + [True]
    assert measured["errors"]["prepare"] < ROUNDING


@convolution
@pytest.mark.skipif(MAIN, reason="its upstream masks by selection")
@pytest.mark.parametrize("case", [case for case in CONVOLUTIONS if case["requests"] > 2], ids=lambda case: case["name"])
def test_upstream_leaks(theirs: dict[str, Any], case: dict[str, Any]) -> None:
    """The taps reach back from the next block's first slots."""
    reached = case["taps"] - 1
    assert theirs[case["name"]]["leaks"] == [False] * (case["block"] - reached) + [True] * reached


def test_a_missing_block_border_is_seen(ours: dict[str, Any]) -> None:
    measured = ours[BORDERLESS["name"]]
    assert all(error > 1000 * ROUNDING for error in measured["first_slots"].values())


def top_scores(logits: list[float]) -> list[float]:
    return sorted(logits, reverse=True)[:TOP_K]


def test_four_ranks_have_the_unsharded_candidates(ours: dict[str, Any]) -> None:
    measured = ours[DISTINCT["name"]]
    for ids in measured["ids"]:
        for row, logits in zip(ids, measured["logits"], strict=True):
            assert row == sorted(range(len(logits)), key=lambda token: -logits[token])[:TOP_K]


@pytest.mark.parametrize("case", [DISTINCT, TIED], ids=lambda case: case["name"])
def test_four_ranks_have_the_unsharded_scores(ours: dict[str, Any], case: dict[str, Any]) -> None:
    """With equal logits at the border any of them may be taken, so there the sets of scores are compared."""
    measured = ours[case["name"]]
    for ids, values in zip(measured["ids"], measured["values"], strict=True):
        for row, scores, logits in zip(ids, values, measured["logits"], strict=True):
            assert len(set(row)) == TOP_K
            assert scores == pytest.approx([logits[token] for token in row], abs=ROUNDING)
            assert sorted(scores, reverse=True) == pytest.approx(top_scores(logits), abs=ROUNDING)


def test_the_ties_are_there(ours: dict[str, Any]) -> None:
    rows = ours[TIED["name"]]["logits"]
    assert sum(sorted(logits, reverse=True)[TOP_K] in top_scores(logits) for logits in rows) > len(rows) / 2


@pytest.mark.parametrize("case", [DISTINCT, TIED], ids=lambda case: case["name"])
def test_all_ranks_agree(ours: dict[str, Any], case: dict[str, Any]) -> None:
    for answers in (ours[case["name"]]["ids"], ours[case["name"]]["values"]):
        assert answers[1:] == answers[:-1]


def test_ids_left_local_to_a_shard_are_seen(ours: dict[str, Any]) -> None:
    measured = ours[LOCAL_IDS["name"]]
    assert max(max(row) for row in measured["ids"][0]) < 256
    assert max(max(row) for row in ours[DISTINCT["name"]]["ids"][0]) >= 256
