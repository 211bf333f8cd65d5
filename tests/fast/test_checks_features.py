"""The features check, its data file, and the table that README.md gets from it."""

import ast
import textwrap
from pathlib import Path
from typing import Any

import pytest

from checks.ast_match import parse_snippet
from checks.given import feature
from checks.test_features import problems
from pipeline import check_data
from pipeline.check_data import BEGIN, CHECKS, END, Feature, Features
from pipeline.errors import CheckError, ManifestError
from pipeline.files import PROJECT
from tests.fast.fake_image import FakeImage

ROWS: list[dict[str, Any]] = check_data.input_parts()["features"]


@pytest.fixture
def image(tmp_path: Path) -> FakeImage:
    return FakeImage(tmp_path)


def fails(image: FakeImage, *reason: str) -> None:
    """Run; the features check alone fails, and its reason holds these words."""
    report = image.run()
    assert report.statuses == {"features": "failed"}, report.stderr
    for words in reason:
        assert words in report.reason("features")


def test_feature_undone(image: FakeImage) -> None:
    image.patch("sglang/srt/kernel.py", "def kernel(tl, b_val):\n    return tl.sigmoid(b_val)\n")
    fails(image, "beta (Beta in FP32): sglang/srt/kernel.py in kernel: expected the code 'tl.sigmoid(...)")


def test_old_code_is_back(image: FakeImage) -> None:
    text = "def kernel(tl, b_val):\n    x = tl.bfloat16\n    return tl.sigmoid(b_val).to(tl.float32)\n"
    image.patch("sglang/srt/kernel.py", text)
    fails(image, "found the code 'tl.bfloat16', expected it to be gone")


def test_code_in_a_comment_or_elsewhere_does_not_count(image: FakeImage) -> None:
    text = "def kernel(tl, b_val):\n    # tl.sigmoid(b_val).to(tl.float32)\n    return 1\n\n\n"
    image.patch("sglang/srt/kernel.py", text + "def other(tl, x):\n    return tl.sigmoid(x).to(tl.float32)\n")
    fails(image, "expected the code")


def test_a_later_definition_that_undoes_it(image: FakeImage) -> None:
    good = "def kernel(tl, b_val):\n    return tl.sigmoid(b_val).to(tl.float32)\n"
    image.patch("sglang/srt/kernel.py", good + "\n\ndef kernel(tl, b_val):\n    return 1\n")
    fails(image, "expected the code")


def test_scope_is_gone(image: FakeImage) -> None:
    image.patch("sglang/srt/kernel.py", "VALUE = 1\n")
    fails(image, "expected a definition of kernel, found none")


def test_file_is_not_in_the_record(image: FakeImage) -> None:
    image.given["features"][0]["file"] = "sglang/srt/moved.py"
    fails(image, "expected sglang/srt/moved.py in the record")


def test_file_that_is_no_python(image: FakeImage) -> None:
    image.patch("sglang/srt/kernel.py", "def kernel(:\n")
    fails(image, "sglang/srt/kernel.py cannot be parsed")


def test_no_rows_prove_nothing(image: FakeImage) -> None:
    image.given["features"] = []
    fails(image, "expected rows, found none")


def _code(row: dict[str, Any], snippets: list[str]) -> str:
    """A module that has the row's scope and nothing in it but these snippets."""
    text = "\n".join(["pass", *snippets])
    for depth, name in enumerate(reversed((row.get("in") or "").split("."))):
        if name:
            word = f"class {name}:" if depth else f"def {name}():"
            text = f"{word}\n{textwrap.indent(text, '    ')}"
    return text


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["id"]))
def test_each_row_can_hold_and_can_fail(row: dict[str, Any]) -> None:
    """Without any one of its snippets, or with one that must be absent, a row does not hold."""
    find, absent = row.get("find", []), row.get("absent", [])
    cases = [(find, True)]
    cases += [([*find[:index], *find[index + 1 :]], False) for index in range(len(find))]
    cases += [([*find, extra], False) for extra in absent]
    for snippets, holds in cases:
        module = ast.parse(_code(row, snippets))
        found = list(problems(feature(row), [row["file"]], {row["file"]: module}.__getitem__))
        assert bool(found) is not holds, (snippets, found)


def test_the_rows_are_about_code() -> None:
    for row in ROWS:
        for text in [*row.get("find", []), *row.get("absent", [])]:
            assert isinstance(parse_snippet(text), ast.AST)


def test_each_patch_that_a_row_names_exists_and_touches_its_file() -> None:
    for row in check_data.features().root:
        kind, name = row.origin.split()
        if kind == "patch":
            (patch,) = (PROJECT / "patches").glob(f"*/{name}")
            assert f"+++ b/{row.file}\n" in patch.read_text(encoding="utf-8")


def test_checks_and_tests_that_a_row_names_exist() -> None:
    for row in check_data.features().root:
        assert [check for check in row.also if not (CHECKS / f"test_{check}.py").is_file()] == [], row.id
        assert [path for path in row.run if not (PROJECT / path).is_file()] == [], row.id


def _row(**changes: Any) -> Feature:
    row = {"id": "a", "title": "T", "why": "w", "origin": "upstream 1", "file": "sglang/a.py", "find": ["a(...)"]}
    return Feature.model_validate({**row, **changes})


def test_table_has_one_line_per_title() -> None:
    rows = (
        _row(),
        _row(id="b", origin="patch p.patch", also=["launch"], run=["tests/tree/test_a_b.py"], **{"in": "f"}),
        _row(
            id="c", also=["launch", "startup"], run=["tests/e2e/test_a.py", "tests/tree/test_a_b.py"], **{"in": "C.g"}
        ),
        _row(id="d", title="Either | or"),
    )
    assert check_data.feature_table(Features(rows)) == (
        "| Feature | From | Where | Proven by | Run by |\n"
        "|---|---|---|---|---|\n"
        "| T | upstream 1, patch p.patch | `sglang/a.py`: `f`, `C.g` "
        "| `features`: `a`, `b`, `c`<br>`launch`<br>`startup` "
        "| [tree: a b](tests/tree/test_a_b.py)<br>[e2e: a](tests/e2e/test_a.py) |\n"
        "| Either \\| or | upstream 1 | `sglang/a.py` | `features`: `d` |  |\n"
    )


def test_readme_is_updated_between_the_markers_only() -> None:
    once = check_data.update_readme(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert once.startswith(f"before\n{BEGIN}\n| Feature |")
    assert once.endswith(f"|\n{END}\nafter\n")
    assert "old" not in once
    assert check_data.update_readme(once) == once


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"])
def test_readme_without_its_markers(text: str) -> None:
    with pytest.raises(CheckError, match=r"README\.md"):
        check_data.update_readme(text)


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("features.yaml", "- {id: a, title: T, why: w, origin: upstream 1, file: a.py}", "something to find"),
        ("features.yaml", "- {id: a, title: T, why: w, origin: elsewhere, file: a.py, find: [a]}", "origin"),
        ("features.yaml", "- {id: a, tilte: T, why: w, origin: upstream 1, file: a.py}", "tilte"),
        ("leftovers.yaml", "{paths: [], content: [{pattern: '(', reason: r}]}", "a regular expression"),
        ("environment.yaml", "- {name: A}", "reason"),
    ],
)
def test_malformed_data_is_one_line(tmp_path: Path, file: str, text: str, problem: str) -> None:
    for name in ("features.yaml", "leftovers.yaml", "environment.yaml"):
        (tmp_path / name).write_text(text if name == file else (CHECKS / name).read_text(encoding="utf-8"))
    with pytest.raises(ManifestError) as caught:
        check_data.input_parts(tmp_path)
    assert file in caught.value.line()
    assert problem in caught.value.line()


def test_two_rows_with_one_id() -> None:
    with pytest.raises(ValueError, match="one row with the id 'a'"):
        Features((_row(), _row()))
