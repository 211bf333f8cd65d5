"""The README repeats what other files decide; here it is held to them."""

import re

import pytest

from pipeline import check_data
from pipeline.files import PROJECT
from pipeline.manifest import lines, load_line

README = (PROJECT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", lines())
def test_feature_table_is_the_one_of_the_data(name: str) -> None:
    line = load_line(name)
    text = (PROJECT / line.page).read_text(encoding="utf-8")
    assert check_data.updated_page(line) == text, f"run ./build.py features --write --line {name}"


def test_each_other_line_has_its_page_linked() -> None:
    for line in map(load_line, lines()):
        assert line.is_main or f"]({line.page})" in README, line.name


def test_each_page_is_linked_once_at_the_end() -> None:
    more = README.split("\n## More\n")[1]
    pages = sorted(f"docs/{path.name}" for path in (PROJECT / "docs").glob("*.md"))
    assert sorted(re.findall(r"\]\((docs/[^)]*)\)", more)) == pages


def test_make_targets_that_it_names_exist() -> None:
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    targets = {line.split(":")[0] for line in makefile.splitlines() if line[:1].isalpha() and ":" in line}
    named = {word.split("`")[0].split()[0] for word in README.split("`make ")[1:]}
    assert named <= targets


@pytest.mark.parametrize("page", ["docs/read-a-failed-check.md", "docs/release.md"])
def test_pages_of_the_gate_say_what_serve_leaves_out(page: str) -> None:
    text = " ".join((PROJECT / page).read_text(encoding="utf-8").split())
    assert re.search(r"`serve` runs a dense model without drafts.* MTP and DFLASH.*\]\(end-to-end-on-a-cpu\.md\)", text)
