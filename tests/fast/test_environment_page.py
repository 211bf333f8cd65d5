"""docs/environment.md against the patches that add variables, the image's defaults and the profiles."""

import re

import pytest

from pipeline.files import PROJECT
from pipeline.manifest import lines, load_line

PAGE = (PROJECT / "docs/environment.md").read_text(encoding="utf-8")
ROWS = {
    cells[0].strip("`"): cells
    for line in PAGE.splitlines()
    if line.startswith("| `")
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}
"""Variable to the cells of its row."""
ADDED = {
    name: (patch.name, default)
    for patch in sorted((PROJECT / "patches").glob("*/*.patch"))
    for name, default in re.findall(
        r"^\+ +(SGLANG_\w+) = Env\w+\((.*)\)$", patch.read_text(encoding="utf-8"), re.MULTILINE
    )
}


def test_patches_add_variables() -> None:
    assert len(ADDED) >= 5


@pytest.mark.parametrize("name", sorted(ADDED))
def test_each_variable_of_a_patch_has_a_row_that_names_it(name: str) -> None:
    patch, default = ADDED[name]
    assert ROWS[name][4] == f"`{patch}`"
    assert ROWS[name][1].split(":")[0] == {"False": "off", '""': "empty", '"all"': "all"}[default]


@pytest.mark.parametrize("line", lines())
def test_the_images_defaults_and_the_profiles_values_are_those_of_the_page(line: str) -> None:
    loaded = load_line(line)
    defaults = loaded.release.variables
    told_defaults = {name: cells[2] for name, cells in ROWS.items() if cells[2] != "not set"}
    own = {name: f"`{value}`" for name, value in defaults.items()}
    if not loaded.is_main:  # the page is the main line's; another sets no variable to anything else
        assert own.items() <= told_defaults.items()
        assert {name for row in loaded.profiles.profiles.values() for name in row.environment} <= ROWS.keys()
        return
    assert told_defaults == own
    for name, profile in loaded.profiles.profiles.items():
        for variable, value in profile.environment.items():
            told = ROWS[variable][5]
            assert f"`{name}`: " in told
            assert told.endswith(f": `{value}`" if value != defaults.get(variable) else "the same")


def test_each_row_is_a_variable_that_something_sets_or_adds() -> None:
    variables = set(ADDED).union(*(load_line(line).release.variables for line in lines()))
    assert set(ROWS) == variables
