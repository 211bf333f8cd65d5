"""Kernel modules of a tree without the rest of SGLang: only torch and triton are needed.

A kernel file is imported under its own name, from stand-in packages that run no ``__init__``; the few helpers that
such files take from the rest of SGLang come from ``HELPERS``. What was imported is then taken out of
``sys.modules``, so that the files of two trees can be used side by side.
"""

from __future__ import annotations

import ast
import importlib
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
    "sglang.srt.runtime_context": {"get_schedule": None, "get_spec": None},
    "sglang.srt.utils": {
        "async_h2d": lambda values, dtype, device: torch.tensor(values, dtype=dtype, device=device),
        "get_device_core_count": lambda: torch.cuda.get_device_properties(0).multi_processor_count,
        "get_device_sm": lambda: 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1],
        "is_cpu": lambda: False,
        "is_cuda": torch.cuda.is_available,
        "is_gfx95_supported": lambda: False,
        "is_gfx1250_supported": lambda: False,
        "is_hip": lambda: torch.version.hip is not None,
        "is_musa": lambda: False,
        "is_npu": lambda: False,
        "is_sm90_supported": lambda: torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9,
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
    """The module in ``root / path`` (``sglang/....py``), imported from that tree alone.

    Raises ImportError when it needs more of SGLang than kernel files and ``HELPERS``.
    """
    folders = [folder for folder in (root / "sglang/kernels").rglob("*") if folder.is_dir()]
    folders += [root / "sglang/kernels", *(root / path).parents]
    inside = {folder.relative_to(root).as_posix() for folder in folders if folder.is_relative_to(root / "sglang")}
    with _only(root, {name.replace("/", ".") for name in inside | {"sglang/srt"}}):
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    assert Path(str(module.__file__)) == root / path
    return module


def function(root: Path, path: str, name: str, names: dict[str, Any], without: tuple[str, ...] = ()) -> Any:
    """One function or ``Class.method`` of a file that cannot be imported alone; ``names`` is all it may refer to.

    Decorators are dropped, and so is each ``if`` of the body whose condition is in ``without``.
    """
    body: list[ast.stmt] = ast.parse((root / path).read_text(encoding="utf-8")).body
    for part in name.split("."):
        found = [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part]
        assert len(found) == 1, f"{path}: expected one {name}, found {len(found)}"
        body = found[0].body
    node = found[0]
    kept = [each for each in node.body if not (isinstance(each, ast.If) and ast.unparse(each.test) in without)]
    assert len(kept) == len(node.body) - len(without), f"{path}: {name} has no `if {without}`"
    node.body, node.decorator_list = kept, []
    space = {"__annotations__": {}, "Optional": Any, **names}
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module(body=[*future, node], type_ignores=[]), str(root / path), "exec"), space)
    return space[node.name]
