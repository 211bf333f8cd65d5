"""The environment variables that an SGLang tree reads, found in its sources; nothing is imported or run.

Counted are the entries of ``sglang/srt/environ.py`` (``NAME = EnvBool(False)``), the names that it keeps as deprecated,
and what code reads by name: ``os.environ``, ``os.getenv``, ``get_bool_env_var`` and its kin. A name that is put
together at run time is not seen, and what tests read says nothing about the server.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import PurePosixPath

from pipeline.source_values import bindings

DECLARATIONS = "sglang/srt/environ.py"
HINTS = re.compile(rb"os\.environ|import environ\b|getenv|env_var\(")
HELPER = re.compile(r"_?get_\w*env_var")
HELPER_DEFAULTS = {"get_bool_env_var": "False", "get_int_env_var": "0"}
REQUIRED = "none, it must be set"


def read(tree: Mapping[str, bytes]) -> dict[str, str]:
    """Every variable to its default as text; where several places read it, all their defaults.

    A file that is no Python is passed over: nothing can read a variable in it.
    """
    found = defaultdict[str, set[str]](set)
    for path in sorted(tree):
        if path.endswith(".py") and path != DECLARATIONS and not _is_test(path) and HINTS.search(tree[path]):
            for name, default in _reads(tree[path]):
                found[name].update([] if default is None else [default])
    stated = {name: " or ".join(sorted(defaults)) for name, defaults in found.items()}
    return stated | dict(_declared(tree.get(DECLARATIONS, b"")))


def mentioned(tree: Mapping[str, bytes], names: Collection[str]) -> set[str]:
    """Those of the names that code holds as a string: it may read them in a way that :func:`read` does not know."""
    wanted, found = set(names), set[str]()
    hint = re.compile(b"|".join(rb"[\"']" + re.escape(name.encode()) + rb"[\"']" for name in wanted))
    for path, data in tree.items():
        if wanted and path.endswith(".py") and not _is_test(path) and hint.search(data):
            constants = (node.value for node in ast.walk(_parse(data)) if isinstance(node, ast.Constant))
            found |= {value for value in constants if isinstance(value, str) and value in wanted}
    return found


def same(old: str, new: str) -> bool:
    """Whether two defaults mean the same, however they are written: ``"false"``, ``False``, ``0``."""
    return _plain(old) == _plain(new)


def _plain(default: str) -> set[str]:
    words = {word.strip("\"'").lower() for word in default.split(" or ")}
    return {{"false": "0", "true": "1"}.get(word, word) for word in words}


def _is_test(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool({"test", "tests"} & set(parts)) or parts[-1].startswith("test_")


def _parse(data: bytes) -> ast.Module:
    try:
        return ast.parse(data)
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _declared(data: bytes) -> Iterator[tuple[str, str]]:
    """Entries of the registry, and what it keeps as deprecated."""
    for node in ast.walk(_parse(data)):
        match node:
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    match key, value:
                        case ast.Constant(value=str(name)), ast.Call(func=ast.Name("_DeprecatedEnv"), keywords=words):
                            yield name, _deprecated(words)
            case ast.Assign(targets=[ast.Name(name)], value=ast.Call(func=ast.Name(kind)) as call):
                if kind.startswith("Env"):
                    yield name, ast.unparse(call.args[0]) if call.args else "None"
                    yield from ((old, f"deprecated, use {name}") for old in _aliases(call))


def _deprecated(words: list[ast.keyword]) -> str:
    named = [_constant(word.value) for word in words if word.arg == "replacement"]
    return f"deprecated, use {named[0]!s}" if named and named[0] else "deprecated"


def _aliases(call: ast.Call) -> list[str]:
    words = [word.value for word in call.keywords if word.arg == "deprecated_name"]
    return [str(word.value) for word in words if isinstance(word, ast.Constant)]


@lru_cache(maxsize=4096)
def _reads(data: bytes) -> tuple[tuple[str, str | None], ...]:
    """Names that a file reads, with their defaults; None where a read states none. Releases share most files."""
    module = _parse(data)
    constants = {
        name: statement.value.value
        for name, statement in bindings(module.body).items()
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
    }
    found: list[tuple[str, str | None]] = []
    for node in ast.walk(module):
        for name_node, default in _read(node):
            name = constants.get(name_node.id) if isinstance(name_node, ast.Name) else _constant(name_node)
            if isinstance(name, str):
                found.append((name, default))
    return tuple(found)


def _read(node: ast.AST) -> Iterator[tuple[ast.expr, str | None]]:
    """The expression that names a variable, and its default, if the node is a read."""
    match node:
        case ast.Call(func=function, args=[name, *rest], keywords=words):
            defaults = [*rest, *(word.value for word in words if word.arg == "default")]
            last = ast.unparse(function).rpartition(".")[2] if isinstance(function, ast.Name | ast.Attribute) else ""
            if HELPER.fullmatch(last) or last == "getenv" or _of_environ(function):
                yield name, ast.unparse(defaults[0]) if defaults else HELPER_DEFAULTS.get(last.lstrip("_"), "None")
        case ast.Subscript(value=holder, slice=name, ctx=ast.Load()) if _is_environ(holder):
            yield name, REQUIRED
        case ast.Compare(left=name, ops=[ast.In() | ast.NotIn()], comparators=[holder]) if _is_environ(holder):
            yield name, None


def _of_environ(function: ast.expr) -> bool:
    """``os.environ.get``, or ``setdefault``, which leaves what a user has set."""
    return (
        isinstance(function, ast.Attribute) and function.attr in ("get", "setdefault") and _is_environ(function.value)
    )


def _is_environ(node: ast.expr) -> bool:
    match node:
        case ast.Name("environ") | ast.Attribute(attr="environ"):
            return True
    return False


def _constant(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None
