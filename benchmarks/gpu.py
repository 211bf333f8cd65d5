"""What the kernels take on a CUDA device, each beside what it replaces: ``python3 -m benchmarks.gpu --out FILE``.

Every figure is of one call inside a CUDA graph of many, timed by events around its replays, after warm-up: median
and quartiles of the rounds. Where a call gathers rows at random, each call of the graph has rows of its own, so that
none of them finds its data in the cache because the call before had left it there.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]  # on the machine with the device

from benchmarks.gpu_report import SOURCE, Figure, markdown
from tests.gpu import attention, draft_kv, gdn, selector
from tests.gpu.machine import DEVICE, HALF, Time, described, launched, relative_error, replayed
from tests.tree.drivers import commit_loops
from tests.tree.drivers.selector_loops import Given, draw
from tests.tree.drivers.standalone import function

GIB = 1 << 30
CACHED = (8_192, 65_536, 262_144, 1_048_576)


def figure(topic: str, case: str, what: str, time: Time, **more: Any) -> Figure:
    return Figure(topic=topic, case=case, what=what, time=time.as_json(), **more)


def bandwidth() -> float:
    """Bytes per second of an elementwise kernel over much memory, read and written counted."""
    source = torch.zeros(GIB, dtype=torch.float32, device=DEVICE)
    target = torch.empty_like(source)
    time = launched(lambda: torch.neg(source, out=target), calls=4)
    return float(2 * source.nbytes / (time.median * 1e-6))


def gdn_errors(ours: Path, theirs: Path) -> Iterator[Figure]:
    marks = [gdn.RING, 128, 2048, 4096]
    given = gdn.draw(max(marks), batch=2)
    exact = gdn.in_fp64(given, marks)
    kernels = {"beta in FP32 (ours)": gdn.Kernels(ours), "beta through BF16 (upstream)": gdn.Kernels(theirs)}
    runs: dict[str, Callable[[gdn.Kernels], dict[int, Any]]] = {
        "packed decode": lambda each: each.packed_states(given, marks),
        "ReplaySSM, records in FP32": lambda each: each.replay_states(given, marks),
        "ReplaySSM, records in BF16": lambda each: each.replay_states(given, marks, HALF),
    }
    for run, states in runs.items():
        for what, each in kernels.items():
            for step, state in states(each).items():
                yield Figure(
                    "Gated DeltaNet state", f"{run}, {step} steps", what, error=relative_error(state, exact[step])
                )


def gdn_times(ours: Path, theirs: Path, batch: int) -> Iterator[Figure]:
    given = gdn.draw(64, batch)
    out = torch.empty(batch, 1, gdn.VALUE_HEADS, gdn.DIM, device=DEVICE, dtype=HALF)
    slots = torch.arange(batch, device=DEVICE)
    states = [given.state.clone() for _ in range(64)]
    moved = 2 * given.state.numel() * 4
    for what, root in (("beta in FP32 (ours)", ours), ("beta through BF16 (upstream)", theirs)):
        step = gdn.Kernels(root).packed_step
        calls = [partial(step, given, index, state, out, slots) for index, state in enumerate(states)]
        yield figure("Gated DeltaNet packed decode", f"batch {batch}", what, replayed(calls), bytes=moved)


def selector_bytes(batch: int, scores: Any) -> dict[str, int]:
    """Least bytes of a whole selection, of the tables alone, which hold all transitions, and of a walk through them.

    A path needs one predecessor row for each slot; the tables need one for each candidate before a slot.
    """
    row, slots, candidates = selector.RANK * HALF.itemsize, selector.SLOTS, selector.TOP_K
    factors = batch * slots * ((candidates + 1) * row + candidates * (8 + 4))  # successors, hidden; ids, unary logits
    chosen = batch * slots * (candidates * 4 + 8)  # distribution and token
    return {
        "whole": factors + batch * slots * row + chosen,
        "tables": factors + batch * (1 + (slots - 1) * candidates) * row + scores.nbytes,
        "walk": batch * slots * candidates * (scores.element_size() + 8) + chosen,
    }


def selector_times(ours: Path, ways: selector.Ways, batch: int) -> Iterator[Figure]:
    first = draw(batch, selector.SLOTS, selector.TOP_K, selector.RANK, selector.VOCAB, HALF, seed=batch).on(DEVICE)
    number = max(64, 512 // batch)
    sets = [
        replace(
            first,
            candidate_ids=torch.randint(selector.VOCAB, first.candidate_ids.shape, device=DEVICE),
            anchor_token_ids=torch.randint(selector.VOCAB, (batch,), device=DEVICE),
        )
        for _ in range(number)
    ]
    scores, torch_walk = ways.tables(first), ways.torch_walk(ours)
    least = selector_bytes(batch, scores)
    calls: dict[str, tuple[Callable[[Given], Any], int]] = {
        "one launch (ours)": (ways.ours, least["whole"]),
        "tables, compiled": (ways.tables, least["tables"]),
        "walk, Triton": (lambda given: ways.triton_walk(given, scores), least["walk"]),
        "walk, torch": (lambda given: torch_walk(given, scores), least["walk"]),
        "tables and Triton walk (CUDA today)": (
            lambda given: ways.triton_walk(given, ways.tables(given)),
            least["whole"],
        ),
        "tables and torch walk (XPU before)": (lambda given: torch_walk(given, ways.tables(given)), least["whole"]),
    }
    logits = torch.randn(batch * selector.SLOTS, selector.VOCAB // 4, device=DEVICE).to(HALF)
    time = replayed([partial(torch.topk, logits, selector.TOP_K)] * 16)
    yield figure("Selector", f"batch {batch}", "candidates of one of four ranks, torch.topk", time, bytes=logits.nbytes)
    for what, (call, moved) in calls.items():
        time = replayed([partial(call, given) for given in sets])
        yield figure("Selector", f"batch {batch}", what, time, bytes=moved)


def commit_times(functions: commit_loops.Functions, by_torch: Any, batch: int) -> Iterator[Figure]:
    candidates, target = (torch.randint(0, 2, (batch, 8), device=DEVICE) for _ in range(2))
    lengths = torch.full((batch,), 1000, device=DEVICE)
    outs = [torch.empty(batch, dtype=dtype, device=DEVICE) for dtype in (torch.int32, torch.int32, torch.int64)]
    tokens, new_lengths = torch.empty_like(candidates), torch.empty_like(lengths)

    def separate() -> Any:
        accepted, bonus = by_torch(candidates=candidates, target_predict=target)
        tokens, committed = functions.commit_accept(candidates, accepted, bonus)
        return tokens, lengths + committed

    one_kernel = partial(
        functions.kernels._compute_dflash_accept_bonus_triton_unchecked,
        *(candidates, target, *outs, tokens, lengths, new_lengths),
    )
    moved = sum(each.nbytes for each in (candidates, target, lengths, *outs, tokens, new_lengths))
    for what, call in (("one kernel (upstream, XPU too)", one_kernel), ("torch", separate)):
        yield figure("Accept, bonus, commit", f"batch {batch}", what, replayed([call] * 64), bytes=moved)


def row_times(functions: commit_loops.Functions, batch: int) -> Iterator[Figure]:
    keys, values = torch.randn(2, 5, batch * 8, 2, 128, device=DEVICE).to(HALF)
    caches = torch.zeros(2, 5, 4096, 2, 128, dtype=HALF, device=DEVICE)
    locations = torch.randperm(4096, device=DEVICE)[: batch * 8].view(batch, 8)
    committed = torch.full((batch,), 4, dtype=torch.int32, device=DEVICE)
    moved = 2 * (keys.nbytes + values.nbytes) * 4 // 8  # half of each block, read and written

    def write() -> None:
        for layer in range(5):
            source, target = (keys[layer], values[layer]), (caches[0, layer], caches[1, layer])
            functions.write_rows(*source, *target, locations, committed, keys[layer, 0].numel(), HALF)

    def select() -> None:
        slots = torch.arange(8, device=DEVICE)
        for layer in range(5):
            index = torch.nonzero((slots < committed[:, None]).flatten()).flatten()
            rows = locations.flatten().index_select(0, index)
            caches[0, layer][rows] = keys[layer].index_select(0, index)
            caches[1, layer][rows] = values[layer].index_select(0, index)

    topic, case = "Commit of five layers' accepted rows", f"batch {batch}, launched from the host"
    yield figure(topic, case, "Triton, lengths stay on the device", launched(write), bytes=moved)
    yield figure(topic, case, "torch.nonzero, waits for the device (XPU in upstream)", launched(select), bytes=moved)
    case = f"batch {batch}, in a graph"
    yield figure(topic, case, "Triton, lengths stay on the device", replayed([write] * 16), bytes=moved)


def draft_kv_times(ours: Path, tokens: int) -> Iterator[Figure]:
    model, given = draft_kv.draft(4096, HALF), draft_kv.inputs(tokens, 4096)
    each = 2 * draft_kv.LAYERS * draft_kv.KEY_HEADS * draft_kv.DIM * HALF.itemsize
    moved = each * (draft_kv.HIDDEN + tokens) + tokens * draft_kv.HIDDEN * HALF.itemsize
    for what, write in (
        ("fused (upstream, XPU too)", draft_kv.fused(ours, model)),
        ("layer by layer, torch", draft_kv.separate(model)),
    ):
        time = replayed([partial(write, *given)] * 16)
        yield figure("Draft keys and values of five layers", f"{tokens} tokens", what, time, bytes=moved)


def attention_times(ours: Path, cached: int) -> Iterator[Figure]:
    request = attention.draw(cached)
    expected = attention.exact(request)
    moved = 2 * len(request.rows) * attention.KEY_HEADS * attention.DIM * HALF.itemsize
    for what, way in (
        (f"{attention.TOKENS} rows of one query (ours)", attention.AsRows(ours, request)),
        (f"one call with {attention.TOKENS} queries", attention.AsBlock(ours, request)),
    ):
        error, time = relative_error(way(), expected), replayed([way] * 4, rounds=10)
        yield figure("Verification", f"{cached:,} cached tokens", what, time, bytes=moved, error=error)


def figures(ours: Path, theirs: Path) -> Iterator[Figure]:
    """Everything, in the order of the report."""
    yield from gdn_errors(ours, theirs)
    for batch in (1, 8, 32):
        yield from gdn_times(ours, theirs, batch)
    ways = selector.Ways(ours)
    for batch in (1, 2, 4, 8):
        yield from selector_times(ours, ways, batch)
    functions = commit_loops.Functions(ours)
    name, condition = "compute_dflash_correct_drafts_and_bonus", "candidates.is_cuda"
    by_torch = function(ours, commit_loops.KERNELS, name, {"torch": torch}, without=(condition,))
    for batch in (1, 8):
        yield from commit_times(functions, by_torch, batch)
    for batch in (1, 8):
        yield from row_times(functions, batch)
    for tokens in (8, 64, 2048):
        yield from draft_kv_times(ours, tokens)
    for cached in CACHED:
        yield from attention_times(ours, cached)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    arguments = parser.parse_args()
    ours, theirs = (Path(os.environ[name]).resolve() for name in ("SGX_TREE", "SGX_UPSTREAM"))
    date = datetime.now(UTC).date().isoformat()
    document: dict[str, Any] = {
        "command": "python3 run.py bench",
        **json.loads((Path(__file__).parents[1] / SOURCE).read_text(encoding="utf-8")),
        "date": date,
        "machine": described(),
        "bytes_per_second": bandwidth(),
        "figures": [],
    }
    for each in figures(ours, theirs):
        document["figures"].append(each.as_json())
        arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(markdown(document))


if __name__ == "__main__":
    main()
