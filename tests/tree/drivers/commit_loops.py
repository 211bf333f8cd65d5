"""Accept, bonus and commit of a DFLASH block: the tree's functions, and the same one token at a time.

A block of a request is ``candidates``: the current token, which is certain, then drafts. ``target`` is what the
target model predicts after each of them. Rows are what a draft KV cache holds, one per token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]  # in the base image, or on the machine with the device
import triton  # type: ignore[import-not-found]

from .standalone import function, kernel_module

KERNELS = "sglang/kernels/ops/speculative/dflash.py"
ROW_KERNEL = "sglang/kernels/ops/kvcache/cache_move.py"
WORKER = "sglang/srt/speculative/dflash_worker_v2.py"
POOL = "sglang/srt/mem_cache/memory_pool.py"
MASK_TOKEN = 1000

Accept = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Committed:
    """What one request's block leaves: accepted drafts, the next certain token, new tokens, and rows written."""

    accepted: int
    bonus: int
    tokens: list[int]
    rows: list[tuple[int, int]]  # (physical row, slot of the block)


def one_by_one(candidates: list[int], target: list[int], locations: list[int]) -> Committed:
    """The target controls every step: write the certain token's row, ask what follows, go on while drafts agree."""
    rows, tokens, slot = [], [], 0
    while True:
        rows.append((locations[slot], slot))
        verdict = target[slot]
        tokens.append(verdict)
        if slot + 1 == len(candidates) or candidates[slot + 1] != verdict:
            return Committed(accepted=slot, bonus=verdict, tokens=tokens, rows=rows)
        slot += 1


class Functions:
    """The tree's accept and commit functions, imported alone."""

    def __init__(self, root: Path) -> None:
        self.kernels = kernel_module(root, KERNELS)
        self.row_kernel = kernel_module(root, ROW_KERNEL).set_kv_buffer_prefix_valid_tiled
        self.commit_accept = function(root, WORKER, "_commit_accept", {"torch": torch})
        names = {"torch": torch, "triton": triton, "set_kv_buffer_prefix_valid_tiled": self.row_kernel}
        self.write_rows = function(root, POOL, "_set_kv_buffer_prefix_valid_impl", names)

    def by_one_kernel(self, candidates: torch.Tensor, target: torch.Tensor, lengths: torch.Tensor) -> Any:
        """(accepted, committed, bonus, new tokens, new lengths) from the kernel that the worker uses on a GPU."""
        batch, device = len(candidates), candidates.device
        counts = [torch.full((batch,), -1, dtype=torch.int32, device=device) for _ in range(2)]
        bonus = torch.full((batch,), -1, dtype=torch.int64, device=device)
        tokens = torch.full_like(candidates, -1)
        new_lengths = torch.full((batch,), -1, dtype=torch.int64, device=device)
        self.kernels._compute_dflash_accept_bonus_triton_unchecked(
            candidates, target, *counts, bonus, tokens, lengths, new_lengths
        )
        return *counts, bonus, tokens, new_lengths

    def by_torch(self, candidates: torch.Tensor, target: torch.Tensor, lengths: torch.Tensor) -> Any:
        """The same from the functions that the worker falls back to; on CUDA the first of them is a kernel."""
        accepted, bonus = self.kernels.compute_dflash_correct_drafts_and_bonus(
            candidates=candidates, target_predict=target
        )
        tokens, committed = self.commit_accept(candidates, accepted, bonus)
        return accepted, committed, bonus, tokens, lengths + committed

    def by_leading_matches(self, candidates: torch.Tensor, target: torch.Tensor, lengths: torch.Tensor) -> Any:
        """As ``by_torch``, with the kernel that CUDA takes, whatever the device."""
        batch, block = candidates.shape
        accepted = torch.full((batch,), -1, dtype=torch.int32, device=candidates.device)
        bonus = torch.full((batch,), -1, dtype=torch.int64, device=candidates.device)
        self.kernels._fused_correct_drafts_and_bonus_kernel[(batch,)](
            candidates, target, accepted, bonus, block, BLOCK=triton.next_power_of_2(max(block - 1, 1))
        )
        tokens, committed = self.commit_accept(candidates, accepted, bonus)
        return accepted, committed, bonus, tokens, lengths + committed

    def block(
        self, bonus: torch.Tensor, lengths: torch.Tensor, requests: torch.Tensor, table: torch.Tensor, size: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(ids, positions, cache locations) [batch, size] of the next draft block."""
        outs = [torch.full((len(bonus), size), -1, dtype=torch.int64, device=bonus.device) for _ in range(3)]
        self.kernels._prepare_dflash_draft_block_unchecked(bonus, lengths, requests, table, *outs, MASK_TOKEN)
        return outs[0], outs[1], outs[2]


@dataclass
class Cache:
    """A draft KV cache under test and, beside it, the rows that sequential commits leave."""

    keys: torch.Tensor  # [rows, heads, dim]
    values: torch.Tensor
    expected_keys: torch.Tensor
    expected_values: torch.Tensor

    @classmethod
    def empty(cls, rows: int, width: tuple[int, int], dtype: torch.dtype, device: str) -> Cache:
        """All rows hold -1, so that a row written by mistake shows."""
        return cls(*(torch.full((rows, *width), -1.0, dtype=dtype, device=device) for _ in range(4)))

    def equal(self) -> bool:
        """Whether every physical row, written or not, is what sequential commits leave."""
        return bool(torch.equal(self.keys, self.expected_keys) and torch.equal(self.values, self.expected_values))


def check_round(
    functions: Functions,
    accept: Accept,
    cache: Cache,
    table: torch.Tensor,
    requests: torch.Tensor,
    lengths: torch.Tensor,
    bonus: torch.Tensor,
    drafts: torch.Tensor,
    target: torch.Tensor,
    number: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Propose, accept and commit one block; asserts on all of it. Returns the new (lengths, bonus tokens).

    ``table`` maps [request, position] to physical rows; ``drafts`` is [batch, block - 1], ``target``
    [batch, block].
    """
    batch, size = target.shape
    ids, positions, locations = functions.block(bonus, lengths, requests, table, size)
    assert torch.equal(ids[:, 0], bonus)
    assert (ids[:, 1:] == MASK_TOKEN).all()
    assert torch.equal(positions, lengths[:, None] + torch.arange(size, device=lengths.device))
    assert torch.equal(locations, table[requests[:, None], positions].long())

    candidates = torch.cat([bonus[:, None], drafts], dim=1).contiguous()
    accepted, committed, next_bonus, tokens, new_lengths = accept(candidates, target, lengths)

    # A value of its own for every slot of every round; whole numbers that each floating-point type holds.
    marks = torch.arange(batch * size, dtype=torch.float32, device=lengths.device) + number * batch * size
    keys = marks[:, None, None].expand(-1, *cache.keys.shape[1:]).to(cache.keys.dtype).contiguous()
    values = keys + 1024
    functions.write_rows(
        keys, values, cache.keys, cache.values, locations, committed, keys[0].numel(), cache.keys.dtype
    )
    for row in range(batch):
        expected = one_by_one(candidates[row].tolist(), target[row].tolist(), locations[row].tolist())
        assert int(accepted[row]) == expected.accepted
        assert int(committed[row]) == len(expected.rows) == len(expected.tokens)
        assert int(next_bonus[row]) == expected.bonus
        assert tokens[row].tolist()[: len(expected.tokens)] == expected.tokens
        assert int(new_lengths[row]) == int(lengths[row]) + len(expected.rows)
        for location, slot in expected.rows:
            cache.expected_keys[location] = keys[row * size + slot]
            cache.expected_values[location] = values[row * size + slot]
    assert cache.equal(), "a rejected slot's row was written, or an accepted one was not"
    return new_lengths, next_bonus
