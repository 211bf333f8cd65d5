"""One run of ``drivers/draft_start.py`` per tree, for all tests of the drafts' guards: importing SGLang costs most."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import dflash_checkpoints  # type: ignore[import-not-found]  # these three lie beside this file
import launches  # type: ignore[import-not-found]
import mtp_checkpoints  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

CASES = [*mtp_checkpoints.CASES, *dflash_checkpoints.CASES, *launches.CASES, {"name": "facts"}]


@cache
def draft_starts(tree: Tree) -> dict[str, Any]:
    """What a tree answers to every case, by the case's name."""
    assert len({case["name"] for case in CASES}) == len(CASES)
    return tree.measure("draft_start", CASES)
