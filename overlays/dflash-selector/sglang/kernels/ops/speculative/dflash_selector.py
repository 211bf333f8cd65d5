# ruff: noqa: ANN001, ANN202 (a Triton kernel's arguments have no Python types)
"""DFlash2's selector in one Triton launch: score the transitions that the walk takes, and walk.

The lattice holds ``top_k`` transition rows per slot, one for each candidate of the slot before, but a walk visits a
single row of each: the one of the token it has just chosen. This kernel computes that row only, so it reads one
predecessor embedding per slot instead of ``top_k`` and writes no lattice.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _selector_propose_kernel(
    predecessor_ptr,  # [vocab, rank]
    successor_ptr,  # [vocab, rank]
    candidate_ptr,  # [batch, slots, top_k]
    unary_ptr,  # [batch, slots, top_k]
    hidden_ptr,  # [batch, slots, rank]
    anchor_ptr,  # [batch]
    uniforms_ptr,  # [batch, slots] fp32
    temperatures_ptr,  # [batch] fp32
    greedy_ptr,  # [batch] bool
    tokens_ptr,  # [batch, slots] int64, out
    q_ptr,  # [batch, slots, top_k] fp32, out
    slots: tl.constexpr,
    top_k: tl.constexpr,
    rank: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """One program per request, which walks slot after slot; every sum is taken in FP32."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    r = tl.arange(0, BLOCK_R)
    in_k = k < top_k
    in_r = r < rank
    temperature = tl.load(temperatures_ptr + row)
    greedy = tl.load(greedy_ptr + row) != 0
    token = tl.load(anchor_ptr + row).to(tl.int64)
    # Candidates do not depend on the walk: with those of the next slot loaded ahead, its rows wait for nothing.
    ids = tl.load(candidate_ptr + row * slots * top_k + k, mask=in_k, other=0)
    for slot in range(slots):
        at = row * slots + slot
        successors = tl.load(
            successor_ptr + ids[:, None] * rank + r[None, :], mask=in_k[:, None] & in_r[None, :], other=0.0
        )
        predecessor = tl.load(predecessor_ptr + token * rank + r, mask=in_r, other=0.0)
        hidden = tl.load(hidden_ptr + at * rank + r, mask=in_r, other=0.0)
        unary = tl.load(unary_ptr + at * top_k + k, mask=in_k, other=0.0)
        ids = tl.load(candidate_ptr + (at + 1) * top_k + k, mask=in_k & (slot + 1 < slots), other=0)
        state = predecessor.to(tl.float32) * hidden.to(tl.float32)
        scores = unary + tl.sum(successors.to(tl.float32) * state[None, :], axis=1)
        scores = tl.where(in_k, scores, -float("inf"))
        if greedy:
            # Same pick as torch.argmax: the first NaN if any, else the first max.
            is_nan = scores != scores
            best = tl.max(tl.where(is_nan, -float("inf"), scores), axis=0)
            has_nan = tl.max(is_nan.to(tl.int32), axis=0) > 0
            hit = tl.where(has_nan, is_nan, scores == best)
            index = tl.min(tl.where(hit, k, BLOCK_K), axis=0)
            probabilities = tl.where(k == index, 1.0, 0.0)
        else:
            scaled = scores / temperature
            exponentials = tl.exp(scaled - tl.max(scaled, axis=0))
            probabilities = exponentials / tl.sum(exponentials, axis=0)
            uniform = tl.load(uniforms_ptr + at)
            passed = uniform >= tl.cumsum(probabilities, axis=0)
            index = tl.minimum(tl.sum(passed.to(tl.int32), axis=0), top_k - 1)
        token = tl.load(candidate_ptr + at * top_k + index).to(tl.int64)
        tl.store(q_ptr + at * top_k + k, probabilities, mask=in_k)
        tl.store(tokens_ptr + at, token)


def selector_propose_triton(
    *,
    predecessor_table: torch.Tensor,
    successor_table: torch.Tensor,
    candidate_ids: torch.Tensor,
    unary_logits: torch.Tensor,
    hidden: torch.Tensor,
    anchor_token_ids: torch.Tensor,
    uniforms: torch.Tensor,
    temperatures: torch.Tensor,
    greedy_mask: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Walk one path through the candidates of each request.

    score[p, c] of slot s is unary[s, c] + <predecessor[p] * hidden[s], successor[c]>, summed in FP32, where p is
    the token chosen at slot s - 1 and the anchor at slot 0. A greedy row takes the first maximum; any other draws
    c from softmax(score / temperature) by inverting its cumulative sum at the slot's uniform number.

    Args:
        predecessor_table, successor_table: [vocab, rank] codebooks.
        candidate_ids: [batch, slots, top_k] int64, rows of the codebooks.
        unary_logits: [batch, slots, top_k].
        hidden: [batch, slots, rank], the projected hidden states.
        anchor_token_ids: [batch], the verified token ahead of slot 0.
        uniforms: [batch, slots] in [0, 1); temperatures: [batch], above 0; greedy_mask: [batch] bool.

    Returns:
        tokens [batch, slots] int64, and the proposal distribution over each slot's candidates
        [batch, slots, top_k] fp32 (the point mass for a greedy row).
    """
    batch, slots, top_k = candidate_ids.shape
    rank = predecessor_table.shape[1]
    tokens = torch.empty((batch, slots), dtype=torch.int64, device=hidden.device)
    q_rows = torch.empty((batch, slots, top_k), dtype=torch.float32, device=hidden.device)
    _selector_propose_kernel[(batch,)](
        predecessor_table,
        successor_table,
        candidate_ids.contiguous(),
        unary_logits.contiguous(),
        hidden.contiguous(),
        anchor_token_ids.contiguous(),
        uniforms.contiguous(),
        temperatures.contiguous(),
        greedy_mask.contiguous(),
        tokens,
        q_rows,
        slots=slots,
        top_k=top_k,
        rank=rank,
        BLOCK_K=triton.next_power_of_2(top_k),
        BLOCK_R=triton.next_power_of_2(rank),
        num_warps=4,
    )
    return tokens, q_rows
