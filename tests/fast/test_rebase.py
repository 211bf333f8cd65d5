"""A series on a newer release: cumulative, with cascades, files that come, go and move, overlays, and a whole line."""

import hashlib
import json
import zipfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pipeline import cli, files, onto, oracles, rebase, rebase_text
from pipeline.errors import ComposeError, PinError, RebaseError
from pipeline.onto import Onto
from pipeline.pins import SourceTree
from pipeline.rebase_report import (
    HunkStatus,
    HunkVerdict,
    OracleStatus,
    OracleVerdict,
    OverlayStatus,
    PatchVerdict,
    RebaseReport,
)
from tests.fast.builders import diff, make_line, says, write_files, write_series

EXACT, MOVED, UPSTREAM, FUZZ, PARTLY, CONFLICT = HunkStatus
PATH = "sglang/a.py"
LINES = [f"value_{number} = compute({number})\n" for number in range(1, 21)]
FILE = "".join(LINES)


def edited(text: str, **changes: str) -> str:
    """The text with whole lines replaced: ``value_3="…"`` writes that for the line of value_3."""
    for name, new in changes.items():
        line = LINES[int(name.removeprefix("value_")) - 1]
        assert line in text
        text = text.replace(line, new)
    return text


def release(tree: Mapping[str, str | bytes]) -> Onto:
    """A release that holds these files."""
    return Onto("sglang==9", SourceTree({p: d if isinstance(d, bytes) else d.encode() for p, d in tree.items()}))


def judged(
    folder: Path, steps: list[dict[str, str]], tree: Mapping[str, str | bytes], context: int = 1
) -> list[PatchVerdict]:
    """The verdicts on a series that leads from each of these trees to the next one."""
    for number, (old, new) in enumerate(pairwise(steps), 1):
        changed = [path for path in new if new[path] != old[path]]
        write_files(folder, {f"{number}.patch": "".join(diff(path, old[path], new[path], context) for path in changed)})
    return list(rebase.of_folder(folder, release(tree)).patches)


def statuses(patches: list[PatchVerdict]) -> list[list[str]]:
    return [[str(hunk.status) for hunk in patch.hunks] for patch in patches]


def hunk(patches: list[PatchVerdict]) -> HunkVerdict:
    """The only hunk."""
    ((found,),) = [patch.hunks for patch in patches]
    return found


# A running tree


def test_a_patch_on_lines_of_an_earlier_one_is_exact(tmp_path: Path) -> None:
    first = edited(FILE, value_3="first = 1\nsecond = 2\n")
    second = first.replace("second = 2\n", "second = 22\n")
    assert statuses(judged(tmp_path, [{PATH: FILE}, {PATH: first}, {PATH: second}], {PATH: FILE})) == [
        ["exact"],
        ["exact"],
    ]


def test_a_patch_on_lines_that_upstream_has_is_exact(tmp_path: Path) -> None:
    first = edited(FILE, value_3="first = 1\nsecond = 2\n")
    second = first.replace("second = 2\n", "second = 22\n")
    found = judged(tmp_path, [{PATH: FILE}, {PATH: first}, {PATH: second}], {PATH: first})
    assert statuses(found) == [["upstream"], ["exact"]]


def test_a_patch_that_undoes_what_an_earlier_one_brought_is_not_upstream(tmp_path: Path) -> None:
    """Its result is in the running tree for the series alone."""
    first = edited(FILE, value_3=LINES[2] + "helper = prepare()\n")
    second = edited(first, value_12=LINES[11] + "helper = prepare()\n")
    steps = [{PATH: FILE}, {PATH: first}, {PATH: second}]
    assert statuses(judged(tmp_path, steps, {PATH: FILE})) == [["exact"], ["exact"]]
    changed = edited(FILE, value_12="value_twelve = 12\n", value_13="value_thirteen = 13\n")
    assert statuses(judged(tmp_path, steps, {PATH: changed})) == [["exact"], ["conflict"]]


def test_hunks_of_a_patch_find_each_other_below_new_lines(tmp_path: Path) -> None:
    new = edited(FILE, value_3="three = 3\n", value_15="fifteen = 15\n")
    (patch,) = judged(tmp_path, [{PATH: FILE}, {PATH: new}], {PATH: "# new\n# new\n" + FILE})
    assert [(entry.status, entry.line, entry.offset) for entry in patch.hunks] == [(MOVED, 4, 2), (MOVED, 16, 2)]


def test_a_patch_with_some_hunks_upstream_is_partly_so(tmp_path: Path) -> None:
    new = edited(FILE, value_3="three = 3\n", value_15="fifteen = 15\n")
    (patch,) = judged(tmp_path, [{PATH: FILE}, {PATH: new}], {PATH: edited(FILE, value_3="three = 3\n")})
    assert [entry.status for entry in patch.hunks] == [UPSTREAM, EXACT]
    assert patch.status is PARTLY


def test_one_result_upstream_speaks_for_one_hunk_alone(tmp_path: Path) -> None:
    block = "start = open()\nvalue = 1\nend = close()\n"
    old = block + FILE + block
    (patch,) = judged(
        tmp_path,
        [{PATH: old}, {PATH: old.replace("value = 1\n", "value = 2\n")}],
        {PATH: block.replace("value = 1", "value = 2") + FILE + block.replace("value = 1", "value = other()")},
    )
    assert [entry.status for entry in patch.hunks] == [UPSTREAM, CONFLICT]


def test_where_one_hunk_went_the_next_is_looked_for(tmp_path: Path) -> None:
    block = "start = open()\nvalue = 1\nend = close()\n"
    old = FILE + block
    new = edited(old, value_9="nine = 9\n").replace("value = 1\n", "value = 2\n")
    (patch,) = judged(tmp_path, [{PATH: old}, {PATH: new}], {PATH: block * 7 + FILE + block}, context=1)
    assert [(entry.status, entry.offset) for entry in patch.hunks] == [(MOVED, 21), (MOVED, 21)]


# Cascades


def test_a_patch_on_lines_of_a_missed_one_may_be_cascading(tmp_path: Path) -> None:
    first = edited(FILE, value_3="first = 1\nsecond = 2\n")
    second = first.replace("second = 2\n", "second = 22\n")
    tree = {PATH: edited(FILE, value_3="value_3 = another(3)\n")}
    one, two = judged(tmp_path, [{PATH: FILE}, {PATH: first}, {PATH: second}], tree)
    assert (one.status, two.status) == (CONFLICT, CONFLICT)
    assert not one.hunks[0].cascading
    assert two.hunks[0].cascading
    assert two.hunks[0].note == "may follow from 1.patch hunk 1"


def test_a_patch_that_waits_for_a_removal_may_be_cascading(tmp_path: Path) -> None:
    first = edited(FILE, value_3="", value_4="")
    second = edited(first, value_5="five = 5\n")
    tree = {PATH: edited(FILE, value_2="value_2 = another(2)\n", value_3="value_3 = another(3)\n")}
    one, two = judged(tmp_path, [{PATH: FILE}, {PATH: first}, {PATH: second}], tree, context=2)
    assert (one.status, two.hunks[0].cascading) == (CONFLICT, True)


def test_a_miss_of_its_own_is_not_cascading(tmp_path: Path) -> None:
    first, second = edited(FILE, value_3="three = 3\n"), edited(FILE, value_3="three = 3\n", value_15="fifteen = 15\n")
    tree = {PATH: edited(FILE, value_3="value_3 = another(3)\n", value_15="value_15 = another(15)\n")}
    one, two = judged(tmp_path, [{PATH: FILE}, {PATH: first}, {PATH: second}], tree)
    assert (one.status, two.status) == (CONFLICT, CONFLICT)
    assert not two.hunks[0].cascading


def test_a_hunk_that_the_pristine_release_takes_says_so(tmp_path: Path) -> None:
    """The first patch made its lines twice; the second wants the only ones."""
    first = edited(
        FILE, value_10="value_2 = compute(2)\nvalue_3 = compute(3)\nvalue_4 = compute(4)\n", value_18="x = 1\n"
    )
    second = FILE.replace("value_3 = compute(3)", "value_3 = compute(33)")
    write_files(tmp_path, {"1.patch": diff(PATH, FILE, first, 1)})
    text = diff(PATH, FILE, second, 1).replace("@@ -2,3 +2,3 @@", "@@ -6,3 +6,3 @@")
    write_files(tmp_path, {"2.patch": text})
    tree = {PATH: edited(FILE, value_18="value_18 = another(18)\n")}
    one, two = rebase.of_folder(tmp_path, release(tree)).patches
    assert [entry.status for entry in one.hunks] == [EXACT, CONFLICT]
    assert (two.hunks[0].status, two.hunks[0].places, two.hunks[0].pristine) == (CONFLICT, (2, 10), MOVED)
    assert two.hunks[0].cascading


def test_what_a_person_has_to_do_is_a_conflict_and_the_rest_is_judged(tmp_path: Path) -> None:
    mode = f"diff --git a/{PATH} b/{PATH}\nold mode 100644\nnew mode 100755\n"
    write_files(tmp_path, {"p.patch": mode + diff(PATH, FILE, edited(FILE, value_3="value_3 = three(3)\n"))})
    (patch,) = rebase.of_folder(tmp_path, release({PATH: FILE})).patches
    assert [entry.status for entry in patch.hunks] == [CONFLICT, EXACT]
    assert (patch.hunks[0].header, patch.hunks[0].note) == ("the file itself", "changes the file's mode")


def test_after_a_miss_every_hunk_of_the_file_is_judged_on_both_trees(tmp_path: Path) -> None:
    """Whatever it is on the running tree; the one before the miss, and other files, are not."""
    one = edited(FILE, value_2="two = 2\n", value_6="six = 6\n", value_10="ten = 10\n")
    two = edited(one, value_14="fourteen = 14\n", value_18="eighteen = 18\n")
    last = two.replace("ten = 10\n", "ten = 1010\n")
    other = "sglang/b.py"
    steps = [{PATH: FILE, other: FILE}, {PATH: one, other: FILE}, {PATH: two, other: one}, {PATH: last, other: one}]
    tree = "# new\n" + edited(FILE, value_6="value_6 = another(6)\n", value_18="eighteen = 18\n")
    found = judged(tmp_path, steps, {PATH: tree, other: FILE})
    seen = [[(hunk.status, hunk.pristine) for hunk in patch.hunks if hunk.file == PATH] for patch in found]
    assert seen == [
        [(MOVED, None), (CONFLICT, None), (MOVED, MOVED)],
        [(MOVED, MOVED), (UPSTREAM, UPSTREAM)],
        [(MOVED, CONFLICT)],
    ]
    assert {hunk.pristine for patch in found for hunk in patch.hunks if hunk.file == other} == {None}
    report = rebase.of_folder(tmp_path, release({PATH: tree, other: FILE}))
    shown = "\n".join(rebase_text.details(report))
    assert "    moved, line 14 (+1); the same on the release without the patches before it: @@" in shown
    assert "    moved, line 10 (+1); conflict on the release without the patches before it: @@" in shown


def test_nearest_lines_that_say_nothing_are_shown_with_those_around_them(line: Any, tmp_path: Path) -> None:
    """The lines of the patch are gone, and a blank line is left where they stood."""
    gone = "\n".join(f"other_{number}" for number in range(4)) + "\n"
    old = gone + "\n" + "".join(LINES)
    write_files(tmp_path / "old", {PATH: old})
    text = diff(PATH, old, old.replace("value_1 = compute(1)\n", "one = 1\n"), 1)
    write_series(tmp_path / "series", {"1.patch": text})
    (tmp_path / "series" / "2.patch").unlink()
    found = hunk(list(report(line, tmp_path, {PATH: gone + "\n", "sglang/__init__.py": ""}).patches))
    assert found.status is CONFLICT
    assert found.nearest is not None
    assert found.nearest.line == 2
    assert "+other_1\n+other_2\n+other_3\n" in found.nearest.diff


def test_hunks_that_would_overlap_are_a_conflict(tmp_path: Path) -> None:
    old = "start\nsame\nend\n" + FILE + "start\nsame\nend\n"
    text = diff(PATH, old, old.replace("same\n", "other\n"), 1)
    write_files(tmp_path, {"p.patch": text})
    (patch,) = rebase.of_folder(tmp_path, release({PATH: "start\nsame\nend\n" + FILE})).patches
    assert [entry.status for entry in patch.hunks] == [EXACT, CONFLICT]
    assert patch.hunks[1].note == "would overlap the hunk at line 1"


# Files that come, go and move

NEW = "--- /dev/null\n+++ b/sglang/new.py\n@@ -0,0 +1,2 @@\n+import a\n+x = a.value_1\n"
GONE = "--- a/sglang/gone.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one = 1\n-two = 2\n"


@pytest.mark.parametrize(
    ("text", "tree", "status", "note"),
    [
        (NEW, {}, EXACT, ""),
        (NEW, {"sglang/new.py": "import a\nx = a.value_1\n"}, UPSTREAM, "the same file is there"),
        (
            NEW,
            {"sglang/new.py": "import a\nx = a.value_2\n"},
            CONFLICT,
            "a file of that name is there, with other content",
        ),
        (GONE, {"sglang/gone.py": "one = 1\ntwo = 2\n"}, EXACT, ""),
        (GONE, {}, UPSTREAM, "the file is gone"),
        (GONE, {"sglang/gone.py": "one = 1\ntwo = 3\n"}, CONFLICT, "the file is not the one that is to go"),
    ],
)
def test_whole_files(tmp_path: Path, text: str, tree: dict[str, str], status: HunkStatus, note: str) -> None:
    write_files(tmp_path, {"p.patch": text})
    found = hunk(list(rebase.of_folder(tmp_path, release({PATH: FILE, **tree})).patches))
    assert (found.status, found.note) == (status, note)
    assert (found.nearest is not None) == (status is CONFLICT)


def test_a_file_that_a_patch_brought_or_removed_is_so_for_the_next(tmp_path: Path) -> None:
    change = diff("sglang/new.py", "import a\nx = a.value_1\n", "import a\nx = a.value_3\n")
    gone = diff("sglang/gone.py", "one = 1\ntwo = 2\n", "one = 1\ntwo = 3\n")
    write_files(tmp_path, {"1.patch": NEW, "2.patch": change, "3.patch": GONE, "4.patch": gone})
    found = rebase.of_folder(tmp_path, release({"sglang/gone.py": "one = 1\ntwo = 2\n"})).patches
    assert [patch.status for patch in found] == [EXACT, EXACT, EXACT, CONFLICT]
    assert found[3].hunks[0].note == "3.patch removed the file"


def test_a_file_that_is_made_anew_is_there_again(tmp_path: Path) -> None:
    again = "--- /dev/null\n+++ b/sglang/gone.py\n@@ -0,0 +1 @@\n+one = 11\n"
    change = diff("sglang/gone.py", "one = 11\n", "one = 12\n")
    write_files(tmp_path, {"1.patch": GONE, "2.patch": again, "3.patch": change})
    found = rebase.of_folder(tmp_path, release({"sglang/gone.py": "one = 1\ntwo = 2\n"})).patches
    assert [patch.status for patch in found] == [EXACT, EXACT, EXACT]


def test_a_file_that_moved_is_a_conflict_that_says_where_it_is(tmp_path: Path) -> None:
    new = edited(FILE, value_8="eight = 8\n")
    steps, tree = [{PATH: FILE}, {PATH: new}], {"sglang/other/a.py": "# moved\n" + FILE}
    found = hunk(judged(tmp_path, steps, tree, context=4))
    assert (found.status, found.line) == (CONFLICT, None)
    assert found.note == "the file is gone; it is sglang/other/a.py now: there it would be moved at line 5"
    # Of a foreign patch, fewer lines tell nothing, though all of them are there.
    found = hunk(judged(tmp_path, steps, tree, context=2))
    assert found.note == "the file is gone; nearest file: sglang/other/a.py, with 5 of 5 of the patch's lines"


def test_of_a_line_the_whole_file_tells_where_it_is(line: Any, tmp_path: Path) -> None:
    found = report(line, tmp_path, {"sglang/other/a.py": FILE, "sglang/__init__.py": ""})
    assert found.patches[0].hunks[0].note.startswith("the file is gone; it is sglang/other/a.py now: ")


def test_a_file_that_is_gone_names_the_nearest(tmp_path: Path) -> None:
    new = edited(FILE, value_3="three = 3\n")
    steps = [{PATH: FILE}, {PATH: new}]
    found = hunk(judged(tmp_path, steps, {"sglang/renamed.py": FILE, "sglang/x.py": "x = 1\n"}))
    note = "the file is gone; nearest file: sglang/renamed.py, with 3 of 3 of the patch's lines"
    assert (found.status, found.note) == (CONFLICT, note)
    found = hunk(judged(tmp_path, steps, {"sglang/x.py": "x = 1\n"}))
    assert (found.status, found.note) == (CONFLICT, "the file is gone")


@pytest.mark.parametrize("text", [NEW, GONE, diff(PATH, FILE, edited(FILE, value_3="x = 1\n"), 1)])
def test_what_is_outside_the_package_is_not_judged(tmp_path: Path, text: str) -> None:
    """Not even a new file is exact: nobody knows whether the repository has one of that name."""
    write_files(tmp_path, {"p.patch": text.replace("sglang/", "test/srt/")})
    found = hunk(list(rebase.of_folder(tmp_path, release({PATH: FILE})).patches))
    assert (found.status, found.note) == (CONFLICT, "outside the package, not judged")


def test_a_function_that_left_its_file_is_found(tmp_path: Path) -> None:
    old = f"def one():\n    return 1\n\n\ndef two():\n{''.join('    ' + line for line in LINES)}"
    text = diff(PATH, old, edited(old, value_9="nine = 9\n"), 1).replace(" @@\n", " @@ def two():\n")
    write_files(tmp_path, {"p.patch": text})
    tree = {PATH: "def one():\n    return 1\n", "sglang/b.py": "def two():\n    return 2\n"}
    found = hunk(list(rebase.of_folder(tmp_path, release(tree)).patches))
    note = "nothing like it is in the file; 'def two' is not in the file any more: sglang/b.py has it"
    assert (found.status, found.note) == (CONFLICT, note)


def test_bytes_count(tmp_path: Path) -> None:
    text = diff(PATH, FILE, edited(FILE, value_3="three = 3\n"), 1)
    write_files(tmp_path, {"p.patch": text})
    found = hunk(list(rebase.of_folder(tmp_path, release({PATH: FILE.replace("\n", "\r\n").encode()})).patches))
    assert (found.status, found.note) == (CONFLICT, "differs from line 2 on in line ends only")
    body = "@@ -20 +20 @@\n-value_20 = compute(20)\n\\ No newline at end of file\n+x\n"
    end = f"--- a/{PATH}\n+++ b/{PATH}\n{body}"
    write_files(tmp_path, {"p.patch": end})
    assert hunk(list(rebase.of_folder(tmp_path, release({PATH: FILE[:-1]})).patches)).status is EXACT
    assert hunk(list(rebase.of_folder(tmp_path, release({PATH: FILE})).patches)).status is CONFLICT


# A line

HELPER = "sglang/helper.py"
PATCHED = edited(FILE, value_3="from sglang.helper import third\nvalue_3 = third()\n")


@pytest.fixture
def line(tmp_path: Path) -> Any:
    """A line of two sources, an overlay and two patches, with its folders."""
    write_files(tmp_path / "old", {PATH: FILE, "sglang/__init__.py": "", "sglang/b.py": "old = 1\n"})
    write_files(tmp_path / "second", {PATH: FILE, "sglang/b.py": "b = 1\n"})
    write_files(tmp_path / "overlays" / "ours", {HELPER: "from sglang.a import value_1\n\n\ndef third(): ...\n"})
    second = PATCHED.replace("value_9 = compute(9)", "value_9 = compute(99)")
    write_series(
        tmp_path / "series", {"1.patch": diff(PATH, FILE, PATCHED, 1), "2.patch": diff(PATH, PATCHED, second, 1)}
    )
    pins = {name: {"kind": "dir", "path": str(tmp_path / name)} for name in ("old", "second")}
    layers = [{"source": "old"}, {"source": "second", "files": ["sglang/b.py"]}, {"overlay": "ours"}]
    return make_line(tmp_path, pins=pins, layers=[*layers, {"patches": "series"}])


def report(line: Any, folder: Path, tree: Mapping[str, str | bytes]) -> RebaseReport:
    overlays, series = folder / "overlays", folder / "series"
    old = rebase.made(line, folder / "build", overlays, series)
    return rebase.of_line(line, release(tree), old, overlays=overlays, series=series)


def test_what_a_line_is_made_for(line: Any, tmp_path: Path) -> None:
    old = rebase.made(line, tmp_path / "build", tmp_path / "overlays", tmp_path / "series")
    assert old.upstream == {PATH: FILE.encode(), "sglang/__init__.py": b"", "sglang/b.py": b"b = 1\n"}
    assert old.before == {"1.patch": {PATH: FILE.encode()}, "2.patch": {PATH: PATCHED.encode()}}


def test_a_line_on_the_release_that_it_has_is_exact(line: Any, tmp_path: Path) -> None:
    found = report(line, tmp_path, {PATH: FILE, "sglang/__init__.py": "", "sglang/b.py": "b = 1\n"})
    assert found.exact
    assert [patch.status for patch in found.patches] == [EXACT, EXACT]
    assert [(overlay.name, overlay.status) for overlay in found.overlays] == [("ours", OverlayStatus.FITS)]
    rebase.require_exact(found)


def test_what_is_not_exact_is_counted_in_words(line: Any, tmp_path: Path) -> None:
    found = report(line, tmp_path, {"sglang/__init__.py": ""})
    with pytest.raises(RebaseError, check=says("found 2 patches that are not, 1 overlay that is not; see")):
        rebase.require_exact(found.model_copy(update={"imports": ()}))


def test_overlays_that_exist_or_miss_an_import(line: Any, tmp_path: Path) -> None:
    tree = {PATH: FILE, "sglang/__init__.py": "", HELPER: "def third(): ...\n"}
    (overlay,) = report(line, tmp_path, tree).overlays
    assert (overlay.status, overlay.problems) == (OverlayStatus.EXISTS, (f"{HELPER}: another file is upstream",))
    tree = {PATH: edited(FILE, value_1="first_value = 1\n"), "sglang/__init__.py": ""}
    found = report(line, tmp_path, tree)
    assert found.overlays[0].status is OverlayStatus.IMPORTS
    assert "imports value_1 from sglang.a" in found.overlays[0].problems[0]
    with pytest.raises(RebaseError, check=says("1 overlay that is not")):
        rebase.require_exact(found)


def test_imports_that_patched_files_miss_are_named(line: Any, tmp_path: Path) -> None:
    found = report(line, tmp_path, {PATH: FILE, "sglang/__init__.py": "", HELPER: "other = 1\n"})
    assert len(found.imports) == 1
    assert "imports third from sglang.helper" in found.imports[0]
    broken = report(line, tmp_path, {PATH: "def broken(:\n" + FILE, "sglang/__init__.py": ""})
    assert [patch.status for patch in broken.patches] == [MOVED, MOVED]
    assert any("expected Python" in problem for problem in broken.imports)


def test_text_that_is_upstream_is_droppable_by_its_oracle_alone(line: Any, tmp_path: Path) -> None:
    """The release has the lines of both patches, and an oracle that fails without them: gated off, still needed."""
    tree = {PATH: PATCHED.replace("compute(9)", "compute(99)"), "sglang/__init__.py": ""}
    needed = OracleVerdict(status=OracleStatus.NEEDED, detail="test_x fails")
    found = rebase.with_answers(report(line, tmp_path, tree), {"1.patch": needed})
    assert [patch.status for patch in found.patches] == [UPSTREAM, UPSTREAM]
    assert [patch.oracle for patch in found.patches] == [needed, None]
    shown = "\n".join(rebase_text.details(found))
    assert "1.patch: upstream; without it: still needed (test_x fails)" in shown
    assert str(OracleStatus.DROPPABLE) not in shown
    assert not found.exact


def test_a_series_that_does_not_fit_its_own_base_is_refused(line: Any, tmp_path: Path) -> None:
    write_files(tmp_path / "old", {PATH: "# new\n" + FILE})
    with pytest.raises(ComposeError, check=says(r"1\.patch: sglang/a\.py: hunk 1")):
        report(line, tmp_path, {PATH: FILE})


# The release


def test_a_release_is_a_folder_with_the_package(tmp_path: Path) -> None:
    write_files(tmp_path / "wheel", {PATH: "x = 1\n", "sglang-9.dist-info/METADATA": "x"})
    write_files(tmp_path / "checkout", {"python/sglang/a.py": "x = 1\n", "docs/page.md": "x"})
    for name in ("wheel", "checkout"):
        assert onto.read(str(tmp_path / name), "cp311", tmp_path / "cache").tree.files == {PATH: b"x = 1\n"}
    with pytest.raises(PinError, check=says("expected sglang==VERSION, or a folder with sglang/ or python/sglang/")):
        onto.read(str(tmp_path), "cp311", tmp_path / "cache")


def test_a_wheel_in_the_cache_is_taken_when_it_is_what_its_folder_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "sglang-9.0-cp311-cp311-manylinux_2_34_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(PATH, "x = 1\n")
        archive.writestr("sglang-9.0.dist-info/METADATA", "x")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    fetched: list[list[str]] = []

    def run_pip(arguments: Any, *_: str) -> None:
        fetched.append(list(arguments))
        target = Path(arguments[arguments.index("--dest") + 1])
        (target / wheel.name).write_bytes(wheel.read_bytes())

    monkeypatch.setattr("pipeline.pins.run_pip", run_pip)
    for _ in range(2):
        found = onto.read("sglang==9.0", "cp311", tmp_path / "cache")
        assert (found.sha256, found.tree.files) == (digest, {PATH: b"x = 1\n"})
    assert len(fetched) == 1
    assert "sglang==9.0" in fetched[0]
    kept = tmp_path / "cache" / "sha256" / digest / wheel.name
    kept.write_bytes(b"damaged")
    onto.read("sglang==9.0", "cp311", tmp_path / "cache")
    assert len(fetched) == 2


# The command


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cli, "BUILD", tmp_path / "build")
    monkeypatch.setattr(cli, "build_lock", lambda: files.build_lock(tmp_path / "build"))
    return tmp_path


def test_command_on_a_folder(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_files(build / "new", {PATH: FILE})
    write_files(build / "series", {"p.patch": diff(PATH, FILE, edited(FILE, value_3="three = 3\n"), 1)})
    arguments = ["rebase", "--onto", str(build / "new"), "--series", str(build / "series")]
    assert cli.run(arguments) == 0
    assert "p.patch" in capsys.readouterr().out
    write_files(build / "new", {PATH: "# new\n" + FILE})
    assert cli.run([*arguments, "--json", "--html", str(build / "page.html")]) == 15
    output = capsys.readouterr()
    document = json.loads(output.out)
    assert not document["exact"]
    assert document["patches"][0]["hunks"][0]["offset"] == 1
    assert "expected all exact, found 1 patch that is not; see docs/rebase.md" in output.err
    assert "p.patch" in (build / "page.html").read_text()


def test_a_page_that_cannot_be_written_loses_no_report(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_files(build, {f"new/{PATH}": FILE, "series/p.patch": diff(PATH, FILE, FILE + "x = 1\n", 1), "file": ""})
    arguments = ["rebase", "--onto", str(build / "new"), "--series", str(build / "series")]
    assert cli.run([*arguments, "--html", str(build / "file" / "page.html")]) == 3
    assert "All is exact." in capsys.readouterr().out


@pytest.fixture
def on_line(line: Any, build: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command for the line on a release that has its files."""
    old = rebase.made(line, build / "build", build / "overlays", build / "series")
    tree = {PATH: FILE, "sglang/__init__.py": "", "sglang/b.py": "b = 1\n"}
    judged = report(line, build, tree)
    monkeypatch.setattr(cli, "load_line", lambda _name: line)
    monkeypatch.setattr(rebase, "made", lambda *_: old)
    monkeypatch.setattr(rebase, "of_line", lambda *_, **__: judged)
    write_files(build / "new", tree)
    return ["rebase", "--onto", str(build / "new"), "--json"]


@pytest.mark.parametrize(("told", "asked"), [([], True), (["--oracles"], True), (["--no-oracles"], False)])
def test_command_asks_the_oracles_unless_told_not_to(
    on_line: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    told: list[str],
    asked: bool,
) -> None:
    verdict = OracleVerdict(status=OracleStatus.NEEDED, detail="why")
    monkeypatch.setattr(oracles, "judge", lambda *_: {"1.patch": verdict})
    assert cli.run([*on_line, *told]) == 0
    told_of = [patch["oracle"] for patch in json.loads(capsys.readouterr().out)["patches"]]
    assert told_of == [verdict.model_dump(mode="json") if asked else None, None]


def test_who_stops_the_oracles_gets_the_report_of_the_text(
    on_line: list[str], build: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(oracles, "judge", stopped)
    page = build / "page.html"
    assert cli.run([*on_line, "--html", str(page)]) == 130
    output = capsys.readouterr()
    patches = json.loads(output.out)["patches"]
    assert [patch["status"] for patch in patches] == ["exact", "exact"]
    assert [patch["oracle"] for patch in patches] == [{"status": "not run", "detail": "interrupted"}] * 2
    assert "the patches' tests were not run: interrupted" in output.err
    assert "error: interrupted; " in output.err
    assert "not run" in page.read_text()
    assert cli.run(on_line[:-1]) == 130
    assert "All is exact." in capsys.readouterr().out


def test_command_prints_brackets_of_headings_as_they_are(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = diff(PATH, FILE, edited(FILE, value_3="three = 3\n"), 1).replace(" @@\n", " @@ def f(x: list[int]):\n")
    write_files(build, {f"new/{PATH}": "def f(x: list[int]):\n" + FILE, "series/[bold].patch": text})
    assert cli.run(["rebase", "--onto", str(build / "new"), "--series", str(build / "series")]) == 15
    shown = capsys.readouterr().out
    assert "[bold].patch" in shown
    assert "@@ -2,3 +2,3 @@ def f(x: list[int]):" in shown
