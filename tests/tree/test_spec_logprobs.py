"""The chain-stride path for log probabilities under DFLASH, which is upstream's, gives each token its own row."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.tree.conftest import Tree

    Together = Callable[[Tree, str], dict[str, Any]]

TOGETHER = "spec_logprobs"

STRIDE = 8
FP32 = 1e-5


def case(name: str, **changes: Any) -> dict[str, Any]:
    plain = {"accepted": [3, 1, 8], "stride": STRIDE, "vocabulary": 23, "temperatures": None}
    return {"name": name, **plain, "top": [0, 0, 0], "ids": [None, None, None], **changes}


CASES = [
    case("greedy"),
    case("sampled at a temperature of its own for each request", temperatures=[0.7, 1.0, 1.9]),
    case("best tokens, another number for each request", top=[2, 0, 5]),
    case("chosen tokens, for some requests", ids=[[4, 1], None, [22]]),
    case("all of it", temperatures=[1.3, 0.4, 1.0], top=[1, 3, 2], ids=[[0], [7, 9, 11], [22, 3]]),
    case("one request", accepted=[5], top=[4], ids=[[2]]),
]


@pytest.fixture(scope="module")
def ours(together: Together, composed: Tree) -> dict[str, Any]:
    return together(composed, TOGETHER)


@pytest.mark.parametrize("name", [each["name"] for each in CASES])
def test_each_accepted_token_is_given_its_own_row(ours: dict[str, Any], name: str) -> None:
    measured = ours[name]
    assert len(measured["found"]) == len(measured["expected"])
    for found, expected in zip(measured["found"], measured["expected"], strict=True):
        assert found.keys() == expected.keys()
        for part in expected:
            assert flat(found[part]) == pytest.approx(flat(expected[part]), abs=FP32)
            assert shape(found[part]) == shape(expected[part])


def test_rows_differ_so_that_a_wrong_one_is_seen(ours: dict[str, Any]) -> None:
    values = [value for _, value in ours["greedy"]["expected"][2]["token"]]
    assert min(abs(one - other) for one, other in pairwise(values)) > 100 * FP32


def flat(value: Any) -> list[float]:
    return [number for item in value for number in flat(item)] if isinstance(value, list) else [value]


def shape(value: Any) -> Any:
    return [shape(item) for item in value] if isinstance(value, list) else None
