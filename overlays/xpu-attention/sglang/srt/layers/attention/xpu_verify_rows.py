"""Verify a linear draft on Intel XPU as rows of one query each.

sgl-kernel-xpu's ``flash_attn_with_kvcache`` takes its decode kernel, which splits the keys of a long request over the
device, only for ``max_seqlen_q == 1``. A verification of N tokens per request is one call with N queries per request:
it takes a prefill kernel, whose time grows with the length of the request, whatever ``num_splits`` says.

With causality, query j of N at the end of L keys sees the first L - N + 1 + j of them. So one request with N queries
is N requests with one query, over the same pages and with lengths of their own; this module states metadata that way.
It holds for causal attention, also with a sliding window to the left, which follows the query, and for nothing else:
not for a tree, whose branches share positions, and not for a draft block whose layers look both ways.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.speculative.spec_info import SpecInputType

if TYPE_CHECKING:
    from sglang.srt.layers.attention.flashattention_backend import FlashAttentionMetadata
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


def is_linear_verify(forward_batch: ForwardBatch) -> bool:
    """Whether the target verifies one chain of ``num_tokens_per_req`` tokens per request.

    EAGLE's inputs carry a mask for chains too, where it states causality and nothing more: the tree's width decides.
    A DFLASH input carries one only for a backend that cannot express the chain by itself.
    """
    if not forward_batch.forward_mode.is_target_verify():
        return False
    spec_info = forward_batch.spec_info
    if spec_info.ragged_verify_layout is not None:
        return False
    if spec_info.spec_input_type == SpecInputType.DFLASH_VERIFY:
        return spec_info.custom_mask is None
    eagle = (SpecInputType.EAGLE_VERIFY, SpecInputType.FROZEN_KV_MTP_VERIFY)
    return spec_info.spec_input_type in eagle and spec_info.tree_topk == 1


def requests_as_rows(
    req_pool_indices: torch.Tensor, seq_lens: torch.Tensor, num_tokens_per_req: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Repeat each request for each of its tokens; both results are [bs * num_tokens_per_req], request by request.

    Args:
        req_pool_indices: rows of ``req_to_token``, [bs].
        seq_lens: committed tokens, ahead of the ones to verify, [bs].

    Returns:
        The row of ``req_to_token`` and the number of visible keys, for each query.
    """
    visible = torch.arange(1, num_tokens_per_req + 1, dtype=seq_lens.dtype, device=seq_lens.device)
    return (
        req_pool_indices.repeat_interleave(num_tokens_per_req),
        (seq_lens.unsqueeze(1) + visible).flatten(),
    )


def metadata_as_rows(metadata: FlashAttentionMetadata, num_rows: int) -> None:
    """Turn metadata of a causal call with several queries per request into that of one query per row, in place.

    Args:
        metadata: as for a call with ``cu_seqlens_q``; its tables hold pages, not token slots.
        num_rows: queries of the whole batch, so that no length has to come from the device.
    """
    owner, visible = _rows(metadata.cu_seqlens_q, metadata.cache_seqlens_int32, num_rows)
    metadata.max_seq_len_q = 1
    metadata.cu_seqlens_q = _ramp(visible)
    metadata.cache_seqlens_int32 = visible
    metadata.cu_seqlens_k = torch.nn.functional.pad(torch.cumsum(visible, dim=0, dtype=torch.int32), (1, 0))
    metadata.page_table = metadata.page_table[owner]
    if metadata.swa_page_table is not None:
        metadata.swa_page_table = metadata.swa_page_table[owner]
    if metadata.local_attn_metadata is not None:
        metadata.local_attn_metadata = _local_as_rows(metadata.local_attn_metadata, num_rows)


def _local_as_rows(local: Any, num_rows: int) -> Any:
    """The same for the chunks of local attention, which hold as many queries as fall into them.

    The class of this metadata has another module in each release, so that no name of it is imported here.
    """
    owner, visible = _rows(local.local_query_start_loc, local.local_seqused_k, num_rows)
    return dataclasses.replace(
        local,
        local_query_start_loc=_ramp(visible),
        local_seqused_k=visible,
        local_block_table=local.local_block_table[owner],
        local_max_query_len=1,
    )


def _rows(cu_seqlens_q: torch.Tensor, cache_seqlens: torch.Tensor, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each query, the entry of the batch that it belongs to and the number of keys that it sees there."""
    queries = cu_seqlens_q.diff()
    owner = torch.repeat_interleave(queries, output_size=num_rows)
    # Bottom-right alignment: the last query of an entry sees all of its keys.
    behind = cu_seqlens_q[owner + 1] - 1 - torch.arange(num_rows, device=owner.device)
    return owner, (cache_seqlens[owner] - behind).to(torch.int32)


def _ramp(rows: torch.Tensor) -> torch.Tensor:
    """``cu_seqlens_q`` of one query per row."""
    return torch.arange(rows.numel() + 1, dtype=torch.int32, device=rows.device)
