"""Oracle of xpu-draft-steps.patch: MTP drafts on the XPU's own backend, each step with the keys of those before it.

The real factory and backends run, eager and for graphs; the attention kernel is a stand-in in FP64, and the reference
goes token by token. The main line's upstream has all of this: there both trees have to agree. Draft extend in graphs is
in test_xpu_speculation.py, with the other modes that one backend may serve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conftest import HISTORY  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.tree.conftest import Tree

    Together = Callable[[Tree, str], dict[str, Any]]

oracle = pytest.mark.patch("xpu-draft-steps.patch")
page_room = pytest.mark.patch("xpu-graph-page-room.patch")

TOGETHER = "xpu_draft_steps"
NO_DRAFTS_UPSTREAM = HISTORY
REFUSED = {
    "decode": {"error": "EAGLE is not supported in decode attention backend intel_xpu"},
    "draft_extend": {"error": "EAGLE is not supported in attention backend intel_xpu"},
}

# FP64 of two orders of summation; a wrong key, length or page changes outputs by hundredths.
EXACT = 1e-12
TOKENS = 8
STEPS = range(TOKENS - 2)  # drafts after the first, which the draft extend makes
# Tokens ahead of the draft: to a page's end and across it, from its start, one, and a context of 448 that is full.
LENS = [57, 60, 64, 1, 380, 448]
# Each number of requests twice, with others between, so that buffers which the captures share hold something else. Room
# for drafts behind a full context is a concern of its own (xpu-graph-page-room.patch).
PART = LENS[:5]
REPLAYS = [PART[:4], PART[4:], PART[3:], [*PART, 9, 10, 442], PART[:1], PART[1:], PART[:2]]


def case(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "tokens": TOKENS, "lens": [], **fields}


EAGER = [case(f"eager, {len(lens)} requests", "eager", lens=lens) for lens in (LENS, LENS[1:2])]
# A context that is full needs room for the drafts' page as well (xpu-graph-page-room.patch).
WITH_ROOM = [[min(length, LENS[-1] - TOKENS) for length in lens] for lens in REPLAYS]
GRAPHS = {"graph": WITH_ROOM, "graph at full context": REPLAYS}
EXTEND = case("draft extend", "draft extend", lens=[57, 64, 70, 448], tokens=4)
CASES = [
    case("made", "factory"),
    case("one step", "factory", tokens=2),
    case("unknown", "factory", backend="no such backend"),
    *EAGER,
    *(case(name, "graph", replays=replays) for name, replays in GRAPHS.items()),
    EXTEND,
]


@pytest.fixture(scope="module")
def ours(together: Together, composed: Tree) -> dict[str, Any]:
    return together(composed, TOGETHER)


@pytest.fixture(scope="module")
def theirs(together: Together, upstream: Tree) -> dict[str, Any]:
    return together(upstream, TOGETHER)


def check_step(measured: dict[str, Any], lens: list[int], step: int) -> None:
    assert measured["cache_seqlens"] == [length + step + 1 for length in lens]
    assert measured["cu_seqlens_q"] == list(range(len(lens) + 1))
    assert (measured["max_seqlen_q"], measured["tables"]) == (1, len(lens))
    assert measured["to reference"] < EXACT


@oracle
def test_the_factory_makes_a_backend_for_each_step(ours: dict[str, Any]) -> None:
    stamps = ["intel_xpu", "intel_xpu"]
    assert ours["made"] == {
        "decode": {
            "class": "XPUMultiStepDraftBackend",
            "stamps": stamps,
            "steps": list(STEPS),
            "stamps of steps": [stamps] * len(STEPS),
        },
        "draft_extend": {"class": "XPUAttentionBackend", "stamps": stamps, "steps": [], "stamps of steps": []},
    }


@oracle
def test_one_step_needs_no_backend_for_steps(ours: dict[str, Any]) -> None:
    assert ours["one step"]["decode"] is None
    assert ours["one step"]["draft_extend"]["class"] == "XPUAttentionBackend"


def test_upstream_refuses_intel_xpu_or_makes_the_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert theirs["made"] == (REFUSED if NO_DRAFTS_UPSTREAM else ours["made"])


def test_a_backend_that_does_not_exist_is_refused_as_before(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["unknown"] == theirs["unknown"]
    assert "no such backend" in ours["unknown"]["decode"]["error"]


def test_other_backends_are_routed_as_before(composed: Tree, upstream: Tree) -> None:
    """Upstream's factory stands in ours, line by line in its order; what is added has the XPU's name on it."""
    ours, theirs = (tree.source("sglang/srt/speculative/draft_utils.py").splitlines() for tree in (composed, upstream))
    rest = iter(ours)
    assert all(line in rest for line in theirs)
    added = [line for line in ours if "xpu" in line.lower() and line not in theirs]
    assert bool(added) is NO_DRAFTS_UPSTREAM


@oracle
@pytest.mark.parametrize("each", EAGER, ids=lambda each: str(each["name"]))
def test_a_step_sees_the_tokens_of_the_steps_before_it(ours: dict[str, Any], each: dict[str, Any]) -> None:
    assert len(ours[each["name"]]) == len(STEPS)
    for step in STEPS:
        check_step(ours[each["name"]][step], each["lens"], step)


def check_replays(measured: dict[str, Any], name: str) -> None:
    for lens, steps in zip(GRAPHS[name], measured[name], strict=True):
        assert len(steps) == len(STEPS)
        for step in STEPS:
            check_step(steps[step], lens, step)


@oracle
def test_so_does_every_replay(ours: dict[str, Any]) -> None:
    check_replays(ours, "graph")


@page_room
def test_so_does_every_replay_at_full_context(ours: dict[str, Any]) -> None:
    check_replays(ours, "graph at full context")


@oracle
def test_a_draft_extend_sees_its_own_tokens_causally(ours: dict[str, Any]) -> None:
    lens, tokens = EXTEND["lens"], EXTEND["tokens"]
    measured = dict(ours["draft extend"])
    assert measured.pop("to reference") < EXACT
    assert measured == {
        "max_seqlen_q": tokens,
        "cache_seqlens": lens,
        "cu_seqlens_q": list(range(0, tokens * len(lens) + 1, tokens)),
        "tables": len(lens),
    }


@pytest.mark.parametrize("each", [*EAGER, EXTEND], ids=lambda each: str(each["name"]))
def test_upstream_has_no_drafts_or_the_same(ours: dict[str, Any], theirs: dict[str, Any], each: dict[str, Any]) -> None:
    phase = "draft_extend" if each is EXTEND else "decode"
    assert theirs[each["name"]] == (REFUSED[phase] if NO_DRAFTS_UPSTREAM else ours[each["name"]])
