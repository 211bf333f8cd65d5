"""The kernel files that the tests on a CUDA device use can be imported without the rest of SGLang."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drivers.kernel_files import (  # type: ignore[import-not-found]  # beside this file
    FUNCTIONS,
    MODULES,
    STAND_INS,
    UPSTREAM_MODULES,
)
from drivers.standalone import HELPERS, kernel_module  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from tests.tree.conftest import Tree


@pytest.mark.parametrize("path", MODULES)
def test_ours_imports_alone(composed: Tree, path: str) -> None:
    assert kernel_module(composed.root, path).__file__ == str(composed.root / path)


@pytest.mark.parametrize("path", UPSTREAM_MODULES)
def test_upstreams_imports_alone(upstream: Tree, path: str) -> None:
    assert kernel_module(upstream.root, path).__file__ == str(upstream.root / path)


@pytest.mark.parametrize("path", FUNCTIONS)
def test_the_files_of_single_functions_are_there(composed: Tree, path: str) -> None:
    assert (composed.root / path).is_file()


def test_what_stands_in_is_listed() -> None:
    assert set(HELPERS) == STAND_INS


def test_two_trees_do_not_mix(composed: Tree, upstream: Tree) -> None:
    path = UPSTREAM_MODULES[0]
    ours, theirs = kernel_module(composed.root, path), kernel_module(upstream.root, path)
    assert ours is not theirs
    assert ours.exp.__module__ == theirs.exp.__module__
    assert kernel_module(upstream.root, path).__file__ == str(upstream.root / path)


def test_a_module_that_needs_more_is_refused(composed: Tree) -> None:
    with pytest.raises(ImportError):
        kernel_module(composed.root, "sglang/srt/speculative/dflash_worker_v2.py")
