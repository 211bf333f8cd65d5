"""Oracle of xpu-noncausal-window.patch: a non-causal layer sees its window on both sides, all else stays.

The real XPUAttentionBackend runs; only the attention kernel is a stand-in that records its arguments and
computes what they mean. What a layer has to see is written here as loops over positions.

Upstream of the history line calls every layer causally: there this is the oracle of xpu-noncausal-layers.patch too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conftest import HISTORY  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

    Mask = list[list[bool]]

window_only = pytest.mark.patch("xpu-noncausal-window.patch")
both_ways = pytest.mark.patch("xpu-noncausal-layers.patch")

BEFORE = (13, 5)  # tokens ahead of the block, by request
BLOCK = 8  # slots of a DFlash2 draft block
CAUSAL_UPSTREAM = HISTORY
"""Whether upstream calls non-causal layers causally, and takes cross-attention for one request at a time only."""
NONE, SMALL, DRAFT = -1, 3, 2047  # windows: keys to the left of the query; DRAFT is the Qwen3.8 draft's
NONCAUSAL = ("ENCODER_ONLY", "DECODER_BIDIRECTIONAL")
# How a batch reaches each function. In decode a block is announced as for verify, a single query as usual.
ROUTES = (("extend", "block"), ("extend", "prefill"), ("decode", "block"), ("decode", "single"))
BLOCK_ROUTES = tuple(route for route in ROUTES if route[1] != "single")

# FP32 output of FP64 arithmetic; the wrong mask changes it by tenths.
ROUNDING = 1e-6


def must_see(attention: str, window: int, queries: int, before: int) -> Mask:
    rows = []
    for query in range(queries):
        position = before + query
        row = []
        for key in range(before + queries):
            near = window == NONE or abs(position - key) <= window
            row.append(near and (attention in NONCAUSAL or key <= position))
        rows.append(row)
    return rows


def name(attention: str, window: int, forward: str, metadata: str) -> str:
    return f"{attention} window {window} {forward} {metadata}"


def case(attention: str, window: int, forward: str, metadata: str) -> dict[str, Any]:
    queries = 1 if metadata == "single" else BLOCK
    return {
        "name": name(attention, window, forward, metadata),
        "attention": attention,
        "window": window,
        "forward": forward,
        "metadata": metadata,
        "masks": [must_see(attention, window, queries, before) for before in BEFORE],
    }


def cross_case(forward: str, metadata: str) -> dict[str, Any]:
    """Cross-attention sees the whole encoder output (6 and 4 tokens), whatever window its layer carries."""
    queries = 1 if metadata == "single" else BLOCK
    masks = [[[True] * keys for _ in range(queries)] for keys in ((6,) if CAUSAL_UPSTREAM else (6, 4))]
    return {**case("cross", SMALL, forward, metadata), "masks": masks}


CASES = [
    case(attention, window, *route)
    for attention in ("DECODER", *NONCAUSAL)
    for window in (NONE, SMALL, DRAFT)
    for route in ROUTES
] + [cross_case(*route) for route in ROUTES]
WINDOWLESS = [each for each in CASES if each["attention"] in NONCAUSAL and each["window"] == NONE]


@pytest.fixture(scope="module")
def ours(composed: Tree) -> dict[str, Any]:
    return composed.measure("xpu_window", CASES)


@pytest.fixture(scope="module")
def theirs(upstream: Tree) -> dict[str, Any]:
    return upstream.measure("xpu_window", CASES)


def check_masks(measured: dict[str, Any], masks: list[Mask]) -> None:
    assert measured["masks"] == masks
    assert measured["difference"] < ROUNDING


@window_only
@pytest.mark.parametrize("each", CASES, ids=lambda each: each["name"])
def test_every_layer_sees_what_it_has_to(ours: dict[str, Any], each: dict[str, Any]) -> None:
    check_masks(ours[each["name"]], each["masks"])


@both_ways
@pytest.mark.parametrize("each", WINDOWLESS, ids=lambda each: each["name"])
def test_without_a_window_a_noncausal_layer_sees_everything(ours: dict[str, Any], each: dict[str, Any]) -> None:
    check_masks(ours[each["name"]], each["masks"])


@window_only
@pytest.mark.parametrize("attention", NONCAUSAL)
@pytest.mark.parametrize("window", [SMALL, DRAFT])
@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_noncausal_window_is_symmetric(
    ours: dict[str, Any], attention: str, window: int, route: tuple[str, str]
) -> None:
    measured = ours[name(attention, window, *route)]
    assert (measured["window_size"], measured["causal"]) == ([window, window], False)


@window_only
@pytest.mark.parametrize("attention", NONCAUSAL)
@pytest.mark.parametrize("window", [SMALL, DRAFT])
@pytest.mark.parametrize("route", BLOCK_ROUTES, ids=" ".join)
def test_upstream_hides_exactly_the_right_half(
    theirs: dict[str, Any], attention: str, window: int, route: tuple[str, str]
) -> None:
    measured = theirs[name(attention, window, *route)]
    assert (measured["window_size"], measured["causal"]) == ([window, 0], CAUSAL_UPSTREAM)
    for before, seen in zip(BEFORE, measured["masks"], strict=True):
        expected = must_see(attention, window, BLOCK, before)
        left_half = [
            [see and key <= before + query for key, see in enumerate(row)] for query, row in enumerate(expected)
        ]
        assert seen == left_half
        assert seen != expected
    assert measured["difference"] > 1000 * ROUNDING


@window_only
@both_ways
@pytest.mark.parametrize("window", [NONE, SMALL, DRAFT])
@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_causal_layers_pass_the_same_arguments(
    ours: dict[str, Any], theirs: dict[str, Any], window: int, route: tuple[str, str]
) -> None:
    key = name("DECODER", window, *route)
    assert ours[key]["arguments"] == theirs[key]["arguments"]
    assert ours[key]["window_size"] == [window, -1 if window == NONE else 0]


@window_only
@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_layers_without_a_window_pass_the_same_arguments(
    ours: dict[str, Any], theirs: dict[str, Any], route: tuple[str, str]
) -> None:
    for attention in NONCAUSAL:
        key = name(attention, NONE, *route)
        assert ours[key]["arguments"] == {**theirs[key]["arguments"], "causal": False}


@both_ways
@pytest.mark.skipif(not CAUSAL_UPSTREAM, reason="this line's upstream calls non-causal layers without causality")
@pytest.mark.parametrize("route", BLOCK_ROUTES, ids=" ".join)
def test_upstream_calls_noncausal_layers_causally(theirs: dict[str, Any], route: tuple[str, str]) -> None:
    for attention in NONCAUSAL:
        measured = theirs[name(attention, NONE, *route)]
        assert measured["masks"] == [must_see("DECODER", NONE, BLOCK, before) for before in BEFORE]
        assert measured["difference"] > 1000 * ROUNDING


@window_only
@both_ways
@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_cross_attention_passes_the_same_arguments(
    ours: dict[str, Any], theirs: dict[str, Any], route: tuple[str, str]
) -> None:
    key = name("cross", SMALL, *route)
    assert ours[key]["arguments"] == theirs[key]["arguments"]
    assert ours[key]["window_size"] == [-1, -1]


def test_the_backends_of_other_devices_are_untouched(composed: Tree, upstream: Tree) -> None:
    folder = "sglang/srt/layers/attention"
    backends = sorted(path.name for path in (upstream.root / folder).glob("*_backend.py"))
    assert "flashattention_backend.py" in backends
    assert "triton_backend.py" in backends
    changed = [
        backend
        for backend in backends
        if composed.source(f"{folder}/{backend}") != upstream.source(f"{folder}/{backend}")
    ]
    assert set(changed) <= {"xpu_backend.py"}
