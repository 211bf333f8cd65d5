"""The patches of every line, on the real tree: edited by nobody they come back byte for byte, and nothing has moved."""

import shutil
from pathlib import Path

import pytest

from pipeline.compose import OVERLAYS, PATCHES
from pipeline.files import BUILD
from pipeline.manifest import lines, load_line
from pipeline.patches import read_series
from pipeline.worktree import Worktree

SERIES = {line: [patch.name for patch in read_series(PATCHES / line)] for line in lines()}
EDITED = [(line, names[at]) for line, names in SERIES.items() if names for at in (0, len(names) // 2, -1)]
"""Export writes every patch from the edited one on, so the first of a line speaks for all of its diffs."""


def copied(line: str, folder: Path) -> Worktree:
    """A work tree on a copy of the series, with the project's cache of pins."""
    (BUILD / "cache").mkdir(parents=True, exist_ok=True)
    (folder / "build").mkdir()
    (folder / "build" / "cache").symlink_to(BUILD / "cache")
    series = shutil.copytree(PATCHES / line, folder / "patches")
    return Worktree(load_line(line), folder / "build", OVERLAYS, series)


@pytest.mark.parametrize(("line", "name"), EDITED, ids=[f"{line}-{name}" for line, name in EDITED])
def test_patch_exported_without_an_edit_has_the_same_bytes(line: str, name: str, tmp_path: Path) -> None:
    work = copied(line, tmp_path)
    work.edit(name)
    assert work.export() == []
    for path in work.series.iterdir():
        assert path.read_bytes() == (PATCHES / line / path.name).read_bytes()
    assert {path.name for path in work.series.iterdir()} == {path.name for path in (PATCHES / line).iterdir()}


@pytest.mark.parametrize("line", sorted(SERIES))
def test_no_hunk_has_moved(line: str, tmp_path: Path) -> None:
    assert copied(line, tmp_path).refresh() == ""
