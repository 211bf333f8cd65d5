"""Oracle of dflash2-load-coverage.patch: a DFlash2 draft starts with all of its trained additions, or not at all.

Which tensors those are, and of what shape, is computed twice: from the config by the checkpoint gate's rules, and by
the class when it builds itself.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import pytest
from conftest import LINE  # type: ignore[import-not-found]  # these four lie beside this file
from dflash_checkpoints import (  # type: ignore[import-not-found]
    ACCEPTED,
    CODEBOOK,
    PROJECTION,
    RANK,
    REFUSED,
    TRAINED,
    VOCABULARY,
    registered,
)
from draft_starts import draft_starts  # type: ignore[import-not-found]
from gate import gate_module  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

naming = gate_module("naming")
oracle = pytest.mark.patch("dflash2-load-coverage.patch")


@pytest.fixture(scope="module")
def ours(composed: Tree) -> Any:
    return draft_starts(composed)


@pytest.fixture(scope="module")
def theirs(upstream: Tree) -> Any:
    return draft_starts(upstream)


@pytest.fixture(autouse=True)
def _known_class(request: pytest.FixtureRequest) -> None:
    each = request.node.callspec.params.get("each") if hasattr(request.node, "callspec") else None
    if each is not None and not registered(each):
        pytest.skip(f"{LINE}'s release has no alias of DFlash2DraftModel")


def test_the_gate_and_the_class_agree_on_the_tensors(ours: dict[str, Any]) -> None:
    shapes = ours["DFLASH complete"]["shapes"]
    assert len(TRAINED) == 23
    assert {name: tuple(shape) for name, shape in shapes.items() if naming.is_dflash2(name)} == TRAINED


@oracle
@pytest.mark.parametrize("each", ACCEPTED, ids=lambda each: each["name"])
def test_a_whole_draft_is_loaded_as_before(ours: dict[str, Any], theirs: dict[str, Any], each: dict[str, Any]) -> None:
    measured = ours[each["name"]]
    assert (measured["error"], measured["unfilled"]) == (None, [])
    assert measured["digest"] == theirs[each["name"]]["digest"]


@oracle
@pytest.mark.parametrize(("each", "reason"), REFUSED, ids=lambda part: part["name"] if isinstance(part, dict) else "")
def test_a_draft_that_is_not_whole_is_refused(ours: dict[str, Any], each: dict[str, Any], reason: str) -> None:
    assert ours[each["name"]]["error"] is not None
    assert reason in ours[each["name"]]["error"]


@oracle
@pytest.mark.parametrize("each", [each for each, _ in REFUSED], ids=lambda each: each["name"])
def test_upstream_serves_it(theirs: dict[str, Any], each: dict[str, Any]) -> None:
    assert theirs[each["name"]]["error"] is None


@oracle
def test_upstream_tells_a_wrong_shape_by_assertion_alone(theirs: dict[str, Any]) -> None:
    assert "Attempted to load weight" in theirs["DFLASH misshapen"]["error"]


@oracle
def test_a_wrong_shape_is_refused_with_both_shapes(ours: dict[str, Any]) -> None:
    expected = f"{CODEBOOK} has shape {(VOCABULARY - 1, RANK)}, and the config makes it {(VOCABULARY, RANK)}"
    assert expected in ours["DFLASH misshapen"]["error"]


def test_the_parameters_alone_would_not_tell(theirs: dict[str, Any]) -> None:
    """Why the payload is judged: a tensor that never came leaves a parameter as the class made it."""
    assert theirs[f"DFLASH without {PROJECTION}"]["unfilled"] == [PROJECTION]
    assert theirs[f"DFLASH zero {PROJECTION}"]["unfilled"] == []


@pytest.mark.parametrize(
    "module", ["model_loader/load_coverage", "speculative/dflash_coverage", "speculative/dflash_launch"]
)
def test_no_refusal_rests_on_an_assertion(composed: Tree, module: str) -> None:
    """``python -O`` leaves assertions out."""
    source = ast.parse(composed.source(f"sglang/srt/{module}.py"))
    assert not any(isinstance(node, ast.Assert) for node in ast.walk(source))


@oracle
@pytest.mark.parametrize("name", ["complete", "classic", "dummy"])
def test_a_partial_update_and_a_dummy_start_pass(ours: dict[str, Any], name: str) -> None:
    assert ours[f"DFLASH {name}"]["error"] is None
    assert ours[f"DFLASH {name}"]["updated"] is True
