"""Kernel tests for a machine with a CUDA device, torch, Triton and pytest, and nothing else.

They run on the kernel files of two trees, ours and upstream's (``SGX_TREE``, ``SGX_UPSTREAM``), each imported alone.
With ``TRITON_INTERPRET=1`` they run on a CPU, in Triton's interpreter, in FP16 and with small shapes.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

MISSING = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []


def pytest_report_header() -> str:
    """Why nothing runs, where nothing runs; else on what."""
    if MISSING:
        return f"not run: {' and '.join(MISSING)} cannot be imported"
    import torch  # type: ignore[import-not-found]

    from tests.tree.drivers.standalone import interpreted

    if interpreted():
        return "Triton's interpreter on a CPU: small shapes, FP16, no CUDA graphs"
    if not torch.cuda.is_available():
        return "not run: torch sees no CUDA device"
    return f"device: {torch.cuda.get_device_name()}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what the machine cannot run, with the reason."""
    if MISSING:
        return
    import torch

    from tests.tree.drivers.standalone import interpreted

    for item in items:
        if interpreted():
            if item.get_closest_marker("cuda_graph"):
                item.add_marker(pytest.mark.skip(reason="the interpreter has no CUDA graphs"))
        elif not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device"))


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker of tests that capture a CUDA graph."""
    config.addinivalue_line("markers", "cuda_graph: captures a CUDA graph, so it needs a device")


@pytest.fixture(scope="session")
def composed() -> Path:
    """Our tree's kernel files."""
    return Path(os.environ["SGX_TREE"]).resolve()


@pytest.fixture(scope="session")
def upstream() -> Path:
    """The pinned, unpatched tree's kernel files."""
    return Path(os.environ["SGX_UPSTREAM"]).resolve()
