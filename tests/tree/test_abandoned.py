"""Oracle of abandoned-requests.patch: what becomes of a request whose client closed its stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.tree.conftest import Tree

    Together = Callable[[Tree, str], dict[str, Any]]

pytestmark = pytest.mark.patch("abandoned-requests.patch")

TOGETHER = "abandoned"
CASES = [{"name": when, "when": when, "n": 1, "refused": 0} for when in ("tokenizing", "streaming", "answered")]
CASES += [{"name": f"two samples, {when}", "when": when, "n": 2, "refused": 0} for when in ("tokenizing", "streaming")]
CASES += [{"name": "refused", "when": "streaming", "n": 1, "refused": 1}]


@pytest.fixture(scope="module")
def ours(together: Together, composed: Tree) -> dict[str, Any]:
    return together(composed, TOGETHER)


@pytest.fixture(scope="module")
def theirs(together: Together, upstream: Tree) -> dict[str, Any]:
    return together(upstream, TOGETHER)


def test_what_the_scheduler_runs_is_aborted_once(ours: dict[str, Any]) -> None:
    assert ours["streaming"]["aborts"] == ["a-request"]


def test_its_state_stays_until_the_scheduler_has_answered(ours: dict[str, Any]) -> None:
    assert ours["streaming"]["known"] == ["a-request"]
    assert ours["streaming"]["left"] == []


def test_each_sample_of_a_prompt_is_aborted_under_its_own_id(ours: dict[str, Any]) -> None:
    samples = ["made-1", "made-2"]
    assert ours["two samples, streaming"] == {"aborts": samples, "known": samples, "left": []}


def test_an_abort_that_did_not_get_out_is_sent_by_the_response(ours: dict[str, Any]) -> None:
    assert ours["refused"] == {"aborts": ["a-request"], "known": ["a-request"], "left": []}


@pytest.mark.parametrize("when", ["tokenizing", "two samples, tokenizing", "answered"])
def test_what_the_scheduler_does_not_run_is_forgotten(ours: dict[str, Any], when: str) -> None:
    assert ours[when] == {"aborts": [], "known": [], "left": []}


def test_upstream_lets_the_scheduler_run_it_to_the_end(theirs: dict[str, Any]) -> None:
    assert theirs["streaming"] == {"aborts": [], "known": [], "left": []}


def test_upstream_lets_the_scheduler_run_each_sample_to_the_end(theirs: dict[str, Any]) -> None:
    assert theirs["two samples, streaming"]["aborts"] == []
