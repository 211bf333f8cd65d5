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
CASES = [{"name": when, "when": when} for when in ("tokenizing", "streaming", "answered")]


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


@pytest.mark.parametrize("when", ["tokenizing", "answered"])
def test_what_the_scheduler_does_not_run_is_forgotten(ours: dict[str, Any], when: str) -> None:
    assert ours[when] == {"aborts": [], "known": [], "left": []}


def test_upstream_lets_the_scheduler_run_it_to_the_end(theirs: dict[str, Any]) -> None:
    assert theirs["streaming"] == {"aborts": [], "known": [], "left": []}
