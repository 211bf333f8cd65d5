"""Find code by its structure: is there a node in this scope that looks like this snippet?

A snippet is one Python expression or statement. Layout, quotes and comments do not count. ``...`` stands for

* any one expression, where one expression stands (``tl.sigmoid(...)``, ``x[...]``, ``return ...``);
* any run of items, also none, in a sequence: arguments (then other keywords are welcome too), elements of a
  list, tuple or set, operands of ``and``/``or``, statements of a block;
* any other entries, written ``...: ...``, in a dictionary.

Keywords of a call and entries of a dictionary match in any order. An ``if`` or loop without ``else`` in the
snippet says nothing about the ``else`` of the code.
"""

import ast
from collections.abc import Iterator, Sequence
from typing import Any

_NOT_COMPARED = frozenset({"kind", "type_comment", "type_ignores"})
_OPTIONAL_BLOCKS = frozenset({"orelse", "finalbody"})


class SnippetError(Exception):
    """A snippet is not one expression or statement, or would match anything."""


def parse_snippet(text: str) -> ast.AST:
    """Parse a snippet.

    Raises:
        SnippetError: it is not valid Python, not exactly one statement, or only ``...``.
    """
    try:
        body = ast.parse(text).body
    except SyntaxError as error:
        raise SnippetError(f"snippet {text!r} is no Python: {error.msg}") from error
    if len(body) != 1:
        raise SnippetError(f"snippet {text!r} holds {len(body)} statements, expected one")
    node: ast.AST = body[0].value if isinstance(body[0], ast.Expr) else body[0]
    if _is_ellipsis(node):
        raise SnippetError("snippet '...' would match anything")
    return node


def scopes(module: ast.Module, name: str | None) -> list[ast.AST]:
    """All definitions of a qualified name (``Class.method``); the module itself for ``None``.

    A name can be defined more than once (branches of an ``if``, or a later definition that replaces an
    earlier one); which of them Python would use is not for a parser to say, so the caller gets all.
    """
    found: list[ast.AST] = [module]
    for part in name.split(".") if name else ():
        found = [node for scope in found for node in _definitions(scope) if node.name == part]
    return found


def occurs(snippet: ast.AST, scope: ast.AST) -> bool:
    """Whether any node in the scope matches the snippet."""
    return any(matches(snippet, node) for node in ast.walk(scope))


def matches(snippet: Any, node: Any) -> bool:
    """Whether one node (or plain field value) matches one snippet node."""
    if isinstance(node, ast.expr) and _is_ellipsis(snippet):
        return True
    if type(snippet) is not type(node):
        return False
    if isinstance(snippet, list):
        return _sequence(snippet, node)
    if isinstance(snippet, ast.Call):
        return _call(snippet, node)
    if isinstance(snippet, ast.Dict):
        return _dict(snippet, node)
    if isinstance(snippet, ast.AST):
        return all(_field(name, snippet, node) for name in snippet._fields if name not in _NOT_COMPARED)
    return bool(snippet == node)


def _definitions(scope: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Definitions directly in a scope, also inside its ``if``, ``try`` and ``with`` blocks."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield child
        else:
            yield from _definitions(child)


def _is_ellipsis(node: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _is_run(node: object) -> bool:
    """``...`` as an item of a sequence; in a block it is a statement."""
    return _is_ellipsis(node.value if isinstance(node, ast.Expr) else node)


def _field(name: str, snippet: ast.AST, node: ast.AST) -> bool:
    wanted, found = getattr(snippet, name, None), getattr(node, name, None)
    if name in _OPTIONAL_BLOCKS and wanted == []:
        return True
    return matches(wanted, found)


def _sequence(snippet: Sequence[Any], nodes: Sequence[Any]) -> bool:
    if not snippet:
        return not nodes
    if _is_run(snippet[0]):
        return any(_sequence(snippet[1:], nodes[start:]) for start in range(len(nodes) + 1))
    return bool(nodes) and matches(snippet[0], nodes[0]) and _sequence(snippet[1:], nodes[1:])


def _call(snippet: ast.Call, node: ast.Call) -> bool:
    others_welcome = any(_is_ellipsis(argument) for argument in snippet.args)
    return (
        matches(snippet.func, node.func)
        and _sequence(snippet.args, node.args)
        and _unordered(snippet.keywords, node.keywords, others_welcome)
    )


def _dict(snippet: ast.Dict, node: ast.Dict) -> bool:
    wanted = [entry for entry in _entries(snippet) if not all(map(_is_ellipsis, entry))]
    return _unordered(wanted, _entries(node), len(wanted) < len(snippet.keys))


def _entries(node: ast.Dict) -> list[list[ast.expr | None]]:
    return [[key, value] for key, value in zip(node.keys, node.values, strict=True)]


def _unordered(snippet: Sequence[Any], nodes: Sequence[Any], others_welcome: bool) -> bool:
    """Each wanted item has a partner of its own; without ``others_welcome`` nothing is left over."""
    if not snippet:
        return others_welcome or not nodes
    return any(
        matches(snippet[0], node) and _unordered(snippet[1:], [*nodes[:index], *nodes[index + 1 :]], others_welcome)
        for index, node in enumerate(nodes)
    )
