"""What XPUAttentionBackend needs of a server, small enough for a CPU; and digests of what it makes."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import torch  # type: ignore[import-not-found]  # in the base image only
from sglang.srt.configs.model_config import AttentionArch  # type: ignore[import-not-found]
from sglang.srt.runtime_context import get_spec  # type: ignore[import-not-found]

HEAD_DIM = 8

# Thousands of products too small to share: threads would only wait for each other.
torch.set_num_threads(1)


class Pool:
    """A filled KV cache; the tests write nothing, so every layer is one that shares an earlier layer's cache."""

    def __init__(self, slots: int, key_heads: int, dtype: torch.dtype) -> None:
        random = torch.Generator().manual_seed(8)
        self.k = torch.randn(slots, key_heads, HEAD_DIM, generator=random, dtype=dtype)
        self.v = torch.randn(slots, key_heads, HEAD_DIM, generator=random, dtype=dtype)

    def get_kv_buffer(self, _layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.k, self.v


def scattered_slots(requests: int, row_len: int, page_size: int) -> torch.Tensor:
    """Cache slot of each position of each request: whole pages, in no order, [requests, row_len]."""
    random = torch.Generator().manual_seed(4)
    pages = -(-row_len // page_size)
    order = torch.randperm(requests * pages, generator=random).view(requests, pages, 1)
    return (order * page_size + torch.arange(page_size)).view(requests, -1)[:, :row_len].to(torch.int32).contiguous()


def model_runner(pool: Any, slots: torch.Tensor, **differences: Any) -> SimpleNamespace:
    """A target's runner over these slots, on a CPU, with no window, no graph and no quantised cache.

    ``differences`` replace attributes; of the model configuration they are ``heads``, ``context_len``,
    ``attention_arch`` and ``is_encoder_decoder``.
    """
    model = {"context_len": slots.shape[1], "attention_arch": AttentionArch.MHA, "is_encoder_decoder": False}
    model.update({name: differences.pop(name) for name in model.keys() & differences.keys()})
    text = SimpleNamespace(num_attention_heads=differences.pop("heads"))
    runner = {
        "sliding_window_size": None,
        "device": "cpu",
        "req_to_token_pool": SimpleNamespace(req_to_token=slots),
        "token_to_kv_pool": pool,
        "kv_cache_dtype": pool.k.dtype,
        "kv_cache_dtype_str": "auto",
        "page_size": 64,
        "is_hybrid_swa": False,
        "is_draft_worker": False,
        "attention_chunk_size": None,
        "model_config": SimpleNamespace(**model, hf_text_config=text, hf_config=SimpleNamespace()),
        # Where 0.5.18 looks for what later releases have in runtime_context.
        "ps": SimpleNamespace(tp_size=1),
        "server_args": SimpleNamespace(speculative_eagle_topk=get_spec().speculative_eagle_topk),
    }
    return SimpleNamespace(**(runner | differences))


def fingerprint(value: Any) -> Any:
    """Tensors as type, shape and digest of their bytes, also inside dictionaries and lists; the rest as it is."""
    if isinstance(value, dict):
        return {name: fingerprint(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [fingerprint(part) for part in value]
    if not isinstance(value, torch.Tensor):
        return value
    digest = hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()
    return [str(value.dtype), list(value.shape), digest]
