"""Values that a Python source states, found without importing or running it: literals, lists put together, constants.

A name is followed through assignments and imports inside the tree. What only a run could tell is :class:`Unread`, never
a guess.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.imports import sources


class Unread(Exception):
    """The value is not stated in the source."""


@dataclass(frozen=True)
class Scope:
    """Where names are looked up: a module, and the assignments of a function that stand before it."""

    path: str
    local: Mapping[str, ast.stmt] = field(default_factory=dict)


class Sources:
    """The modules of a tree, each parsed at most once."""

    def __init__(self, tree: Mapping[str, bytes]) -> None:
        self.tree = tree
        self._parsed: dict[str, dict[str, ast.stmt]] = {}

    def names(self, path: str) -> dict[str, ast.stmt]:
        """What a module binds at its top level, to the statement that binds it; nothing if it is no Python."""
        if path not in self._parsed:
            try:
                self._parsed[path] = bindings(ast.parse(self.tree[path]).body)
            except (SyntaxError, ValueError, KeyError):
                self._parsed[path] = {}
        return self._parsed[path]

    def find(self, name: str, scope: Scope) -> tuple[ast.stmt, Scope]:
        """The statement that binds a name, and the scope that it stands in.

        Raises:
            Unread: no statement in the tree does.
        """
        for _ in range(10):  # re-exports of re-exports; a circle ends here
            statement = scope.local.get(name) or self.names(scope.path).get(name)
            if statement is None:
                break
            if not isinstance(statement, ast.ImportFrom):
                return statement, scope
            alias = next(alias for alias in statement.names if name == (alias.asname or alias.name))
            (module,) = sources(scope.path, statement)
            stem = module.replace(".", "/")
            path = next((each for each in (f"{stem}.py", f"{stem}/__init__.py") if each in self.tree), "")
            name, scope = alias.name, Scope(path)
        raise Unread(name)

    def value(self, node: ast.expr | None, scope: Scope) -> Any:
        """The value of an expression.

        Raises:
            Unread: the source does not state it.
        """
        try:
            return self._value(node, scope)
        except (TypeError, ValueError, LookupError, RecursionError) as error:  # no sound source, or one in a circle
            raise Unread(str(error)) from error

    def _value(self, node: ast.expr | None, scope: Scope) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return [self.value(part, scope) for part in parts]
            case ast.Dict(keys=keys):
                return {self.value(key, scope): None for key in keys}
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.value(operand, scope)
            case ast.BinOp(left=left, op=op, right=right):
                return self._combined(op, self.value(left, scope), self.value(right, scope))
            case ast.Name(id=name):
                statement, where = self.find(name, scope)
                return self._bound(statement, where)
            case ast.Attribute(value=ast.Name(id=holder), attr=name):
                return self._member(holder, name, scope)
            case ast.Subscript(value=holder, slice=ast.Constant(value=int(index))):
                return self.value(holder, scope)[index]
            case ast.Call():
                return self._called(node, scope)
        raise Unread(ast.unparse(node) if node else "nothing")

    def _combined(self, op: ast.operator, left: Any, right: Any) -> Any:
        if isinstance(op, ast.Add) and type(left) is type(right) and isinstance(left, list | str):
            return left + right
        if isinstance(left, int | float) and isinstance(right, int | float):
            match op:
                case ast.Mult():
                    return left * right
                case ast.Add():
                    return left + right
                case ast.LShift() if isinstance(left, int) and isinstance(right, int) and right < 64:
                    return left << right
        raise Unread("an operation")

    def _bound(self, statement: ast.stmt, scope: Scope) -> Any:
        match statement:
            case ast.Assign(value=value) | ast.AnnAssign(value=value):
                return self.value(value, scope)
        raise Unread("no assignment")

    def _member(self, holder: str, name: str, scope: Scope) -> Any:
        statement, where = self.find(holder, scope)
        if not isinstance(statement, ast.ClassDef) or name not in (members := bindings(statement.body)):
            raise Unread(f"{holder}.{name}")
        return self._bound(members[name], Scope(where.path, members))

    def _called(self, call: ast.Call, scope: Scope) -> Any:
        """``list(x)``, ``x.keys()``, a field's default factory, or what a function of the tree returns at its end."""
        match call:
            case ast.Call(
                func=ast.Name(id="list" | "set" | "frozenset" | "tuple" | "sorted"), args=arguments, keywords=[]
            ):
                return list(self.value(arguments[0], scope)) if arguments else []
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=[]):
                return {}
            case ast.Call(func=ast.Attribute(value=mapping, attr="keys"), args=[]):
                return list(self.value(mapping, scope))
            case ast.Call(func=ast.Attribute(attr="field") | ast.Name(id="field"), keywords=keywords):
                return self._of_field({word.arg: word.value for word in keywords}, scope)
            case ast.Call(func=ast.Name(id=name), args=[], keywords=[]):
                statement, where = self.find(name, scope)
                if isinstance(statement, ast.FunctionDef) and isinstance(statement.body[-1], ast.Return):
                    local = Scope(where.path, bindings(statement.body))
                    return self.value(statement.body[-1].value, local)
        raise Unread(ast.unparse(call))

    def _of_field(self, words: Mapping[str | None, ast.expr], scope: Scope) -> Any:
        match words.get("default_factory"):
            case ast.Lambda(body=body):
                return self.value(body, scope)
            case ast.Name() as factory:
                return self.value(ast.Call(func=factory, args=[], keywords=[]), scope)
        return self.value(words.get("default"), scope)


def bindings(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Names that statements bind, the last binding of each; branches are not looked into."""
    found: dict[str, ast.stmt] = {}
    for statement in body:
        match statement:
            case ast.Assign(targets=targets):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                # ``X = made_from(X)`` after ``class X``: the class is what says something.
                found |= {name: statement for name in names if not isinstance(found.get(name), ast.ClassDef)}
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found[name] = statement
            case ast.ImportFrom(names=names):
                found.update((alias.asname or alias.name, statement) for alias in names)
    return found
