"""Kernel modules of a tree without the rest of SGLang: only torch and triton are needed.

A kernel file is imported under its own name, from stand-in packages that run no ``__init__``; the few helpers that
such files take from the rest of SGLang come from ``HELPERS``. What was imported is then taken out of
``sys.modules``, so that the files of two trees can be used side by side.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch  # type: ignore[import-not-found]  # in the base image, or on the machine with the device
from packaging.version import Version

# What the kernel files import from parts of SGLang that are not kernels, as those parts define it.
HELPERS: dict[str, dict[str, Any]] = {
    "sglang.srt.utils.common": {
        "torch_release": tuple(Version(torch.__version__).release),
    },
    "sglang.srt.utils": {
        "cpu_has_amx_support": lambda: False,
        "is_cpu": lambda: False,
        "is_cuda": torch.cuda.is_available,
        "is_hip": lambda: torch.version.hip is not None,
        "is_musa": lambda: False,
        "is_npu": lambda: False,
        "is_xpu": torch.xpu.is_available,
    },
    "sglang.kernels.jit.utils": {"is_arch_support_pdl": lambda: False},
}
_FAMILY = re.compile(r"sglang(\.|$)")


def interpreted() -> bool:
    """Whether Triton's kernels run in its interpreter, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@contextmanager
def _only(root: Path, packages: set[str]) -> Iterator[None]:
    before = {name: module for name, module in sys.modules.items() if _FAMILY.match(name)}
    for name in before:
        del sys.modules[name]
    for name in packages:
        package = ModuleType(name)
        package.__path__ = [str(root / name.replace(".", "/"))]
        sys.modules[name] = package
    for name, members in HELPERS.items():
        module = sys.modules.setdefault(name, ModuleType(name))
        vars(module).update(members)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if _FAMILY.match(name)]:
            del sys.modules[name]
        sys.modules.update(before)


def kernel_module(root: Path, path: str) -> Any:
    """The module in ``root / path`` (``sglang/kernels/....py``), imported from that tree alone.

    Raises ImportError when it needs more of SGLang than kernel files and ``HELPERS``.
    """
    name = path.removesuffix(".py").replace("/", ".")
    folders = {parent.relative_to(root) for parent in (root / "sglang/kernels").rglob("*") if parent.is_dir()}
    packages = {"sglang", "sglang.kernels", "sglang.srt", *(folder.as_posix().replace("/", ".") for folder in folders)}
    with _only(root, packages):
        module = importlib.import_module(name)
    assert Path(str(module.__file__)) == root / path
    return module


def function(root: Path, path: str, name: str, names: dict[str, Any]) -> Any:
    """One function of a file that cannot be imported alone; ``names`` is all that it may refer to."""
    source = (root / path).read_text(encoding="utf-8")
    found = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert len(found) == 1, f"{path}: expected one function {name}, found {len(found)}"
    found[0].decorator_list = []
    code = compile(ast.Module(body=list(found), type_ignores=[]), str(root / path), "exec")
    space = dict(names)
    exec(code, space)
    return space[name]
