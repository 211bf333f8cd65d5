"""The environment of the image is the base's and the manifest's, and the tree reads what we set."""

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from checks.given import Given
from checks.verdict import Verdict

SET_BY_ENGINE = frozenset({"HOME", "HOSTNAME", "LC_CTYPE", "PATH", "PWD", "SHLVL", "TERM", "_", "container"})
"""Set by the engine or a shell, ``PATH`` only where the image has none; ``LC_CTYPE`` by Python (PEP 538)."""
_WRITERS = ("set", "del", "put", "unset", "pop", "clear", "override")


def test_environment(given: Given, verdict: Verdict) -> None:
    """Values as expected and no others; each default has a reader; none is known to do harm."""
    _values(given, verdict)
    _known_bad(given, verdict)
    unread = {name for name, default in given.defaults.items() if default.read_by is None}
    for name in sorted(unread - _read_by_tree(unread, given)):
        verdict.problem(f"{name}: expected code of the tree that reads it, or read_by: in the manifest; found neither")
    verdict.conclude(
        f"defaults set: {len(given.defaults)}, of which read by the tree: {len(unread)}; "
        f"variables of the base: {len(given.base_environment)}; no others, none known to do harm"
    )


def _values(given: Given, verdict: Verdict) -> None:
    expected = {**given.base_environment, **{name: entry.value for name, entry in given.defaults.items()}}
    for name in sorted(expected):
        source = "manifest" if name in given.defaults else "base"
        found = given.environment.get(name)
        if found != expected[name]:
            shown = "no such variable" if found is None else repr(found)
            verdict.problem(f"{name}: expected {expected[name]!r} of the {source}, found {shown}")
    for name in sorted(given.environment.keys() - expected.keys() - SET_BY_ENGINE):
        verdict.problem(f"{name}: found {given.environment[name]!r}, neither the base nor the manifest sets it")


def _known_bad(given: Given, verdict: Verdict) -> None:
    for rule in given.known_bad_environment:
        value = given.environment.get(rule.pattern)
        if value is not None and (rule.value is None or re.search(rule.value, value)):
            verdict.problem(f"{rule.pattern}={value}: {rule.reason}")


def _read_by_tree(names: set[str], given: Given) -> set[str]:
    """Which of the names some code of the tree reads; a file is parsed only if it contains a name at all."""
    found: set[str] = set()
    for path in sorted(given.files):
        if found == names:
            break
        if path.endswith(".py") and not _is_test(path):
            file = given.package_root / path
            text = file.read_bytes() if file.is_file() else b""
            if any(name.encode() in text for name in names - found):
                found |= names & set(reads(ast.parse(text)))
    return found


def _is_test(path: str) -> bool:
    """What a test reads says nothing about the server."""
    parts = PurePosixPath(path).parts
    return bool({"test", "tests"} & set(parts)) or parts[-1].startswith("test_")


def reads(module: ast.Module) -> Iterator[str]:
    """Names of variables that code reads.

    Counted are the first argument of a call to something with ``env`` in its name (``os.getenv``,
    ``os.environ.get``, ``get_bool_env_var``), ``os.environ["NAME"]``, ``"NAME" in os.environ`` and ``envs.NAME``
    with any use but setting it. A declaration, comment or text is not a read.
    """
    written = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Attribute) and node.attr in _WRITERS}
    for node in ast.walk(module):
        match node:
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]) if _reads_environment(function):
                yield name
            case ast.Subscript(value=holder, slice=ast.Constant(value=str(name)), ctx=ast.Load()) if _is_env(holder):
                yield name
            case ast.Compare(left=ast.Constant(value=str(name)), ops=[ast.In() | ast.NotIn()], comparators=[holder]):
                if _is_env(holder):
                    yield name
            case ast.Attribute(attr=name, ctx=ast.Load()) if id(node) not in written:
                yield name


def _is_env(node: ast.expr) -> bool:
    return "env" in ast.unparse(node).lower()


def _reads_environment(function: ast.expr) -> bool:
    """A call that reads: ``env`` in its dotted name, not a setter, not a declaration such as ``EnvBool``."""
    last = ast.unparse(function).rpartition(".")[2]
    return _is_env(function) and not last.startswith((*_WRITERS, "Env"))
