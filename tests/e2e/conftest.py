"""Engines of the tree under test and of the unpatched one, and tiny models for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch  # type: ignore[import-not-found]  # in the base image only

from tests.e2e.support import shims, tiny_models
from tests.e2e.support.engines import Engines
from tests.e2e.support.reference import Reference
from tests.e2e.support.tiny_models import Models


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
    torch.set_num_threads(1)  # the engines have the cores


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Engines of the tree under test."""
    with Engines(_trees()[0], tmp_path_factory.mktemp("engines")) as found:
        yield found


@pytest.fixture(scope="session")
def upstream_engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Engines of the tree without our patches."""
    if shims.release_of(_trees()[1]) == "0.5.18":
        pytest.skip("without patches this release starts no draft where torch has no CUDA")
    with Engines(_trees()[1], tmp_path_factory.mktemp("upstream"), patched=False) as found:
        yield found


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A target with its MTP head, and a DFlash2 draft for it; made once, and the same every time."""
    return tiny_models.make(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def reference(models: Models) -> Reference:
    """The target by transformers."""
    return Reference(models.target)
