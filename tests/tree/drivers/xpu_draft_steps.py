"""Make and run the draft steps of MTP on a CPU as EAGLE's worker does it, through the factory for draft backends.

Cases by ``kind``; ``tokens`` is the number of draft steps and one more. Instead of what it measures, a case answers
with the ``error`` of the factory.

factory       names and stamps of what the factory makes for ``backend``
eager         draft for requests of ``lens`` tokens; per step the kernel's arguments and the distance to the reference
graph         the same for each of ``replays``, with what capture bound for its number of requests
draft extend  the draft's forward over ``tokens`` accepted or rejected tokens at the end of ``lens``
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import torch  # type: ignore[import-not-found]  # in the base image only
from sglang.srt.model_executor.forward_batch_info import ForwardMode  # type: ignore[import-not-found]
from sglang.srt.speculative.draft_utils import DraftBackendFactory  # type: ignore[import-not-found]

from .answer import Case, answer
from .xpu_speculation import MAX_BS, Bench, largest, server, shape_of

BUCKETS = (1, 2, 4, 8)


def make(bench: Bench) -> DraftBackendFactory:
    return DraftBackendFactory(bench.runner, topk=1, speculative_num_steps=bench.case["tokens"] - 1)


def stamps(backend: Any) -> list[str]:
    return [backend.decode_attention_backend_str, backend.prefill_attention_backend_str]


def factory(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for phase in ("decode", "draft_extend"):
        try:
            backend = getattr(make(bench), f"create_{phase}_backend")()
        except ValueError as refusal:
            found[phase] = {"error": str(refusal)}
            continue
        steps = getattr(backend, "attn_backends", [])
        found[phase] = backend and {
            "class": type(backend).__name__,
            "stamps": stamps(backend),
            "steps": [each.speculative_step_id for each in steps],
            "stamps of steps": [stamps(each) for each in steps],
        }
    return found


def batch(lens: list[int]) -> SimpleNamespace:
    """Requests 1, 2, ... of the pool, with these many tokens ahead of the first draft step."""
    seq_lens = torch.tensor(lens)
    return SimpleNamespace(
        forward_mode=ForwardMode.DECODE,
        batch_size=len(lens),
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens,
        seq_lens_sum=sum(lens),
        req_pool_indices=torch.arange(1, len(lens) + 1),
        spec_info=SimpleNamespace(is_draft_input=lambda: True),
        out_cache_loc=None,
        encoder_lens=None,
        _attn_output=None,
    )


def attended(bench: Bench, forward_batch: SimpleNamespace) -> dict[str, Any]:
    layers = [bench.layer(0), bench.layer(1)]
    found, calls = zip(*(bench.attend(forward_batch, layer) for layer in layers), strict=True)
    expected = [bench.reference(forward_batch, layer) for layer in layers]
    return {**shape_of(calls[0]), "to reference": largest(found, expected)}


def run_steps(bench: Bench, steps: list[Any], metadata: list[Any], forward_batch: SimpleNamespace) -> list[Any]:
    """Each step's token stands behind those of the steps before it."""
    measured = []
    for step, (backend, prepared) in enumerate(zip(steps, metadata, strict=True)):
        bench.backend, backend.forward_metadata = backend, prepared
        positions = (forward_batch.seq_lens + step).unsqueeze(1)
        measured.append(attended(bench, SimpleNamespace(**vars(forward_batch), positions=positions)))
    return measured


def eager(bench: Bench) -> list[Any]:
    drafts = make(bench).create_decode_backend()
    forward_batch = batch(bench.case["lens"])
    drafts.init_forward_metadata(forward_batch)
    steps = drafts.attn_backends
    return run_steps(bench, steps, [each.forward_metadata for each in steps], forward_batch)


def graph(bench: Bench) -> list[Any]:
    """A graph reads the tensors that its capture bound, so each replay attends with those."""
    drafts = make(bench).create_decode_backend()
    steps = drafts.attn_backends
    drafts.init_cuda_graph_state(MAX_BS, MAX_BS)
    captured = {}
    for bs in BUCKETS[::-1]:
        drafts.init_forward_metadata_out_graph(batch([1] * bs), in_capture=True)
        captured[bs] = [dataclasses.replace(each.forward_metadata) for each in steps]
    measured = []
    for lens in bench.case["replays"]:
        forward_batch = batch(lens)
        drafts.init_forward_metadata_out_graph(forward_batch)
        measured.append(run_steps(bench, steps, captured[len(lens)], forward_batch))
    return measured


def draft_extend(bench: Bench) -> dict[str, Any]:
    bench.backend = make(bench).create_draft_extend_backend()
    lens, tokens = bench.case["lens"], bench.case["tokens"]
    forward_batch = bench.batch("draft extend", lens)
    forward_batch.spec_info.is_draft_input = lambda: True
    forward_batch.extend_seq_lens = torch.full((len(lens),), tokens)
    forward_batch.extend_seq_lens_cpu = [tokens] * len(lens)
    forward_batch.extend_prefix_lens_cpu = [length - tokens for length in lens]
    bench.backend.init_forward_metadata(forward_batch)
    return attended(bench, forward_batch)


KINDS = {"factory": factory, "eager": eager, "graph": graph, "draft extend": draft_extend}


def measure(case: Case) -> Any:
    runner = {"is_draft_worker": True, "draft_attention_backend": case.get("backend", "intel_xpu")}
    with server(case, False):
        try:
            return KINDS[case["kind"]](Bench({**case, "runner": runner}))
        except ValueError as refusal:
            return {"error": str(refusal)}


if __name__ == "__main__":
    answer(measure)
