"""Oracle of dflash2-launch-guard.patch: a launch that says which draft it means gets that one, or an error.

The real ``_handle_dflash`` reads config folders; the real ``DFlashWorkerV2.__init__`` runs until it uses the draft.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import pytest
from conftest import MAIN  # type: ignore[import-not-found]
from draft_starts import draft_starts  # type: ignore[import-not-found]  # these two lie beside this file
from launches import FITS, FREE, IMPOSSIBLE, UNEXPECTED  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

oracle = pytest.mark.patch("dflash2-launch-guard.patch")
LATER = {"DFlash2BeamDraftModel", "MiniMaxDFlash2DraftModel"}
"""Subclasses that 0.5.19 does not have; a checkpoint may declare them all the same."""


@pytest.fixture(scope="module")
def ours(composed: Tree) -> Any:
    return draft_starts(composed)


@pytest.fixture(scope="module")
def theirs(upstream: Tree) -> Any:
    return draft_starts(upstream)


def name(case: Any) -> str:
    return case["name"] if isinstance(case, dict) else ""


@oracle
@pytest.mark.parametrize("case", [*FITS, *FREE], ids=name)
def test_what_fits_starts_and_without_an_expectation_everything_does(
    ours: dict[str, Any], theirs: dict[str, Any], case: dict[str, Any]
) -> None:
    assert ours[case["name"]] == theirs[case["name"]]
    assert ours[case["name"]]["error"] is None


@oracle
@pytest.mark.parametrize(("case", "values"), [*UNEXPECTED, *IMPOSSIBLE], ids=name)
def test_a_mismatch_names_both_values(ours: dict[str, Any], case: dict[str, Any], values: tuple[str, ...]) -> None:
    assert ours[case["name"]]["error"] is not None
    for value in values:
        assert value in ours[case["name"]]["error"]


@oracle
@pytest.mark.parametrize(("case", "values"), [*UNEXPECTED, *IMPOSSIBLE], ids=name)
def test_upstream_starts_it(theirs: dict[str, Any], case: dict[str, Any], values: tuple[str, ...]) -> None:  # noqa: ARG001
    assert theirs[case["name"]]["error"] is None


def test_the_names_are_dflash2_and_its_subclasses(composed: Tree, ours: dict[str, Any]) -> None:
    source = ast.parse(composed.source("sglang/srt/speculative/dflash_launch.py"))
    (names,) = [
        ast.literal_eval(each.value)
        for each in source.body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "DFLASH2_ARCHITECTURES"
    ]
    assert names[0] == "DFlash2DraftModel"
    absent = set() if MAIN else LATER
    assert set(names) - absent == set(ours["facts"]["subclasses"])
