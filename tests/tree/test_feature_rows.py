"""Rows of the line's ``features.yaml``: each holds on our tree, and each of a patch or an overlay fails on upstream's.

A row that upstream's code satisfies as well would not see that its patch got lost.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from conftest import MANIFEST  # type: ignore[import-not-found]

from checks.given import feature
from checks.test_features import problems

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

ROWS: dict[str, dict[str, Any]] = {
    row["id"]: row
    for row in yaml.safe_load((MANIFEST / "features.yaml").read_text(encoding="utf-8"))
    if "not_carried" not in row
}
OURS = [name for name, row in ROWS.items() if row["origin"].partition(" ")[0] in ("patch", "overlay")]


@cache
def parsed(tree: Tree, path: str) -> ast.Module:
    return ast.parse(tree.source(path))


def found(tree: Tree, name: str) -> Iterator[str]:
    """Problems of a row on a tree."""
    row = feature(ROWS[name])
    there = {row.file} if (tree.root / row.file).is_file() else set()
    return problems(row, there, lambda path: parsed(tree, path))


@pytest.mark.parametrize("name", ROWS)
def test_every_row_holds_on_our_tree(composed: Tree, name: str) -> None:
    assert list(found(composed, name)) == []


@pytest.mark.parametrize("name", OURS)
def test_every_row_of_ours_fails_on_upstream(upstream: Tree, name: str) -> None:
    assert list(found(upstream, name))
