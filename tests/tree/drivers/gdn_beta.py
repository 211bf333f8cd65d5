"""Run SGLang's linear-attention decode kernels step by step in Triton's interpreter, against FP64.

A case: ``name``; ``kernel`` ("packed" or "replayssm"); ``gate`` ("gdn": one decay a head, "kda": one a key
channel); ``dtype`` of the inputs, "float16" or "float32"; ``steps``. Answer: relative error of the final state
and of the outputs (Frobenius norm of the difference over norm of the FP64 value), and a digest of both.

Only FP16 and FP32 inputs: the interpreter's own BF16 arithmetic is wrong. FP16 takes the same path through the
kernel as BF16 (both are "the type of b"), with a finer rounding. Outputs, rings and state are FP32, so that
rounding the gate is the only half-precision step between the inputs and the result.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import math
from dataclasses import dataclass

import torch  # type: ignore[import-not-found]  # in the base image only
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from sglang.kernels.ops.attention.fla import fused_recurrent  # type: ignore[import-not-found]

from .answer import Case, answer

# 0.5.23 moved this file.
REPLAYSSM = next(
    name
    for folder in ("linear", "fla")
    if importlib.util.find_spec(name := f"sglang.kernels.ops.attention.{folder}.fused_recurrent_linear_replayssm")
)
replayssm = importlib.import_module(REPLAYSSM)

BATCH, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 1, 2, 32, 32
RING = 4  # steps between two flushes of the ReplaySSM ring; `steps` has to be a multiple of it
SCALE = KEY_DIM**-0.5


@triton.jit
def exp(x):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201  (a kernel)
    return tl.exp(x)


# SGLang's kernel file takes its `exp` as an alias of tl.exp. The interpreter swaps such functions only where a
# kernel reaches them through `tl`, so here the alias has to be a kernel function itself.
fused_recurrent.exp = exp


@dataclass(frozen=True)
class Inputs:
    """Inputs of all steps: tokens [steps, batch, q|k|v], a, b [steps, batch, heads(, key channels)]."""

    tokens: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    a_log: torch.Tensor
    dt_bias: torch.Tensor
    state: torch.Tensor


def inputs(case: Case) -> Inputs:
    random = torch.Generator().manual_seed(20260829)
    dtype = getattr(torch, case["dtype"])
    steps = case["steps"]
    gates = (VALUE_HEADS,) if case["gate"] == "gdn" else (VALUE_HEADS, KEY_DIM)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    return Inputs(
        tokens=draw(steps, BATCH, 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM).to(dtype),
        a=draw(steps, BATCH, *gates).to(dtype),
        b=(2 * draw(steps, BATCH, VALUE_HEADS)).to(dtype),
        a_log=draw(VALUE_HEADS) - 2,
        dt_bias=draw(*gates),
        state=draw(BATCH, VALUE_HEADS, VALUE_DIM, KEY_DIM),
    )


def in_fp64(given: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Gated delta rule, one row, head and step after the other; returns (final state, outputs).

    S <- S * exp(g);  S <- S + sigmoid(b) (v - S k) k^T;  o = S q, with g = -exp(A_log) softplus(a + dt_bias)
    and unit-length q and k (Yang, Kautz, Hatamizadeh: Gated Delta Networks, 2024; KDA has g per key channel).
    """
    states = given.state.double().clone()
    outputs = []
    for token, a, b in zip(given.tokens.double(), given.a.double(), given.b.double(), strict=True):
        for row in range(BATCH):
            queries, keys, values = token[row].split(
                [KEY_HEADS * KEY_DIM, KEY_HEADS * KEY_DIM, VALUE_HEADS * VALUE_DIM]
            )
            for head in range(VALUE_HEADS):
                group = head * KEY_HEADS // VALUE_HEADS
                query = queries.view(KEY_HEADS, KEY_DIM)[group]
                key = keys.view(KEY_HEADS, KEY_DIM)[group]
                query = query / (query.square().sum() + 1e-6).sqrt() * SCALE
                key = key / (key.square().sum() + 1e-6).sqrt()
                softplus = torch.log1p(torch.exp(a[row, head] + given.dt_bias[head].double()))
                state = states[row, head] * torch.exp(-torch.exp(given.a_log[head].double()) * softplus)
                delta = values.view(VALUE_HEADS, VALUE_DIM)[head] - state @ key
                state = state + torch.sigmoid(b[row, head]) * torch.outer(delta, key)
                states[row, head] = state
                outputs.append(state @ query)
    return states, torch.stack(outputs).view(-1, BATCH, VALUE_HEADS, VALUE_DIM)


def by_packed_decode(given: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    state, outputs = given.state.clone(), []
    for token, a, b in zip(given.tokens, given.a, given.b, strict=True):
        out = torch.empty(BATCH, 1, VALUE_HEADS, VALUE_DIM)
        fused_recurrent.fused_recurrent_gated_delta_rule_packed_decode(
            mixed_qkv=token,
            a=a,
            b=b,
            A_log=given.a_log,
            dt_bias=given.dt_bias,
            scale=SCALE,
            initial_state=state,
            out=out,
            ssm_state_indices=torch.arange(BATCH),
            use_qk_l2norm_in_kernel=True,
        )
        outputs.append(out[:, 0])
    return state, torch.stack(outputs)


def by_replayssm(given: Inputs, kda: bool) -> tuple[torch.Tensor, torch.Tensor]:
    state, outputs = given.state.clone(), []
    ring_gates = (KEY_DIM,) if kda else ()
    deltas = torch.zeros(BATCH, VALUE_HEADS, RING, VALUE_DIM)
    keys = torch.zeros(BATCH, KEY_HEADS, RING, KEY_DIM)
    gates = torch.zeros(BATCH, VALUE_HEADS, RING, *ring_gates)
    for step, (token, a, b) in enumerate(zip(given.tokens, given.a, given.b, strict=True)):
        out = torch.empty(BATCH, 1, VALUE_HEADS, VALUE_DIM)
        replayssm.fused_recurrent_linear_replayssm_decode(
            mixed_qkv=token,
            a=a,
            b=b,
            A_log=given.a_log,
            dt_bias=given.dt_bias,
            scale=SCALE,
            initial_state=state,
            d_cache=deltas,
            k_cache=keys,
            g_cache=gates,
            out=out,
            ssm_state_indices=torch.arange(BATCH),
            write_pos=torch.full((BATCH,), step % RING, dtype=torch.int32),
            use_qk_l2norm_in_kernel=True,
            is_kda=kda,
        )
        outputs.append(out[:, 0])
    return state, torch.stack(outputs)


def relative_error(measured: torch.Tensor, expected: torch.Tensor) -> float:
    return float((measured.double() - expected).norm() / expected.norm())


def measure(case: Case) -> dict[str, object]:
    given = inputs(case)
    kda = case["gate"] == "kda"
    state, outputs = by_packed_decode(given) if case["kernel"] == "packed" else by_replayssm(given, kda)
    expected_state, expected_outputs = in_fp64(given)
    digest = hashlib.sha256(state.numpy().tobytes() + outputs.numpy().tobytes()).hexdigest()
    errors = relative_error(state, expected_state), relative_error(outputs, expected_outputs)
    assert all(math.isfinite(error) for error in errors)
    return {"state_error": errors[0], "output_error": errors[1], "sha256": digest}


if __name__ == "__main__":
    answer(measure)
