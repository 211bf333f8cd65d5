"""Which names of the kernel package the tree imports when it starts on an XPU, and which names a package has.

Both are read from source: a container without a device cannot import either. Followed are imports that run when a
module is imported. A condition on the platform (``_is_cuda``, ``is_xpu()``) is taken as on an XPU; under any other
condition both branches count; what stands in a ``try`` that catches ImportError may be absent. Not judged are imports
in functions, some of which only CUDA calls, and operators of ``torch.ops.sgl_kernel``, which have no Python name.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

KERNELS = "sgl_kernel"
PLATFORM = re.compile(r"^_?is_(\w+)$")
OTHERS = frozenset({"cuda", "hip", "npu", "cpu", "musa", "hpu", "mps", "mlx", "cuda_alike", "host_cpu_arm64"})


def imported(root: Path, start: list[str]) -> dict[str, str]:
    """``module.name`` of each name that must exist, to the first file that imports it.

    Args:
        root: folder that holds ``sglang/``.
        start: paths below ``root`` of the modules where the start begins.
    """
    wanted: dict[str, str] = {}
    todo, seen = list(reversed(start)), set(start)
    while todo:
        path = todo.pop()
        module = ast.parse((root / path).read_bytes())
        for node in at_import(module.body):
            for name, parts in _targets(node, path):
                if name.split(".")[0] == KERNELS:
                    for part in parts:
                        wanted.setdefault(f"{name}.{part}" if part else name, path)
                    continue
                for found in _files(root, name, parts):
                    if found not in seen:
                        seen.add(found)
                        todo.append(found)
    return wanted


def at_import(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that run when the module does, on an XPU."""
    for node in body:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield node
            case ast.If(test=test, body=then, orelse=otherwise):
                holds = on_xpu(test)
                yield from at_import(then if holds is not False else [])
                yield from at_import(otherwise if holds is not True else [])
            case ast.Try(body=then, handlers=handlers, orelse=otherwise, finalbody=last):
                tolerant = any(_catches_import_error(handler) for handler in handlers)
                yield from at_import([*([] if tolerant else then), *otherwise, *last])
            case ast.With(body=then) | ast.ClassDef(body=then):
                yield from at_import(then)


def on_xpu(test: ast.expr) -> bool | None:
    """Whether a condition holds on an XPU; None where it is not about the platform alone."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            holds = on_xpu(operand)
            return None if holds is None else not holds
        case ast.BoolOp(op=operator, values=values):
            found = [on_xpu(value) for value in values]
            decisive = isinstance(operator, ast.Or)
            if decisive in found:
                return decisive
            return None if None in found else not decisive
        case ast.Call(func=function, args=[]):
            return on_xpu(function)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            if name == "TYPE_CHECKING":
                return False
            match_ = PLATFORM.match(name)
            return None if match_ is None or match_[1] not in OTHERS | {"xpu"} else match_[1] == "xpu"
    return None


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    kinds = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
    return handler.type is None or any(isinstance(n, ast.Name) and n.id in kinds for n in ast.walk(handler.type))


def _targets(node: ast.Import | ast.ImportFrom, path: str) -> Iterator[tuple[str, list[str]]]:
    """Absolute module and the names taken from it; a plain import takes none, which is the empty name."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, [""]) for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        above = path.split("/")[: -node.level]
        base = ".".join([*above, *([base] if base else [])])
    yield base, [alias.name for alias in node.names]


def _files(root: Path, module: str, names: list[str]) -> Iterator[str]:
    """Files below ``root`` that an import runs: the packages on the way, the module, and submodules among the names."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        yield from _file(root, parts[:count])
    for name in names:
        if name:
            yield from _file(root, [*parts, name])


def _file(root: Path, parts: list[str]) -> Iterator[str]:
    for path in ("/".join(parts) + ".py", "/".join([*parts, "__init__.py"])):
        if (root / path).is_file():
            yield path


def defined(package: Path) -> dict[str, frozenset[str]]:
    """Names that each module of a package binds, by dotted module; ``from x import *`` inside it is followed."""
    trees = {_dotted(package, path): (path, ast.parse(path.read_bytes())) for path in sorted(package.rglob("*.py"))}
    return {module: frozenset(_bound(module, trees, frozenset())) for module in trees}


def _dotted(package: Path, path: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _bound(module: str, trees: dict[str, tuple[Path, ast.Module]], above: frozenset[str]) -> Iterator[str]:
    if module in above or module not in trees:
        return
    path, tree = trees[module]
    yield from (name.rpartition(".")[2] for name in trees if name.rpartition(".")[0] == module)
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                for alias in names:
                    if alias.name == "*" and isinstance(node, ast.ImportFrom):
                        yield from _bound(_absolute(node, module, path), trees, above | {module})
                    else:
                        yield alias.asname or alias.name.split(".")[0]


def _absolute(node: ast.ImportFrom, module: str, path: Path) -> str:
    if not node.level:
        return node.module or ""
    inside = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    above = inside[: len(inside) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])
