"""The shims of the end-to-end tests: they change what they name, and fail when that has changed."""

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from pipeline.files import PROJECT
from tests.e2e.support import shims
from tests.e2e.support.shims import Call, Replace, Set, Shim

PAGE = PROJECT / "docs" / "end-to-end-on-a-cpu.md"
SOURCE = "LIMIT = 1\n\ndef limit():\n    return LIMIT\n"

Import = Callable[..., ModuleType]


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Import:
    """Import a module with this source under these shims."""
    (tmp_path / "shimmed.py").write_text(SOURCE)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shimmed", raising=False)

    def load(*given: Shim) -> ModuleType:
        shims.install(given)
        return importlib.import_module("shimmed")

    return load


def test_source_is_replaced_and_can_be_read_from_its_file(imported: Import) -> None:
    """Triton reads a kernel's source from the file that its code object names."""
    module = imported(Replace("shimmed", "return LIMIT", "return LIMIT + 1", "why"))
    assert module.limit() == 2
    assert "return LIMIT + 1" in inspect.getsource(module.limit)


def test_name_gets_its_value_and_function_is_called_after_the_import(imported: Import) -> None:
    seen: list[int] = []
    assert (
        imported(Set("shimmed", "LIMIT", 5, "why"), Call("shimmed", lambda m: seen.append(m.LIMIT), "why")).limit() == 5
    )
    assert seen == [5]


def test_other_modules_are_left_alone(imported: Import) -> None:
    assert imported(Set("elsewhere", "LIMIT", 5, "why")).limit() == 1


@pytest.mark.parametrize(
    ("shim", "said"),
    [
        (Replace("shimmed", "return LIMITS", "", "why"), "'return LIMITS': expected 1 times, found 0"),
        (Replace("shimmed", "LIMIT", "", "why"), "'LIMIT': expected 1 times, found 2"),
        (Set("shimmed", "LIMITS", 5, "why"), "expected the name LIMITS, found none"),
    ],
    ids=["text-gone", "text-twice", "name-gone"],
)
def test_what_a_release_has_changed_fails_by_name(imported: Import, shim: Shim, said: str) -> None:
    with pytest.raises(ImportError, match=r"^shim for shimmed: ") as raised:
        imported(shim)
    assert said in str(raised.value)


def test_module_that_is_imported_already_is_refused(imported: Import) -> None:
    imported()
    with pytest.raises(RuntimeError, match="found shimmed"):
        shims.install([Set("shimmed", "LIMIT", 5, "why")])


def test_the_page_lists_every_shim_with_its_reason() -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## Shims\n")[1]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    groups = {"every": shims.EVERY_RELEASE}
    groups |= {release: shims.OF_RELEASE[release] + shims.OURS[release] for release in shims.OF_RELEASE}
    assert rows == [f"| `{shim.module}` | {name} | {shim.why} |" for name, group in groups.items() for shim in group]


def test_a_release_that_nobody_tried_is_refused_by_name(tmp_path: Path) -> None:
    version = tmp_path / "sglang" / "_version.py"
    version.parent.mkdir()
    version.write_text("__version__ = version = '0.5.99'\n")
    with pytest.raises(ImportError, match=r"expected SGLang 0.5.18 or 0.5.23, found 0.5.99"):
        shims.of(tmp_path, patched=True)
    version.write_text("__version__ = '0.5.23'\n")
    with pytest.raises(ImportError, match="expected a release in"):
        shims.of(tmp_path, patched=True)
