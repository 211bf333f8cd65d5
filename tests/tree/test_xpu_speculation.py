"""Oracles of xpu-verify-rows, xpu-linear-drafts, xpu-graph-page-room and xpu-graph-modes.

The real XPUAttentionBackend prepares its metadata, eager and for graphs (its fill kernel runs in Triton's interpreter);
the attention kernel is a stand-in in FP64 that computes what its arguments mean. The driver's reference goes token by
token through the cache slots and knows neither pages nor batches.

Upstream of the history line refuses graphs of speculative decoding and has no draft steps (test_xpu_draft_steps.py).
What is compared with upstream elsewhere is compared there with ours, switched off, or stands alone.
"""

from __future__ import annotations

import ast
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pytest
from conftest import HISTORY  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

verify_rows = pytest.mark.patch("xpu-verify-rows.patch")
page_room = pytest.mark.patch("xpu-graph-page-room.patch")
graph_modes = pytest.mark.patch("xpu-graph-modes.patch")
linear_drafts = pytest.mark.patch("xpu-linear-drafts.patch")

NO_GRAPHS_UPSTREAM = HISTORY
needs_graphs_upstream = pytest.mark.skipif(
    NO_GRAPHS_UPSTREAM, reason="this line's upstream refuses graphs of speculative decoding"
)
NO_GRAPHS = "XPUAttentionBackend does not support speculative decoding in XPU graph"

# FP64 of two orders of summation; a wrong key, length or page changes outputs by hundredths.
EXACT = 1e-12
PAGE = 64
BUCKETS = (1, 2, 4, 8)
# Committed tokens by request. With 8 tokens to verify: across a page's end, from a page's start, up to a page's end,
# within one, below a window of 100, at it, across a local-attention chunk of 128, and several pages on.
LENS = [57, 64, 56, 1, 99, 100, 124, 380]
GRID = [(bs, tokens) for bs in range(1, 9) for tokens in range(1, 9)]
LINEAR = ("eagle", "frozen kv mtp", "dflash")


def eager(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "kind": "eager", "spec": "eagle", **fields}


def grid_case(bs: int, tokens: int) -> dict[str, Any]:
    """The longest request is in every batch, so that each has short and long ones."""
    return eager(f"{bs} requests of {tokens}", lens=LENS[8 - bs :], tokens=tokens)


EAGER = [
    *(grid_case(bs, tokens) for bs, tokens in GRID),
    *(eager(f"{spec} input", lens=LENS, tokens=8, spec=spec) for spec in LINEAR),
    *(eager(f"sliding-window pool, {tokens} tokens", lens=LENS, tokens=tokens, swa_pool=True) for tokens in (3, 8)),
    *(eager(f"local attention, {tokens} tokens", lens=LENS, tokens=tokens, chunk=128) for tokens in (3, 8)),
]
# Quantised keys and values: if forward_extend ever passes factors of [batch size, heads], rows need more of them.
DESCALE = eager("quantised cache", lens=LENS[:2], tokens=8, runner={"kv_cache_dtype_str": "fp8_e4m3"})


DRAFT_RUNNER = {"is_draft_worker": True}


def left_alone(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "kind": "metadata", "switch": True, "lens": LENS[:4], "tokens": 4, **fields}


def switched_off(case: dict[str, Any]) -> dict[str, Any]:
    return {**case, "name": f"{case['name']}, switched off", "switch": False}


# What is no linear verification on the target's runner.
LEFT_ALONE = [
    left_alone("draft block of DFLASH", spec="dflash draft block", runner=DRAFT_RUNNER),
    left_alone("draft block of DFLASH in a graph", spec="dflash draft block", runner=DRAFT_RUNNER, graph=1),
    left_alone("tree", spec="tree", topk=2),
    left_alone("tree on a backend for chains", spec="tree"),
    left_alone("tree in a graph", spec="tree", graph=1),
    left_alone("NGRAM", spec="ngram"),
    left_alone("NGRAM in a graph", spec="ngram", graph=1),
    left_alone("DFLASH with a mask", spec="dflash with mask"),
    left_alone("DFLASH with lengths of its own", spec="dflash ragged"),
    left_alone("MLA", spec="eagle", runner={"mla": True}),
    left_alone("MLA in a graph", spec="eagle", runner={"mla": True}, graph=1),
    # 0.5.18 takes one request at a time for these models.
    left_alone("encoder-decoder", spec="eagle", runner={"is_encoder_decoder": True}, encoder=[5], lens=LENS[:1]),
]
SWITCHED_OFF = [
    {**left_alone(f"switched off: {spec}{' in a graph' if graph else ''}", spec=spec, graph=graph), "switch": False}
    for spec in LINEAR
    for graph in (0, 1)
]
NONCAUSAL = {"name": "noncausal layer", "kind": "noncausal", "switch": True, "lens": LENS[:2], "tokens": 4}


def step(mode: str, lens: list[int], **fields: Any) -> dict[str, Any]:
    return {"mode": mode, "lens": lens, **fields}


def lens_of(bs: int, turn: int) -> list[int]:
    """Different requests and lengths on each turn, none below the 8 tokens of a draft extend."""
    return [(LENS[(i + turn) % 8] + 37 * turn) % 380 + 8 for i in range(bs)]


def everything(modes: tuple[str, ...], **replays: Any) -> list[dict[str, Any]]:
    """Capture each mode in each bucket, largest first as the runner does, then replay all of them, twice, in turns
    that put another bucket and another mode between any two replays of one graph."""
    captures = [step(mode, [1] * bs, capture=True, attend=False) for mode in modes for bs in BUCKETS[::-1]]
    if "draft extend" in modes:
        captures = [{**each, "lens": [8] * len(each["lens"])} for each in captures]
    return captures + [step(mode, lens_of(bs, turn), **replays) for turn in (1, 2) for bs in BUCKETS for mode in modes]


def idle_between(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """After each replay that of a rank without requests: lengths of 1 to fill the bucket, and the runner's mask."""
    captures = [each for each in steps if each.get("capture")]
    replays = [each for each in steps if not each.get("capture")]
    idle = [step("verify", [1] * len(each["lens"]), masked=True) for each in replays]
    return captures + [each for pair in zip(replays, idle, strict=True) for each in pair]


MODES = ("verify", "decode", "draft extend")
GRAPHS: dict[str, dict[str, Any]] = {
    "rows": {"switch": True, "steps": everything(MODES)},
    "rows, sliding-window pool": {"switch": True, "swa_pool": True, "steps": everything(("verify",))},
    "rows, idle between": {"switch": True, "steps": idle_between(everything(("verify",)))},
    "requests": {"switch": False, "steps": everything(MODES)},
}
# A target whose request 1 is full: its draft tokens lie behind a context of whole pages.
FULL = [
    step("verify", [1, 1], capture=True, attend=False),
    step("verify", [448 - 8, 448], attend=False),
    step("verify", [448, 448], attend=False),
]
DECODE_AFTER_VERIFY = [
    step("decode", [1] * 4, capture=True, attend=False),
    step("verify", [1] * 4, capture=True, attend=False),
    step("verify", LENS[:4], attend=False),
    step("decode", LENS[:4], attend=False),
]
IDLE = [step("decode", [1, 1], capture=True, attend=False), step("idle", LENS[:2], attend=False)]
UNCAPTURED = [step("verify", [1, 1], capture=True, attend=False), step("decode", LENS[:2])]


def graph(name: str, steps: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {"name": name, "kind": "graph", "spec": "dflash", "tokens": 8, "steps": steps, **fields}


OURS_ONLY = [graph(name, **fields) for name, fields in GRAPHS.items()] + [
    graph("full, in rows", [{**each, "attend": not each.get("capture")} for each in FULL], switch=True),
    *(switched_off(case) for case in LEFT_ALONE if NO_GRAPHS_UPSTREAM and case.get("graph")),
]
BOTH = [
    graph("full", FULL),
    graph("decode after verify", DECODE_AFTER_VERIFY),
    graph("idle", IDLE),
    graph("uncaptured", UNCAPTURED),
    graph("verify only", everything(("verify",), attend=False)),
    graph("draft extend only", everything(("draft extend",), attend=False)),
]
WIDTHS = [
    {
        "name": f"{context} tokens, {tokens} at a time, switch {switch}",
        "kind": "width",
        "context": context,
        "tokens": tokens,
        "switch": switch,
        "server": {
            "speculative_algorithm": "EAGLE",
            "speculative_num_steps": tokens - 1,
            "page_size": PAGE,
        },
    }
    for context in (1_048_576, 1_048_575, 262_144, 1000)
    for tokens in (2, 8)
    for switch in (False, True)
]
UNGROWN: list[dict[str, Any]] = [
    {**WIDTHS[3], "name": "width for a tree", "topk": 2},
    {**WIDTHS[3], "name": "width for a draft runner", "runner": DRAFT_RUNNER},
]
DRAFTS: list[dict[str, Any]] = [
    {"name": f"topk {topk}", "kind": "draft", "topk": topk, "num_steps": 3, "tokens": 4, "lens": []} for topk in (1, 4)
]
CASES = [*LEFT_ALONE, *SWITCHED_OFF, NONCAUSAL, *BOTH, *WIDTHS, *UNGROWN, *DRAFTS]


@pytest.fixture(scope="module")
def ours(composed: Tree) -> dict[str, Any]:
    return composed.measure("xpu_speculation", [*CASES, *EAGER, DESCALE, *OURS_ONLY])


@pytest.fixture(scope="module")
def theirs(upstream: Tree) -> dict[str, Any]:
    off = [{**case, "only off": True} for case in (*EAGER, DESCALE)]
    return upstream.measure("xpu_speculation", [*CASES, *off])


def named(case: dict[str, Any]) -> str:
    return str(case["name"])


# --- xpu-verify-rows ---


@verify_rows
@pytest.mark.parametrize("case", EAGER, ids=named)
def test_rows_and_requests_compute_the_same(ours: dict[str, Any], case: dict[str, Any]) -> None:
    measured = ours[case["name"]]
    assert measured["on to reference"] < EXACT
    assert measured["off to reference"] < EXACT
    assert measured["on to off"] < EXACT


@verify_rows
@pytest.mark.parametrize("case", [case for case in EAGER if "chunk" not in case], ids=named)
def test_each_token_is_a_row_with_its_own_length(ours: dict[str, Any], case: dict[str, Any]) -> None:
    lengths = [before + token + 1 for before in case["lens"] for token in range(case["tokens"])]
    for layer in ours[case["name"]]["on"]:
        assert layer == {
            "max_seqlen_q": 1,
            "cache_seqlens": lengths,
            "cu_seqlens_q": list(range(len(lengths) + 1)),
            "tables": len(lengths),
        }
    assert ours[case["name"]]["cu_seqlens_k"] == [0, *accumulate(lengths)]


@verify_rows
@pytest.mark.parametrize("case", [case for case in EAGER if "chunk" in case], ids=named)
def test_local_attention_counts_keys_within_the_chunk(ours: dict[str, Any], case: dict[str, Any]) -> None:
    positions = [before + token for before in case["lens"] for token in range(case["tokens"])]
    for layer in ours[case["name"]]["on"]:
        assert layer["max_seqlen_q"] == 1
        assert layer["cache_seqlens"] == [position % case["chunk"] + 1 for position in positions]
        assert layer["cu_seqlens_q"] == list(range(len(positions) + 1))


@verify_rows
@pytest.mark.parametrize("case", EAGER, ids=named)
def test_upstream_and_the_switch_off_send_one_call_of_several_queries(
    ours: dict[str, Any], theirs: dict[str, Any], case: dict[str, Any]
) -> None:
    assert ours[case["name"]]["off arguments"] == theirs[case["name"]]["off arguments"]
    for layer in theirs[case["name"]]["off"]:
        assert layer["max_seqlen_q"] == case["tokens"]
        assert layer["tables"] == len(case["lens"]) or "chunk" in case


@verify_rows
@pytest.mark.parametrize("case", LEFT_ALONE, ids=named)
def test_what_is_no_linear_verification_is_left_alone(
    ours: dict[str, Any], theirs: dict[str, Any], case: dict[str, Any]
) -> None:
    refused = NO_GRAPHS_UPSTREAM and case.get("graph")
    assert ours[case["name"]] == (ours[switched_off(case)["name"]] if refused else theirs[case["name"]])
    assert ours[case["name"]]["queries"] == case["tokens"]


@verify_rows
@pytest.mark.parametrize("case", SWITCHED_OFF, ids=named)
def test_switched_off_all_metadata_is_upstreams(
    ours: dict[str, Any], theirs: dict[str, Any], case: dict[str, Any]
) -> None:
    if theirs[case["name"]] == {"error": NO_GRAPHS}:
        assert NO_GRAPHS_UPSTREAM
        assert (ours[case["name"]]["queries"], ours[case["name"]]["rows"]) == (case["tokens"], len(case["lens"]))
    else:
        assert ours[case["name"]] == theirs[case["name"]]


@verify_rows
def test_a_layer_that_looks_both_ways_is_refused(ours: dict[str, Any]) -> None:
    assert ours["noncausal layer"]["error"] == "Only causal layers can be verified as single-query rows"


@verify_rows
def test_upstream_verifies_such_a_layer(theirs: dict[str, Any]) -> None:
    assert theirs["noncausal layer"]["error"] is None


@verify_rows
def test_verification_passes_no_descale_factors(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """The stand-in refuses any; so rows have none to repeat."""
    assert ours["quantised cache"]["on to off"] < EXACT
    assert theirs["quantised cache"]["off"] == ours["quantised cache"]["off"]


def test_only_the_xpu_backend_knows_of_rows(composed: Tree) -> None:
    """Other devices neither read the variable, which is off by default, nor import the module or its only user."""
    folder = composed.root / "sglang/srt"
    sources = {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}
    backend = "layers/attention/xpu_backend.py"
    assert [name for name, text in sources.items() if "xpu_verify_rows" in text] == [backend]
    assert {name for name, text in sources.items() if "SGLANG_XPU_VERIFY_SINGLE_QUERY_ROWS" in text} == {
        backend,
        "environ.py",
    }
    assert "SGLANG_XPU_VERIFY_SINGLE_QUERY_ROWS = EnvBool(False)" in sources["environ.py"]
    importers = [name for name, text in sources.items() if "attention.xpu_backend import" in text]
    assert {"layers/attention/attention_registry.py", "speculative/draft_utils.py"} <= set(importers)
    for name in importers:
        assert "attention.xpu_backend import" not in "".join(at_import(ast.parse(sources[name])))


def at_import(module: ast.Module) -> list[str]:
    """The statements that run when a module is imported, without the bodies of functions and classes."""
    return [ast.unparse(node) for node in module.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]


# --- xpu-verify-rows and xpu-graph-modes: replays ---


@verify_rows
@graph_modes
@pytest.mark.parametrize("name", GRAPHS)
def test_every_replay_computes_its_own_batch(ours: dict[str, Any], name: str) -> None:
    steps = GRAPHS[name]["steps"]
    replays = [measured for each, measured in zip(steps, ours[name], strict=True) if not each.get("capture")]
    assert len(replays) >= 8
    for measured in replays:
        assert measured["to reference"] < EXACT
        assert (measured["columns missing"], measured["rows of others written"]) == (0, 0)


@verify_rows
@pytest.mark.parametrize("name", ["rows", "rows, sliding-window pool", "rows, idle between"])
def test_a_replayed_verify_holds_rows(ours: dict[str, Any], name: str) -> None:
    for each, measured in zip(GRAPHS[name]["steps"], ours[name], strict=True):
        if each["mode"] == "verify":
            assert measured["max_seq_len_q"] == 1
            assert measured["cache_seqlens"] == [before + token + 1 for before in each["lens"] for token in range(8)]
            assert measured["cu_seqlens_q"] == list(range(8 * len(each["lens"]) + 1))
            assert measured["cu_seqlens_k"] == [0, *accumulate(measured["cache_seqlens"])]


@verify_rows
@graph_modes
@pytest.mark.parametrize("name", GRAPHS)
def test_buckets_share_one_set_of_buffers(ours: dict[str, Any], name: str) -> None:
    """A mode's captured tensors start at the same addresses in every bucket, and no replay moves them."""
    for mode in MODES:
        addresses = [
            measured["addresses"]
            for each, measured in zip(GRAPHS[name]["steps"], ours[name], strict=True)
            if each["mode"] == mode
        ]
        assert all(each == addresses[0] for each in addresses)


# --- xpu-graph-modes ---


@graph_modes
def test_decode_after_verify_keeps_its_ramp(ours: dict[str, Any]) -> None:
    assert ours["decode after verify"][2]["cu_seqlens_q"] == [0, 8, 16, 24, 32]
    assert ours["decode after verify"][3]["cu_seqlens_q"] == [0, 1, 2, 3, 4]


@graph_modes
def test_upstream_decodes_on_the_ramp_of_verify(theirs: dict[str, Any]) -> None:
    if NO_GRAPHS_UPSTREAM:
        assert theirs["decode after verify"][2] == {"error": NO_GRAPHS}
    else:
        assert theirs["decode after verify"][3]["cu_seqlens_q"] == [0, 8, 16, 24, 32]


@graph_modes
def test_a_mode_that_was_not_captured_is_no_other_modes(ours: dict[str, Any]) -> None:
    assert "DECODE" in str(ours["uncaptured"][1]["uncaptured"])


@graph_modes
def test_upstream_replays_it_on_the_metadata_of_verify(theirs: dict[str, Any]) -> None:
    if NO_GRAPHS_UPSTREAM:
        assert theirs["uncaptured"][0] == {"error": NO_GRAPHS}
    else:
        assert theirs["uncaptured"][1] == {"uncaptured": None}


@graph_modes
def test_idle_replays_decode(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["idle"][1]["digest"] == theirs["idle"][1]["digest"]
    assert ours["idle"][1]["cache_seqlens"] == LENS[:2]


@graph_modes
@needs_graphs_upstream
@pytest.mark.parametrize("name", ["verify only", "draft extend only"])
def test_one_mode_alone_is_as_upstream(ours: dict[str, Any], theirs: dict[str, Any], name: str) -> None:
    for our, their in zip(ours[name], theirs[name], strict=True):
        assert our["digest"] == their["digest"]
        assert our["max_seq_len_q"] == their["max_seq_len_q"]


# --- xpu-graph-page-room ---


@page_room
@pytest.mark.parametrize("name", ["full", "full, in rows"])
def test_draft_tokens_behind_a_full_context_have_a_page(ours: dict[str, Any], name: str) -> None:
    for measured in ours[name]:
        assert (measured["columns missing"], measured["rows of others written"]) == (0, 0)
    assert max(measured.get("to reference", 0.0) for measured in ours[name]) < EXACT


@page_room
@needs_graphs_upstream
def test_upstream_writes_them_into_another_row(theirs: dict[str, Any]) -> None:
    assert [measured["columns missing"] for measured in theirs["full"]] == [0, 1, 1]
    assert theirs["full"][1]["rows of others written"] == 1


@page_room
@pytest.mark.parametrize("case", WIDTHS, ids=named)
def test_page_table_holds_all_that_a_request_may_hold(ours: dict[str, Any], case: dict[str, Any]) -> None:
    context, tokens = case["context"], case["tokens"]
    _, columns = ours[case["name"]]["page_table"]
    # Overlap scheduling runs one step more than the request had room for.
    assert columns >= -(-(context + 2 * tokens) // PAGE)
    assert columns == -(-(context + ours[case["name"]]["extra"]) // PAGE)


@page_room
@pytest.mark.parametrize("case", WIDTHS, ids=named)
def test_upstreams_page_table_ends_with_the_context(theirs: dict[str, Any], case: dict[str, Any]) -> None:
    assert theirs[case["name"]]["page_table"] == [8, -(-case["context"] // PAGE)]


@verify_rows
@pytest.mark.parametrize("case", WIDTHS, ids=named)
def test_page_table_has_a_row_for_each_that_is_verified(ours: dict[str, Any], case: dict[str, Any]) -> None:
    assert ours[case["name"]]["page_table"][0] == (8 * case["tokens"] if case["switch"] else 8)


@verify_rows
@pytest.mark.parametrize("case", UNGROWN, ids=named)
def test_only_who_verifies_in_rows_has_a_table_row_for_each(ours: dict[str, Any], case: dict[str, Any]) -> None:
    assert ours[case["name"]]["page_table"][0] == 8


# --- xpu-linear-drafts ---


@linear_drafts
def test_a_draft_tree_is_refused_before_anything_is_made(ours: dict[str, Any]) -> None:
    assert ours["topk 4"] == {
        "error": "intel_xpu drafts one chain per request: expected --speculative-eagle-topk 1, found 4. "
        "Set --speculative-eagle-topk 1.",
        "made": 0,
    }


@linear_drafts
@needs_graphs_upstream
def test_upstream_captures_a_draft_tree_without_its_branches(theirs: dict[str, Any]) -> None:
    assert theirs["topk 4"]["error"] is None
    assert theirs["topk 4"]["branches prepared"] == [False, False]


@linear_drafts
def test_a_chain_drafts_as_upstream(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    if not NO_GRAPHS_UPSTREAM:
        assert ours["topk 1"] == theirs["topk 1"]
    assert ours["topk 1"]["cache_seqlens"] == [[71, 10], [72, 11]]
