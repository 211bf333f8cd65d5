"""A change has one text: it applies, each hunk's old text stands once in the file, and no smaller context would do."""

from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline import patches
from pipeline.errors import ComposeError
from pipeline.patch_text import Change, blob_id, heading, occurrences
from pipeline.patches import split_lines
from tests.fast.builders import HEADER, git, says, write_files
from tests.fast.test_patches import edits

FILE = """import x


class A:
    def one(self):
        a = 1
        b = 2
        return a + b

    async def two(self):
        a = 1
        b = 2
        return a - b
"""


def change(old: str | bytes, new: str | bytes, path: str = "f.py") -> Change:
    before, after = ({path: text.encode() if isinstance(text, str) else text} for text in (old, new))
    return Change("p.patch", HEADER.encode(), before, after)


def body(old: str, new: str) -> str:
    return change(old, new).data.decode().removeprefix(HEADER)


def test_text_of_a_change_is_exactly_this() -> None:
    assert body(FILE, FILE.replace("a - b", "b - a")) == (
        "diff --git a/f.py b/f.py\n"
        f"index {blob_id(FILE.encode())}..{blob_id(FILE.replace('a - b', 'b - a').encode())} 100644\n"
        "--- a/f.py\n+++ b/f.py\n"
        "@@ -12,2 +12,2 @@ async def two(self):\n         b = 2\n-        return a - b\n+        return b - a\n"
    )


def test_context_grows_until_it_stands_once() -> None:
    second = FILE.rindex("a = 1")
    text = body(FILE, FILE[:second] + "a = 3" + FILE[second + 5 :])
    assert "\n@@ -10,3 +10,3 @@ def one(self):\n" in text
    assert "\n     async def two(self):\n-        a = 1\n+        a = 3\n         b = 2\n" in text
    alike = "x\n" * 6 + "y\n" + "x\n" * 6
    assert "\n@@ -1,7 +1,7 @@\n x\n x\n x\n-x\n+z\n x\n x\n y\n" in body(
        alike, alike.replace("x\n" * 6, "x\nx\nx\nz\nx\nx\n", 1)
    )


def test_hunks_whose_context_meets_are_one() -> None:
    lines = [f"{number}\n" for number in range(20)]
    old = "".join(lines)
    assert body(old, old.replace("\n5\n", "\nfive\n").replace("\n7\n", "\nseven\n")).count("\n@@ ") == 1
    assert body(old, old.replace("\n5\n", "\nfive\n").replace("\n9\n", "\nnine\n")).count("\n@@ ") == 2


def test_files_are_in_order_of_their_paths_and_unchanged_ones_stay_out() -> None:
    made = Change("p.patch", b"", dict.fromkeys("cab", b"x\n"), {"c": b"y\n", "a": b"y\n", "b": b"x\n"})
    assert [line for line in made.data.decode().splitlines() if line.startswith("--- ")] == ["--- a/a", "--- a/c"]


def test_change_of_nothing_is_refused_and_names_the_way_to_drop_it() -> None:
    with pytest.raises(ComposeError, check=says("^p.patch: changes nothing; .*build.py patch drop p.patch")):
        _ = change("x\n", "x\n").data


def test_binary_file_is_refused() -> None:
    with pytest.raises(ComposeError, check=says("^p.patch: f.py: is binary")):
        _ = change(b"x\n", b"\0\n").data


def test_hashes_and_headings_are_those_of_git(tmp_path: Path) -> None:
    new = FILE.replace("return a + b", "return 3").replace("return a - b", "return 4").replace("import x", "import y")
    write_files(tmp_path, {"f.py": FILE, ".git/info/attributes": "* diff=python\n"})
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "f.py")
    write_files(tmp_path, {"f.py": new})
    theirs = git(tmp_path, "diff", "--full-index", "--unified=1").splitlines()
    assert [line for line in body(FILE, new).splitlines() if line.startswith(("@@", "index "))] == [
        line for line in theirs if line.startswith(("@@", "index "))
    ]


def test_long_heading_is_cut_where_git_cuts_and_stays_utf_8() -> None:
    line = b"def f(" + "ä".encode() * 60 + b"):\n"
    assert heading([line, b"    a\n"], 1) == b"def f(" + "ä".encode() * 37


@settings(deadline=None)
@given(edits())
def test_any_edit_applies_and_is_minimal(edit: tuple[str, str]) -> None:
    old, new = edit
    assume(old != new)
    assume("\r\n" not in old + new)
    patch = patches.parse_patch("p.patch", change(old, new).data, "p.patch")
    assert patches.apply(patch, {"f.py": old.encode()}) == {"f.py": new.encode()}
    lines = split_lines(old.encode())
    for hunk in patch.files[0].hunks:
        assert len(occurrences(lines, list(hunk.old))) == 1 or not lines


@settings(deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=3, max_size=30), st.data())
def test_one_line_less_of_context_would_not_stand_once(letters: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(letters) - 1))
    lines = [f"{letter}\n".encode() for letter in letters]
    new = [*lines[:at], b"new\n", *lines[at + 1 :]]
    patch = patches.parse_patch("p.patch", change(b"".join(lines), b"".join(new)).data, "p.patch")
    (hunk,) = patch.files[0].hunks
    start = hunk.old_start - 1
    context = max(at - start, start + len(hunk.old) - at - 1)
    smaller = lines[max(0, at - context + 1) : at + context]
    assert context == 1 or len(occurrences(lines, smaller)) > 1
