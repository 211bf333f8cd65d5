"""Random histories of a server, as a model-based test of private draft rings.

The model is who may be where: each live request's visible positions, and nobody else's, lie in its rows.
``FAULTS`` are defects to plant into the tree's code; each of them has to be found.
"""

from __future__ import annotations

import contextlib
import tempfile
import traceback
from collections import Counter
from typing import Any, ClassVar
from unittest import mock

import sglang.srt.speculative.dflash_worker_v2 as worker_module  # type: ignore[import-not-found]
import torch  # type: ignore[import-not-found]  # in the base image only
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sglang.srt.managers import schedule_batch  # type: ignore[import-not-found]
from sglang.srt.speculative import dflash_ring

from .dflash_worker import CONTEXT, Harness, Request, surroundings


class History(RuleBasedStateMachine):
    """Random admissions, chunks, steps, ends and flushes; the model is who may be where."""

    counts: ClassVar[Counter[str]] = Counter()

    @initialize(
        slots=st.integers(1, 3), page=st.sampled_from([1, 2, 4]), window=st.integers(2, 12), block=st.integers(2, 4)
    )
    def start(self, slots: int, page: int, window: int, block: int) -> None:
        self.context = contextlib.ExitStack()
        self.context.enter_context(surroundings(page, max(window, block), block))
        self.layout = dflash_ring.current_layout()
        self.harness = Harness(
            slots, page, max(window, block), block, lambda pool: dflash_ring.DraftRing(self.layout, pool)
        )
        self.ring: Any = self.harness.ring
        self.live: list[Request] = []
        self.number = 0

    def teardown(self) -> None:
        if hasattr(self, "context"):
            self.context.close()

    def did(self, what: str) -> None:
        self.counts[what] += 1

    def some(self, data: st.DataObject, requests: list[Request]) -> list[Request]:
        return data.draw(st.lists(st.sampled_from(requests), min_size=1, unique=True))

    def prefilling(self) -> list[Request]:
        return [request for request in self.live if not request.decoding]

    def decoding(self) -> list[Request]:
        ceiling = CONTEXT - 2 * self.layout.block_size
        return [request for request in self.live if request.decoding and request.length < ceiling]

    def admit_request(self, data: st.DataObject, length: int) -> None:
        """Admit with a cached prefix of any length that the tree may offer: page-aligned, at a checkpoint."""
        self.number += 1
        request = Request(self.number, length)
        page = self.layout.page_size
        request.done = data.draw(st.integers(0, request.prefix_limit() // page), label="hit pages") * page
        if request.done:
            self.did("prefix hit")
        self.live.append(request)

    @precondition(lambda self: len(self.live) < self.harness.pool.size)
    @rule(data=st.data(), length=st.integers(1, 40))
    def admit(self, data: st.DataObject, length: int) -> None:
        self.admit_request(data, length)
        self.did("admit")

    @precondition(lambda self: len(self.live) == self.harness.pool.size and not self.harness.pool.free_slots)
    @rule()
    def admission_stops(self) -> None:
        extra = Request(-1, 1)
        assert self.harness.pool.alloc([extra]) is None
        assert not extra.kv.holds_kv
        self.did("refused admission")

    @precondition(lambda self: self.prefilling())
    @rule(data=st.data(), chunk=st.integers(1, 40))
    def prefill(self, data: st.DataObject, chunk: int) -> None:
        requests = self.some(data, self.prefilling())
        self.harness.prefill(requests, [min(chunk, request.length - request.done) for request in requests])
        self.did("prefill")

    @precondition(lambda self: self.decoding() and (self.prefilling() or len(self.live) < self.harness.pool.size))
    @rule(data=st.data(), chunk=st.integers(1, 40), length=st.integers(1, 40))
    def mixed(self, data: st.DataObject, chunk: int, length: int) -> None:
        """A chunk of prefill that running requests ride along with, as with ``--enable-mixed-chunk``."""
        if not self.prefilling():
            self.admit_request(data, length)
            self.did("admit")
        requests, running = self.some(data, self.prefilling()), self.some(data, self.decoding())
        self.harness.mixed(requests, [min(chunk, request.length - request.done) for request in requests], running)
        self.did("mixed")

    @precondition(lambda self: self.decoding())
    @rule(data=st.data())
    def decode(self, data: st.DataObject) -> None:
        requests = self.some(data, self.decoding())
        accepted = st.integers(0, self.layout.block_size - 1)
        self.harness.decode(requests, [data.draw(accepted) for _ in requests])
        self.did("decode")

    @precondition(lambda self: self.decoding())
    @rule(data=st.data(), steps=st.integers(2, 12))
    def decode_on(self, data: st.DataObject, steps: int) -> None:
        """Long enough to go round the ring."""
        for _ in range(steps):
            if self.decoding():
                self.decode(data)

    def end(self, request: Request) -> None:
        self.live.remove(request)
        if request.kv.holds_kv:
            self.harness.pool.free(request)

    @precondition(lambda self: self.decoding())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.decoding())))
        self.did("finish")

    @precondition(lambda self: len(self.live) > 1 and self.prefilling())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.prefilling())))
        self.did("abort")

    @precondition(lambda self: any(request.decoding for request in self.live))
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from([request for request in self.live if request.decoding]))
        self.end(request)
        self.admit_request(data, request.length + 1)
        self.did("retract")

    @precondition(lambda self: self.ring._fills and len(self.live) < 2)
    @rule()
    def flush(self) -> None:
        """When nothing runs any more, as the scheduler asks."""
        for request in list(self.live):
            self.end(request)
        self.harness.pool.clear()
        self.harness.worker.clear_cache_pool()
        assert not self.ring._fills
        self.did("flush")

    @invariant()
    def no_row_has_two_owners(self) -> None:
        if not hasattr(self, "harness"):
            return
        layout, ring = self.layout, self.ring
        owner: dict[int, tuple[int, int]] = {}
        for request in self.live:
            if not request.decoded:
                continue
            start = layout.visible_start(request.length)
            positions = torch.arange(start, request.length + layout.block_size)
            rows = ring.locs(torch.tensor(request.kv.req_pool_idx), positions).tolist()
            assert min(rows) >= layout.page_size, "a row lies in the padding page"
            assert max(rows) < ring.rows + layout.page_size, "a row lies past the pool"
            for row, position in zip(rows, positions.tolist(), strict=True):
                assert row not in owner, f"row {row} has two owners"
                owner[row] = (request.number, position)
        for row, (number, position) in owner.items():
            request = next(request for request in self.live if request.number == number)
            if position < request.length:
                found = self.harness.kv.k_buffer[0][row, 0].tolist()
                assert found == [number, position], "a committed position does not hold its request's row"


def unlimited_and_unchecked() -> contextlib.ExitStack:
    """A prefix hit takes all, and the worker's check is gone."""
    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(schedule_batch, "prefix_limit", lambda length: length))
    stack.enter_context(mock.patch.object(dflash_ring.DraftRing, "require_filled"))
    return stack


def short_stride(layout: Any) -> Any:
    """Window and block in whole pages, without the positions that page alignment adds on the left."""
    return -(-(layout.window + layout.block_size) // layout.page_size) * layout.page_size


def whole_chunk(self: Any, batch: Any, hidden: Any, positions: Any, extend_lens: Any) -> Any:
    """All of a prefill chunk goes to the ring, in an order in which earlier tokens win."""
    rows = torch.tensor(
        [row for row, n in zip(batch.req_pool_indices_cpu.tolist(), batch.extend_lens, strict=True) for _ in range(n)]
    )
    self._record(batch.req_pool_indices_cpu.tolist(), batch.prefix_lens, batch.extend_lens)
    return hidden[: len(rows)].flip(0), self.locs(rows, positions).flip(0), positions.flip(0), extend_lens


def commit_all(self: Any, *args: Any, **kwargs: Any) -> None:
    """The draft's noise stays where the target has accepted: nothing is committed."""
    if kwargs.get("commit_lens") is None:
        real_append(self, *args, **kwargs)


real_locs: Any = dflash_ring.DraftRing.locs
real_table: Any = dflash_ring.DraftRing.write_table
real_append: Any = worker_module.DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc

FAULTS: dict[str | None, Any] = {
    None: contextlib.nullcontext,
    "the prefix is not held back": lambda: mock.patch.object(schedule_batch, "prefix_limit", lambda length: length),
    "and nobody looks": unlimited_and_unchecked,
    "the stride forgets alignment": lambda: mock.patch.object(dflash_ring.RingLayout, "stride", property(short_stride)),
    "the table begins one late": lambda: mock.patch.object(
        dflash_ring.DraftRing, "write_table", lambda self, *args: real_table(self, *args[:-1], args[-1] + 1)
    ),
    "the whole chunk is written": lambda: mock.patch.object(dflash_ring.DraftRing, "prefill_rows", whole_chunk),
    "nothing is committed": lambda: mock.patch.object(
        worker_module.DFlashWorkerV2, "_append_target_hidden_to_draft_kv_by_loc", commit_all
    ),
    "a mixed step begins a fill": lambda: mock.patch.object(
        dflash_ring._Fill, "goes_on_at", lambda self, prefix, _block_size: self.end == prefix
    ),
    "two requests share a slot": lambda: mock.patch.object(
        dflash_ring.DraftRing, "locs", lambda self, rows, positions: real_locs(self, (rows + 1) // 2, positions)
    ),
}


def play(examples: int, steps: int, fault: str | None) -> dict[str, Any]:
    """Play ``examples`` histories of ``steps`` operations: operations by kind, and the first failure's line."""
    History.counts.clear()
    ways = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    failure = None
    with (
        tempfile.TemporaryDirectory() as home,
        mock.patch.object(schedule_batch, "private_ring_enabled", return_value=True),
        FAULTS[fault](),
    ):
        set_hypothesis_home_dir(home)  # its default is the working folder, which may be read-only
        try:
            run_state_machine_as_test(History, settings=ways)  # type: ignore[no-untyped-call]
        except Exception as error:
            traceback.print_exc()
            failure = str(error).splitlines()[0]
    return {"counts": dict(History.counts), "failure": failure}
