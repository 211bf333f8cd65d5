"""DFlash2's worker of 0.5.19 on the base of a line: rounds on a CPU, and what it takes from that base.

A case: ``name``; ``ask``, the function below that answers it, with that function's arguments; ``lent``, whether the
tree is lent what its worker does not import without (``port``), as it is where one defect alone is measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch  # type: ignore[import-not-found]  # in the base image only
from sglang.srt import runtime_context  # type: ignore[import-not-found]
from sglang.srt.environ import envs  # type: ignore[import-not-found]
from sglang.srt.lora import layers as lora_layers  # type: ignore[import-not-found]
from sglang.srt.runtime_context import get_context  # type: ignore[import-not-found]

from . import port
from .answer import Case, answer

PAGE, BLOCK = 4, 4


def harness() -> ModuleType:
    """Imports the worker."""
    from . import dflash_worker

    return dflash_worker


@contextlib.contextmanager
def reserving() -> Iterator[Callable[[Any], None]]:
    """What the scheduler does to a batch that runs without host lengths: the real reservation, then no lengths."""
    from sglang.srt.speculative import dflash_info_v2  # type: ignore[import-not-found]

    def prepare(batch: Any) -> None:
        batch.batch_size = lambda: len(batch.reqs)
        batch.maybe_evict_swa = lambda: None
        batch.device, batch.tree_cache = "cpu", SimpleNamespace(page_size=PAGE)
        batch.token_to_kv_pool_allocator = batch.req_to_token_pool = SimpleNamespace(page_size=PAGE)
        for request in batch.reqs:
            request.kv_committed_len = request.kv.kv_allocated_len = request.length
            request.sampling_params = SimpleNamespace(top_k=1)
            request.decode_batch_idx = 0
        batch.spec_info.prepare_for_decode(batch)
        batch.seq_lens_cpu = batch.seq_lens_sum = None

    with mock.patch.object(dflash_info_v2, "alloc_for_spec_decode"):
        yield prepare


def rounds(window: int | None, host_lengths: bool) -> dict[str, Any]:
    """Prefill two requests and decode them; the harness checks every row that the draft sees.

    Answer: lengths after each step, and by how much the host's bound exceeded what the draft saw.
    """
    worker = harness()
    lengths, over = [], []
    with contextlib.ExitStack() as stack:
        stack.enter_context(worker.surroundings(PAGE, window, BLOCK))
        prepare = (lambda _batch: None) if host_lengths else stack.enter_context(reserving())
        tested = worker.Harness(4, PAGE, window, BLOCK)
        forward = tested.worker.draft_model_runner.forward

        def noting(batch: Any) -> Any:
            over.append((batch.seq_lens_cpu - batch.seq_lens).tolist())
            return forward(batch)

        tested.worker.draft_model_runner.forward = noting
        requests = [worker.Request(1, 9), worker.Request(2, 22)]
        tested.prefill(requests, [request.length for request in requests])
        for accepted in ([3, 0], [1, 2], [0, 3], [3, 3]):
            tested.decode(requests, accepted, prepare)
            lengths.append([request.length for request in requests])
    return {"lengths": lengths, "over": over}


def tracked(interval: int, before: list[int], accepted: list[int]) -> dict[str, Any]:
    """The steps whose recurrent state one verification keeps, and the last ones."""
    worker = harness()
    kept: dict[str, Any] = {}

    def commit(**names: Any) -> None:
        kept.update(last=names["last_correct_step_indices"].tolist(), steps=names["mamba_steps_to_track"].tolist())

    def prepare(batch: Any) -> None:
        batch.mamba_track_indices = torch.arange(len(before))
        batch.tree_cache = SimpleNamespace(page_size=PAGE)

    with (
        worker.surroundings(PAGE, None, BLOCK),
        # From 0.5.20 on the state is kept on its grid, which would ask the target's configuration.
        mock.patch.object(runtime_context, "mamba_cache_chunk_size", return_value=PAGE, create=True),
        get_context().override_server_args(
            page_size=PAGE, speculative_num_draft_tokens=BLOCK, mamba_track_interval=interval
        ),
    ):
        tested = worker.Harness(len(before), PAGE, None, BLOCK)
        tested.worker._need_mamba_verify_commit = True
        tested.worker.model_runner.attn_backend = SimpleNamespace(update_mamba_state_after_mtp_verify=commit)
        requests = [worker.Request(number, length) for number, length in enumerate(before)]
        tested.prefill(requests, before)
        tested.decode(requests, accepted, prepare)
    return kept


class Group:
    """A group of two ranks, of which this one is the first."""

    world_size, rank_in_group = 2, 0

    def __init__(self) -> None:
        self.sent: list[list[int]] = []

    def broadcast(self, values: torch.Tensor, src: int) -> None:
        assert src == 0
        self.sent.append(values.tolist())


def synchronised(sites: str | None) -> list[list[int]]:
    """What a rank of two broadcasts when the worker's decisions pass through, with SGLANG_SPEC_TP_SYNC."""
    from sglang.srt.speculative import dflash_worker_v2

    group = Group()
    with envs.SGLANG_SPEC_TP_SYNC.override(sites) if sites is not None else contextlib.nullcontext():
        sync = dflash_worker_v2.SpecTpSync(group)
    site = dflash_worker_v2.SpecTpSyncSite
    for number, each in enumerate((site.DFLASH_SELECTOR, site.DFLASH_ACCEPT_GREEDY, site.DFLASH_TARGET)):
        sync.sync(each, torch.tensor([number]))
    return group.sent


def unwrapped() -> list[bool]:
    """Whether the worker finds the module behind a LoRA wrapper, and leaves others as they are."""
    from sglang.srt.speculative import dflash_worker_v2

    plain = torch.nn.Linear(2, 2)
    wrapped = lora_layers.BaseLayerWithLoRA(plain, None)
    return [dflash_worker_v2.unwrap_lora_layer(each) is plain for each in (plain, wrapped)]


ASKED: dict[str, Callable[..., Any]] = {
    "rounds": rounds,
    "tracked": tracked,
    "synchronised": synchronised,
    "unwrapped": unwrapped,
}


DEFECTS = ("unwrap_lora_layer", "nxt_kv_lens", "SGLANG_SPEC_TP_SYNC")
"""What the base of 0.5.18 lacks: an error that names one of them is an answer, any other is none."""


def measure(case: Case) -> Any:
    """The answer, or the error that ended it where that is what was asked for."""
    options = {key: value for key, value in case.items() if key not in ("name", "ask", "lent")}
    if case["lent"]:
        port.lend()
    try:
        return ASKED[case["ask"]](**options)
    except (AttributeError, ImportError) as error:
        if not any(name in str(error) for name in DEFECTS):
            raise
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    answer(measure)
