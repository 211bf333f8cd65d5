"""Run XPUAttentionBackend's forward_extend and forward_decode on a CPU with a recorded attention kernel.

A case: ``name``; ``forward`` ("extend" or "decode"); ``metadata`` ("prefill", "block" or "single": how the
batch was announced to the backend); ``attention`` (a member of SGLang's AttentionType) or "cross"; ``window``
(keys to the left of the query, -1 for none); ``masks`` (one per request: which key each query has to see).
Answer: the kernel's mask arguments, the masks they mean, a digest of every argument of the call, and the
largest difference between the backend's output and attention under the case's masks.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import sgl_kernel.flash_attn as kernel  # type: ignore[import-not-found]  # the stand-in in checks/stubs
import torch  # type: ignore[import-not-found]  # in the base image only
from sglang.srt.layers.attention.xpu_backend import XPUAttentionBackend  # type: ignore[import-not-found]
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention  # type: ignore[import-not-found]
from sglang.srt.model_executor.forward_batch_info import ForwardMode  # type: ignore[import-not-found]
from sglang.srt.runtime_context import get_context, get_parallel  # type: ignore[import-not-found]

from .answer import Case, answer
from .xpu_fakes import HEAD_DIM, Pool, fingerprint, model_runner, scattered_slots

HEADS, KEY_HEADS = 2, 1
CONTEXT, PAGE, REQUESTS = 64, 4, 3


def backend(pool: Pool, slots: torch.Tensor, page_size: int) -> Any:
    return XPUAttentionBackend(model_runner(pool, slots, heads=HEADS, page_size=page_size, is_draft_worker=True))


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


def measure(case: Case) -> dict[str, Any]:
    masks = case["masks"]
    queries = len(masks[0])
    keys = torch.tensor([len(rows[0]) for rows in masks])
    # With cross-attention the masks' keys are the encoder's, ahead of the request's own tokens.
    cross = case["attention"] == "cross"
    encoder_lens, own_keys = (keys, torch.full_like(keys, queries)) if cross else (None, keys)
    pool = Pool(REQUESTS * CONTEXT, KEY_HEADS, torch.float32)
    slots, layer = scattered_slots(REQUESTS, CONTEXT, PAGE), radix_layer(case)
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
        "arguments": fingerprint(call),
        "difference": float((output.view_as(expected).double() - expected).abs().max()),
    }


if __name__ == "__main__":
    answer(measure)
