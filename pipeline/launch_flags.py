"""The launch flags of an SGLang tree, read from the source of its argument parser; nothing is imported or run.

From 0.5.18 on two forms make the parser: annotated fields (``A[type, Arg(...)]``), in ``ServerArgs`` itself and since
0.5.20 in the classes that ``_INPUT_NAMESPACES`` lists, and plain ``add_argument`` calls in ``ServerArgs.add_cli_args``.
``tests/tree/test_launch_flags.py`` holds what is read here against the real parser.
"""

import ast
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.source_values import Scope, Sources, Unread, bindings

PARSER = "sglang/srt/server_args.py"
CLASS, NAMESPACES, METHOD = "ServerArgs", "_INPUT_NAMESPACES", "add_cli_args"
STORE_TRUE = ("store_true", "DeprecatedStoreTrueAction")
"""Actions whose default is False when none is given."""


@dataclass(frozen=True)
class LaunchFlag:
    """One option string of the parser; an alias is one of its own."""

    name: str
    default: str
    """``repr`` of the value, or the source text of what only a run could tell."""
    choices: tuple[str, ...] | None = None
    """None when any value is taken."""
    computed: bool = False
    """There are choices, and only a run could tell them."""


def read(tree: Mapping[str, bytes]) -> dict[str, LaunchFlag]:
    """Every flag of a tree by its option string; none where the tree has no parser of these forms."""
    sources = Sources(tree)
    module = Scope(PARSER)
    try:
        owner, _ = sources.find(CLASS, module) if PARSER in tree else (None, module)
    except Unread:
        owner = None
    if not isinstance(owner, ast.ClassDef):
        return {}
    reader = _Reader(sources)
    for record, scope in _records(sources, owner, module):
        for statement in record.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                reader.read_field(statement.target.id, statement, scope)
    method = bindings(owner.body).get(METHOD)
    for body in [method.body] if isinstance(method, ast.FunctionDef) else []:
        scope = Scope(PARSER, bindings(body))
        for node in (inner for statement in body for inner in ast.walk(statement)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
                reader.read_call(node, scope)
    return reader.flags


def _records(sources: Sources, owner: ast.ClassDef, module: Scope) -> Iterator[tuple[ast.ClassDef, Scope]]:
    """Classes whose fields become flags."""
    yield owner, module
    match sources.names(PARSER).get(NAMESPACES):
        case ast.Assign(value=ast.List(elts=parts)):
            for part in parts:
                if isinstance(part, ast.Name):
                    record, scope = sources.find(part.id, module)
                    if isinstance(record, ast.ClassDef):
                        yield record, scope


class _Reader:
    """Collects flags; fields come first, for calls take over their defaults."""

    def __init__(self, sources: Sources) -> None:
        self.flags: dict[str, LaunchFlag] = {}
        self._sources = sources
        self._fields: dict[str, str] = {}
        """Field to its default."""

    def read_field(self, name: str, statement: ast.AnnAssign, scope: Scope) -> None:
        """Add the flags of ``name: A[type, "help" or Arg(...)] = default``."""
        default = self._text(statement.value, scope)
        self._fields[name] = default
        match statement.annotation:
            case ast.Subscript(value=ast.Name("A" | "Annotated"), slice=ast.Tuple(elts=[kind, *metadata])):
                pass
            case _:
                return
        words = next((found for entry in metadata if (found := _argument(entry)) is not None), None)
        if words is None or _is_true(words.get("no_cli")):
            return
        named = self._value(words.get("cli_name"), scope) or "--" + name.replace("_", "-")
        extra = words.get("action_kwargs")
        if isinstance(extra, ast.Dict):
            pairs = zip(map(_last_name, extra.keys), extra.values, strict=True)
            words |= {key: value for key, value in pairs if key}
        choices = words.get("choices") or _literal(kind, self._sources, scope)
        self._add([named, *(self._value(words.get("aliases"), scope) or [])], words, default, choices, scope)

    def read_call(self, call: ast.Call, scope: Scope) -> None:
        """Add the flags of ``parser.add_argument("--name", …)``."""
        words = {word.arg: word.value for word in call.keywords if word.arg}
        names = [self._value(argument, scope) for argument in call.args]
        default = self._text(words.get("default"), scope)
        if "default" not in words and _last_name(words.get("action")) in STORE_TRUE:
            default = repr(False)
        self._add(names, words, default, words.get("choices"), scope)

    def _add(
        self, names: list[Any], words: Mapping[str, Any], default: str, choices: ast.expr | None, scope: Scope
    ) -> None:
        names = [name for name in names if isinstance(name, str) and name.startswith("-")]
        if _last_name(words.get("action")) == "BooleanOptionalAction":
            names += [f"--no-{name[2:]}" for name in names if name.startswith("--")]
        known: tuple[str, ...] | None = None
        if choices is not None:
            with contextlib.suppress(Unread):
                known = tuple(sorted({str(choice) for choice in self._sources.value(choices, scope)}))
        computed = choices is not None and known is None
        self.flags.update((name, LaunchFlag(name, default, known, computed)) for name in names)

    def _value(self, node: ast.expr | None, scope: Scope) -> Any:
        """A value, or None where there is none to be read."""
        try:
            return self._sources.value(node, scope)
        except Unread:
            return None

    def _text(self, node: ast.expr | None, scope: Scope) -> str:
        """A default as text: of the field that it names, of its value, or of its source."""
        match node:
            case None:
                return repr(None)
            case ast.Attribute(value=ast.Name(id="ServerArgs"), attr=name) if name in self._fields:
                return self._fields[name]
            case ast.Call(func=ast.Name(), args=[ast.Constant(value=str(name))]) if name in self._fields:
                return self._fields[name]
        try:
            return repr(self._sources.value(node, scope))
        except Unread:
            return ast.unparse(node)


def _argument(entry: ast.expr) -> dict[str, ast.expr] | None:
    """Keywords of an ``Arg(...)``, none of a help text; None when the entry is other metadata."""
    match entry:
        case ast.Call(func=function, keywords=keywords):
            if _last_name(function) == "Arg":
                return {word.arg: word.value for word in keywords if word.arg}
            return None
    return {}


def _literal(kind: ast.expr, sources: Sources, scope: Scope) -> ast.expr | None:
    """The values of a ``Literal[...]``, also of an optional or named one."""
    match kind:
        case ast.Subscript(value=ast.Name("Literal"), slice=values):
            return values if isinstance(values, ast.Tuple) else ast.List(elts=[values])
        case ast.Subscript(value=ast.Name("Optional"), slice=inner):
            return _literal(inner, sources, scope)
        case ast.BinOp(left=inner, right=ast.Constant(value=None)):
            return _literal(inner, sources, scope)
        case ast.Name(id=name):
            try:
                statement, where = sources.find(name, scope)
            except Unread:
                return None
            return _literal(statement.value, sources, where) if isinstance(statement, ast.Assign) else None
    return None


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _last_name(node: ast.expr | None) -> str | None:
    match node:
        case ast.Name(name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
            return name
    return None
