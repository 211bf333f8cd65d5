"""Fused draft keys and values against projection, norm, rotary embedding and write of each layer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch  # type: ignore[import-not-found]  # on the machine with the device

from tests.gpu.draft_kv import LAYERS, draft, fused, inputs, separate
from tests.gpu.machine import HALF, relative_error, sized

ROWS = sized(2048, 64)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-3), (HALF, 1e-2)], ids=["FP32", "half precision"])
@pytest.mark.parametrize("tokens", [1, 8, sized(64, 16)])
def test_all_layers_equal_separate_steps(composed: Path, dtype: torch.dtype, error: float, tokens: int) -> None:
    """FP32 allows for TF32 in the device's product, half precision for its rounding of projection and result."""
    ours, exact = draft(ROWS, dtype), draft(ROWS, dtype)
    given = inputs(tokens, ROWS, dtype)
    fused(composed, ours)(*given)
    separate(exact, precise=True)(*given)
    written = torch.zeros(ROWS, dtype=torch.bool, device=given[2].device)
    written[given[2]] = True
    for layer in range(LAYERS):
        for got, expected in ((ours.keys[layer], exact.keys[layer]), (ours.values[layer], exact.values[layer])):
            assert relative_error(got[written], expected[written]) < error
            assert (got[~written] == 0).all(), "a row that is no token's was written"


def test_the_layers_differ(composed: Path) -> None:
    """The comparison has teeth: no two layers hold the same keys."""
    model = draft(ROWS, HALF)
    fused(composed, model)(*inputs(8, ROWS))
    for layer in range(1, LAYERS):
        assert relative_error(model.keys[layer], model.keys[0]) > 0.5
