"""The README repeats what other files decide; here it is held to them."""

import re

from pipeline.check_data import update_readme
from pipeline.files import PROJECT

README = (PROJECT / "README.md").read_text(encoding="utf-8")


def test_feature_table_is_the_one_of_the_data() -> None:
    assert update_readme(README) == README, "run ./build.py features --write"


def test_each_page_is_linked_once_at_the_end() -> None:
    more = README.split("\n## More\n")[1]
    pages = sorted(f"docs/{path.name}" for path in (PROJECT / "docs").glob("*.md"))
    assert sorted(re.findall(r"\]\((docs/[^)]*)\)", more)) == pages


def test_make_targets_that_it_names_exist() -> None:
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    targets = {line.split(":")[0] for line in makefile.splitlines() if line[:1].isalpha() and ":" in line}
    named = {word.split("`")[0].split()[0] for word in README.split("`make ")[1:]}
    assert named <= targets
