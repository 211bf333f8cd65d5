"""The static import check: what resolves, what does not, and how it is said."""

import textwrap
from collections.abc import Mapping

import pytest

from pipeline import imports
from pipeline.errors import ComposeError
from pipeline.imports import Problem

OURS = "sglang/srt/ours.py"


def check(code: str, files: Mapping[str, str] | None = None, extensions: tuple[str, ...] = ()) -> list[Problem]:
    """Check ``code`` as our file ``sglang/srt/ours.py`` beside ``files`` from the first source."""
    sources = {"sglang/__init__.py": "", "sglang/srt/__init__.py": "", **(files or {}), OURS: code}
    tree = {path: textwrap.dedent(text).encode() for path, text in sources.items()}
    origins = dict.fromkeys(tree, "source:sglang") | {OURS: "overlay:drafts"}
    return imports.check(tree, [OURS], origins, frozenset(extensions))


def symbols(problems: list[Problem]) -> list[str]:
    """Missing symbols, without the common prefix."""
    return [problem.symbol.removeprefix("sglang.srt.") for problem in problems]


@pytest.mark.parametrize(
    "binding",
    [
        "name = 1",
        "name: int = 1",
        "name += 1",
        "(other, [name, *rest]) = value",
        "def name(): pass",
        "async def name(): pass",
        "class name: pass",
        "import name",
        "import name.sub",
        "import other as name",
        "from other import name",
        "from other import thing as name",
        "for name in value: pass",
        "while (name := value): pass",
        "with value as name: pass",
        "if value:\n    pass\nelse:\n    name = 1",
        "try:\n    pass\nexcept ValueError:\n    name = 1",
        "try:\n    pass\nfinally:\n    name = 1",
        "[(name := item) for item in value]",
        "match value:\n    case [name]: pass",
        "match value:\n    case [*name]: pass",
        "match value:\n    case {**name}: pass",
        "def bind():\n    global name\n    name = 1",
        "def __getattr__(wanted): return 1",
        "globals()['na' + 'me'] = 1",
        "globals().update(value)",
        "from other import *",
        "del name\nname = 1",
        "if value:\n    name = 1\n    del name",
    ],
)
def test_a_name_that_the_module_binds_resolves(binding: str) -> None:
    assert check("from sglang.srt.lib import name", {"sglang/srt/lib.py": binding}) == []


@pytest.mark.parametrize(
    "binding",
    [
        "",
        "other = name",
        "holder.name = 1",
        "holder['name'] = 1",
        "def bind():\n    name = 1",
        "def bind(name): pass",
        "class Holder:\n    name = 1",
        "[name for name in value]",
        "bind = lambda name: name",
        "import package.name",
        "import name as other",
        "try:\n    pass\nexcept ValueError as name:\n    pass",
        "name = 1\ndel name",
        "name = 1\ndel (name)\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from other import name",
    ],
)
def test_a_name_that_the_module_does_not_bind_is_a_problem(binding: str) -> None:
    problems = check("from sglang.srt.lib import name", {"sglang/srt/lib.py": binding})
    assert symbols(problems) == ["lib.name"]


def test_the_line_names_file_symbol_and_both_origins() -> None:
    (problem,) = check("\nfrom sglang.srt.lib import (\n    here,\n    gone,\n)", {"sglang/srt/lib.py": "here = 1"})
    assert problem.text == (
        "sglang/srt/ours.py:4 imports gone from sglang.srt.lib; file from overlay:drafts, module from source:sglang"
    )


def test_a_missing_module_counts_once_per_statement() -> None:
    (problem,) = check("from sglang.srt.gone import first, second")
    assert problem.text == (
        "sglang/srt/ours.py:1 imports sglang.srt.gone, which is not in the tree; "
        "file from overlay:drafts, package from source:sglang"
    )


@pytest.mark.parametrize(
    ("statement", "missing"),
    [
        ("import sglang.srt.lib", []),
        ("import sglang.srt.lib as lib, sglang.srt.gone as gone", ["gone"]),
        ("from sglang.srt import lib", []),
        ("from sglang.srt import gone", ["gone"]),
        ("from . import lib", []),
        ("from . import gone", ["gone"]),
        ("from .lib import name", []),
        ("from .lib import gone", ["lib.gone"]),
        ("from ..srt.lib import name", []),
        ("from .gone import *", ["gone"]),
        ("from sglang.srt.lib import *", []),
        ("from sglang.srt.lib import __name__", []),
        ("from sglang.srt.data import table", []),
        ("from sglang.srt.data import gone", ["data.gone"]),
        ("from torch import anything", []),
        ("import torch.gone", []),
    ],
)
def test_each_form_of_import(statement: str, missing: list[str]) -> None:
    files = {"sglang/srt/lib.py": "name = 1", "sglang/srt/data/table.py": ""}
    assert symbols(check(statement, files)) == missing


def test_a_relative_import_beyond_the_top_is_a_problem() -> None:
    (problem,) = check("from ....lib import name")
    assert problem.symbol == "sglang.....lib"


def test_a_folder_without_init_is_named_as_such() -> None:
    (problem,) = check("from sglang.srt.data import gone", {"sglang/srt/data/table.py": ""})
    assert problem.text.endswith("module from a folder without __init__.py")


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    {}\nexcept ImportError:\n    pass",
        "try:\n    {}\nexcept ModuleNotFoundError:\n    pass",
        "try:\n    {}\nexcept (KeyError, ImportError):\n    pass",
        "try:\n    {}\nexcept Exception:\n    pass",
        "try:\n    {}\nexcept:\n    pass",
        "try:\n    if True:\n        {}\nexcept builtins.ImportError:\n    pass",
        "with contextlib.suppress(ImportError):\n    {}",
    ],
)
def test_a_guarded_import_may_fail(code: str) -> None:
    assert check(code.format("from sglang.srt.gone import name")) == []


@pytest.mark.parametrize(
    "code",
    [
        "def run():\n    {}",
        "class Late:\n    def run(self):\n        {}",
        "if TYPE_CHECKING:\n    {}",
        "if value:\n    pass\nelse:\n    {}",
        "match value:\n    case 1:\n        {}",
        "try:\n    {}\nexcept KeyError:\n    pass",
        "try:\n    pass\nexcept ImportError:\n    {}",
        "try:\n    pass\nexcept ImportError:\n    pass\nelse:\n    {}",
        "try:\n    pass\nexcept ImportError:\n    pass\nfinally:\n    {}",
        "try:\n    def run():\n        {}\nexcept ImportError:\n    pass",
        "with contextlib.suppress(KeyError):\n    {}",
    ],
)
def test_an_unguarded_import_is_checked_wherever_it_stands(code: str) -> None:
    assert symbols(check(code.format("from sglang.srt.gone import name"))) == ["gone"]


def test_what_only_a_type_checker_sees_serves_only_a_type_checker() -> None:
    lib = {"sglang/srt/lib.py": "if typing.TYPE_CHECKING:\n    from other import name"}
    code = "if TYPE_CHECKING:\n    from sglang.srt.lib import name\nelse:\n    from sglang.srt.lib import name"
    assert [problem.line for problem in check(code, lib)] == [4]


@pytest.mark.parametrize(
    ("exporter", "missing"),
    [
        ("name = 1", []),
        ("_name = name = 1\n__all__ = ['other']", ["lib.name"]),
        ("name = 1\n__all__ = ['other']\n__all__ += ('name',)", []),
        ("name = 1\n__all__ = []\n__all__.extend(['name'])\n__all__.append('other')", []),
        ("name = 1\n__all__: list[str] = ['other']", ["lib.name"]),
        ("name = 1\n__all__: list[str]", []),
        ("name = 1\n__all__ = [n for n in globals() if keep(n)]", []),
        ("__all__ = other.__all__ + ['more']", ["lib.name"]),
        ("", ["lib.name"]),
        ("from sglang.srt.lib import *", ["lib.name"]),
        ("if TYPE_CHECKING:\n    from sglang.srt.deep import *", ["lib.name"]),
        ("from sglang.srt.deep import *", []),
    ],
)
def test_star_imports_are_followed(exporter: str, missing: list[str]) -> None:
    files = {
        "sglang/srt/lib.py": "from .exporter import *",
        "sglang/srt/exporter.py": exporter,
        "sglang/srt/deep.py": "name = 1",
    }
    assert symbols(check("from sglang.srt.lib import name", files)) == missing


def test_a_star_import_does_not_bring_private_names() -> None:
    files = {"sglang/srt/lib.py": "from .exporter import *", "sglang/srt/exporter.py": "_name = 1"}
    assert symbols(check("from sglang.srt.lib import _name", files)) == ["lib._name"]


def test_compiled_modules_exist_and_their_names_are_not_known() -> None:
    code = "from sglang.srt.fast._core import anything\nfrom sglang.srt.fast import _core, gone"
    files = {"sglang/srt/fast/__init__.py": ""}
    assert symbols(check(code, files, ("sglang.srt.fast._core",))) == ["fast.gone"]


def test_files_that_are_not_ours_are_not_checked() -> None:
    assert check("", {"sglang/srt/theirs.py": "from sglang.srt.gone import name"}) == []


def test_files_that_are_not_python_are_passed_over() -> None:
    tree = {"sglang/srt/kernel.cu": b"\xff"}
    assert imports.check(tree, tree, {}) == []


def test_problems_come_in_the_order_of_files_and_lines() -> None:
    tree = {f"sglang/{name}.py": b"import sglang.x\nimport sglang.y" for name in "ba"}
    problems = imports.check(tree, tree, dict.fromkeys(tree, "overlay:x"))
    assert [(problem.file[7], problem.symbol[7]) for problem in problems] == [
        ("a", "x"),
        ("a", "y"),
        ("b", "x"),
        ("b", "y"),
    ]


def test_each_module_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    real = compile

    def count(source: bytes, filename: str, *rest: object, **named: object) -> object:
        parsed.append(filename)
        return real(source, filename, *rest, **named)  # type: ignore[call-overload]

    monkeypatch.setattr("ast.compile", count, raising=False)
    check("from sglang.srt.lib import a\nfrom sglang.srt.lib import b", {"sglang/srt/lib.py": "a = b = 1"})
    assert parsed.count("sglang/srt/lib.py") == 1
    assert len(parsed) == len(set(parsed))


def test_a_file_that_is_not_python_is_one_line() -> None:
    with pytest.raises(ComposeError) as caught:
        check("from sglang.srt import (\n")
    assert caught.value.line().startswith("sglang/srt/ours.py:1: expected Python, found ")
