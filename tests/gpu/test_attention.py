"""N rows of one query give what one call with N queries gives: causality is in the rows' lengths."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.attention import AsBlock, AsRows, draw, exact
from tests.gpu.machine import relative_error, sized

ERROR = 1e-2  # half precision in both, against FP64


@pytest.mark.parametrize("cached", [1, 63, 64, 100, sized(8192, 200)])
def test_rows_and_block_agree(composed: Path, cached: int) -> None:
    request = draw(cached, seed=cached)
    expected = exact(request)
    rows, block = AsRows(composed, request)(), AsBlock(composed, request)()
    assert relative_error(rows, expected) < ERROR
    assert relative_error(block, expected) < ERROR
    for query in range(len(expected)):
        assert relative_error(rows[query], expected[query]) < ERROR


def test_a_row_with_one_key_too_many_is_seen(composed: Path) -> None:
    """The comparison has teeth, close to the block at least: the first query must not see the second token."""
    request = draw(1, seed=7)
    expected = exact(request)
    shifted = AsRows(composed, request)
    shifted.request = type(request)(
        request.queries.roll(1, dims=0), request.keys, request.values, request.rows, request.cached
    )
    assert relative_error(shifted().roll(-1, dims=0)[:-1], expected[:-1]) > 10 * ERROR
