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
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]  # on the machine with the device

from benchmarks.gpu_report import Figure, markdown
from tests.gpu import attention, draft_kv, gdn, selector
from tests.gpu.machine import DEVICE, HALF, Time, described, relative_error, replayed
from tests.tree.drivers import commit_loops
from tests.tree.drivers.selector_loops import Given, draw
from tests.tree.drivers.standalone import function

GIB = 1 << 30
CACHED = (8_192, 65_536, 262_144, 1_048_576)


def figure(topic: str, case: str, what: str, time: Time, **more: Any) -> Figure:
    return Figure(topic=topic, case=case, what=what, time=time.as_json(), **more)


def bandwidth() -> float:
    """Bytes per second of a large copy on the device, read and written counted."""
    source = torch.empty(4 * GIB, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    time = replayed([lambda: target.copy_(source)] * 2)
    return 2 * source.numel() / (time.median * 1e-6)


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


def gdn_times(ours: Path, theirs: Path) -> Iterator[Figure]:
    for batch in (1, 8, 32):
        given = gdn.draw(64, batch)
        out = torch.empty(batch, 1, gdn.VALUE_HEADS, gdn.DIM, device=DEVICE, dtype=HALF)
        for what, root in (("beta in FP32 (ours)", ours), ("beta through BF16 (upstream)", theirs)):
            kernels = gdn.Kernels(root)
            states = [given.state.clone() for _ in range(64)]
            calls = [
                lambda step=step, state=state, kernels=kernels: kernels.packed_step(given, step, state, out)
                for step, state in enumerate(states)
            ]
            moved = 2 * given.state.numel() * 4
            yield figure("Gated DeltaNet packed decode", f"batch {batch}", what, replayed(calls), bytes=moved)


def selector_times(ours: Path) -> Iterator[Figure]:
    ways = selector.Ways(ours)
    torch_walk = ways.torch_walk(ours)
    for batch in (1, 2, 4, 8):
        first = draw(batch, selector.SLOTS, selector.TOP_K, selector.RANK, selector.VOCAB, HALF, seed=batch).on(DEVICE)
        number = max(64, 512 // batch)
        sets = []
        for _ in range(number):
            ids = torch.randint(selector.VOCAB, first.candidate_ids.shape, device=DEVICE)
            anchor = torch.randint(selector.VOCAB, (batch,), device=DEVICE)
            sets.append(Given(**{**first.arguments(), "candidate_ids": ids, "anchor_token_ids": anchor}))
        scores = [ways.tables(each) for each in sets[:8]] * (number // 8)
        row = selector.RANK * HALF.itemsize
        touched = batch * selector.SLOTS * ((selector.TOP_K + 2) * row + selector.TOP_K * (8 + 4 + 4))
        ways_to_go: dict[str, tuple[Callable[[int], Any], int | None]] = {
            "one launch (ours)": (lambda i: ways.ours(sets[i]), touched),
            "tables, compiled": (lambda i: ways.tables(sets[i]), None),
            "walk, Triton": (lambda i: ways.triton_walk(sets[i], scores[i]), None),
            "walk, torch": (lambda i: torch_walk(sets[i], scores[i]), None),
            "tables and Triton walk (CUDA today)": (lambda i: ways.triton_walk(sets[i], ways.tables(sets[i])), None),
            "tables and torch walk (XPU before)": (lambda i: torch_walk(sets[i], ways.tables(sets[i])), None),
        }
        for what, (call, moved) in ways_to_go.items():
            calls = [lambda i=i, call=call: call(i) for i in range(number)]
            yield figure("Selector", f"batch {batch}", what, replayed(calls), bytes=moved)


def commit_times(ours: Path) -> Iterator[Figure]:
    functions = commit_loops.Functions(ours)
    by_torch = function(
        ours,
        commit_loops.KERNELS,
        "compute_dflash_correct_drafts_and_bonus",
        {"torch": torch},
        without=("candidates.is_cuda",),
    )
    for batch in (1, 8):
        candidates, target = (torch.randint(0, 2, (batch, 8), device=DEVICE) for _ in range(2))
        lengths = torch.full((batch,), 1000, device=DEVICE)

        def separate() -> Any:
            accepted, bonus = by_torch(candidates=candidates, target_predict=target)
            return functions.commit_accept(candidates, accepted, bonus)

        calls: dict[str, Callable[[], Any]] = {
            "one kernel (upstream, XPU too)": lambda: functions.by_one_kernel(candidates, target, lengths),
            "torch": separate,
        }
        for what, call in calls.items():
            yield figure("Accept, bonus, commit", f"batch {batch}", what, replayed([call] * 64))
        keys, values = torch.randn(2, batch * 8, 2, 128, device=DEVICE).to(HALF)
        caches = torch.zeros(2, 5, 4096, 2, 128, dtype=HALF, device=DEVICE)
        locations = torch.randperm(4096, device=DEVICE)[: batch * 8].view(batch, 8)
        committed = torch.full((batch,), 4, dtype=torch.int32, device=DEVICE)

        def write() -> None:
            for layer in range(5):
                functions.write_rows(
                    keys, values, caches[0, layer], caches[1, layer], locations, committed, keys[0].numel(), HALF
                )

        yield figure("Prefix-valid commit of five layers", f"batch {batch}", "Triton", replayed([write] * 16))


def draft_kv_times(ours: Path) -> Iterator[Figure]:
    weights = draft_kv.LAYERS * 2 * draft_kv.KEY_HEADS * draft_kv.DIM * draft_kv.HIDDEN * HALF.itemsize
    for tokens in (8, 64, 2048):
        model = draft_kv.draft(4096, HALF)
        given = draft_kv.inputs(tokens, 4096)
        written = tokens * draft_kv.LAYERS * 2 * draft_kv.KEY_HEADS * draft_kv.DIM * HALF.itemsize
        moved = weights + written + tokens * draft_kv.HIDDEN * HALF.itemsize
        for what, write in (
            ("fused (upstream, XPU too)", draft_kv.fused(ours, model)),
            ("layer by layer, torch", draft_kv.separate(model)),
        ):
            calls = [lambda write=write: write(*given)] * 16
            yield figure("Draft keys and values, five layers", f"{tokens} tokens", what, replayed(calls), bytes=moved)


def attention_times(ours: Path) -> Iterator[Figure]:
    for cached in CACHED:
        request = attention.draw(cached)
        expected = attention.exact(request)
        moved = 2 * len(request.rows) * attention.KEY_HEADS * attention.DIM * HALF.itemsize
        for what, way in (
            (f"{attention.TOKENS} rows of one query (ours)", attention.AsRows(ours, request)),
            (f"one call with {attention.TOKENS} queries", attention.AsBlock(ours, request)),
        ):
            error = relative_error(way(), expected)
            time = replayed([way] * 4, rounds=10)
            yield figure("Verification", f"{cached:,} cached tokens", what, time, bytes=moved, error=error)
        del request, expected
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    arguments = parser.parse_args()
    ours, theirs = (Path(os.environ[name]).resolve() for name in ("SGX_TREE", "SGX_UPSTREAM"))
    document: dict[str, Any] = {"machine": described(), "bytes_per_second": bandwidth(), "figures": []}
    for figures in (
        gdn_errors(ours, theirs),
        gdn_times(ours, theirs),
        selector_times(ours),
        commit_times(ours),
        draft_kv_times(ours),
        attention_times(ours),
    ):
        for each in figures:
            document["figures"].append(each.as_json())
            arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(markdown(document))


if __name__ == "__main__":
    main()
