"""Somebody else's patches are read as quilt, git and diff leave them; what cannot be judged by hunks is refused."""

from pathlib import Path

import pytest

from pipeline import foreign_series
from pipeline.errors import ComposeError
from tests.fast.builders import diff, says, write_files

TREE = {"sglang/a.py", "sglang/b.py"}
A = diff("sglang/a.py", "one\ntwo\nthree\n", "one\n2\nthree\n")
MAIL = (
    "From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001\nFrom: A <a@b>\n"
    "Subject: [PATCH 2/7] A change that has a\n long subject\n\nWhy.\n---\n sglang/a.py | 2 +-\n\n"
)
MISCOUNTED = "--- a/sglang/a.py\n+++ b/sglang/a.py\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n\n\n-three\n+3\n"
"""The count leaves out what stands below the blank lines."""


def read(folder: Path, files: dict[str, str | bytes]) -> list[foreign_series.SeriesPatch]:
    return foreign_series.read(write_files(folder, files), TREE)


def test_series_names_the_order_with_comments_and_options(tmp_path: Path) -> None:
    plain = A.replace("a/sglang", "sglang").replace("b/sglang", "sglang")
    found = read(
        tmp_path,
        {
            "series": "# of quilt\n\nsub/z.patch -p1 # why\na.patch -p0\n",
            "sub/z.patch": A,
            "a.patch": plain,
            "stray.patch": "none",
        },
    )
    assert [patch.name for patch in found] == ["sub/z.patch", "a.patch"]
    assert [patch.files[0].path for patch in found] == ["sglang/a.py", "sglang/a.py"]


def test_without_a_series_patches_come_by_name(tmp_path: Path) -> None:
    found = read(tmp_path, {"2.diff": A, "10.patch": A, "README": "no patch"})
    assert [patch.name for patch in found] == ["10.patch", "2.diff"]


@pytest.mark.parametrize("name", ["fix#12.patch", "don't.patch", 'open".patch', "back\\slash.patch"])
def test_names_in_a_series_are_words_and_nothing_is_quoted(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, {"series": f"# don't\n{name}\t# it's\r\n", name: A})
    assert [patch.name for patch in found] == [name]


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("a/sglang/a.py", "b/sglang/a.py", "sglang/a.py"),
        ("sglang/a.py", "sglang/a.py", "sglang/a.py"),
        ("a/python/sglang/a.py", "b/python/sglang/a.py", "sglang/a.py"),
        ("sglang-1/sglang/a.py\t2026-01-01 10:00:00", "sglang-2/sglang/a.py\t2026-01-02 10:00:00", "sglang/a.py"),
        ("a/docs/page.md", "b/docs/page.md", "docs/page.md"),
        ("a/sglang/a.py.orig", "b/sglang/a.py", "sglang/a.py"),
    ],
)
def test_paths_lead_into_the_tree(tmp_path: Path, old: str, new: str, path: str) -> None:
    text = A.replace("a/sglang/a.py", old).replace("b/sglang/a.py", new)
    assert read(tmp_path, {"p.patch": text})[0].files[0].path == path


def test_headers_of_mails_and_dep3_are_read(tmp_path: Path) -> None:
    dep3 = "Description: Another change\n Why.\nOrigin: upstream, 1234\n\n"
    mail, ours, bare = read(tmp_path, {"1.patch": MAIL + A + "-- \n2.39\n\n", "2.patch": dep3 + A, "3.patch": A})
    assert (mail.summary, mail.origin) == ("A change that has a long subject", "")
    assert (ours.summary, ours.origin) == ("Another change", "upstream, 1234")
    assert (bare.summary, bare.origin) == ("", "")
    assert mail.files == ours.files == bare.files


@pytest.mark.parametrize(
    ("subject", "summary"),
    [
        ("[PATCH] =?UTF-8?q?Caf=C3=A9:=20one=20t?=\n =?UTF-8?q?hat=20goes=20on?=", "Café: one that goes on"),
        ("[PATCH v2 1/3] Plain =?UTF-8?b?w4Q=?=", "Plain Ä"),
        ("Bare Ä", "Bare Ä"),
        ("=?UTF-9?q?a?=", "=?UTF-9?q?a?="),
        ("=?UTF-8?q?=FF?=", "=?UTF-8?q?=FF?="),
        ("=?UTF-8?b?a?=", "=?UTF-8?b?a?="),
    ],
)
def test_subjects_are_decoded_where_they_can_be(tmp_path: Path, subject: str, summary: str) -> None:
    assert read(tmp_path, {"1.patch": f"Subject: {subject}\n\n{A}"})[0].summary == summary


QUOTED = '"b/sglang/\\303\\244.py"'


@pytest.mark.parametrize(
    ("text", "path", "problem"),
    [
        ("diff --git a/sglang/b.py b/sglang/c.py\nrename from sglang/b.py\nrename to sglang/c.py\n", "b", "renames"),
        ("diff --git a/sglang/b.py b/sglang/c.py\ncopy from sglang/b.py\ncopy to sglang/c.py\n", "b", "copies"),
        ("diff --git a/sglang/b.py b/sglang/b.py\nold mode 100644\nnew mode 100755\n", "b", "file's mode"),
        ("diff --git sglang/b.py sglang/b.py\nold mode 100644\nnew mode 100755\n", "b", "file's mode"),
        ("diff --git a/sglang/b.py b/sglang/b.py\nGIT binary patch\nliteral 0\nHcmV?d00001\n", "b", "is binary"),
        ("diff --git a/sglang/n.py b/sglang/n.py\nnew file mode 100644\nGIT binary patch\nliteral 0\n", "n", "binary"),
        ("Binary files a/x.so and b/x.so differ\n", "Binary files a/x.so and b/x.so differ", "is binary"),
        (f"--- /dev/null\n+++ {QUOTED}\n@@ -0,0 +1 @@\n+x\n", QUOTED, "that git quotes"),
    ],
)
def test_what_no_hunk_says_is_left_to_a_person_and_the_rest_is_read(
    tmp_path: Path, text: str, path: str, problem: str
) -> None:
    (patch,) = read(tmp_path, {"p.patch": A + text + diff("sglang/b.py", "1\n", "2\n")})
    first, by_hand, last = patch.files
    assert (first.path, last.path, first.by_hand, last.by_hand) == ("sglang/a.py", "sglang/b.py", "", "")
    assert by_hand.path == (path if len(path) > 1 else f"sglang/{path}.py")
    assert problem in by_hand.by_hand
    assert by_hand.hunks == ()


def test_hunks_of_a_renamed_file_are_those_of_the_name_that_is_there(tmp_path: Path) -> None:
    text = "diff --git a/sglang/b.py b/sglang/c.py\nrename from sglang/b.py\nrename to sglang/c.py\n"
    hunks = "--- a/sglang/b.py\n+++ b/sglang/c.py\n@@ -1 +1 @@\n-1\n+2\n"
    (patch,) = read(tmp_path, {"p.patch": text + hunks})
    assert [(file.path, len(file.hunks)) for file in patch.files] == [("sglang/b.py", 0), ("sglang/b.py", 1)]


def test_files_that_come_and_go(tmp_path: Path) -> None:
    text = (
        "diff --git a/sglang/new.py b/sglang/new.py\nnew file mode 100644\nindex 000..111\n"
        "--- /dev/null\n+++ b/sglang/new.py\n@@ -0,0 +1 @@\n+x = 1\n"
        "diff --git a/sglang/b.py b/sglang/b.py\ndeleted file mode 100644\nindex 111..000\n"
        "--- a/sglang/b.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-y = 1\n"
        "diff --git a/sglang/empty.py b/sglang/empty.py\nnew file mode 100644\nindex 000..e69\n"
    )
    (patch,) = read(tmp_path, {"p.patch": text})
    assert [(file.path, file.kind, len(file.hunks)) for file in patch.files] == [
        ("sglang/new.py", "new", 1),
        ("sglang/b.py", "delete", 1),
        ("sglang/empty.py", "new", 0),
    ]
    assert patch.files[0].hunks[0].new == (b"x = 1\n",)


def test_context_lines_that_lost_their_space_are_blank_lines(tmp_path: Path) -> None:
    text = "--- a/sglang/a.py\n+++ b/sglang/a.py\n@@ -1,3 +1,3 @@\n one\n\n-two\n+2\n\nand more text\n"
    (hunk,) = read(tmp_path, {"p.patch": text})[0].files[0].hunks
    assert (hunk.old, hunk.new) == ((b"one\n", b"\n", b"two\n"), (b"one\n", b"\n", b"2\n"))


def test_carriage_returns_of_the_file_stay_those_of_the_patch_do_not_matter(tmp_path: Path) -> None:
    (hunk,) = read(tmp_path, {"p.patch": A.replace("\n", "\r\n").encode()})[0].files[0].hunks
    assert hunk.old == (b"one\r\n", b"two\r\n", b"three\r\n")


@pytest.mark.parametrize(
    ("files", "pattern"),
    [
        ({"README": "nothing"}, "expected a series file, or .patch or .diff files, found neither"),
        ({"series": "p.patch -p2\n", "p.patch": A}, "series:1: option -p2: expected -p0 or -p1"),
        ({"series": "p.patch\n"}, r"series:1: p\.patch: expected a file in that folder"),
        ({"series": "../p.patch\n"}, r"series:1: \.\./p\.patch: expected a file in that folder"),
        ({"series": b"# why\np\xff.patch\n"}, "series:2: expected UTF-8, found byte 0xff; correct it"),
        ({"p.patch": "text\n"}, "holds no diff"),
        ({"p.patch": "Index: x\n"}, "holds no hunk"),
        ({"p.patch": A.replace("@@ -1,3", "@@ -1,4")}, "cut short or miscounted"),
        ({"p.patch": A.replace("@@ -1,3 +1,3", "@@ -1,2 +1,2")}, "p.patch:7: lines after a hunk that belong"),
        (
            {"p.patch": "Why.\n\n" + MISCOUNTED},
            "p.patch:11: lines after a hunk that belong to none; its count is wrong",
        ),
        ({"p.patch": "--- a/x\n+++ b/x\ntext\n"}, "p.patch:3: a file without a hunk"),
        ({"p.patch": "--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n"}, "expected plain paths inside the tree"),
        ({"p.patch": "--- /etc/x\n+++ /etc/x\n@@ -1 +1 @@\n-a\n+b\n"}, "expected plain paths inside the tree"),
        ({"p.patch": "--- a/x\ntext\n@@ -1 +1 @@\n-a\n+b\n"}, "p.patch:3: a hunk of no file"),
    ],
)
def test_what_cannot_be_judged_is_refused(tmp_path: Path, files: dict[str, str | bytes], pattern: str) -> None:
    with pytest.raises(ComposeError, check=says(pattern)):
        read(tmp_path, files)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ComposeError, check=says("expected a folder of patches")):
        foreign_series.read(tmp_path / "none", TREE)
