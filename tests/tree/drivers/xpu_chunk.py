"""Prefill Gated DeltaNet through the chunk kernels that XPU takes, in Triton's interpreter, against FP64.

A case: ``name``; ``lengths`` of the batch's sequences; ``heads``, of keys and of values; ``dtype`` of the activations,
"float16" or "float32" (the interpreter computes BF16 wrongly); ``decay`` (a token's gate is at least exp of minus
this); ``altered``, or None: the operand that the reference gets with other values in one token of each sequence, the
last of its first chunk, or in each sequence's initial state.

Answer: ``kernels``, the modules of the functions that XPU has for itself; and the greatest differences from the
reference: of ``outputs``, of the ``states`` at each chunk's start, of the ``pool`` of states afterwards, and of what
follows (``resumed``) when a request starts from one of those states. Values are of about unit size.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import fake_xpu  # type: ignore[import-not-found]  # checks/, on the path of drivers
import torch  # type: ignore[import-not-found]  # in the base image only
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

from .answer import Case, answer

# SGLang's kernel files ask Triton which device it compiles for, when they are imported.
fake_xpu.install()
triton.runtime.driver.set_active(SimpleNamespace(get_current_target=lambda: SimpleNamespace(backend="xpu")))
# Autotuning would time each configuration on a device. The last has the widest blocks, so the fewest steps.
_autotune = triton.autotune
triton.autotune = lambda configs, key, **options: _autotune(configs[-1:], key, **options)

from sglang.kernels.ops.attention.fla import op, utils  # type: ignore[import-not-found]  # noqa: E402


@triton.jit
def exp(x):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201  (a kernel)
    return tl.exp(x)


@triton.jit
def make_tensor_descriptor(base, shape, strides, block_shape):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    return tl.make_tensor_descriptor(base, shape, strides, block_shape)


# The interpreter swaps a function of Triton's only where a kernel reaches it through `tl`, so the aliases that the
# kernel files import have to be kernel functions themselves.
op.exp, op.make_tensor_descriptor = exp, make_tensor_descriptor
utils.custom_device_ctx = lambda _index: contextlib.nullcontext()

from sglang.kernels.ops.attention.fla import chunk  # noqa: E402

torch.set_num_threads(1)
CHUNK = chunk.CHUNK_SIZE
DIM = 128  # of Qwen3.8's keys and values: two blocks of the kernels each


@dataclass(frozen=True)
class Given:
    """A batch: its tokens one sequence after the other, and a pool of states [slot, head, value, key]."""

    lengths: tuple[int, ...]
    slots: tuple[int, ...]  # of each sequence's state
    q: torch.Tensor  # [token, key head, DIM], as k
    k: torch.Tensor
    v: torch.Tensor  # [token, value head, DIM]
    gate: torch.Tensor  # logarithms [token, value head]
    beta: torch.Tensor
    pool: torch.Tensor

    def starts(self) -> list[int]:
        """Of each sequence its first token's row, and the number of rows."""
        return [sum(self.lengths[:row]) for row in range(len(self.lengths) + 1)]


@dataclass(frozen=True)
class Result:
    """Outputs [token, value head, DIM], the state at each chunk's start [chunk, ...], and the pool afterwards."""

    outputs: torch.Tensor
    states: torch.Tensor
    pool: torch.Tensor


def draw(lengths: tuple[int, ...], heads: tuple[int, int], dtype: torch.dtype, decay: float) -> Given:
    """Random operands. The first sequence starts from zeros, as a new request; slots are in no order, and some free."""
    random = torch.Generator().manual_seed(20261130)
    (key_heads, value_heads), tokens = heads, sum(lengths)

    def values(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    slots = tuple((1 + torch.randperm(len(lengths) + 1, generator=random)[: len(lengths)]).tolist())
    pool = 0.3 * values(len(lengths) + 2, value_heads, DIM, DIM)
    pool[slots[0]] = 0
    return Given(
        lengths=lengths,
        slots=slots,
        q=values(tokens, key_heads, DIM).to(dtype),
        k=values(tokens, key_heads, DIM).to(dtype),
        v=values(tokens, value_heads, DIM).to(dtype),
        gate=-decay * torch.rand(tokens, value_heads, generator=random),
        beta=torch.rand(tokens, value_heads, generator=random),
        pool=pool,
    )


def altered(given: Given, operand: str) -> Given:
    """One more in each value of the last token of a first chunk, or of each initial state."""
    values = getattr(given, operand).clone()
    ends = [start + CHUNK - 1 for start, length in zip(given.starts(), given.lengths, strict=False) if length >= CHUNK]
    values[list(given.slots) if operand == "pool" else ends] += 1
    return replace(given, **{operand: values})


def in_fp64(given: Given) -> Result:
    """The gated delta rule, one sequence, head and token after the other.

    S <- S exp(g);  S <- S + beta (v - S k) k^T;  o = S q, with q and k of unit length and q over the root of DIM.
    """
    outputs = torch.empty(given.v.shape, dtype=torch.float64)
    chunks, pool = [], given.pool.double().clone()
    group = given.v.shape[1] // given.k.shape[1]
    for start, length, slot in zip(given.starts(), given.lengths, given.slots, strict=False):
        states = torch.empty(-(-length // CHUNK), *pool.shape[1:], dtype=torch.float64)
        for head in range(given.v.shape[1]):
            state = pool[slot, head].clone()
            for token in range(length):
                if token % CHUNK == 0:
                    states[token // CHUNK, head] = state
                row = start + token
                key, query = unit(given.k[row, head // group]), unit(given.q[row, head // group]) * DIM**-0.5
                state = state * torch.exp(given.gate[row, head].double())
                delta = given.v[row, head].double() - state @ key
                state = state + given.beta[row, head].double() * torch.outer(delta, key)
                outputs[row, head] = state @ query
            pool[slot, head] = state
        chunks.append(states)
    return Result(outputs, torch.cat(chunks), pool)


def unit(vector: torch.Tensor) -> torch.Tensor:
    return vector.double() / (vector.double().square().sum() + 1e-6).sqrt()


def by_kernels(given: Given) -> Result:
    """As SGLang's Triton backend prefills; below its entry, which refuses FP32 for speed's sake."""
    pool = given.pool.clone()
    outputs, states = chunk.ChunkGatedDeltaRuleFunction.apply(
        *(values[None] for values in (given.q, given.k, given.v, given.gate, given.beta)),
        DIM**-0.5,
        pool,
        torch.tensor(given.slots, dtype=torch.int32),
        torch.tensor(given.starts(), dtype=torch.int32),
        True,
    )
    return Result(outputs[0], states[0], pool)


def resume(given: Given, states: torch.Tensor) -> tuple[list[int], list[int], Result]:
    """For each chunk but the first of a sequence, a request that finds its state and brings the tokens after it.

    Returns the rows of its tokens, the slots in which the whole sequences end, and what came out.
    """
    rows: list[int] = []
    slots, lengths, found, passed = [], [], [], 0
    for start, length, slot in zip(given.starts(), given.lengths, given.slots, strict=False):
        for begin in range(CHUNK, length, CHUNK):
            rows += range(start + begin, start + length)
            slots.append(slot)
            lengths.append(length - begin)
            found.append(states[passed + begin // CHUNK].float())
        passed += -(-length // CHUNK)
    tokens = {name: getattr(given, name)[rows] for name in ("q", "k", "v", "gate", "beta")}
    batch = Given(lengths=tuple(lengths), slots=tuple(range(len(slots))), pool=torch.stack(found), **tokens)
    return rows, slots, by_kernels(batch)


@cache
def ran(lengths: tuple[int, ...], heads: tuple[int, int], dtype: str, decay: float) -> tuple[Given, Result, Any]:
    """Operands, what the kernels make of them, and the same from each checkpoint; once for all alterations."""
    given = draw(lengths, heads, getattr(torch, dtype), decay)
    result = by_kernels(given)
    return given, result, resume(given, result.states)


def difference(measured: torch.Tensor, expected: torch.Tensor) -> float:
    assert measured.shape == expected.shape
    return float((measured.double() - expected).abs().max())


def measure(case: Case) -> dict[str, Any]:
    given, result, (rows, slots, again) = ran(
        tuple(case["lengths"]), tuple(case["heads"]), case["dtype"], case["decay"]
    )
    expected = in_fp64(altered(given, case["altered"]) if case["altered"] else given)
    resumed = [difference(again.outputs, expected.outputs[rows]), difference(again.pool, expected.pool[slots])]
    return {
        "kernels": [
            function.__module__
            for function in (chunk.chunk_gated_delta_rule_fwd_h, chunk.chunk_gated_delta_rule_fwd_intra)
        ],
        "outputs": difference(result.outputs, expected.outputs),
        "states": difference(result.states, expected.states),
        "pool": difference(result.pool, expected.pool),
        "resumed": float(torch.tensor(resumed).max()),  # a NaN stays one
    }


if __name__ == "__main__":
    answer(measure)
