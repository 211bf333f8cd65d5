"""Commit draft keys and values into a real KV pool on a CPU, the device faked by the pool module's own flags.

A case: ``name``; ``device`` ("xpu", "cuda", "hip", "npu" or "other"); ``heads``, ``dim`` and ``v_dim``; ``dtype`` of
the rows and ``cache`` (the pool's type); ``commit`` (accepted rows by request) and ``block`` (rows by request);
``contiguous`` (whether the arguments are). Answer: how often the host had to ask which rows are valid (torch.nonzero),
how often each writer ran, how many cache rows differ from a loop that writes the accepted ones alone, a digest of the
cache, or the error.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch  # type: ignore[import-not-found]  # in the base image only
from sglang.srt.mem_cache import memory_pool  # type: ignore[import-not-found]

from .answer import Case, answer

SLOTS, PAGE = 61, 4
LAYER = SimpleNamespace(layer_id=1, k_scale=None, v_scale=None)
FLAGS = ("xpu", "cuda", "hip", "npu")


def store_cache_xpu(k: Any, v: Any, k_cache: Any, v_cache: Any, indices: Any) -> None:
    """What Intel's kernel of that name does."""
    k_cache[indices], v_cache[indices] = k, v


def pool(case: Case) -> Any:
    """Two layers, every slot filled with a value that no row holds."""
    made = memory_pool.MHATokenToKVPool(
        size=SLOTS - PAGE,
        page_size=PAGE,
        dtype=getattr(torch, case["cache"]),
        head_num=case["heads"],
        head_dim=case["dim"],
        v_head_dim=case["v_dim"],
        layer_num=2,
        device="cpu",
        enable_memory_saver=False,
    )
    for buffer in (*made.k_buffer, *made.v_buffer):
        buffer.view(torch.uint8).fill_(0x33)
    return made


def rows(case: Case, width: int, seed: int) -> torch.Tensor:
    """Keys or values [requests * block, heads, width]; not contiguous ones are a slice of something wider."""
    shape = (len(case["commit"]) * case["block"], case["heads"], width)
    wide = torch.randn(*shape[:2], width + 3, generator=torch.Generator().manual_seed(seed))
    cut = wide.to(getattr(torch, case["dtype"]))[..., :width]
    return cut.contiguous() if case["contiguous"] else cut


def slots(case: Case) -> torch.Tensor:
    """A slot of its own for each row, in no order: [requests, block]."""
    requests, block = len(case["commit"]), case["block"]
    order = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(7))[: requests * block]
    return order.view(requests, block) if case["contiguous"] else order.view(block, requests).T


def expected(case: Case, made: Any, loc: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    """Layer 1 after a loop that writes row j of request b only for j < commit[b]."""
    caches = [made.k_buffer[1].clone().view(made.dtype), made.v_buffer[1].clone().view(made.dtype)]
    for request, accepted in enumerate(case["commit"]):
        for row in range(accepted):
            for cache, values in zip(caches, (k, v), strict=True):
                cache[loc[request, row]] = values[request * case["block"] + row].to(made.dtype)
    return [cache.view(made.store_dtype) for cache in caches]


def measure(case: Case) -> dict[str, Any]:
    made, loc = pool(case), slots(case)
    k, v = rows(case, case["dim"], 1), rows(case, case["v_dim"], 2)
    caches = expected(case, made, loc, k, v)
    flags = {f"_is_{device}": device == case["device"] for device in FLAGS}
    with ExitStack() as stack:
        for name, value in flags.items():
            stack.enter_context(patch.object(memory_pool, name, value))
        stack.enter_context(patch.object(memory_pool, "store_cache_xpu", store_cache_xpu, create=True))
        asked = stack.enter_context(patch.object(torch, "nonzero", wraps=torch.nonzero))
        tiled, single = (
            stack.enter_context(patch.object(memory_pool, name, wraps=getattr(memory_pool, name)))
            for name in ("_set_kv_buffer_prefix_valid_impl", "_set_kv_buffer_impl")
        )
        try:
            made.set_kv_buffer_prefix_valid(LAYER, loc, torch.tensor(case["commit"]), k, v)
        except NotImplementedError as error:
            return {"error": str(error)}
    found = [made.k_buffer[1], made.v_buffer[1]]
    return {
        "asked": asked.call_count,
        "tiled": tiled.call_count,
        "single": single.call_count,
        "differ": sum(
            int((cache.view(torch.uint8) != wanted.view(torch.uint8)).flatten(1).any(1).sum())
            for cache, wanted in zip(found, caches, strict=True)
        ),
        "other_layer": int((made.k_buffer[0].view(torch.uint8) != 0x33).sum()),
        "sha256": [hashlib.sha256(cache.view(torch.uint8).numpy().tobytes()).hexdigest() for cache in found],
    }


if __name__ == "__main__":
    answer(measure)
