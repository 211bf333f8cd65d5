"""Oracle of xpu-flush-keeps-graphs.patch: what a flush calls, in which order, on every device."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.tree.conftest import Tree

    Together = Callable[[Tree, str], dict[str, Any]]

pytestmark = pytest.mark.patch("xpu-flush-keeps-graphs.patch")

TOGETHER = "flush_cache"

OTHERS = ("cuda", "rocm", "npu", "musa", "cpu")
# By owner: the caller asks nobody twice, and the draft's own pool comes last.
CLEARED = [
    "scheduler.tree_cache.reset",
    "scheduler.req_to_token_pool.clear",
    "scheduler.token_to_kv_pool_allocator.clear",
    "scheduler.req_to_token_pool.reset_aux_cache_allocator",
    "scheduler.grammar_manager.clear",
    "scheduler.metrics_reporter.reset_metrics",
    "scheduler.draft_worker.clear_cache_pool",
]
IDLE, SYNCHRONIZE, EMPTY = "scheduler.is_fully_idle", "device.synchronize", "device.empty_cache"
ASKED = {None: True, True: True, False: False}  # POST /flush_cache passes nothing


def name(device: str, graphs: bool, empty_cache: bool | None, **changes: bool) -> str:
    return f"{device} graphs={graphs} empty_cache={empty_cache} {changes}"


def case(device: str, graphs: bool, empty_cache: bool | None, **changes: bool) -> dict[str, Any]:
    return {
        "name": name(device, graphs, empty_cache, **changes),
        "device": device,
        "graphs": graphs,
        "empty_cache": empty_cache,
        "idle": True,
        "draft": True,
        **changes,
    }


STATES: tuple[dict[str, bool], ...] = ({}, {"draft": False}, {"idle": False})
CASES = [
    case(device, graphs, empty_cache, **changes)
    for device, graphs, empty_cache, changes in product((*OTHERS, "xpu"), (False, True), ASKED, STATES)
]


@pytest.fixture(scope="module")
def ours(together: Together, composed: Tree) -> dict[str, Any]:
    return together(composed, TOGETHER)


@pytest.fixture(scope="module")
def theirs(together: Together, upstream: Tree) -> dict[str, Any]:
    return together(upstream, TOGETHER)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("empty_cache", ASKED)
def test_xpu_waits_then_clears_each_once_and_spares_graph_memory(
    ours: dict[str, Any], graphs: bool, empty_cache: bool | None
) -> None:
    measured = ours[name("xpu", graphs, empty_cache)]
    returned = [EMPTY] if ASKED[empty_cache] and not graphs else []
    assert measured["calls"] == [IDLE, SYNCHRONIZE, *CLEARED, *returned]
    assert measured["success"]
    assert measured["graphs"] == int(graphs), "a flush must neither drop graphs nor capture new ones"


def test_upstream_clears_under_a_running_forward_and_returns_memory_beside_graphs(theirs: dict[str, Any]) -> None:
    assert theirs[name("xpu", True, None)]["calls"] == [IDLE, *CLEARED, EMPTY]


@pytest.mark.parametrize("device", OTHERS)
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("empty_cache", ASKED)
def test_other_devices_make_the_same_calls_as_upstream(
    ours: dict[str, Any], theirs: dict[str, Any], device: str, graphs: bool, empty_cache: bool | None
) -> None:
    for changes in STATES:
        key = name(device, graphs, empty_cache, **changes)
        assert ours[key] == theirs[key]
    assert (EMPTY in ours[name(device, graphs, empty_cache)]["calls"]) == ASKED[empty_cache]


@pytest.mark.parametrize("graphs", [False, True])
def test_a_busy_scheduler_touches_nothing(ours: dict[str, Any], graphs: bool) -> None:
    measured = ours[name("xpu", graphs, None, idle=False)]
    assert (measured["success"], measured["calls"]) == (False, [IDLE])


@pytest.mark.parametrize("graphs", [False, True])
def test_without_a_draft_the_target_alone_is_cleared(ours: dict[str, Any], graphs: bool) -> None:
    measured = ours[name("xpu", graphs, False, draft=False)]
    assert measured["calls"] == [IDLE, SYNCHRONIZE, *CLEARED[:-1]]
