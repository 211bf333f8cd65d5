"""pipeline/launch_flags.py against the real argument parser: the same options, defaults and choices.

The rebase report reads flags from source, since a new release is compared before its packages are anywhere.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.tree.conftest import Tree

    Together = Callable[[Tree, str], dict[str, Any]]

HERE = Path(__file__).resolve().parent
ROOT = next(folder for folder in (HERE.parent, HERE.parents[1]) if (folder / "pipeline/launch_flags.py").is_file())
"""In the container and in the project."""
TOGETHER = "launch_flags"
CASES = [{"name": "flags"}]
COMPUTED = {"--kv-canary-real-data"}
"""Choices of an enumeration, which the source does not list."""


@pytest.fixture(scope="module", params=["composed", "upstream"])
def sides(request: pytest.FixtureRequest, together: Together) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is read from the source, and what the parser says."""
    tree: Tree = request.getfixturevalue(request.param)
    files = {path.relative_to(tree.root).as_posix(): path.read_bytes() for path in tree.root.glob("sglang/srt/**/*.py")}
    sys.path.append(str(ROOT))
    try:
        reader = importlib.import_module("pipeline.launch_flags")
    finally:
        sys.path.remove(str(ROOT))
    return reader.read(files), together(tree, TOGETHER)["flags"]


def test_flags_are_those_of_the_parser(sides: tuple[dict[str, Any], dict[str, Any]]) -> None:
    read, real = sides
    assert len(real) > 500
    assert sorted(read) == sorted(real)


def test_defaults_are_those_of_the_parser(sides: tuple[dict[str, Any], dict[str, Any]]) -> None:
    read, real = sides
    told = {
        name: "'==SUPPRESS=='" if flag.default == "argparse.SUPPRESS" else flag.default for name, flag in read.items()
    }
    assert {name: (told[name], real[name]["default"]) for name in real if told[name] != real[name]["default"]} == {}


def test_choices_are_those_of_the_parser(sides: tuple[dict[str, Any], dict[str, Any]]) -> None:
    read, real = sides
    computed = {name for name, flag in read.items() if flag.computed}
    assert computed == COMPUTED
    told = {name: None if flag.choices is None else list(flag.choices) for name, flag in read.items()}
    known = real.keys() - computed
    assert {name: (told[name], real[name]["choices"]) for name in known if told[name] != real[name]["choices"]} == {}
