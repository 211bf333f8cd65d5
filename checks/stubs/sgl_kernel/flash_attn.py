"""FlashAttention over a paged cache, in FP64 and plain torch, with a record of every call."""

from __future__ import annotations

from typing import Any, NoReturn

import torch  # type: ignore[import-not-found]  # in the base image only

# Arguments that shape a mask or a result which this reference does not model: they have to be off.
OFF: dict[str, Any] = {
    "softcap": 0.0,
    "bidirectional_block_ids": None,
    "k_descale": None,
    "v_descale": None,
    "sinks": None,
    "return_softmax_lse": False,
    "cu_seqlens_k_new": None,
}

calls: list[dict[str, Any]] = []


def mask(queries: int, keys: int, causal: bool, window_size: tuple[int, int]) -> list[list[bool]]:
    """Which key each query sees, by the rule in flash_attn_with_kvcache's documentation.

    The last query stands at the last key (bottom-right alignment): query i at i + keys - queries. A window
    (left, right) admits the keys from that position - left to that position + right, both included; -1 is no
    limit. Causality admits no key beyond the position, whatever the window says.
    """
    left, right = window_size
    rows = []
    for query in range(queries):
        position = query + keys - queries
        first = position - left if left >= 0 else 0
        last = position + right if right >= 0 else keys - 1
        if causal:
            last = min(last, position)
        rows.append([first <= key <= last for key in range(keys)])
    return rows


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: list[list[bool]], scale: float) -> Any:
    """softmax(q k^T * scale) v over the seen keys, in FP64.

    q [queries, heads, dim], k and v [keys, key heads, dim]; query head h reads key head h * key heads / heads.
    """
    k, v = (part.double().repeat_interleave(q.shape[1] // part.shape[1], dim=1) for part in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    weights = scores.masked_fill(~torch.tensor(seen), float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


def flash_attn_with_kvcache(
    *,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    **others: Any,
) -> torch.Tensor:
    """Record the call and answer with the reference. Raises NotImplementedError for what it does not model."""
    unmodelled = {name: others[name] for name, off in OFF.items() if others.get(name, off) != off}
    if unmodelled:
        raise NotImplementedError(f"flash_attn_with_kvcache stand-in: expected these off: {unmodelled}")
    calls.append(
        {
            "q": q,
            "k_cache": k_cache,
            "v_cache": v_cache,
            "page_table": page_table,
            "cache_seqlens": cache_seqlens,
            "cu_seqlens_q": cu_seqlens_q,
            "softmax_scale": softmax_scale,
            "causal": causal,
            "window_size": window_size,
            **others,
        }
    )
    starts = cu_seqlens_q.tolist()
    outputs = []
    for row, keys in enumerate(cache_seqlens.tolist()):
        pages = page_table[row].long()
        k, v = k_cache[pages].flatten(0, 1)[:keys], v_cache[pages].flatten(0, 1)[:keys]
        queries = q[starts[row] : starts[row + 1]]
        seen = mask(len(queries), keys, causal, window_size)
        outputs.append(attention(queries, k, v, seen, softmax_scale))
    return torch.cat(outputs).to(q.dtype)


def flash_attn_varlen_func(*_args: object, **_options: object) -> NoReturn:
    raise NotImplementedError("flash_attn_varlen_func: the test stand-in has no such kernel; expected no call")
