"""Verification of N tokens of one request: one call with N queries, or N rows of one query (the tree's Triton kernels).

They stand in for the XPU's FlashAttention: there, too, only a call with a single query per request splits the keys of
a long request over the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]  # on the machine with the device

from tests.gpu.machine import DEVICE, HALF, sized
from tests.tree.drivers.standalone import function, kernel_module

ROWS_KERNEL = "sglang/kernels/ops/attention/decode_attention.py"
BLOCK_KERNEL = "sglang/kernels/ops/attention/extend_attention.py"
AS_ROWS = "sglang/srt/layers/attention/xpu_verify_rows.py"

# Qwen3.8-27B on one of four ranks: 24 query and 4 key heads of 256 in all.
QUERY_HEADS, KEY_HEADS, DIM = sized(6, 2), 1, sized(256, 32)
TOKENS = 8  # to verify: a DFlash2 block
SPLITS = sized(64, 4)  # parts of a row's keys, each a program of its own


@dataclass(frozen=True)
class Request:
    """Queries, keys and values of the tokens to verify, and a cache [rows, heads, dim] whose rows are scattered."""

    queries: torch.Tensor  # [TOKENS, QUERY_HEADS, DIM]
    keys: torch.Tensor  # of the whole pool
    values: torch.Tensor
    rows: torch.Tensor  # [cached + TOKENS]: where each position's key lies
    cached: int


def draw(cached: int, seed: int = 0) -> Request:
    """One request with ``cached`` tokens ahead of the block, in pages of 64 at random places of the pool."""
    random = torch.Generator(DEVICE).manual_seed(seed)
    pages = -(-(cached + TOKENS) // 64)
    place = torch.randperm(pages, generator=random, device=DEVICE)
    rows = (place[:, None] * 64 + torch.arange(64, device=DEVICE)).flatten()[: cached + TOKENS]

    def values(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, device=DEVICE, dtype=torch.float32).to(HALF)

    pool = pages * 64, KEY_HEADS, DIM
    return Request(values(TOKENS, QUERY_HEADS, DIM), values(*pool), values(*pool), rows, cached)


def exact(request: Request) -> torch.Tensor:
    """FP64: query j sees the cached keys and the first j + 1 of the block."""
    keys, values = (part[request.rows].double().squeeze(1) for part in (request.keys, request.values))
    scores = torch.einsum("nhd,kd->nhk", request.queries.double(), keys) * DIM**-0.5
    ahead = (
        torch.arange(len(request.rows), device=DEVICE) > request.cached + torch.arange(TOKENS, device=DEVICE)[:, None]
    )
    scores = scores.masked_fill(ahead[:, None], -torch.inf)
    return torch.einsum("nhk,kd->nhd", torch.softmax(scores, dim=-1), values)


class AsRows:
    """N rows of one query; buffers are made once, as a backend does."""

    def __init__(self, root: Path, request: Request) -> None:
        self.kernel = kernel_module(root, ROWS_KERNEL).decode_attention_fwd
        as_rows = function(root, AS_ROWS, "requests_as_rows", {"torch": torch})
        owner, visible = as_rows(torch.zeros(1, dtype=torch.long), torch.tensor([request.cached]), TOKENS)
        assert owner.tolist() == [0] * TOKENS
        self.request, self.out = request, torch.empty_like(request.queries)
        self.ends = torch.cat([torch.zeros(1, dtype=torch.long), visible.cumsum(0)]).int().to(DEVICE)
        self.indices = torch.cat([request.rows[:length] for length in visible.tolist()])
        self.logits = torch.empty(TOKENS, QUERY_HEADS, SPLITS, DIM, device=DEVICE)
        self.lse = torch.empty(TOKENS, QUERY_HEADS, SPLITS, device=DEVICE)
        self.splits = torch.full((TOKENS,), SPLITS, dtype=torch.int32, device=DEVICE)

    def __call__(self) -> torch.Tensor:
        given = self.request
        self.kernel(
            given.queries, given.keys, given.values, self.out, self.ends, self.indices, self.logits, self.lse,
            self.splits, SPLITS, DIM**-0.5, 1.0, 1.0,
        )  # fmt: skip
        return self.out


class AsBlock:
    """One call with N queries."""

    def __init__(self, root: Path, request: Request) -> None:
        self.kernel = kernel_module(root, BLOCK_KERNEL).extend_attention_fwd
        self.request, self.out = request, torch.empty_like(request.queries)
        block = request.rows[request.cached :]
        self.own: list[Any] = [request.keys[block].contiguous(), request.values[block].contiguous()]
        self.queries_at = torch.tensor([0, TOKENS], dtype=torch.int32, device=DEVICE)
        self.ends = torch.tensor([0, request.cached], dtype=torch.int32, device=DEVICE)
        self.indices = request.rows[: request.cached].contiguous()

    def __call__(self) -> torch.Tensor:
        given = self.request
        self.kernel(
            given.queries, *self.own, self.out, given.keys, given.values, self.queries_at, self.ends, self.indices,
            None, True, None, TOKENS, 1.0, 1.0, sm_scale=DIM**-0.5,
        )  # fmt: skip
        return self.out
