"""Gated DeltaNet keeps beta in FP32: the state against an FP64 recurrence, old and new side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch  # type: ignore[import-not-found]  # on the machine with the device

from tests.gpu.gdn import RING, Inputs, Kernels, draw, in_fp64
from tests.gpu.machine import HALF, relative_error, sized

STEPS = sized(4096, 2 * RING)
MARKS = [sized(128, RING), STEPS]
FP32_ERROR = 2e-6
LOST_BY_ROUNDING = 100


@pytest.fixture(scope="module")
def given() -> Inputs:
    return draw(STEPS, batch=2)


@pytest.fixture(scope="module")
def exact(given: Inputs) -> dict[int, torch.Tensor]:
    return in_fp64(given, MARKS)


def errors(
    ours: dict[int, torch.Tensor], theirs: dict[int, torch.Tensor], exact: dict[int, torch.Tensor], kernel: str
) -> list[tuple[float, float]]:
    """(without, with) the rounding of beta, at each mark."""
    pairs = [(relative_error(ours[step], exact[step]), relative_error(theirs[step], exact[step])) for step in MARKS]
    for step, (new, old) in zip(MARKS, pairs, strict=True):
        print(f"{kernel}, {step} steps: relative error {old:.2e} with the rounding, {new:.2e} without")
    return pairs


def test_packed_decode_follows_the_fp64_recurrence(
    composed: Path, upstream: Path, given: Inputs, exact: dict[int, torch.Tensor]
) -> None:
    ours, theirs = (Kernels(root).packed_states(given, MARKS) for root in (composed, upstream))
    for new, old in errors(ours, theirs, exact, "packed decode"):
        assert new < FP32_ERROR
        assert old > LOST_BY_ROUNDING * new


@pytest.mark.parametrize("out_type", [torch.float32, HALF], ids=["FP32 records", "half-precision records"])
def test_replay_follows_the_fp64_recurrence(
    composed: Path, upstream: Path, given: Inputs, exact: dict[int, torch.Tensor], out_type: torch.dtype
) -> None:
    """Its product of records (TF32 on the device) and their type bound what the gate's precision can bring."""
    ours, theirs = (Kernels(root).replay_states(given, MARKS, out_type) for root in (composed, upstream))
    for new, old in errors(ours, theirs, exact, f"ReplaySSM, records in {out_type}"):
        assert new < old


def test_decode_and_verify_leave_the_same_state(composed: Path, upstream: Path, given: Inputs) -> None:
    """A token that was decoded and the same token under verification: upstream's two states differ."""
    tokens = 8
    for root, agrees in ((composed, True), (upstream, False)):
        kernels = Kernels(root)
        decoded = kernels.packed_states(given, list(range(1, tokens + 1)))
        verified = kernels.verify_states(given, tokens)
        errors = [relative_error(verified[:, step], decoded[step + 1]) for step in range(tokens)]
        print(f"{root.name}: decode against verify, relative difference up to {max(errors):.2e}")
        assert (max(errors) < FP32_ERROR) == agrees
