"""Oracle of mtp-packed-modules.patch: names of projections exclude the fused module that is built of them.

The real loader reads a W4A16 checkpoint whose MTP head is plain, and excluded by the names that exporters write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import HISTORY, LINE  # type: ignore[import-not-found]
from draft_starts import draft_starts  # type: ignore[import-not-found]  # these two lie beside this file
from mtp_checkpoints import BY_PARTS  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

pytestmark = [
    pytest.mark.patch("mtp-packed-modules.patch"),
    pytest.mark.skipif(not HISTORY, reason=f"{LINE}'s release knows the parts of fused modules"),
]

QUANTISED = "weight_packed"


def quantised(tree: Tree) -> list[str]:
    """Modules of the head that were built quantised."""
    shapes = draft_starts(tree)[BY_PARTS["name"]]["shapes"]
    return [name.rpartition(".")[0] for name in shapes if name.endswith(QUANTISED)]


def test_a_plain_head_is_built_plain(composed: Tree) -> None:
    assert quantised(composed) == []


def test_upstream_quantises_what_is_fused(upstream: Tree) -> None:
    assert quantised(upstream) == ["model.layers.0.qkv_proj", "model.layers.0.mlp.gate_up_proj"]
