"""Engines of the tree under test and of the unpatched one, and tiny models for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.support import tiny_models
from tests.e2e.support.engines import Engines


@dataclass(frozen=True)
class Models:
    """Folders of the checkpoints that every module may use."""

    target: Path
    draft: Path


def _tree(variable: str, what: str) -> Path:
    value = os.environ.get(variable)
    if not value:
        raise pytest.UsageError(f"{variable} is not set; expected the root of {what}; run `make test-e2e`")
    root = Path(value).resolve()
    if not (root / "sglang" / "__init__.py").is_file():
        raise pytest.UsageError(f"{variable}={value} holds no sglang/__init__.py; expected the root of {what}")
    return root


def _trees() -> tuple[Path, Path]:
    return _tree("SGX_TREE", "the composed tree (ours)"), _tree("SGX_UPSTREAM", "the pinned, unpatched tree")


def pytest_configure() -> None:
    """Refuse a run without both trees before it collects anything."""
    _trees()


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Engines of the tree under test."""
    with Engines(_trees()[0], tmp_path_factory.mktemp("engines")) as found:
        yield found


@pytest.fixture(scope="session")
def upstream_engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Engines of the tree without our patches."""
    with Engines(_trees()[1], tmp_path_factory.mktemp("upstream")) as found:
        yield found


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A target with its MTP head, and a DFlash2 draft for it; made once, and the same every time."""
    folder = tmp_path_factory.mktemp("models")
    tiny_models.make(folder)
    return Models(folder / "target", folder / "draft")
