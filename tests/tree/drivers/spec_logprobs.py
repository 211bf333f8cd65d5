"""Log probabilities of a DFLASH step, from the logits of its verification to what a request is given.

A case: ``name``; ``accepted`` (tokens by request), ``stride`` (rows by request), ``vocabulary``; ``temperatures`` by
request, null for greedy; ``top`` (how many best tokens each request asks for) and ``ids`` (which tokens). Answer: for
each request what the scheduler appends, and the same from a loop over requests and accepted tokens.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch  # type: ignore[import-not-found]  # in the base image only
from sglang.srt.layers.logprob_processor import compute_spec_logprobs  # type: ignore[import-not-found]
from sglang.srt.managers.scheduler_components.batch_result_processor import (  # type: ignore[import-not-found]
    SchedulerBatchResultProcessor,
)

from .answer import Case, answer


def log_softmax(row: list[float], temperature: float) -> list[float]:
    scaled = [value / temperature for value in row]
    most = max(scaled)
    total = math.log(sum(math.exp(value - most) for value in scaled))
    return [value - most - total for value in scaled]


def reference(case: Case, logits: list[list[float]], tokens: list[list[int]]) -> list[dict[str, Any]]:
    """Row ``request * stride + j`` belongs to the j-th token of a request."""
    answers = []
    for request, accepted in enumerate(case["accepted"]):
        temperature = case["temperatures"][request] if case["temperatures"] else 1.0
        made: dict[str, Any] = {"token": [], "top": [], "ids": []}
        for j in range(accepted):
            row = log_softmax(logits[request * case["stride"] + j], temperature)
            made["token"].append([tokens[request][j], row[tokens[request][j]]])
            best = sorted(range(len(row)), key=lambda token: -row[token])[: case["top"][request]]
            made["top"].append([[token, row[token]] for token in best])
            made["ids"].append([[token, row[token]] for token in case["ids"][request] or ()])
        answers.append(made)
    return answers


def request_of(case: Case, number: int) -> SimpleNamespace:
    lists = ("token_logprobs", "top_logprobs", "token_ids_logprobs")
    empty: dict[str, list[Any]] = {f"output_{name}_{part}": [] for name in lists for part in ("val", "idx")}
    return SimpleNamespace(
        logprob=SimpleNamespace(top_logprobs_num=case["top"][number], token_ids_logprob=case["ids"][number], **empty)
    )


def given(logprob: Any, accepted: int) -> dict[str, Any]:
    """What a request was given, as pairs of token and value."""

    def pairs(name: str) -> list[list[list[float]]]:
        values, ids = getattr(logprob, f"output_{name}_val"), getattr(logprob, f"output_{name}_idx")
        return [[list(pair) for pair in zip(*row, strict=True)] for row in zip(ids, values, strict=True)]

    none: list[list[Any]] = [[] for _ in range(accepted)]
    return {
        "token": [
            list(pair)
            for pair in zip(logprob.output_token_logprobs_idx, logprob.output_token_logprobs_val, strict=True)
        ],
        "top": pairs("top_logprobs") or none,
        "ids": pairs("token_ids_logprobs") or none,
    }


def measure(case: Case) -> dict[str, Any]:
    requests, stride = len(case["accepted"]), case["stride"]
    random = torch.Generator().manual_seed(11)
    logits = torch.randn(requests * stride, case["vocabulary"], generator=random) * 3
    tokens = torch.randint(case["vocabulary"], (requests, stride), generator=random)
    temperatures = torch.tensor(case["temperatures"] or [1.0] * requests).view(-1, 1)
    sampling = SimpleNamespace(is_all_greedy=not case["temperatures"], temperatures=temperatures)
    batch = SimpleNamespace(
        seq_lens=[0] * requests,
        sampling_info=sampling,
        top_logprobs_nums=case["top"],
        token_ids_logprobs=case["ids"],
        return_logprob=True,
        spec_algorithm=SimpleNamespace(is_none=lambda: False),
    )
    output = SimpleNamespace(
        next_token_logits=logits.clone(), next_token_top_logprobs_val=[], next_token_token_ids_logprobs_val=[]
    )
    compute_spec_logprobs(batch, output, tokens.reshape(-1), chain_stride=stride)

    accepted = [row[:count] for row, count in zip(tokens.tolist(), case["accepted"], strict=True)]
    processor = SimpleNamespace(_resolve_spec_v2_tokens=lambda *_: accepted)
    ids, values = SchedulerBatchResultProcessor._normalize_decode_outputs(
        processor, batch=batch, result=None, logits_output=output, next_token_ids=tokens
    )
    found = []
    for number in range(requests):
        request = request_of(case, number)
        SchedulerBatchResultProcessor._apply_decode_logprobs(
            processor,
            req=request,
            i=number,
            batch=batch,
            next_token_id=ids[number],
            next_token_logprobs=values,
            logits_output=output,
        )
        found.append(given(request.logprob, case["accepted"][number]))
    return {"found": found, "expected": reference(case, logits.tolist(), tokens.tolist())}


if __name__ == "__main__":
    answer(measure)
