"""Static import check: does every import between our files and the tree find what it names?

Nothing is executed and nothing beside the tree is read, so the check needs no torch and takes seconds. It
knows what a module binds at its top level, follows ``from x import *``, and accepts what only a run could tell:
a module-level ``__getattr__``, a name from a compiled extension, a star import from outside the tree.

An import counts once per name that is missing. A module that is missing counts once per statement, however
many names the statement takes from it.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pipeline.errors import ComposeError

CATCHES_IMPORT_ERROR = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
MODULE_ATTRIBUTES = frozenset(
    {"__builtins__", "__dict__", "__doc__", "__file__", "__loader__", "__name__", "__package__", "__spec__"}
)
"""What the interpreter binds in every module."""


@dataclass(frozen=True)
class Problem:
    """One import that the tree cannot serve."""

    file: str
    line: int
    """Line of the missing name (of the statement, when the module is missing), counted from 1."""
    symbol: str
    """Dotted name that is missing: a module, or a name of a module."""
    importer_origin: str
    """Where the importing file came from."""
    module: str | None
    """The module that exists and lacks the name; ``None`` when the module itself is missing."""
    provider_origin: str | None
    """Where that module came from, or the nearest package above a missing one; ``None`` for folders without
    ``__init__.py``."""

    @property
    def text(self) -> str:
        """The problem as one line."""
        where = f"{self.file}:{self.line} imports"
        if self.module is None:
            package = f", package from {self.provider_origin}" if self.provider_origin else ""
            return f"{where} {self.symbol}, which is not in the tree; file from {self.importer_origin}{package}"
        name = self.symbol.removeprefix(self.module + ".")
        provider = self.provider_origin or "a folder without __init__.py"
        return f"{where} {name} from {self.module}; file from {self.importer_origin}, module from {provider}"


def check(
    tree: Mapping[str, bytes],
    ours: Iterable[str],
    origins: Mapping[str, str],
    extensions: Collection[str] = frozenset(),
) -> list[Problem]:
    """Check the imports of ``ours``, wherever in the file they stand, against the tree.

    An import in a ``try`` whose handler catches ``ImportError``, or in ``contextlib.suppress(ImportError)``,
    may fail and is not checked. Packages that do not lie in the tree are none of this check's business.

    Args:
        tree: path to content of the whole composed tree.
        ours: files to check: those not untouched from the first source. Other than ``.py`` is passed over.
        origins: origin of each file, as problems shall name it.
        extensions: dotted names of compiled modules, which are in the wheel but no part of the tree.

    Raises:
        ComposeError: a file that takes part in the check is not Python.
    """
    modules = _Modules(tree, frozenset(extensions))
    problems: list[Problem] = []
    for path in sorted(path for path in ours if path.endswith(".py")):
        for statement in modules.parse(path).imports:
            for line, symbol, provider in _missing(modules, path, statement):
                provider_path = modules.path(provider) if provider else modules.package_above(symbol)
                origin = origins[provider_path] if provider_path else None
                problems.append(Problem(path, line, symbol, origins[path], provider, origin))
    return problems


@dataclass(frozen=True)
class _Import:
    """One import statement; ``typing`` when it stands below ``if TYPE_CHECKING``."""

    node: ast.Import | ast.ImportFrom
    typing: bool


@dataclass
class _Module:
    """What a module binds at its top level, and every import in it that must succeed."""

    imports: list[_Import] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    typing_names: set[str] = field(default_factory=set)
    """Bound below ``if TYPE_CHECKING`` only: a run does not see them."""
    stars: list[_Import] = field(default_factory=list)
    exports: set[str] | None = None
    """The literal part of ``__all__``; ``None`` where there is no ``__all__``."""
    computed_exports: bool = False
    """``__all__`` holds more than its literal part."""
    dynamic: bool = False
    """Binds names that only a run could tell."""


class _Modules:
    """The modules of a tree, each parsed at most once."""

    def __init__(self, tree: Mapping[str, bytes], extensions: frozenset[str]) -> None:
        self.tree = tree
        self.extensions = extensions
        self._parsed: dict[str, _Module] = {}

    @cached_property
    def packages(self) -> frozenset[str]:
        """Every folder with Python below it, dotted; a folder without ``__init__.py`` is one as well."""
        found: set[str] = set()
        for path in self.tree:
            if path.endswith(".py"):
                parts = path.split("/")[:-1]
                found.update(".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        return frozenset(found)

    def covers(self, module: str) -> bool:
        """Whether the top-level package of ``module`` lies in the tree."""
        return module.partition(".")[0] in self.packages

    def path(self, module: str) -> str | None:
        """File of a module, or of a package's ``__init__``."""
        stem = module.replace(".", "/")
        return next((path for path in (f"{stem}/__init__.py", f"{stem}.py") if path in self.tree), None)

    def package_above(self, module: str) -> str | None:
        """File of the nearest package above a module."""
        parts = module.split(".")
        above = (self.path(".".join(parts[:depth])) for depth in range(len(parts) - 1, 0, -1))
        return next((path for path in above if path), None)

    def exists(self, module: str) -> bool:
        """Whether a module, package or compiled extension of this name can be imported."""
        return module in self.packages or module in self.extensions or self.path(module) is not None

    def parse(self, path: str) -> _Module:
        """Bindings and imports of a file."""
        if path not in self._parsed:
            try:
                self._parsed[path] = _read(ast.parse(self.tree[path], filename=path))
            except (SyntaxError, ValueError) as error:
                line = getattr(error, "lineno", None) or 1
                raise ComposeError(
                    f"{path}:{line}", expected="Python", found=error, do="correct what brings the file"
                ) from error
        return self._parsed[path]

    def bindings(self, module: str) -> _Module:
        """What a module of the tree binds; nothing for a folder without ``__init__.py``."""
        path = self.path(module)
        return self.parse(path) if path else _Module()

    def provides(self, module: str, name: str, typing: bool) -> bool:
        """Whether ``from module import name`` succeeds; ``typing`` when only a type checker runs it."""
        return self.exists(f"{module}.{name}") or self._binds(module, name, typing, set())

    def _binds(self, module: str, name: str, typing: bool, seen: set[str]) -> bool:
        if module in self.extensions or not self.covers(module):
            return True
        if module in seen:
            return False
        seen.add(module)
        found = self.bindings(module)
        if found.dynamic or name in found.names or name in MODULE_ATTRIBUTES:
            return True
        if typing and name in found.typing_names:
            return True
        return any(
            self._exports(source, name, typing, seen)
            for star in found.stars
            if typing or not star.typing
            for source in sources(self.path(module) or "", star.node)
        )

    def _exports(self, module: str, name: str, typing: bool, seen: set[str]) -> bool:
        """Whether ``from module import *`` brings ``name``."""
        if self.covers(module):
            found = self.bindings(module)
            if found.exports is not None and not found.computed_exports:
                return name in found.exports
            if found.computed_exports:
                return self._binds(module, name, typing, seen)
        return not name.startswith("_") and self._binds(module, name, typing, seen)


def _missing(modules: _Modules, path: str, statement: _Import) -> Iterator[tuple[int, str, str | None]]:
    """Line and symbol of what a statement names and the tree lacks, and the module that should bind it."""
    for module in sources(path, statement.node):
        if not modules.covers(module):
            continue
        if not modules.exists(module):
            yield statement.node.lineno, module, None
        elif isinstance(statement.node, ast.ImportFrom):
            for alias in statement.node.names:
                if alias.name != "*" and not modules.provides(module, alias.name, statement.typing):
                    yield alias.lineno, f"{module}.{alias.name}", module


def sources(path: str, node: ast.Import | ast.ImportFrom) -> list[str]:
    """Absolute dotted names of the modules that a statement reads from."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not node.level:
        return [node.module or ""]
    package = path.split("/")[: -node.level]
    if not package:
        return [f"{path.partition('/')[0]}.{'.' * node.level}{node.module or ''}"]
    return [".".join([*package, *([node.module] if node.module else [])])]


def _collect_imports(body: Sequence[ast.AST], found: list[_Import], typing: bool) -> None:
    """Append the imports below ``body`` that must succeed, in the order of the file."""
    for node in body:
        match node:
            case ast.Import() | ast.ImportFrom():
                found.append(_Import(node, typing))
            case ast.If() if _is_type_checking(node.test):
                _collect_imports(node.body, found, typing=True)
                _collect_imports(node.orelse, found, typing)
            case ast.Try() | ast.TryStar() if any(map(_may_fail, node.handlers)):
                _collect_imports(_functions(node.body), found, typing)
                _collect_imports([*node.handlers, *node.orelse, *node.finalbody], found, typing)
            case ast.With() | ast.AsyncWith() if any(_suppresses(item.context_expr) for item in node.items):
                _collect_imports(_functions(node.body), found, typing)
            case ast.expr():
                pass
            case _:
                _collect_imports(list(ast.iter_child_nodes(node)), found, typing)


def _functions(body: Sequence[ast.stmt]) -> list[ast.AST]:
    """Functions defined in a guarded block: they run later, outside the guard."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found: list[ast.AST] = []
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, kinds):
            found.append(node)
        else:
            todo += ast.iter_child_nodes(node)
    return found


def _may_fail(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(_last_name(kind) in CATCHES_IMPORT_ERROR for kind in kinds)


def _suppresses(expression: ast.expr) -> bool:
    return (
        isinstance(expression, ast.Call)
        and _last_name(expression.func) == "suppress"
        and any(_last_name(kind) in CATCHES_IMPORT_ERROR for kind in expression.args)
    )


def _is_type_checking(test: ast.expr) -> bool:
    return _last_name(test) == "TYPE_CHECKING"


def _last_name(node: ast.expr) -> str | None:
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
    return None


def _read(tree: ast.Module) -> _Module:
    visitor = _Bindings()
    for statement in tree.body:
        visitor.visit(statement)
        if isinstance(statement, ast.Delete):
            visitor.unbind(statement)
    module = visitor.module
    module.dynamic |= "__getattr__" in module.names
    _collect_imports(tree.body, module.imports, typing=False)
    return module


class _Bindings(ast.NodeVisitor):
    """Collects what statements bind in the module's scope.

    A binding counts in whatever branch it stands; a ``del`` counts only where it is sure to run, straight in
    the module's body. The name of an ``except … as name`` is gone after its handler and never counts.
    """

    def __init__(self) -> None:
        self.module = _Module()
        self._names = self.module.names

    def unbind(self, statement: ast.Delete) -> None:
        """Drop the names that a ``del`` names."""
        self._names -= {target.id for target in statement.targets if isinstance(target, ast.Name)}

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._names.add(node.id)

    def visit_Import(self, node: ast.Import) -> None:
        self._names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name == "*":
                self.module.stars.append(_Import(node, self._names is self.module.typing_names))
            else:
                self._names.add(alias.asname or alias.name)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._names.add(node.name)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Global):
                self._names.update(inner.names)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.add(node.name)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """A scope of its own."""

    def visit_ListComp(self, node: ast.AST) -> None:
        """A scope of its own, but for what ``:=`` binds."""
        self._names.update(inner.target.id for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr))

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        if node.name is not None:
            self._names.add(node.name)
        self.generic_visit(node)

    visit_MatchStar = visit_MatchAs

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest is not None:
            self._names.add(node.rest)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if not _is_type_checking(node.test):
            self.generic_visit(node)
            return
        outer, self._names = self._names, self.module.typing_names
        for statement in node.body:
            self.visit(statement)
        self._names = outer
        for statement in node.orelse:
            self.visit(statement)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(_last_name(target) == "__all__" for target in node.targets):
            self.module.exports = set()
            self._export(node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if _last_name(node.target) == "__all__":
            self._export(node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if _last_name(node.target) == "__all__" and node.value is not None:
            self._export(node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        match node.func:
            case ast.Attribute(value=ast.Name("__all__"), attr="extend" | "append"):
                for argument in node.args:
                    self._export(argument)
            case ast.Attribute(value=ast.Call(func=ast.Name("globals")), attr="update"):
                self.module.dynamic = True
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        match node:
            case ast.Subscript(value=ast.Call(func=ast.Name("globals")), ctx=ast.Store()):
                self.module.dynamic = True
        self.generic_visit(node)

    def _export(self, value: ast.expr) -> None:
        """Add to ``__all__`` what is literal, and note that there is more."""
        exports = self.module.exports if self.module.exports is not None else set()
        self.module.exports = exports
        try:
            names: Any = ast.literal_eval(value)
        except (ValueError, TypeError):
            self.module.computed_exports = True
            return
        exports.update([names] if isinstance(names, str) else names)
