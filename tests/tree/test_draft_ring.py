"""Oracles of the dflash-ring-*.patch files and of dflash-draft-graph-switch.patch.

The draft's rows are checked by content, not by index: in the histories of ``drivers/draft_history.py`` every KV row
says which request and position it holds. Numbers of the 1M profile are written out here, not computed by the code
under test.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

ring_option = pytest.mark.patch("dflash-ring-option.patch")
ring_pool = pytest.mark.patch("dflash-ring-pool.patch")
ring_worker = pytest.mark.patch("dflash-ring-worker.patch")
ring_prefix = pytest.mark.patch("dflash-ring-prefix.patch")
graph_switch = pytest.mark.patch("dflash-draft-graph-switch.patch")

RING = {"SGLANG_DFLASH_PRIVATE_RING": "1"}
NO_GRAPH = {"SGLANG_DFLASH_DISABLE_DRAFT_GRAPH": "1"}

# The model's words for a row that is another's; which comes first depends on the history.
WRONG_ROW = "position does not hold its request's row|has two owners|the table and the write ids of the block differ"

# A planted defect, and what has to notice it.
FAULTS = {
    "the prefix is not held back": "DFLASH private ring: the request in row",
    "and nobody looks": WRONG_ROW,
    "the stride forgets alignment": WRONG_ROW,
    "the table begins one late": WRONG_ROW,
    "the whole chunk is written": WRONG_ROW,
    "nothing is committed": WRONG_ROW,
    "a mixed step begins a fill": "DFLASH private ring: the request in row",
    "two requests share a slot": WRONG_ROW,
}
HISTORIES: list[dict[str, Any]] = [
    {"name": "history", "kind": "history", "examples": 45, "steps": 50, "fault": None},
    *({"name": fault, "kind": "history", "examples": 30, "steps": 50, "fault": fault} for fault in FAULTS),
]
KINDS_OF_OPERATION = {
    "abort",
    "admit",
    "decode",
    "finish",
    "flush",
    "mixed",
    "prefill",
    "prefix hit",
    "refused admission",
    "retract",
}

# Decode steps of a running request, and how far past its committed length a mixed step extends it.
FILLS: list[dict[str, Any]] = [
    {"name": f"fill {steps} {shift}", "kind": "fill", "steps": steps, "shift": shift}
    for steps, shift in ((0, 0), (1, 0), (5, 0), (0, 4), (0, -4), (1, 8), (5, 20), (5, -8))
]

# Per rank of four: a target token has 16 layers x 2 x 256 x 2 bytes of one KV head, a draft token 5 x 2 x 2 x 128 x 2.
TARGET_BYTES, DRAFT_BYTES = 16_384, 5_120
MILLION = 1_048_576
RING_ROWS = 17_408  # 8 requests x 2,176
PAGE = 64
BUDGET = MILLION * (TARGET_BYTES + DRAFT_BYTES)  # both pools with a million tokens each
ONE_ROW_PER_TOKEN = {
    "target tokens": MILLION,
    "draft tokens": MILLION,
    "requests": 8,
    "draft bytes per token": DRAFT_BYTES,
}


def pool(name: str, environment: dict[str, str], **changes: Any) -> dict[str, Any]:
    defaults = {"budget": BUDGET, "algorithm": "DFLASH", "draft_cell_known": True}
    return {"name": name, "kind": "pool", "environment": environment, **defaults, **changes}


POOLS = [
    pool("pool shared", {}),
    pool("pool ring", RING),
    pool("pool of another algorithm", RING, algorithm="DSPARK"),
    pool("pool without the draft's size", RING, draft_cell_known=False),
    pool("pool too small for rings", RING, budget=BUDGET // 100),
]

REFUSED: dict[str, dict[str, Any]] = {
    "--speculative-draft-window-size": {"speculative_draft_window_size": None},
    "--disaggregation-mode": {"disaggregation_mode": "decode"},
    "--enable-pd-role-switch": {"enable_pd_role_switch": True},
    "--enable-hierarchical-cache": {"enable_hierarchical_cache": True},
    "--enable-lmcache": {"enable_lmcache": True},
    "--enable-flexkv": {"enable_flexkv": True},
    "--enable-unified-cache-external-linker": {"enable_unified_cache_external_linker": True},
    "--enable-streaming-session": {"enable_streaming_session": True},
    "--enable-unified-memory": {"enable_unified_memory": True},
    "--enable-hisparse": {"enable_hisparse": True},
    "--enable-kv-cache-sharding": {"enable_kv_cache_sharding": True},
    "--dcp-size": {"dcp_size": 2},
}


RESIZED = {"SGLANG_ENABLE_POST_CAPTURE_KV_SIZING": "1"}


def arguments(name: str, environment: dict[str, str], chosen: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "kind": "arguments", "environment": environment, "set": chosen}


ARGUMENTS = [
    arguments("arguments accepted", RING, {}),
    arguments("arguments on CUDA", RING, {"device": "cuda"}),
    arguments("arguments resized", {**RING, **RESIZED}, {"device": "cuda"}),
    *(arguments(f"off {option}", {}, chosen) for option, chosen in REFUSED.items()),
    *(arguments(f"on {option}", RING, chosen) for option, chosen in REFUSED.items()),
]

# Input length: prefix that may be reused with a window of 2,048 and pages of 64.
HELD_BACK = {1: 0, 2_048: 0, 2_111: 0, 2_112: 64, 2_175: 64, 8_000: 5_952, MILLION: 1_046_528}
PREFIXES: list[dict[str, Any]] = [
    {
        "name": f"prefix {how} {length}",
        "kind": "prefix",
        "environment": environment,
        "algorithm": algorithm,
        "length": length,
    }
    for how, environment, algorithm in (("off", {}, "DFLASH"), ("on", RING, "DFLASH"), ("mtp", RING, "EAGLE"))
    for length in HELD_BACK
]

GRAPHS: list[dict[str, Any]] = [
    {"name": f"graph {name} {target}", "kind": "graph", "environment": environment, "target_graph": target}
    for name, environment in (("default", {}), ("off", NO_GRAPH))
    for target in (True, False)
]

SHARED: list[dict[str, Any]] = [
    {"name": f"shared page {page} window {window}", "kind": "shared", "page": page, "window": window, "block": 4}
    for page, window in ((1, None), (1, 9), (4, 9), (4, 12))
]

SETTINGS = [*POOLS, *ARGUMENTS, *PREFIXES, *GRAPHS, *SHARED]


@pytest.fixture(scope="module")
def ours(composed: Tree) -> dict[str, Any]:
    return composed.measure("draft_ring", [*HISTORIES, *FILLS, *SETTINGS])


@pytest.fixture(scope="module")
def theirs(upstream: Tree) -> dict[str, Any]:
    return upstream.measure("draft_ring", SETTINGS)


@ring_worker
@ring_prefix
def test_every_visible_position_is_its_requests_own(ours: dict[str, Any]) -> None:
    history = ours["history"]
    assert history["failure"] is None
    assert set(history["counts"]) == KINDS_OF_OPERATION
    assert sum(history["counts"].values()) > 2_000
    assert min(history["counts"].values()) > 10


@ring_worker
@ring_prefix
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_defect_is_found(ours: dict[str, Any], fault: str) -> None:
    assert re.search(FAULTS[fault], str(ours[fault]["failure"]))


@ring_worker
@pytest.mark.parametrize("each", FILLS, ids=lambda each: each["name"])
def test_a_running_request_may_ride_along_with_a_prefill(ours: dict[str, Any], each: dict[str, Any]) -> None:
    """At its committed length: a prefix that neither prefill nor commits have written stays refused."""
    refusal = ours[each["name"]]
    if each["shift"]:
        assert "decodes over draft KV that is not its own" in refusal
    else:
        assert refusal is None


@ring_pool
def test_shared_layout_keeps_one_draft_row_per_target_token(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["pool shared"] == theirs["pool shared"] == ONE_ROW_PER_TOKEN
    assert MILLION * DRAFT_BYTES == 5 * 2**30
    # The variable is DFLASH's own.
    assert ours["pool of another algorithm"] == theirs["pool of another algorithm"]


@ring_pool
def test_upstream_keeps_it_whatever_the_variable_says(theirs: dict[str, Any]) -> None:
    assert theirs["pool ring"] == ONE_ROW_PER_TOKEN


@ring_pool
def test_rings_give_their_memory_back_to_the_target(ours: dict[str, Any]) -> None:
    sizes = ours["pool ring"]
    assert (sizes["draft tokens"], sizes["requests"]) == (RING_ROWS, 8)
    assert RING_ROWS * DRAFT_BYTES == 85 * 2**20
    taken = sizes["target tokens"] * TARGET_BYTES + (RING_ROWS + PAGE) * DRAFT_BYTES
    assert BUDGET - PAGE * TARGET_BYTES < taken <= BUDGET
    assert sizes["target tokens"] == MILLION + 322_176


@ring_pool
def test_pools_that_rings_cannot_serve_are_refused(ours: dict[str, Any]) -> None:
    assert "bytes per token could not be resolved" in ours["pool without the draft's size"]
    assert ours["pool too small for rings"].startswith(
        "SGLANG_DFLASH_PRIVATE_RING=1 needs 17408 draft KV rows (8 requests of 2176), but sharing the target's slots"
    )


@ring_option
def test_arguments_that_rings_work_with_pass(ours: dict[str, Any]) -> None:
    assert ours["arguments accepted"] is None
    assert ours["arguments on CUDA"] is None
    assert "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING=1" in ours["arguments resized"]


@ring_option
@pytest.mark.parametrize("flag", REFUSED)
def test_arguments_that_rings_do_not_work_with_are_refused(
    ours: dict[str, Any], theirs: dict[str, Any], flag: str
) -> None:
    refusal = ours[f"on {flag}"]
    assert refusal.startswith("SGLANG_DFLASH_PRIVATE_RING=1")
    assert flag in refusal
    assert ours[f"off {flag}"] is theirs[f"off {flag}"] is None


@ring_option
@pytest.mark.parametrize("flag", REFUSED)
def test_upstream_takes_them_whatever_the_variable_says(theirs: dict[str, Any], flag: str) -> None:
    assert theirs[f"on {flag}"] is None


@ring_prefix
@pytest.mark.parametrize("length", HELD_BACK)
def test_the_visible_tail_is_left_out_of_a_prefix_hit(
    ours: dict[str, Any], theirs: dict[str, Any], length: int
) -> None:
    assert ours[f"prefix on {length}"] == HELD_BACK[length]
    for how in ("off", "mtp"):
        assert ours[f"prefix {how} {length}"] == theirs[f"prefix {how} {length}"] == length - 1


@graph_switch
@pytest.mark.parametrize("target", [True, False])
def test_the_drafts_graph_can_be_switched_off(ours: dict[str, Any], theirs: dict[str, Any], target: bool) -> None:
    assert ours[f"graph default {target}"] is theirs[f"graph default {target}"] is target
    assert ours[f"graph off {target}"] is False


@graph_switch
def test_upstream_has_no_such_switch(theirs: dict[str, Any]) -> None:
    assert theirs["graph off True"] is True


@ring_worker
@pytest.mark.parametrize("each", SHARED, ids=lambda each: each["name"])
def test_without_rings_every_read_and_write_stays(
    ours: dict[str, Any], theirs: dict[str, Any], each: dict[str, Any]
) -> None:
    assert ours[each["name"]] == theirs[each["name"]]
    kinds = {entry[0] for entry in ours[each["name"]]}
    assert kinds == {"draft", "write"}
