"""Gated DeltaNet decode: the tree's kernels step by step, and the recurrence in FP64."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]  # on the machine with the device
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

from tests.gpu.machine import DEVICE, HALF, sized
from tests.tree.drivers.standalone import interpreted, kernel_module

PACKED = "sglang/kernels/ops/attention/fla/fused_recurrent.py"
REPLAY = "sglang/kernels/ops/attention/linear/fused_recurrent_linear_replayssm.py"
VERIFY = "sglang/kernels/ops/attention/linear/fused_sigmoid_gating_recurrent.py"

# Qwen3.8-27B on four ranks: 48 value and 16 key heads of 128 in all.
KEY_HEADS, VALUE_HEADS, DIM = sized(4, 1), sized(12, 2), sized(128, 32)
RING = sized(16, 4)  # steps between two writes of the ReplaySSM state
SCALE = DIM**-0.5
WIDTHS = [KEY_HEADS * DIM, KEY_HEADS * DIM, VALUE_HEADS * DIM]


@triton.jit
def _exp(x):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  (a kernel)
    return tl.exp(x)


@dataclass(frozen=True)
class Inputs:
    """All steps: tokens [steps, batch, q|k|v], a and b [steps, batch, value heads]; FP32 state [batch, heads, V, K]."""

    tokens: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    a_log: torch.Tensor
    dt_bias: torch.Tensor
    state: torch.Tensor


def draw(steps: int, batch: int, seed: int = 20260829) -> Inputs:
    """Random inputs in the half-precision type of service."""
    random = torch.Generator().manual_seed(seed)

    def values(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random).to(DEVICE)

    return Inputs(
        tokens=values(steps, batch, sum(WIDTHS)).to(HALF),
        a=values(steps, batch, VALUE_HEADS).to(HALF),
        b=(2 * values(steps, batch, VALUE_HEADS)).to(HALF),
        a_log=values(VALUE_HEADS) - 2,
        dt_bias=values(VALUE_HEADS),
        state=values(batch, VALUE_HEADS, DIM, DIM),
    )


def in_fp64(given: Inputs, marks: list[int]) -> dict[int, torch.Tensor]:
    """States after the steps in ``marks``: S <- S exp(g); S <- S + sigmoid(b) (v - S k) k^T, with
    g = -exp(A_log) softplus(a + dt_bias) and unit-length k (Yang, Kautz, Hatamizadeh: Gated Delta Networks, 2024)."""
    state, states = given.state.double(), {}
    decay = -torch.exp(given.a_log.double())
    for step in range(max(marks)):
        _, keys, values = given.tokens[step].double().split(WIDTHS, dim=-1)
        key = keys.unflatten(-1, (KEY_HEADS, DIM))
        key = key / (key.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        key = key.repeat_interleave(VALUE_HEADS // KEY_HEADS, dim=1)
        gate = torch.exp(decay * torch.nn.functional.softplus(given.a[step].double() + given.dt_bias.double()))
        state = state * gate[..., None, None]
        delta = values.unflatten(-1, (VALUE_HEADS, DIM)) - torch.einsum("bhvk,bhk->bhv", state, key)
        state = state + torch.sigmoid(given.b[step].double())[..., None, None] * delta[..., None] * key[..., None, :]
        if step + 1 in marks:
            states[step + 1] = state
    return states


class Kernels:
    """Decode and verify of one tree."""

    def __init__(self, root: Path) -> None:
        self.packed = kernel_module(root, PACKED)
        self.replay = kernel_module(root, REPLAY)
        self.verify = kernel_module(root, VERIFY)
        if interpreted():
            # An alias of tl.exp made before a kernel runs is not the interpreter's.
            self.packed.exp = _exp

    def packed_step(
        self, given: Inputs, step: int, state: torch.Tensor, out: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """One decoded token per request; ``state`` is updated in place, at each request's slot of it."""
        self.packed.fused_recurrent_gated_delta_rule_packed_decode(
            mixed_qkv=given.tokens[step],
            a=given.a[step],
            b=given.b[step],
            A_log=given.a_log,
            dt_bias=given.dt_bias,
            scale=SCALE,
            initial_state=state,
            out=out,
            ssm_state_indices=slots,
            use_qk_l2norm_in_kernel=True,
        )

    def packed_states(self, given: Inputs, marks: list[int]) -> dict[int, torch.Tensor]:
        """States after the steps in ``marks``, by packed decode."""
        state, states = given.state.clone(), {}
        out = torch.empty(len(state), 1, VALUE_HEADS, DIM, device=DEVICE, dtype=HALF)
        slots = torch.arange(len(state), device=DEVICE)
        for step in range(max(marks)):
            self.packed_step(given, step, state, out, slots)
            if step + 1 in marks:
                states[step + 1] = state.clone()
        return states

    def replay_states(
        self, given: Inputs, marks: list[int], out_type: torch.dtype = torch.float32
    ) -> dict[int, torch.Tensor]:
        """The same by ReplaySSM; ``marks`` are multiples of ``RING``, after which the state is written.

        The kernel rounds its records to the type of the output before it replays them, so in service, with a BF16
        output, that rounding stays beside the gate's.
        """
        state, states = given.state.clone(), {}
        batch = len(state)
        out = torch.empty(batch, 1, VALUE_HEADS, DIM, device=DEVICE, dtype=out_type)
        deltas = torch.zeros(batch, VALUE_HEADS, RING, DIM, device=DEVICE)
        keys = torch.zeros(batch, KEY_HEADS, RING, DIM, device=DEVICE)
        gates = torch.zeros(batch, VALUE_HEADS, RING, device=DEVICE)
        for step in range(max(marks)):
            self.replay.fused_recurrent_linear_replayssm_decode(
                mixed_qkv=given.tokens[step],
                a=given.a[step],
                b=given.b[step],
                A_log=given.a_log,
                dt_bias=given.dt_bias,
                scale=SCALE,
                initial_state=state,
                d_cache=deltas,
                k_cache=keys,
                g_cache=gates,
                out=out,
                ssm_state_indices=torch.arange(batch, device=DEVICE),
                write_pos=torch.full((batch,), step % RING, dtype=torch.int32, device=DEVICE),
                use_qk_l2norm_in_kernel=True,
            )
            if step + 1 in marks:
                states[step + 1] = state.clone()
        return states

    def verify_states(self, given: Inputs, tokens: int) -> torch.Tensor:
        """Intermediate states [batch, tokens, heads, V, K] of one verification of the first ``tokens`` tokens."""
        batch = len(given.state)
        flat = given.tokens[:tokens].transpose(0, 1).reshape(1, batch * tokens, -1)
        q, k, v = (part.contiguous().unflatten(-1, (-1, DIM)) for part in flat.split(WIDTHS, dim=-1))
        gates: list[Any] = [
            gate[:tokens].transpose(0, 1).reshape(batch * tokens, VALUE_HEADS).contiguous()
            for gate in (given.a, given.b)
        ]
        states = torch.zeros(batch, tokens, VALUE_HEADS, DIM, DIM, device=DEVICE)
        self.verify.fused_sigmoid_gating_delta_rule_update(
            A_log=given.a_log,
            a=gates[0],
            dt_bias=given.dt_bias,
            softplus_beta=1.0,
            softplus_threshold=20.0,
            q=q,
            k=k,
            v=v,
            b=gates[1],
            initial_state_source=given.state.clone(),
            initial_state_indices=torch.arange(batch, dtype=torch.int32, device=DEVICE),
            cu_seqlens=torch.arange(0, (batch + 1) * tokens, tokens, dtype=torch.int32, device=DEVICE),
            use_qk_l2norm_in_kernel=True,
            disable_state_update=True,
            intermediate_states_buffer=states,
            intermediate_state_indices=torch.arange(batch, dtype=torch.int32, device=DEVICE),
            cache_steps=tokens,
        )
        return states
