"""Run XPUAttentionBackend's forward_extend and forward_decode on a CPU with a recorded attention kernel.

A case: ``name``; ``forward`` ("extend" or "decode"); ``metadata`` ("prefill", "block" or "single": how the
batch was announced to the backend); ``attention`` (a member of SGLang's AttentionType) or "cross"; ``window``
(keys to the left of the query, -1 for none); ``masks`` (one per request: which key each query has to see).
Answer: the kernel's mask arguments, the masks they mean, a digest of every argument of the call, and the
largest difference between the backend's output and attention under the case's masks.
"""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import sgl_kernel.flash_attn as kernel  # type: ignore[import-not-found]  # the stand-in in checks/stubs
import torch  # type: ignore[import-not-found]  # in the base image only
from sglang.srt.configs.model_config import AttentionArch  # type: ignore[import-not-found]
from sglang.srt.layers.attention.xpu_backend import XPUAttentionBackend  # type: ignore[import-not-found]
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention  # type: ignore[import-not-found]
from sglang.srt.model_executor.forward_batch_info import ForwardMode  # type: ignore[import-not-found]
from sglang.srt.runtime_context import get_context, get_parallel  # type: ignore[import-not-found]

from .answer import Case, answer

HEADS, KEY_HEADS, HEAD_DIM = 2, 1, 8
CONTEXT, PAGE, REQUESTS = 64, 4, 3


class Pool:
    """A filled KV cache; the tests write nothing, so every layer is one that shares an earlier layer's cache."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(8)
        self.k = torch.randn(REQUESTS * CONTEXT, KEY_HEADS, HEAD_DIM, generator=random)
        self.v = torch.randn(REQUESTS * CONTEXT, KEY_HEADS, HEAD_DIM, generator=random)

    def get_kv_buffer(self, _layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.k, self.v


def scattered_slots() -> torch.Tensor:
    """Cache slot of each position of each request: whole pages, in no order."""
    random = torch.Generator().manual_seed(4)
    pages = torch.randperm(REQUESTS * CONTEXT // PAGE, generator=random).view(REQUESTS, -1, 1)
    return (pages * PAGE + torch.arange(PAGE)).view(REQUESTS, CONTEXT).to(torch.int32)


def backend(pool: Pool, slots: torch.Tensor, page_size: int) -> Any:
    model = SimpleNamespace(
        is_encoder_decoder=False,
        context_len=CONTEXT,
        attention_arch=AttentionArch.MHA,
        hf_text_config=SimpleNamespace(num_attention_heads=HEADS),
    )
    return XPUAttentionBackend(
        SimpleNamespace(
            sliding_window_size=None,
            device="cpu",
            req_to_token_pool=SimpleNamespace(req_to_token=slots),
            token_to_kv_pool=pool,
            kv_cache_dtype=torch.float32,
            kv_cache_dtype_str="auto",
            page_size=page_size,
            is_hybrid_swa=False,
            is_draft_worker=True,
            attention_chunk_size=None,
            model_config=model,
        )
    )


def batch(metadata: str, queries: int, keys: torch.Tensor, encoder_lens: torch.Tensor | None) -> SimpleNamespace:
    """A batch whose request i puts `queries` tokens at the end of keys[i] ones; request rows start at 1."""
    before = keys - queries
    mode, seq_lens, spec_info = {
        "prefill": (ForwardMode.EXTEND, keys, None),
        "block": (ForwardMode.TARGET_VERIFY, before, SimpleNamespace(num_tokens_per_req=queries)),
        "single": (ForwardMode.DECODE, keys, None),
    }[metadata]
    return SimpleNamespace(
        forward_mode=mode,
        batch_size=len(keys),
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens,
        req_pool_indices=torch.arange(1, len(keys) + 1),
        spec_info=spec_info,
        out_cache_loc=None,
        encoder_lens=encoder_lens,
        extend_seq_lens=torch.full_like(keys, queries),
        extend_seq_lens_cpu=[queries] * len(keys),
        extend_prefix_lens_cpu=before.tolist(),
        _attn_output=None,
    )


def radix_layer(case: Case) -> Any:
    cross = case["attention"] == "cross"
    return RadixAttention(
        num_heads=HEADS,
        head_dim=HEAD_DIM,
        scaling=HEAD_DIM**-0.5,
        num_kv_heads=KEY_HEADS,
        layer_id=0,
        sliding_window_size=case["window"],
        is_cross_attention=cross,
        attn_type=AttentionType.DECODER if cross else AttentionType[case["attention"]],
    )


def fingerprint(value: Any) -> Any:
    """A tensor as type, shape and digest of its bytes; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    digest = hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()
    return [str(value.dtype), list(value.shape), digest]


def measure(case: Case) -> dict[str, Any]:
    masks = case["masks"]
    queries = len(masks[0])
    keys = torch.tensor([len(rows[0]) for rows in masks])
    # With cross-attention the masks' keys are the encoder's, ahead of the request's own tokens.
    cross = case["attention"] == "cross"
    encoder_lens, own_keys = (keys, torch.full_like(keys, queries)) if cross else (None, keys)
    pool, slots, layer = Pool(), scattered_slots(), radix_layer(case)
    forward_batch = batch(case["metadata"], queries, own_keys, encoder_lens)
    q = torch.randn(len(masks) * queries, HEADS * HEAD_DIM, generator=torch.Generator().manual_seed(2))

    overrides = {"speculative_eagle_topk": 1, "speculative_num_draft_tokens": queries}
    with (
        get_context().override_server_args(**overrides),
        get_parallel().override(tp_size=1, attn_dcp_size=1, attn_dcp_rank=0),
    ):
        attention = backend(pool, slots, page_size=1 if cross else PAGE)
        attention.init_forward_metadata(forward_batch)
        forward = attention.forward_extend if case["forward"] == "extend" else attention.forward_decode
        kernel.calls.clear()
        output = forward(q, None, None, layer, forward_batch)

    (call,) = kernel.calls
    expected = torch.cat(
        [
            kernel.attention(
                q.view(len(masks), queries, HEADS, HEAD_DIM)[row],
                pool.k[slots[row + 1, : keys[row]].long()],
                pool.v[slots[row + 1, : keys[row]].long()],
                rows,
                layer.scaling,
            )
            for row, rows in enumerate(masks)
        ]
    )
    return {
        "window_size": call["window_size"],
        "causal": call["causal"],
        "masks": [
            kernel.mask(queries, keys_seen, call["causal"], call["window_size"])
            for keys_seen in call["cache_seqlens"].tolist()
        ],
        "arguments": {name: fingerprint(value) for name, value in call.items()},
        "difference": float((output.view_as(expected).double() - expected).abs().max()),
    }


if __name__ == "__main__":
    answer(measure)
