"""docs/rebase.md against the command line and the words of the report."""

import re
import shlex

import click
import pytest

from pipeline.cli import main
from pipeline.files import PROJECT
from pipeline.rebase_report import HunkStatus, OracleStatus

PAGE = (PROJECT / "docs/rebase.md").read_text(encoding="utf-8")
ROWS = [line.strip("|").split("|")[0].strip() for line in PAGE.splitlines() if line.startswith("| ")]
COMMANDS = re.findall(r"^ +\./build\.py (.*)$", PAGE.replace("\\\n", ""), re.MULTILINE)


def parse(command: click.Command, words: list[str]) -> None:
    """Parse a command line as it would be for a run; nothing is run."""
    if isinstance(command, click.Group):
        found = command.commands.get(words[0])
        assert found is not None, f"no command {words[0]}"
        parse(found, words[1:])
    else:
        # Of the parent, for click keeps the names of the help option with the command.
        command.make_context("build.py", words, parent=click.Context(main, **main.context_settings))


@pytest.mark.parametrize("text", COMMANDS)
def test_command_of_the_page_exists_with_its_options(text: str) -> None:
    parse(main, shlex.split(text.replace("FOLDER", str(PROJECT))))


def test_page_has_the_commands_of_a_move_in_their_order() -> None:
    names = [" ".join(re.findall(r"^[a-z]+(?: (?:drop|export|refresh))?", text)) for text in COMMANDS]
    assert list(dict.fromkeys(names)) == ["rebase", "patch drop", "patch export", "compose"]


@pytest.mark.parametrize("text", ["rebase --unto x", "patch dorp x --why y", "patch drop x"])
def test_command_that_does_not_exist_is_found(text: str) -> None:
    with pytest.raises((click.UsageError, AssertionError)):
        parse(main, shlex.split(text))


def test_every_word_of_the_report_has_its_row() -> None:
    assert [row for row in ROWS if row in list(HunkStatus)] == list(HunkStatus)
    assert [row for row in ROWS if row in list(OracleStatus)] == list(OracleStatus)
