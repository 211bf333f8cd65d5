"""DFlash2's own parts, as SGLang defines them, on a CPU: selector, grouped convolution, candidates of four ranks.

A case: ``name``, ``kind`` and what the function of that kind takes. ``torch.compile`` is off: the functions run as
they are written, and a compiler is not in the image.
"""

from __future__ import annotations

import hashlib
import inspect
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # a container without network has no name that resolves

import torch  # type: ignore[import-not-found]  # in the base image only
from sglang.srt.distributed import parallel_state  # type: ignore[import-not-found]
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead  # type: ignore[import-not-found]
from sglang.srt.models import dflash  # type: ignore[import-not-found]
from sglang.srt.runtime_context import get_parallel  # type: ignore[import-not-found]

from . import port
from .answer import Case, answer

port.lend()

from sglang.srt.speculative import dflash_worker_v2 as worker  # type: ignore[import-not-found]  # noqa: E402

BLOCK, TOP_K, RANK, VOCAB, HIDDEN = 8, 16, 32, 256, 24
STEPS = ("_score_edges", "_follow_maps", "selector_walk_triton", "selector_propose_triton")


class OnXpu(torch.Tensor):  # type: ignore[misc]
    """A CPU tensor that says it lies on an XPU; what is computed from it says so too."""

    is_xpu = True


class OnCuda(torch.Tensor):  # type: ignore[misc]
    """A CPU tensor that says it lies on a CUDA device."""

    is_cuda = True


DEVICES = {"cpu": torch.Tensor, "cuda": OnCuda, "xpu": OnXpu}


def digest(*tensors: torch.Tensor) -> str:
    return hashlib.sha256(b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()


@contextmanager
def recorded(steps: list[str]) -> Iterator[None]:
    """Note each step of the selector that runs. Names that a tree lacks stay unnoted."""
    before = {step: getattr(dflash, step) for step in STEPS if hasattr(dflash, step)}

    def noting(step: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            steps.append(step)
            return before[step](*arguments, **options)

        return call

    for step in before:
        setattr(dflash, step, noting(step))
    try:
        yield
    finally:
        for step, function in before.items():
            setattr(dflash, step, function)


def ranking(head: Any, **more: Any) -> SimpleNamespace:
    """A draft model's real candidates over a head."""
    config = SimpleNamespace(output_multiplier=1.0, final_logit_softcapping=None)
    model = SimpleNamespace(lm_head=head, draft_config=config, **more)
    for method in ("compute_candidates", "_transform_unary_logits"):
        setattr(model, method, MethodType(getattr(dflash.DFlash2DraftModel, method), model))
    return model


def draft(random: torch.Generator) -> SimpleNamespace:
    """What the worker asks of a draft model: the real selector and the real candidates over a small head."""
    selector = dflash.CandidateSelector(hidden_size=HIDDEN, vocab_size=VOCAB, state_rank=RANK, top_k=TOP_K)
    for parameter in selector.parameters():
        parameter.data = torch.randn(parameter.shape, generator=random) * 0.5
    head = SimpleNamespace(weight=torch.randn(VOCAB, HIDDEN, generator=random), org_vocab_size=VOCAB)
    return ranking(head, candidate_selector=selector)


def selector(case: Case) -> dict[str, Any]:
    """Propose blocks through the worker's two callers, folded into a graph and eager; which steps ran, and results."""
    random = torch.Generator().manual_seed(20260829)
    batch, kind = 4, DEVICES[case["device"]]
    model = draft(random)
    hidden = torch.randn(batch * BLOCK, HIDDEN, generator=random).as_subclass(kind)
    tokens = torch.randint(VOCAB, (batch * BLOCK,), generator=random)
    # Up to 0.5.19 a selector's sampler always samples.
    takes = inspect.signature(worker._SelectorDraftSampler).parameters
    sampling = {"sampling_enabled": True} if "sampling_enabled" in takes else {}
    sampler = worker._SelectorDraftSampler(draft_model=model, block_size=BLOCK, max_bs=batch, device="cpu", **sampling)
    sampler.greedy_mask.copy_(torch.tensor([True, False, True, False]))
    sampler.temperatures.copy_(torch.tensor([1.0, 0.7, 1.0, 1.3]))
    eager = SimpleNamespace(
        draft_model=model,
        selector=model.candidate_selector,
        block_size=BLOCK,
        _selector_sampling_enabled=True,
        _selector_sample=None,
    )
    steps: list[str] = []
    torch.manual_seed(7)
    with recorded(steps), get_parallel().override(tp_size=1), torch.no_grad():
        sampler(hidden, tokens)
        folded, steps[:] = list(steps), []
        proposed = worker.DFlashWorkerV2._propose_selector_block(
            eager,
            draft_logits_output=SimpleNamespace(hidden_states=hidden),
            bs=batch,
            lm_head=model.lm_head,
            anchor_token_ids=tokens.view(batch, BLOCK)[:, 0],
            sampling_info=None,
        )
    plain = [value.as_subclass(torch.Tensor) for value in (sampler.out, sampler.candidate_out, sampler.q_out, proposed)]
    return {
        "folded": folded,
        "eager": steps,
        "tokens": plain[0].tolist(),
        "greedy": plain[3].tolist(),
        "q": plain[2].tolist(),
        "sha256": digest(*plain),
    }


def convolved_by_loops(
    hidden: torch.Tensor, delta: torch.Tensor, base: torch.Tensor, block: int, group: int
) -> torch.Tensor:
    """out[t, c] = sum over taps k of (base[k, c] + delta[t, k, c // group]) * hidden[t - k, c], within the block."""
    tokens, channels = hidden.shape
    out = torch.zeros(tokens, channels, dtype=torch.float64)
    for token in range(tokens):
        for channel in range(channels):
            for tap in range(base.shape[0]):
                if token % block < tap:
                    continue  # the tap would reach into the block before
                weight = base[tap, channel] + delta[token, tap, channel // group]
                out[token, channel] += weight * hidden[token - tap, channel]
    return out


def by_product_with_mask(
    hidden: torch.Tensor, delta: torch.Tensor, base: torch.Tensor, block: int, groups: int, group: int, taps: int
) -> torch.Tensor:
    """The convolution as it was before upstream masked by selection: 0 * NaN is NaN."""
    blocks = hidden.unflatten(-1, (groups, group))
    coefficients = base.view(1, taps, groups, group) + delta.unsqueeze(-1)
    inside = torch.arange(hidden.shape[0]) % block
    out = coefficients[:, 0] * blocks
    for tap in range(1, taps):
        shifted = torch.nn.functional.pad(blocks[:-tap], (0, 0, 0, 0, tap, 0))
        out = out + coefficients[:, tap] * (shifted * (inside >= tap).view(-1, 1, 1))
    return out.flatten(-2)


def without_block_border(
    hidden: torch.Tensor, delta: torch.Tensor, base: torch.Tensor, block: int, groups: int, group: int, taps: int
) -> torch.Tensor:
    """The convolution over one long sequence: a block's first slots see the block before."""
    del block
    return by_product_with_mask(hidden, delta, base, hidden.shape[0], groups, group, taps)


CONVOLUTIONS = {"": dflash._grouped_conv, "mask by product": by_product_with_mask, "no border": without_block_border}


def convolution(case: Case) -> dict[str, Any]:
    """The real DFlashGroupedConv, prepare and finish, against loops; and what a NaN in one block reaches."""
    block, taps, group, channels, requests = (case[key] for key in ("block", "taps", "group", "channels", "requests"))
    random = torch.Generator().manual_seed(5)
    conv = dflash.DFlashGroupedConv(channels, block, taps, group)
    for parameter in conv.parameters():
        parameter.data = torch.randn(parameter.shape, generator=random) / 4
    hidden = torch.randn(requests * block, channels, generator=random)
    after = torch.randn(requests * block, channels, generator=random)
    real, dflash._grouped_conv = dflash._grouped_conv, CONVOLUTIONS[case["fault"]]
    try:
        with torch.no_grad():
            first, kernel = conv.prepare(hidden)
            second = conv.finish(after, kernel)
            leaks = []
            for slot in range(block):
                spoiled, spoiled_after = hidden.clone(), after.clone()
                spoiled[block + slot] = float("nan")  # one slot of the second request
                spoiled_after[block + slot] = float("nan")
                got, got_kernel = conv.prepare(spoiled)
                others = torch.ones(requests * block, dtype=torch.bool)
                others[block : 2 * block] = False
                clean = torch.equal(got[others], first[others])
                clean &= torch.equal(conv.finish(spoiled_after, got_kernel)[others], second[others])
                leaks.append(not clean)
    finally:
        dflash._grouped_conv = real
    weight = conv.kernel_projection.weight.data.double()
    delta = (hidden.double() @ weight.T).view(-1, 2, taps, channels // group)
    errors = {
        side: (got.double() - convolved_by_loops(given.double(), delta[:, index], base, block, group)).abs()
        for index, (side, got, given, base) in enumerate(
            (
                ("prepare", first, hidden, conv.base_kernel[0].data.double()),
                ("finish", second, after, conv.base_kernel[1].data.double()),
            )
        )
    }
    return {
        "errors": {side: float(error.max()) for side, error in errors.items()},
        "first_slots": {side: float(error[::block].max()) for side, error in errors.items()},
        "leaks": leaks,
    }


def rank_candidates(rank: int, case: Case, folder: str) -> None:
    """One of the ranks: its shard of the real head, and the real reduction over the gathered local candidates."""
    torch.set_num_threads(1)
    ranks, vocab = case["ranks"], case["vocab"]
    parallel_state.init_distributed_environment(
        world_size=ranks, rank=rank, distributed_init_method=f"file://{folder}/store", backend="gloo"
    )
    group = parallel_state.init_model_parallel_group([list(range(ranks))], rank, "gloo", group_name="tp")
    parallel_state._TP = group  # where up to 0.5.19 an all-gather looks for it
    with get_parallel().override(tp_size=ranks, tp_rank=rank, tp_group=group), torch.no_grad():
        head = ParallelLMHead(vocab, HIDDEN, params_dtype=torch.float32)
        weight, hidden = head_and_hidden(case)
        head.weight_loader(head.weight, weight)
        if case["fault"] == "local ids":
            head.shard_indices = SimpleNamespace(
                org_vocab_start_index=0, num_org_elements=head.shard_indices.num_org_elements
            )
        model = ranking(head, candidate_selector=SimpleNamespace(top_k=TOP_K))
        answers = model.compute_candidates(hidden)
    torch.save(answers, Path(folder, str(rank)))


def head_and_hidden(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Head [vocab, hidden] and 7 hidden states; with ``ties`` of small whole numbers, so that logits are exact."""
    random = torch.Generator().manual_seed(11)
    if case["ties"]:
        return tuple(torch.randint(-1, 2, (rows, HIDDEN), generator=random).float() for rows in (case["vocab"], 7))
    return tuple(torch.randn(rows, HIDDEN, generator=random) for rows in (case["vocab"], 7))


def candidates(case: Case) -> dict[str, Any]:
    """Candidates of four gloo processes, and all logits of the whole head."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        processes = [fork.Process(target=rank_candidates, args=(rank, case, folder)) for rank in range(case["ranks"])]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        codes = [process.exitcode for process in processes]
        assert codes == [0] * len(codes), f"exit codes of the ranks: {codes}"
        results = [torch.load(Path(folder, str(rank))) for rank in range(case["ranks"])]
    weight, hidden = head_and_hidden(case)
    return {
        "ids": [ids.tolist() for ids, _ in results],
        "values": [values.tolist() for _, values in results],
        "logits": (hidden @ weight.T).tolist(),
    }


KINDS = {"selector": selector, "convolution": convolution, "candidates": candidates}

if __name__ == "__main__":
    answer(lambda case: KINDS[case["kind"]](case))
