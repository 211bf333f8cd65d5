"""The features check, its data file per line, and the table that the line's page gets from it."""

import ast
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from checks.ast_match import parse_snippet
from checks.given import feature
from checks.test_features import problems
from pipeline import check_data
from pipeline.check_data import BEGIN, CHECKS, END, Feature, Features, NotCarried
from pipeline.errors import CheckError, ManifestError
from pipeline.files import PROJECT
from pipeline.manifest import DEFAULT_LINE, Line, OverlayLayer, PypiPin, lines, load_line
from tests.fast.builders import make_line, write_files
from tests.fast.fake_image import FakeImage

LINES = {name: load_line(name) for name in lines()}
ROWS: list[dict[str, Any]] = [row for line in LINES.values() for row in check_data.input_parts(line)["features"]]


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


def series(line: Line) -> list[str]:
    return (PROJECT / "patches" / line.name / "series").read_text(encoding="utf-8").split()


def overlays(line: Line) -> list[str]:
    return [layer.overlay for layer in line.release.layers if isinstance(layer, OverlayLayer)]


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_each_patch_or_overlay_that_a_row_names_is_the_lines_own_and_touches_its_file(line: Line) -> None:
    for row in check_data.features(line).carried:
        kind, name = row.origin.split()
        if kind == "patch":
            assert name in series(line)
            patch = PROJECT / "patches" / line.name / name
            assert f"+++ b/{row.file}\n" in patch.read_text(encoding="utf-8"), row.id
        elif kind == "overlay":
            assert name in overlays(line)
            assert (PROJECT / "overlays" / name / row.file).is_file(), row.id


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_what_is_not_carried_is_to_be_had_elsewhere(line: Line) -> None:
    others = [other for other in LINES.values() if other.name != line.name]
    releases = {pin.version for other in others for pin in other.release.pins.values() if isinstance(pin, PypiPin)}
    known = {"upstream": releases, "patch": {name for other in others for name in series(other)}}
    known["overlay"] = {name for other in others for name in overlays(other)}
    for row in check_data.features(line).not_carried:
        kind, name = row.origin.split()
        assert name in known[kind], row.title


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_checks_and_tests_that_a_row_names_exist(line: Line) -> None:
    for row in check_data.features(line).carried:
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
        NotCarried(title="N", origin="upstream 2", not_carried="Too large."),
    )
    assert check_data.feature_table(Features(rows)) == (
        "| Feature | From | Where | Proven by | Run by |\n"
        "|---|---|---|---|---|\n"
        "| T | upstream 1, patch p.patch | `sglang/a.py`: `f`, `C.g` "
        "| `features`: `a`, `b`, `c`<br>`launch`<br>`startup` "
        "| [tree: a b](tests/tree/test_a_b.py)<br>[e2e: a](tests/e2e/test_a.py) |\n"
        "| Either \\| or | upstream 1 | `sglang/a.py` | `features`: `d` |  |\n"
        "| N | upstream 2 | **not carried**: Too large. |  |  |\n"
    )


def page_of(folder: Path, text: str) -> Line:
    """A line with one row, and this page."""
    line = make_line(folder)
    row = "- {id: a, title: T, why: w, origin: upstream 1, file: a.py, find: [a], run: [tests/tree/test_a.py]}\n"
    write_files(line.folder, {"features.yaml": row, "README.md": text})
    return line


def test_page_is_updated_between_the_markers_only(tmp_path: Path) -> None:
    line = page_of(tmp_path, f"before\n{BEGIN}\nold\n{END}\nafter\n")
    once = check_data.updated_page(line, tmp_path)
    assert once.startswith(f"before\n{BEGIN}\n| Feature |")
    assert once.endswith(f"|\n{END}\nafter\n")
    assert "[tree: a](../../tests/tree/test_a.py)" in once
    assert "old" not in once
    (tmp_path / line.page).write_text(once)
    assert check_data.updated_page(line, tmp_path) == once


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"])
def test_page_without_its_markers(tmp_path: Path, text: str) -> None:
    with pytest.raises(CheckError, match=r"README\.md"):
        check_data.updated_page(page_of(tmp_path, text), tmp_path)


def test_line_without_a_page(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="a page of the line"):
        check_data.updated_page(make_line(tmp_path), tmp_path)


def test_each_line_has_a_page_of_its_own_and_links_from_it_arrive() -> None:
    assert LINES[DEFAULT_LINE].page == "README.md"
    for line in LINES.values():
        page = PROJECT / line.page
        assert line.is_main or page == line.folder / "README.md"
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page}: {target}"


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("features.yaml", "- {id: a, title: T, why: w, origin: upstream 1, file: a.py}", "something to find"),
        ("features.yaml", "- {id: a, title: T, why: w, origin: elsewhere, file: a.py, find: [a]}", "origin"),
        ("features.yaml", "- {id: a, tilte: T, why: w, origin: upstream 1, file: a.py}", "tilte"),
        ("features.yaml", "- {title: T, origin: upstream 1, not_carried: w, file: a.py}", "file"),
        ("leftovers.yaml", "{paths: [], content: [{pattern: '(', reason: r}]}", "a regular expression"),
        ("environment.yaml", "- {name: A}", "reason"),
        ("quantization.yaml", "{scheme: A}", "scheme with refused, or stops_with alone"),
        ("quantization.yaml", "{scheme: A, refused: [], stops_with: B}", "scheme with refused, or stops_with alone"),
    ],
)
def test_malformed_data_is_one_line(tmp_path: Path, file: str, text: str, problem: str) -> None:
    line = make_line(tmp_path)
    data = {name: (CHECKS / name).read_bytes() for name in ("leftovers.yaml", "environment.yaml", "quantization.yaml")}
    write_files(tmp_path, data)
    write_files(line.folder, {"features.yaml": "[]", "quantization.yaml": "stops_with: E"})
    (line.folder if file in ("features.yaml", "quantization.yaml") else tmp_path).joinpath(file).write_text(text)
    with pytest.raises(ManifestError) as caught:
        check_data.input_parts(line, tmp_path)
    assert file in caught.value.line()
    assert problem in caught.value.line()


def test_two_rows_with_one_id() -> None:
    with pytest.raises(ValueError, match="one row with the id 'a'"):
        Features((_row(), _row()))


def test_title_that_is_carried_and_is_not() -> None:
    with pytest.raises(ValueError, match="'T' carried or not carried"):
        Features((_row(), NotCarried(title="T", origin="upstream 2", not_carried="w")))


def test_check_is_given_only_what_is_carried(tmp_path: Path) -> None:
    line = make_line(tmp_path)
    rows = "- {id: a, title: T, why: w, origin: upstream 1, file: a.py, find: [a]}\n"
    rows += "- {title: N, origin: upstream 2, not_carried: w}\n"
    write_files(line.folder, {"features.yaml": rows, "quantization.yaml": "stops_with: E"})
    assert [row["id"] for row in check_data.input_parts(line)["features"]] == ["a"]
