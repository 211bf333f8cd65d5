"""Patches land exactly where they say or not at all; a series and its files belong together."""

import difflib
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline import patches
from pipeline.errors import ComposeError
from tests.fast.builders import HEADER, diff, git, says, write_files, write_series

OLD = "".join(f"line {number}\n" for number in range(1, 21))
NEW = OLD.replace("line 10\n", "line ten\n")


def apply(text: str | bytes, files: dict[str, bytes], header: str = HEADER) -> dict[str, bytes]:
    """Parse ``text`` as a patch with a header, and apply it."""
    data = header.encode() + (text.encode() if isinstance(text, str) else text)
    return patches.apply(patches.parse_patch("p.patch", data, "patches/p.patch"), files)


class TestApply:
    def test_exact_patch_gives_the_new_file_and_nothing_else(self) -> None:
        files = {"a/b.py": OLD.encode(), "other.py": b"x"}
        assert apply(diff("a/b.py", OLD, NEW), files) == {"a/b.py": NEW.encode()}

    def test_several_hunks_of_several_files(self) -> None:
        new = "first\n" + OLD.replace("line 10\n", "") + "last\n"
        text = diff("a.py", OLD, new) + diff("b.py", OLD, NEW)
        assert apply(text, {"a.py": OLD.encode(), "b.py": OLD.encode()}) == {"a.py": new.encode(), "b.py": NEW.encode()}

    @pytest.mark.parametrize(("extra", "line", "offset"), [("x\n", 8, "\\+1"), ("x\n" * 100, 107, "\\+100")])
    def test_moved_hunk_is_refused_with_the_line_where_it_would_fit(self, extra: str, line: int, offset: str) -> None:
        said = says(
            "^p.patch: a.py: hunk 1: expected its context at line 7", f"found it at line {line} \\(offset {offset}\\)"
        )
        with pytest.raises(ComposeError, check=said):
            apply(diff("a.py", OLD, NEW), {"a.py": (extra + OLD).encode()})

    def test_hunk_that_fits_further_up_is_refused(self) -> None:
        with pytest.raises(ComposeError, check=says("found it at line 6 \\(offset -1\\)")):
            apply(diff("a.py", OLD, NEW), {"a.py": OLD.removeprefix("line 1\n").encode()})

    def test_near_duplicate_of_the_context_is_not_taken_and_every_place_is_named(self) -> None:
        block = "if x:\n    a\n    b\n    c\n"
        old = block + "gap\n" + block + "end\n"
        text = diff("a.py", old, old.replace("b\n    c\nend", "B\n    c\nend"), context=1)
        assert apply(text, {"a.py": old.encode()})["a.py"].decode().count("B") == 1
        moved = "new\n" + block + "gap\n" + block + "gap\n" + block + "end\n"
        text = text.replace(" c\nend", " c\n").replace(" end\n", "")
        with pytest.raises(ComposeError, check=says("found it at line 3 \\(.*8 \\(.*13 \\(")):
            apply(text, {"a.py": moved.encode()})

    def test_context_that_fits_only_with_fuzz_is_refused_with_the_line_that_differs(self) -> None:
        source = OLD.replace("line 7\n", "line VII\n")
        said = says("hunk 1: expected 'line 7' at line 7, found 'line VII'; the source changed under the patch")
        with pytest.raises(ComposeError, check=said):
            apply(diff("a.py", OLD, NEW), {"a.py": source.encode()})

    def test_file_that_is_too_short_is_refused(self) -> None:
        with pytest.raises(ComposeError, check=says("expected 'line 9' at line 9, found 'end of file'")):
            apply(diff("a.py", OLD, NEW), {"a.py": "".join(OLD.splitlines(keepends=True)[:8]).encode()})

    def test_patch_that_is_applied_already_is_refused(self) -> None:
        with pytest.raises(ComposeError, check=says("expected 'line 10' at line 10, found 'line ten'")):
            apply(diff("a.py", OLD, NEW), {"a.py": NEW.encode()})

    def test_wrong_new_position_is_refused(self) -> None:
        text = diff("a.py", OLD, NEW).replace("+7,7", "+8,7")
        with pytest.raises(ComposeError, check=says("hunk 1: new position: expected line 7, found line 8")):
            apply(text, {"a.py": OLD.encode()})

    @pytest.mark.parametrize("position", ["-30,0 +21", "-30,0 +31", "-19,0 +21"])
    def test_hunk_without_context_at_another_place_is_refused(self, position: str) -> None:
        with pytest.raises(ComposeError, check=says("hunk 1")):
            apply(f"--- a/a.py\n+++ b/a.py\n@@ {position} @@\n+new\n", {"a.py": OLD.encode()})

    def test_hunks_out_of_order_are_refused(self) -> None:
        new = OLD.replace("line 2\n", "line two\n").replace("line 18\n", "line eighteen\n")
        head, first, second = diff("a.py", OLD, new).split("@@ -")
        with pytest.raises(ComposeError, check=says("hunk 2 overlaps the one before|hunk 1: new position")):
            apply("@@ -".join([head, second, first]), {"a.py": OLD.encode()})

    def test_file_that_the_tree_lacks_is_refused(self) -> None:
        with pytest.raises(ComposeError, check=says("^p.patch: a.py: expected the file in the tree, found none")):
            apply(diff("a.py", OLD, NEW), {"b.py": OLD.encode()})

    def test_empty_file_can_be_filled(self) -> None:
        assert apply("--- a/a.py\n+++ b/a.py\n@@ -0,0 +1 @@\n+new\n", {"a.py": b""}) == {"a.py": b"new\n"}

    def test_lone_carriage_return_ends_no_line(self) -> None:
        old = "one\rtwo\n" + OLD
        text = "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n one\rtwo\n-line 1\n+a\rb\n line 2\n"
        assert apply(text, {"a.py": old.encode()}) == {"a.py": old.replace("line 1\n", "a\rb\n", 1).encode()}

    @pytest.mark.parametrize(("old_end", "new_end"), [("\n", ""), ("", "\n"), ("", "")])
    def test_missing_newline_at_the_end_of_the_file_is_kept_added_and_removed(self, old_end: str, new_end: str) -> None:
        def marked(end: str) -> str:
            return "\n" if end else "\n\\ No newline at end of file\n"

        text = f"--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n x\n-old{marked(old_end)}+new{marked(new_end)}"
        assert apply(text, {"a": f"x\nold{old_end}".encode()}) == {"a": f"x\nnew{new_end}".encode()}

    def test_missing_newline_in_the_context_is_kept(self) -> None:
        text = "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n-x\n+y\n last\n\\ No newline at end of file\n"
        assert apply(text, {"a": b"x\nlast"}) == {"a": b"y\nlast"}

    @pytest.mark.parametrize(("source", "marker"), [("x\nold\n", "\\ No newline at end of file\n"), ("x\nold", "")])
    def test_disagreement_about_the_last_newline_is_refused(self, source: str, marker: str) -> None:
        with pytest.raises(ComposeError, check=says("a: hunk 1")):
            apply(f"--- a/a\n+++ b/a\n@@ -1,2 +1 @@\n x\n-old\n{marker}", {"a": source.encode()})

    def test_tmp_inside_a_repository_changes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        git(tmp_path, "init", "--quiet")
        write_files(tmp_path, {".git/info/attributes": "* text eol=crlf\n", ".gitattributes": "* eol=crlf\n"})
        git(tmp_path, "config", "core.autocrlf", "true")
        (tmp_path / "tmp").mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
        monkeypatch.setenv("HOME", str(write_files(tmp_path / "home", {".gitconfig": "[core]\nautocrlf = true\n"})))
        assert apply(diff("a/b.py", OLD, NEW), {"a/b.py": OLD.encode()}) == {"a/b.py": NEW.encode()}
        assert list((tmp_path / "tmp").iterdir()) == []

    def test_result_of_git_that_differs_from_the_proof_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(patches, "_git_apply", lambda _patch, files: files)
        with pytest.raises(ComposeError, check=says("p.patch: a.py: git's result differs from the proven one")):
            apply(diff("a.py", OLD, NEW), {"a.py": OLD.encode()})


GIT_HEAD = "diff --git a/a.py b/a.py\n"


class TestRefused:
    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            (diff("a.py", OLD, NEW).replace("\n", "\r\n"), "has CRLF line ends"),
            (diff("a.py", OLD, NEW).removesuffix("\n"), "last line has no newline"),
            ("no diff here\n", "holds no diff"),
            (GIT_HEAD + "index 1..2 100644\n", "holds no hunk"),
            ("--- a/a.py\n+++ b/a.py\n", "a.py has no hunk"),
            (GIT_HEAD + "new file mode 100644\n--- /dev/null\n+++ b/a.py\n@@ -0,0 +1 @@\n+x\n", "creates a file"),
            ("--- /dev/null\n+++ b/a.py\n@@ -0,0 +1 @@\n+x\n", "'--- /dev/null': expected --- a/<path"),
            (GIT_HEAD + "deleted file mode 100644\n--- a/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", "deletes a file"),
            ("--- a/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", "'\\+\\+\\+ /dev/null': expected"),
            (GIT_HEAD + "similarity index 100%\nrename from a.py\nrename to b.py\n", "renames a file"),
            (GIT_HEAD + "similarity index 100%\ncopy from a.py\ncopy to b.py\n", "copies a file"),
            (GIT_HEAD + "old mode 100644\nnew mode 100755\n", "changes a file mode"),
            (GIT_HEAD + "old mode 100644\nnew mode 100755\n" + diff("a.py", OLD, NEW), "changes a file mode"),
            (GIT_HEAD + "index 1..2 100644\nGIT binary patch\nliteral 1\nIcmZPo000310RR91\n\n", "is binary"),
            (GIT_HEAD + "Binary files a/a.py and b/a.py differ\n", "is binary"),
            (diff("../a.py", OLD, NEW), "'--- a/../a.py': expected --- a/<path inside the tree>"),
            (diff("b/../../a.py", OLD, NEW), "'--- a/b/../../a.py': expected --- a/<path inside"),
            (diff("/etc/a.py", OLD, NEW), "'--- a//etc/a.py': expected --- a/<path inside"),
            (diff("a.py", OLD, NEW).replace("--- a/", "--- "), "'--- a.py': expected --- a/<path"),
            (diff("a.py", OLD, NEW).replace("--- a/a.py", "--- a/a.py\t2026-01-01"), "expected --- a/<path"),
            (diff("a.py", OLD, NEW).replace("+++ b/a.py", "+++ b/b.py"), "name different files: expected a.py"),
            (diff("a.py", OLD, NEW) + diff("a.py", OLD, NEW), "names a file twice"),
            ("--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n a\n b\n", "changes nothing"),
            ("--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a\n+a\n", "changes nothing"),
        ],
    )
    def test_patch_that_does_more_than_change_text_files_or_is_malformed(self, text: str, problem: str) -> None:
        with pytest.raises(ComposeError, check=says(f"^patches/p.patch: .*{problem}")):
            apply(text, {"a.py": OLD.encode()})

    @pytest.mark.parametrize(
        "counts", ["-7,8 +7,7", "-7,7 +7,8", "-7,6 +7,7", "-7,7 +7,6", "-7,6 +7,6", "-7,4 +7,4", "-7,9 +7,9"]
    )
    def test_miscounted_hunk_is_refused_instead_of_cut(self, counts: str) -> None:
        text = diff("a.py", OLD, NEW).replace("-7,7 +7,7", counts)
        with pytest.raises(ComposeError, check=says("cut short or miscounted|belongs to no hunk")):
            apply(text, {"a.py": OLD.encode()})

    @pytest.mark.parametrize("line", ["+lost\n", "-line 14\n", " line 14\n", "@@ -20 +20 @\n"])
    def test_line_that_no_hunk_counts_is_refused_and_not_dropped(self, line: str) -> None:
        with pytest.raises(ComposeError, check=says("belongs to no hunk")):
            apply(diff("a.py", OLD, NEW) + line, {"a.py": OLD.encode()})

    @pytest.mark.parametrize("marker", ["@@ -1 +1 @@\n\\ No newline\n", "@@ -1 +1 @@\n-a\n\\ No\n\\ No\n+b\n"])
    def test_stray_no_newline_marker_is_refused(self, marker: str) -> None:
        with pytest.raises(ComposeError):
            apply(f"--- a/a.py\n+++ b/a.py\n{marker}", {"a.py": b"a\n"})

    def test_end_of_a_mail_is_no_hunk(self) -> None:
        text = diff("a.py", OLD, NEW) + "-- \n2.39.5\n\n"
        assert apply(text, {"a.py": OLD.encode()}) == {"a.py": NEW.encode()}

    @pytest.mark.parametrize("field", patches.DEP3_REQUIRED)
    @pytest.mark.parametrize("kind", ["absent", "empty"])
    def test_missing_header_field_is_named(self, field: str, kind: str) -> None:
        lines = [line for line in HEADER.splitlines() if not line.startswith((field, " "))]
        header = "\n".join(lines + ([f"{field}:"] if kind == "empty" else [])).strip() + "\n\n"
        with pytest.raises(ComposeError, check=says(f"^patches/p.patch: DEP-3 header lacks {field}; docs/")):
            apply(diff("a.py", OLD, NEW), {"a.py": OLD.encode()}, header)

    def test_patch_without_any_header_names_all_fields(self) -> None:
        with pytest.raises(ComposeError, check=says("lacks Description, Origin, Forwarded, Last-Update")):
            apply(diff("a.py", OLD, NEW), {"a.py": OLD.encode()}, "")

    def test_header_that_is_not_utf_8_is_one_line(self) -> None:
        data = b"Description: \xff\n" + diff("a.py", OLD, NEW).encode()
        with pytest.raises(ComposeError, check=says("^x: header: expected UTF-8")):
            patches.parse_patch("p.patch", data, "x")

    def test_content_that_is_not_utf_8_is_text_as_any_other(self) -> None:
        text = b"--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-\xff\n+\xfe\n"
        assert apply(text, {"a.py": b"\xff\n"}) == {"a.py": b"\xfe\n"}


class TestSeries:
    def test_patches_are_read_in_order_with_comments_and_header(self, tmp_path: Path) -> None:
        write_series(tmp_path, {"b.patch": diff("b.py", OLD, NEW), "a.patch": diff("a.py", OLD, NEW)})
        write_files(tmp_path, {"series": "# first\nb.patch # why\n\n  a.patch\n", "README.md": "x"})
        found = patches.read_series(tmp_path)
        assert [patch.name for patch in found] == ["b.patch", "a.patch"]
        assert found[0].summary == "A change"
        assert found[0].header["Last-Update"] == "2026-01-31"
        assert [file.path for file in found[0].files] == ["b.py"]

    def test_empty_series_is_no_error(self, tmp_path: Path) -> None:
        assert patches.read_series(write_series(tmp_path, {})) == []

    @pytest.mark.parametrize(
        ("series", "problem"),
        [
            ("a.patch\na.patch\n", "series:2: a.patch: listed twice"),
            ("a.patch\nb.patch\n", "series:2: b.patch: expected a regular file of that name, found none"),
            ("a.patch -p1\n", "series:1: a.patch -p1: expected the name of a .patch file"),
            ("../a.patch\n", "series:1: ../a.patch: expected the name of a .patch file"),
            ("a.diff\n", "series:1: a.diff: expected the name of a .patch file"),
            ("link.patch\na.patch\n", "series:1: link.patch: expected a regular file"),
            ("# a.patch\n", "a.patch: is in no series"),
        ],
    )
    def test_series_and_files_must_belong_together(self, tmp_path: Path, series: str, problem: str) -> None:
        write_series(tmp_path, {"a.patch": diff("a.py", OLD, NEW)})
        write_files(tmp_path, {"series": series})
        (tmp_path / "link.patch").symlink_to("a.patch")
        if "link" not in series:
            (tmp_path / "link.patch").unlink()
        with pytest.raises(ComposeError, check=says(f"^{tmp_path}/{problem}")):
            patches.read_series(tmp_path)

    def test_folder_without_a_series_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ComposeError, check=says(f"^{tmp_path}/series: expected a list of patch files")):
            patches.read_series(tmp_path)

    def test_malformed_patch_is_named_with_its_path(self, tmp_path: Path) -> None:
        write_series(tmp_path, {"a.patch": "nothing\n"})
        with pytest.raises(ComposeError, check=says(f"^{tmp_path}/a.patch: holds no diff")):
            patches.read_series(tmp_path)


LINES = st.lists(st.sampled_from(["a\n", "b\n", "-- x\n", "++ x\n", "\n", " \n", "\rc\n", "@@ -1 +1 @@\n", "\\ x\n"]))
TEXTS = st.builds(lambda lines, last: "".join(lines) + last, LINES, st.sampled_from(["", "end"]))


@st.composite
def edits(draw: st.DrawFn) -> tuple[str, str]:
    """A text and an edited one, with some part in common."""
    before, middle, after = draw(TEXTS), draw(TEXTS), draw(TEXTS)
    old, new = before + middle + after, before + draw(TEXTS) + after
    return old, new


def with_marker(line: str) -> str:
    return line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"


@settings(deadline=None)  # a busy machine is no failure
@given(edits(), st.integers(1, 3))
def test_unified_diff_of_any_edit_gives_exactly_that_edit(edit: tuple[str, str], context: int) -> None:
    old, new = ([line.decode() for line in patches.split_lines(text.encode())] for text in edit)
    assume(old != new)
    text = "".join(with_marker(line) for line in difflib.unified_diff(old, new, "a/f", "b/f", n=context))
    assert apply(text, {"f": edit[0].encode()}) == {"f": edit[1].encode()}


@settings(deadline=None)
@given(edits(), st.sampled_from(["before\n", "a\n", "x\ny\n"]))
def test_any_edit_of_a_text_that_moved_is_refused_or_the_same_edit(edit: tuple[str, str], extra: str) -> None:
    """Text above the first hunk moves it; then the stated lines hold other text, or the very same."""
    old, new = ([line.decode() for line in patches.split_lines(text.encode())] for text in edit)
    assume(old != new)
    text = "".join(with_marker(line) for line in difflib.unified_diff(old, new, "a/f", "b/f"))
    patch = patches.parse_patch("p.patch", (HEADER + text).encode(), "p")
    source = [line.encode() for line in [*extra.splitlines(keepends=True), *old]]
    try:
        patches.prove(patch, patch.files[0], b"".join(source))
    except ComposeError:
        return
    for hunk in patch.files[0].hunks:
        start = hunk.old_start - 1 if hunk.old else hunk.old_start
        assert tuple(source[start : start + len(hunk.old)]) == hunk.old


def test_diff_of_git_itself_gives_its_edit(tmp_path: Path) -> None:
    old = OLD + "-- not a header\n"
    new = old.replace("line 3\n", "").replace("line 18\n", "+++ b/x\n") + "no newline"
    write_files(tmp_path, {"a/f": old, "b/f": new})
    command = ["git", "diff", "--no-index", "--no-color", "--no-prefix", "a/f", "b/f"]
    text = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert apply(text, {"f": old.encode()}) == {"f": new.encode()}
