"""A private ring of draft KV rows for each running request (DFLASH, opt-in).

A windowed DFLASH draft attends to the last ``window`` tokens only, yet its KV pool is indexed by the target's
slots and so holds one row per token of the *target's* pool. With ``SGLANG_DFLASH_PRIVATE_RING=1`` it holds
``stride`` rows per request that can run at once instead, whatever the context length:

    stride    = page_ceil(window + (page_size - 1) + block_size)
    row(r, p) = page_size + (r - 1) * stride + p mod stride

``r`` is the request's row in ``req_to_token`` (rows start at 1) and ``p`` an absolute position. The window may
start up to ``page_size - 1`` positions early, because a paged backend needs a page's first position at a page's
first row, and a block is written ahead of it. ``stride`` is the length of that span in whole pages, so its
positions never meet in one row, and the pages of the span are pages of the pool. Page 0 of the pool stays the
padding page, as in every other pool.

The request's row is its slot: it is taken at admission and given back on finish, abort and retraction by the code
that owns ``req_to_token``, and no more requests are admitted than there are rows. Two things follow from rows
that die with their request: a prefix hit must leave the visible tail to be computed again (``prefix_limit``), and
nothing may decode before that happened. The second is checked, since verification hides a draft that reads
another request's rows: the text stays right and only the acceptance falls.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from sglang.srt.environ import envs
from sglang.srt.runtime_context import get_schedule, get_spec
from sglang.srt.utils import async_h2d

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.server_args import ServerArgs


@dataclass(frozen=True)
class RingLayout:
    """Sizes in tokens: the draft's window, a KV page, a draft block."""

    window: int
    page_size: int
    block_size: int

    @property
    def stride(self) -> int:
        """Rows of one request."""
        span = self.window + self.page_size - 1 + self.block_size
        return (span + self.page_size - 1) // self.page_size * self.page_size

    def pool_rows(self, slots: int) -> int:
        """Rows of ``slots`` requests, without the padding page that a KV pool adds by itself."""
        return slots * self.stride

    def visible_start(self, seq_len: int) -> int:
        """First position that a block after ``seq_len`` committed tokens attends to; never falls as a request grows."""
        return max(seq_len - self.window, 0) // self.page_size * self.page_size


def private_ring_enabled() -> bool:
    """Whether this process serves DFLASH with private rings."""
    return envs.SGLANG_DFLASH_PRIVATE_RING.get() and get_spec().speculative_algorithm == "DFLASH"


def current_layout() -> RingLayout:
    """The layout that the resolved server arguments ask for."""
    return RingLayout(
        window=int(get_spec().speculative_draft_window_size),
        page_size=int(get_schedule().page_size),
        block_size=int(get_spec().speculative_num_draft_tokens),
    )


def prefix_limit(input_len: int) -> int:
    """Longest cached prefix that a request of ``input_len`` tokens may reuse.

    The target recomputes what the first block attends to, and the draft's rows are filled from its hidden states.
    On a hybrid target the tree then offers the deepest recurrent-state checkpoint within this limit.
    """
    return current_layout().visible_start(input_len)


def ring_pool_bytes(kvc: KVCacheConfigurator) -> int:
    """Bytes per rank that the rings take from the KV budget; 0 where there are none.

    Raises:
        RuntimeError: The draft's bytes per token are unknown, so the target's pool cannot be sized.
    """
    if kvc.is_draft_worker or not private_ring_enabled():
        return 0
    cell_size = kvc.dflash_draft_cell_size_per_token
    if not cell_size:
        raise RuntimeError(
            "SGLANG_DFLASH_PRIVATE_RING=1: the draft's KV bytes per token could not be resolved (see the warning "
            "above), so its rings cannot be sized. Fix the draft's configuration or unset the variable."
        )
    layout = current_layout()
    # Token capacity can only lower the number of requests further, and it is not known yet.
    slots = kvc.resolve_max_num_reqs(sys.maxsize)
    return (layout.pool_rows(slots) + layout.page_size) * int(cell_size)


def check_private_ring(cfg: ServerArgs) -> None:
    """Refuse arguments that the rings do not work with.

    Raises:
        ValueError: Names the first such argument.
    """
    if cfg.speculative_draft_window_size is None:
        raise ValueError(
            "SGLANG_DFLASH_PRIVATE_RING=1 requires --speculative-draft-window-size: a ring holds a window, and "
            "without one the draft attends to the whole context. Set it or unset the variable."
        )
    refused = {
        # These bring a request's KV back without the target computing it, so there is nothing to fill a ring from.
        "--disaggregation-mode": cfg.disaggregation_mode != "null",
        "--enable-pd-role-switch": cfg.enable_pd_role_switch,
        "--enable-hierarchical-cache": cfg.enable_hierarchical_cache,
        "--enable-lmcache": cfg.enable_lmcache,
        "--enable-flexkv": cfg.enable_flexkv,
        "--enable-unified-cache-external-linker": cfg.enable_unified_cache_external_linker,
        "--enable-streaming-session": cfg.enable_streaming_session,
        # These size or address the draft's pool by the target's token ids.
        "--enable-unified-memory": cfg.enable_unified_memory,
        "--enable-hisparse": cfg.enable_hisparse,
        "--enable-kv-cache-sharding": cfg.enable_kv_cache_sharding,
        "--dcp-size": cfg.dcp_size != 1,
        "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING=1": envs.SGLANG_ENABLE_POST_CAPTURE_KV_SIZING.get(),
    }
    for option, is_set in refused.items():
        if is_set:
            raise ValueError(
                f"SGLANG_DFLASH_PRIVATE_RING=1 does not work with {option}. Drop one of the two; without the "
                "variable the draft shares the target's KV slots."
            )


@dataclass
class _Fill:
    """Positions ``[start, end)`` that prefill wrote for one occupant of a request row, and decode ``steps`` since."""

    generation: int
    start: int
    end: int
    steps: int = 0

    def goes_on_at(self, prefix: int, block_size: int) -> bool:
        """Whether all of ``[end, prefix)`` was committed by the steps; each commits 1 to ``block_size`` positions.

        There are steps between two chunks only of a request that decodes: ``--enable-mixed-chunk`` puts running
        requests into a prefill batch, each with one token at its committed length.
        """
        return self.steps <= prefix - self.end <= self.steps * block_size


class DraftRing:
    """Maps absolute positions to draft KV rows, and knows which positions prefill has written.

    ``req_to_token_pool`` is the target's: its rows are the slots, and its row generations tell one occupant of a row
    from the next. Nothing here is allocated or freed, so nothing can leak.
    """

    def __init__(self, layout: RingLayout, req_to_token_pool: ReqToTokenPool) -> None:
        self.layout = layout
        self._pool = req_to_token_pool
        self._fills: dict[int, _Fill] = {}

    @property
    def rows(self) -> int:
        """Rows of the draft's KV pool, without the padding page."""
        return self.layout.pool_rows(self._pool.size)

    def check_smaller_than(self, shared_rows: int) -> None:
        """Raise ``ValueError`` when sharing the target's ``shared_rows`` slots would take no more memory."""
        if self.rows >= shared_rows:
            raise ValueError(
                f"SGLANG_DFLASH_PRIVATE_RING=1 needs {self.rows} draft KV rows ({self._pool.size} requests of "
                f"{self.layout.stride}), but sharing the target's slots needs only {shared_rows}. Lower "
                "--max-running-requests or unset the variable."
            )

    def locs(self, req_pool_indices: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rows (int64) of ``positions``, absolute, of any shape that ``req_pool_indices`` broadcasts to."""
        stride = self.layout.stride
        base = (req_pool_indices.to(torch.int64) - 1) * stride + self.layout.page_size
        return base + torch.remainder(positions.to(torch.int64), stride)

    def block_locs(self, req_pool_indices: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rows of ``positions`` [batch, block], one request per line."""
        return self.locs(req_pool_indices.unsqueeze(1), positions)

    def write_table(
        self, req_to_token: torch.Tensor, req_pool_indices: torch.Tensor, suffix_start: torch.Tensor
    ) -> None:
        """Fill the draft's compact table: column ``j`` of a request becomes the row of ``suffix_start + j``.

        ``stride`` columns are written for every request, which covers window and block without asking the device for
        a length; backends read no column past the lengths they are given.
        """
        width = min(self.layout.stride, req_to_token.shape[1])
        columns = torch.arange(width, dtype=torch.int64, device=req_to_token.device)
        positions = suffix_start.to(torch.int64).unsqueeze(1) + columns
        req_to_token[req_pool_indices.to(torch.int64), :width] = self.block_locs(req_pool_indices, positions).to(
            req_to_token.dtype
        )

    def prefill_rows(
        self,
        batch: ScheduleBatch,
        target_hidden: torch.Tensor,
        positions: torch.Tensor,
        extend_lens: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """What a prefill chunk leaves in the rings: ``(target_hidden, cache_loc, positions, extend_lens)``.

        ``target_hidden`` [tokens, hidden] and ``positions`` [tokens] are the chunk's, requests one after the other.
        Of each request the last ``stride`` tokens stay: an earlier one would share a row with a later one, and the
        order in which a scatter writes the two is undefined. Also records what was written.
        """
        rows = batch.req_pool_indices_cpu.tolist()
        self._record(rows, batch.prefix_lens, batch.extend_lens)
        kept_lens = [min(length, self.layout.stride) for length in batch.extend_lens]
        if kept_lens != list(batch.extend_lens):
            index: list[int] = []
            end = 0
            for length, kept in zip(batch.extend_lens, kept_lens, strict=True):
                end += length
                index.extend(range(end - kept, end))
            kept_index = async_h2d(index, dtype=torch.int64, device=positions.device)
            target_hidden = target_hidden.index_select(0, kept_index)
            positions = positions.index_select(0, kept_index)
            extend_lens = async_h2d(kept_lens, dtype=extend_lens.dtype, device=positions.device)
        row_of_token = async_h2d(
            [row for row, kept in zip(rows, kept_lens, strict=True) for _ in range(kept)],
            dtype=torch.int64,
            device=positions.device,
        )
        return target_hidden, self.locs(row_of_token, positions), positions, extend_lens

    def require_filled(self, req_pool_indices_cpu: torch.Tensor) -> None:
        """Raise ``RuntimeError`` when a request is about to decode over positions that no prefill wrote for it.

        Called once before each decode step, which it counts.
        """
        rows = req_pool_indices_cpu.tolist()
        for row, generation in zip(rows, self._pool.req_generation[rows].tolist(), strict=True):
            fill = self._occupant(row, generation)
            start = None if fill is None else self.layout.visible_start(fill.end)
            if fill is None or fill.start > start:
                found = "none" if fill is None else f"[{fill.start}, {fill.end})"
                expected = "its visible window" if fill is None else f"[{start}, {fill.end})"
                raise RuntimeError(
                    f"DFLASH private ring: the request in row {row} decodes over draft KV that is not its own: "
                    f"expected prefill to have written {expected}, found {found}. A prefix was reused that the draft "
                    "has no rows for; unset SGLANG_DFLASH_PRIVATE_RING and report the request."
                )
            fill.steps += 1

    def reset(self) -> None:
        """Forget every occupant, as the cache is flushed; the pool's rows and all graphs over them stay."""
        self._fills.clear()

    def _record(self, rows: list[int], prefix_lens: list[int], extend_lens: list[int]) -> None:
        generations = self._pool.req_generation[rows].tolist()
        for row, generation, prefix, extend in zip(rows, generations, prefix_lens, extend_lens, strict=True):
            fill = self._occupant(row, generation)
            if fill is not None and fill.goes_on_at(prefix, self.layout.block_size):
                fill.end, fill.steps = prefix + extend, 0
            else:
                self._fills[row] = _Fill(generation, prefix, prefix + extend)

    def _occupant(self, row: int, generation: int) -> _Fill | None:
        fill = self._fills.get(row)
        return fill if fill is not None and fill.generation == generation else None
