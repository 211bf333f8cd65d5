"""The checkpoint gate's torch-free rules, which the tests hold against the tree.

``pipeline/checkpoint/`` lies beside the tests, in the project and in the container; of it only files are loaded that
need nothing but the standard library.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

HERE = Path(__file__).resolve().parent
RULES = next(
    (
        folder
        for folder in (HERE.parent / "pipeline" / "checkpoint", HERE.parents[1] / "pipeline" / "checkpoint")
        if folder.is_dir()
    ),
    HERE,
)


def gate_module(name: str) -> ModuleType:
    """A module of the gate by its file, without the rest of the project."""
    spec = importlib.util.spec_from_file_location(f"gate_{name}", RULES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module
