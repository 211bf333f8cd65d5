"""Oracle of dflash2-draft-rotary.patch: a DFLASH draft rotates as much of its head as its config says.

What is rotated otherwise costs acceptance alone, so that no text shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conftest import HISTORY  # type: ignore[import-not-found]
from dflash_checkpoints import HEAD_DIM, ROTATED  # type: ignore[import-not-found]  # these two lie beside this file
from draft_starts import draft_starts  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

oracle = pytest.mark.patch("dflash2-draft-rotary.patch")
each_draft = pytest.mark.parametrize(("draft", "width"), ROTATED, ids=[draft["name"] for draft, _ in ROTATED])


@oracle
@each_draft
def test_a_draft_rotates_what_its_config_says(composed: Tree, draft: dict[str, Any], width: int) -> None:
    measured = draft_starts(composed)[draft["name"]]
    assert (measured["error"], measured["rotary"]) == (None, width)


@oracle
@pytest.mark.skipif(not HISTORY, reason="the main line's release heeds it")
@each_draft
def test_upstream_rotates_all(upstream: Tree, draft: dict[str, Any], width: int) -> None:
    assert draft_starts(upstream)[draft["name"]]["rotary"] == HEAD_DIM >= width
