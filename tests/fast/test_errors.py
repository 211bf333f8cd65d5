"""Errors are one line, and each stage has its own exit code, which the documentation lists."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.errors import PipelineError
from pipeline.files import PROJECT


def kinds(base: type[PipelineError] = PipelineError) -> Iterator[type[PipelineError]]:
    """Every kind of error that ``pipeline/errors.py`` defines."""
    for kind in base.__subclasses__():
        if kind.__module__ == "pipeline.errors":
            yield kind
        yield from kinds(kind)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({}, "file"),
        ({"do": "go"}, "file; go"),
        ({"expected": "a"}, "file: expected a"),
        ({"found": "b"}, "file: found b"),
        ({"expected": "a", "found": "b", "do": "go"}, "file: expected a, found b; go"),
        ({"expected": 1, "found": 0}, "file: expected 1, found 0"),
        ({"found": "two\n  lines\tand more"}, "file: found two lines and more"),
    ],
)
def test_message_is_one_line_of_what_expected_found_and_what_to_do(arguments: dict[str, Any], line: str) -> None:
    assert PipelineError("file", **arguments).line() == line


def test_every_kind_has_an_exit_code_and_a_stage_of_its_own() -> None:
    found = list(kinds())
    assert len(found) >= 10
    assert len({kind.exit_code for kind in found}) == len(found)
    assert len({kind.stage for kind in found}) == len(found)


def test_exit_codes_leave_those_of_python_click_and_ctrl_c_alone() -> None:
    assert not {kind.exit_code for kind in kinds()} & {0, 1, 2, 130}
    assert all(0 < kind.exit_code < 126 for kind in kinds())


def test_documentation_lists_each_exit_code_with_its_stage() -> None:
    text = (PROJECT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\|\s*`?(\d+)`?\s*\|\s*`?([a-z-]+)`?\s*\|", text, re.MULTILINE))
    expected = {str(kind.exit_code): kind.stage for kind in kinds()}
    assert {code: rows.get(code) for code in expected} == expected
