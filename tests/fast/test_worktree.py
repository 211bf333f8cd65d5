"""Patches as commits and back: what is written is proven, nothing is lost, and no edit is no change."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import cli, files, patches, worktree
from pipeline import compose as composing
from pipeline import git as git_module
from pipeline.errors import ComposeError
from pipeline.worktree import WHY, Worktree
from tests.fast.builders import HEADER, diff, git, make_line, says, write_files, write_series

FUNCTION = """def {name}(x):
    first = x
    second = first + 1
    third = second * {factor}
    return third


"""
TREE = {
    "sglang/__init__.py": "",
    "sglang/a.py": "".join(FUNCTION.format(name=name, factor=number) for number, name in enumerate(("f", "g", "h"), 2)),
    "sglang/b.py": "B = 1\nC = 2\nD = 3\n",
}
A, B = TREE["sglang/a.py"], TREE["sglang/b.py"]
A1 = A.replace("second * 2", "second * 20")
A2 = A1.replace("second * 3", "second * 30")
A3 = A2.replace("second * 4", "second * 40")
SERIES = {
    "1.patch": diff("sglang/a.py", A, A1),
    "2.patch": diff("sglang/a.py", A1, A2) + diff("sglang/b.py", B, B.replace("C = 2", "C = 20")),
    "3.patch": diff("sglang/a.py", A2, A3),
}
OURS = re.compile(r"^(<<<<<<<|=======|>>>>>>>)", re.MULTILINE)


class Fixture:
    """A line of one ``dir`` pin, one overlay and three patches in their normal form."""

    def __init__(self, folder: Path) -> None:
        write_files(folder / "tree", TREE)
        write_files(folder / "overlays" / "new", {"sglang/new.py": "N = 1\n"})
        pin = {"kind": "dir", "path": str(folder / "tree")}
        layers = [{"source": "sglang"}, {"overlay": "new"}, {"patches": "series"}]
        self.line = make_line(folder, pins={"sglang": pin}, layers=layers)
        self.root = folder
        self.series = write_series(folder / "patches", SERIES)
        self.work.refresh()
        self.folder = self.work.folder

    @property
    def work(self) -> Worktree:
        """Each command of a run of its own."""
        return Worktree(self.line, self.root / "build", self.root / "overlays", self.series)

    def snapshot(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.series.iterdir()}

    def compose(self) -> dict[str, str]:
        draft = composing.Draft()
        for _ in composing.grow(draft, self.line, self.root / "build", self.root / "overlays", self.series):
            pass
        return {path: data.decode() for path, data in draft.files.items()}

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace a text that occurs once in a file of the work tree."""
        text = (self.folder / path).read_text()
        assert text.count(old) == 1
        (self.folder / path).write_text(text.replace(old, new))

    def amend(self, *options: str) -> None:
        git(self.folder, "commit", "--quiet", "--all", "--amend", "--no-edit", *options)


@pytest.fixture
def small(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path)


class TestEdit:
    def test_one_commit_per_layer_and_patch_with_the_header_as_message(self, small: Fixture) -> None:
        small.work.edit("2")
        messages = git(small.folder, "log", "--reverse", "--format=%B%x00").split("\0")
        assert [message.strip() for message in messages] == [
            "source:sglang",
            "overlay:new",
            HEADER.strip(),
            HEADER.strip(),
            "",
        ]
        assert (small.folder / "sglang/a.py").read_text() == A2
        assert (small.folder / "sglang/new.py").read_text() == "N = 1\n"
        assert git(small.folder, "status", "--porcelain") == ""
        changed = git(small.folder, "log", "--reverse", "--name-only", "--format=").split("\n")
        assert changed[-3:] == ["sglang/a.py", "sglang/a.py", "sglang/b.py"]

    def test_hashes_depend_on_the_content_only(
        self, small: Fixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        small.work.edit("3.patch")
        first = git(small.folder, "rev-parse", "HEAD")
        config = "[user]\nname = other\nemail = o@o\n[core]\nautocrlf = true\n[commit]\ngpgSign = true\n"
        monkeypatch.setenv("HOME", str(write_files(tmp_path / "user", {".gitconfig": config})))
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        monkeypatch.setenv("GIT_COMMITTER_DATE", "2001-01-01T00:00:00Z")
        monkeypatch.setenv("GIT_DIR", str(tmp_path))
        umask = os.umask(0o077)
        try:
            small.work.edit("3.patch")
        finally:
            os.umask(umask)
        assert git(small.folder, "rev-parse", "HEAD") == first

    def test_configuration_and_hooks_of_a_person_change_nothing(
        self, small: Fixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        write_files(tmp_path / "user/hooks", {"pre-commit": "#!/bin/sh\nexit 1\n"})
        (tmp_path / "user/hooks/pre-commit").chmod(0o755)
        config = f"[core]\nhooksPath = {tmp_path}/user/hooks\nautocrlf = true\n[commit]\ngpgSign = true\n"
        monkeypatch.setenv("HOME", str(write_files(tmp_path / "user", {".gitconfig": config})))
        small.work.edit("3")
        small.edit("sglang/a.py", "second * 40", "second * 41")
        subprocess.run(
            ["git", "commit", "--quiet", "--all", "--amend", "--no-edit"], cwd=small.folder, check=True, timeout=60
        )
        assert small.work.export() == [small.series / "3.patch"]
        assert b"\r" not in (small.series / "3.patch").read_bytes()

    def test_unknown_patch_is_refused_with_the_known_ones(self, small: Fixture) -> None:
        with pytest.raises(ComposeError, check=says("^patch 'x': .*found 1.patch, 2.patch, 3.patch")):
            small.work.edit("x")

    def test_patch_that_does_not_apply_is_refused_and_leaves_no_work_tree(self, small: Fixture) -> None:
        write_files(small.root / "tree", {"sglang/a.py": "# new\n" + A})
        with pytest.raises(ComposeError, check=says("1.patch: .*hunk 1: .*offset \\+1.*build.py patch refresh")):
            small.work.edit("1")
        assert [path.name for path in (small.root / "build/small").glob("*")] == []

    def test_line_without_a_series_is_refused(self, tmp_path: Path) -> None:
        small = Fixture(tmp_path)
        small.line = make_line(tmp_path, pins={"sglang": {"kind": "dir", "path": str(tmp_path / "tree")}})
        with pytest.raises(ComposeError, check=says("release.yaml: layers: expected - patches: series")):
            small.work.edit("1")


class TestExport:
    @pytest.mark.parametrize("name", SERIES)
    def test_without_an_edit_no_byte_changes(self, small: Fixture, name: str) -> None:
        before = small.snapshot()
        small.work.edit(name)
        assert small.work.export() == []
        assert small.snapshot() == before
        assert small.work.export() == [], "and the work tree is still good"

    def test_header_is_kept_byte_for_byte(self, small: Fixture) -> None:
        path = small.series / "2.patch"
        header = HEADER.replace("A change", "A  change ").replace("Origin", "Bug:   x \nOrigin").encode() + b"\n\n"
        path.write_bytes(path.read_bytes().replace(HEADER.encode(), header))
        small.work.edit("2")
        assert small.work.export() == []
        small.edit("sglang/a.py", "second * 30", "second * 31")
        small.amend()
        small.work.export()
        assert path.read_bytes().startswith(header + b"diff --git ")

    def test_amended_commit_is_the_patch_and_later_ones_are_anchored_again(self, small: Fixture) -> None:
        before = [patch.files[0].hunks[0].old_start for patch in patches.read_series(small.series)]
        small.work.edit("1")
        small.edit("sglang/a.py", "second * 20", "second * 21\n    more = third")
        small.amend()
        changed = small.work.export()
        assert [path.name for path in changed] == ["1.patch", "2.patch", "3.patch"]
        expected = A3.replace("second * 20", "second * 21\n    more = third")
        assert small.compose()["sglang/a.py"] == expected
        places = [patch.files[0].hunks[0].old_start for patch in patches.read_series(small.series)]
        assert places == [old + moved for old, moved in zip(before, (0, 1, 1), strict=True)]
        assert [path.name for path in small.series.iterdir() if path.name.startswith(".")] == []
        small.work.edit("3")
        assert small.work.export() == []

    def test_commits_on_top_become_part_of_the_patch(self, small: Fixture) -> None:
        small.work.edit("3")
        small.edit("sglang/a.py", "second * 40", "second * 41")
        git(small.folder, "commit", "--quiet", "--all", "--message=wip")
        small.edit("sglang/b.py", "D = 3", "D = 30")
        git(small.folder, "commit", "--quiet", "--all", "--message=fixup! more")
        assert small.work.export() == [small.series / "3.patch"]
        assert small.compose()["sglang/b.py"] == "B = 1\nC = 20\nD = 30\n"
        assert (small.series / "3.patch").read_text().startswith(HEADER + "diff --git ")
        assert git(small.folder, "rev-list", "--count", "HEAD") == "5", "one commit again"

    def test_new_message_is_the_new_header(self, small: Fixture) -> None:
        small.work.edit("2")
        message = HEADER.replace("2026-01-31", "2026-03-01").strip()
        git(small.folder, "commit", "--quiet", "--amend", f"--message={message}")
        assert small.work.export() == [small.series / "2.patch"]
        assert (small.series / "2.patch").read_text().startswith(message + "\n\ndiff --git ")

    def test_message_without_a_header_is_refused(self, small: Fixture) -> None:
        small.work.edit("2")
        git(small.folder, "commit", "--quiet", "--amend", "--message=wip")
        with pytest.raises(ComposeError, check=says("^2.patch: DEP-3 header lacks Description")):
            small.work.export()

    def test_header_edited_on_disk_meanwhile_is_kept(self, small: Fixture) -> None:
        small.work.edit("2")
        path = small.series / "2.patch"
        path.write_text(path.read_text().replace("2026-01-31", "2026-03-01"))
        small.edit("sglang/a.py", "second * 30", "second * 31")
        small.amend()
        small.work.export()
        assert "Last-Update: 2026-03-01\n" in path.read_text()

    @pytest.mark.parametrize("staged", [False, True])
    def test_uncommitted_change_is_refused(self, small: Fixture, staged: bool) -> None:
        small.work.edit("2")
        small.edit("sglang/a.py", "second * 30", "second * 31")
        if staged:
            git(small.folder, "add", "--all")
        with pytest.raises(ComposeError, check=says("2.patch: sglang/a.py is not committed; there: git commit")):
            small.work.export()

    def test_untracked_file_is_refused_but_bytecode_is_no_matter(self, small: Fixture) -> None:
        small.work.edit("2")
        write_files(small.folder, {"sglang/__pycache__/a.pyc": "x"})
        assert small.work.export() == []
        write_files(small.folder, {"sglang/a.py.orig": "x"})
        with pytest.raises(ComposeError, check=says("sglang/a.py.orig is not committed")):
            small.work.export()

    @staticmethod
    def _new(folder: Path) -> None:
        (folder / "sglang/c.py").write_text("C = 1\n")

    @staticmethod
    def _deleted(folder: Path) -> None:
        (folder / "sglang/__init__.py").unlink()

    @staticmethod
    def _mode(folder: Path) -> None:
        (folder / "sglang/b.py").chmod(0o755)

    @staticmethod
    def _link(folder: Path) -> None:
        (folder / "sglang/b.py").unlink()
        (folder / "sglang/b.py").symlink_to("a.py")

    @staticmethod
    def _binary(folder: Path) -> None:
        (folder / "sglang/b.py").write_bytes(b"\0")

    @staticmethod
    def _crlf(folder: Path) -> None:
        (folder / "sglang/b.py").write_bytes(B.replace("\n", "\r\n").encode())

    @staticmethod
    def _marker(folder: Path) -> None:
        (folder / "sglang/b.py").write_text("<<<<<<< x\n" + B)

    @staticmethod
    def _nothing(folder: Path) -> None:
        git(folder, "checkout", "HEAD~", "--", "sglang")

    @pytest.mark.parametrize(
        ("edit", "problem"),
        [
            (_new, "^2.patch: sglang/c.py: is a new file; put it into overlays/"),
            (_deleted, "^2.patch: sglang/__init__.py: is deleted"),
            (_mode, "^2.patch: sglang/b.py: mode: expected 100644, found 100755"),
            (_link, "^2.patch: sglang/b.py: mode: expected 100644, found 120000"),
            (_binary, "^2.patch: sglang/b.py: is binary"),
            (_crlf, "^2.patch: has CRLF line ends"),
            (_marker, "2.patch: sglang/b.py has conflict markers"),
            (_nothing, "^2.patch: changes nothing; .*patch drop 2.patch"),
        ],
    )
    def test_what_no_patch_may_hold_is_refused_and_nothing_is_written(
        self, small: Fixture, edit: Callable[[Path], None], problem: str
    ) -> None:
        before = small.snapshot()
        small.work.edit("2")
        edit(small.folder)
        git(small.folder, "add", "--all")
        small.amend("--allow-empty")
        head = git(small.folder, "rev-parse", "HEAD")
        with pytest.raises(ComposeError, check=says(problem)):
            small.work.export()
        assert small.snapshot() == before
        assert git(small.folder, "rev-parse", "HEAD") == head

    def test_edit_of_what_lies_below_is_refused(self, small: Fixture) -> None:
        small.work.edit("3")
        git(small.folder, "reset", "--quiet", "--hard", "HEAD~1")
        small.edit("sglang/a.py", "second * 30", "second * 31")
        small.amend()
        with pytest.raises(ComposeError, check=says("HEAD [0-9a-f]{12}: expected commits on top of [0-9a-f]{12}")):
            small.work.export()

    def test_series_that_changed_meanwhile_is_refused(self, small: Fixture) -> None:
        small.work.edit("2")
        write_files(small.root / "tree", {"sglang/b.py": B + "E = 4\n"})
        with pytest.raises(ComposeError, check=says("the layers or patches changed since this work tree was made")):
            small.work.export()

    def test_failure_while_writing_puts_every_file_back(self, small: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
        before = small.snapshot()
        small.work.edit("1")
        small.edit("sglang/a.py", "second * 20", "second * 21\n    more = third")
        small.amend()
        calls: list[Path] = []

        def write(path: Path, data: bytes) -> None:
            calls.append(path)
            if len(calls) == 2:
                raise KeyboardInterrupt
            files.write_atomic(path, data)

        monkeypatch.setattr(worktree, "write_atomic", write)
        with pytest.raises(KeyboardInterrupt):
            small.work.export()
        assert small.snapshot() == before
        monkeypatch.undo()
        assert len(small.work.export()) == 3

    def test_without_a_work_tree_there_is_nothing_to_export(self, small: Fixture) -> None:
        with pytest.raises(ComposeError, check=says("found none; build.py patch edit NAME makes one")):
            small.work.export()

    def test_repository_around_it_is_never_taken_for_the_work_tree(self, small: Fixture) -> None:
        git(small.root, "init", "--quiet")
        small.work.edit("2")
        (small.folder / ".git").rename(small.root / "gone")
        with pytest.raises(ComposeError, check=says("expected a work tree made by build.py patch edit, found another")):
            small.work.export()


class TestConflict:
    def start(self, small: Fixture) -> None:
        """Patch 1 now changes the line that patch 3 changes."""
        small.work.edit("1")
        small.edit("sglang/a.py", "second * 4\n", "second - 4\n")
        small.amend()
        with pytest.raises(ComposeError, check=says("^3.patch: conflict in 1 place; in .*git add.*patch export")):
            small.work.export()

    def test_conflict_is_left_with_markers_and_written_back_when_it_is_resolved(self, small: Fixture) -> None:
        before = small.snapshot()
        self.start(small)
        assert small.snapshot() == before, "nothing is written before everything is proven"
        assert git(small.folder, "status", "--porcelain") == "UU sglang/a.py"
        text = (small.folder / "sglang/a.py").read_text()
        assert OURS.findall(text) == ["<<<<<<<", "=======", ">>>>>>>"]
        assert "second * 30" in text, "patch 2 lies below it"
        with pytest.raises(ComposeError, check=says("sglang/a.py is still in conflict; there: resolve")):
            small.work.export()
        git(small.folder, "add", "--all")
        with pytest.raises(ComposeError, check=says("sglang/a.py has conflict markers")):
            small.work.export()
        (small.folder / "sglang/a.py").write_text(A2.replace("second * 4\n", "second - 40\n"))
        with pytest.raises(ComposeError, check=says("sglang/a.py is changed but not added")):
            small.work.export()
        git(small.folder, "add", "--all")
        assert [path.name for path in small.work.export()] == ["1.patch", "2.patch", "3.patch"]
        assert small.compose()["sglang/a.py"] == A2.replace("second * 4\n", "second - 40\n")
        assert (small.folder / "sglang/a.py").read_text() == A1.replace("second * 4\n", "second - 4\n")
        assert small.work.export() == []

    def test_resolution_may_be_committed_as_well(self, small: Fixture) -> None:
        self.start(small)
        (small.folder / "sglang/a.py").write_text(A2.replace("second * 4\n", "second - 40\n"))
        git(small.folder, "commit", "--quiet", "--all", "--message=resolved")
        small.work.export()
        assert small.compose()["sglang/a.py"] == A2.replace("second * 4\n", "second - 40\n")
        assert (small.series / "3.patch").read_text().startswith(HEADER + "diff --git ")

    def test_one_conflict_after_the_other(self, small: Fixture) -> None:
        small.work.edit("1")
        small.edit("sglang/a.py", "second * 3\n", "second - 3\n")
        small.edit("sglang/a.py", "second * 4\n", "second - 4\n")
        header = HEADER.replace("A change", "A reworded change").strip()
        git(small.folder, "commit", "--quiet", "--all", "--amend", f"--message={header}")
        for name, number in (("2.patch", "3"), ("3.patch", "4")):
            with pytest.raises(ComposeError, check=says(f"^{name}: conflict in 1 place;")):
                small.work.export()
            text = (small.folder / "sglang/a.py").read_text()
            text = re.sub(r"(?s)<<<<<<<.*>>>>>>> [^\n]*", f"    third = second - {number}0", text)
            (small.folder / "sglang/a.py").write_text(text)
            git(small.folder, "add", "--all")
        small.work.export()
        composed = small.compose()
        assert composed["sglang/a.py"] == A1.replace("second * 3", "second - 30").replace("second * 4", "second - 40")
        assert composed["sglang/b.py"] == B.replace("C = 2", "C = 20"), "what was in no conflict is kept"
        assert patches.read_series(small.series)[0].summary == "A reworded change"

    @pytest.mark.parametrize("step", ["reset", "update-index"])
    def test_interrupt_while_the_conflict_is_laid_out_loses_nothing(
        self, small: Fixture, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        small.work.edit("1")
        small.edit("sglang/a.py", "second * 4\n", "second - 4\n")
        small.amend()
        text, calls = git_module.text, list[str]()

        def cut(repository: Path, *arguments: str, **options: Any) -> str:
            calls.append(arguments[0])
            if calls.count(step) == 1 and arguments[0] == step:
                raise KeyboardInterrupt
            return text(repository, *arguments, **options)

        monkeypatch.setattr(git_module, "text", cut)
        with pytest.raises(KeyboardInterrupt):
            small.work.export()
        monkeypatch.undo()
        assert git(small.folder, "status", "--porcelain") == ""
        assert (small.folder / "sglang/a.py").read_text() == A1.replace("second * 4\n", "second - 4\n")
        with pytest.raises(ComposeError, check=says("^3.patch: conflict in 1 place;")):
            small.work.export()

    def test_later_patch_whose_work_is_done_already_is_named(self, small: Fixture) -> None:
        before = small.snapshot()
        small.work.edit("1")
        small.edit("sglang/a.py", "second * 4\n", "second * 40\n")
        small.amend()
        with pytest.raises(ComposeError, check=says("^3.patch: changes nothing; .*patch drop 3.patch")):
            small.work.export()
        assert small.snapshot() == before

    @pytest.mark.parametrize(
        "command",
        [lambda w: w.edit("2"), lambda w: w.new("x", "y"), lambda w: w.refresh(), lambda w: w.drop(["1"], "x")],
    )
    @pytest.mark.parametrize("kind", ["conflict", "commit", "file"])
    def test_work_that_is_not_exported_is_never_overwritten(
        self, small: Fixture, command: Callable[[Worktree], Any], kind: str
    ) -> None:
        if kind == "conflict":
            self.start(small)
        else:
            small.work.edit("1")
            small.edit("sglang/a.py", "second * 20", "second * 21")
            if kind == "commit":
                small.amend()
        before = small.snapshot()
        with pytest.raises(ComposeError, check=says("holds work on [13].patch that is not exported; build.py patch")):
            command(small.work)
        assert small.snapshot() == before


class TestRefresh:
    def upstream(self, small: Fixture, **changed: str) -> None:
        write_files(small.root / "tree", {f"sglang/{name}.py": text for name, text in changed.items()})

    def test_nothing_moved_is_no_difference(self, small: Fixture) -> None:
        assert small.work.refresh() == ""

    def test_patch_in_another_form_is_written_in_the_normal_one(self, small: Fixture) -> None:
        before = small.snapshot()
        write_series(small.series, SERIES)
        assert "+diff --git a/sglang/a.py b/sglang/a.py" in small.work.refresh()
        assert small.snapshot() == before

    def test_moved_hunks_are_anchored_again_and_shown(self, small: Fixture) -> None:
        self.upstream(small, a="import x\nimport y\n" + A.replace("def g(x):", "def g(x, y):\n    y = 1"))
        with pytest.raises(ComposeError, check=says("1.patch: .*offset \\+2")):
            small.compose()
        # The header of g moved patch 2's hunk below another function line: a person must look.
        with pytest.raises(ComposeError, check=says("^2.patch: conflict in 1 place;")):
            small.work.refresh()

    def test_offsets_alone_need_nobody(self, small: Fixture) -> None:
        self.upstream(small, a="import x\nimport y\n" + A.replace("def h", "print()\n\ndef h"), b="A = 0\n" + B)
        shown = small.work.refresh()
        assert re.findall(r"^[-+]@@ -(\d+)", shown, re.M) == ["3", "5", "10", "12", "1", "2", "17", "21"]
        assert "--- a/1.patch\n" in shown
        composed = small.compose()
        assert composed["sglang/a.py"].count("0\n") == 3
        assert composed["sglang/b.py"] == "A = 0\nB = 1\nC = 20\nD = 3\n"
        assert small.work.refresh() == ""

    def test_context_that_lost_its_uniqueness_grows(self, small: Fixture) -> None:
        self.upstream(small, b=B + "#\nB = 1\nC = 2\nD = 3\n")
        shown = small.work.refresh()
        assert re.findall(r"^\+@@ -1,\d+", shown, re.M) == ["+@@ -1,4"]

    @pytest.mark.parametrize(
        ("a", "b", "problem"),
        [
            (A, B.replace("D = 3", "D = 4"), "2.patch: sglang/b.py: hunk 1: its old text is not in the file any more"),
            (A, "#\n" + B + B, "2.patch: sglang/b.py: hunk 1: expected its old text once, found it at lines 2, 5"),
            (A, None, "2.patch: sglang/b.py: the tree has no such file any more"),
            (
                A.replace("def g(x)", "def other(x)").replace("def f(x)", "#\ndef f(x)"),
                B,
                "2.patch: sglang/a.py: hunk 1: expected its old text below 'def g(x):', "
                "found it below 'def other(x):' (line 12)",
            ),
        ],
        ids=["missing", "doubled", "gone", "other function"],
    )
    def test_hunk_whose_place_is_not_certain_is_a_conflict_and_never_dropped(
        self, small: Fixture, capfd: pytest.CaptureFixture[str], a: str, b: str | None, problem: str
    ) -> None:
        self.upstream(small, a="# moved\n" + a)
        if b is None:
            (small.root / "tree/sglang/b.py").unlink()
        else:
            self.upstream(small, b=b)
        before = small.snapshot()
        with pytest.raises(ComposeError, check=says("^2.patch: conflict in \\d places?; in .*/worktree: resolve")):
            small.work.refresh()
        assert f"warning: {problem}\n" in capfd.readouterr().err
        after = small.snapshot()
        assert after.keys() == before.keys()
        assert {name for name in after if after[name] != before[name]} == {"1.patch"}, "it is proven, the rest waits"
        assert "second * 20" in (small.folder / "sglang/a.py").read_text()

    def test_conflict_is_marked_at_the_likeliest_place_and_exported_when_resolved(self, small: Fixture) -> None:
        moved = "# moved\n" + A.replace("third = second * 3", "third = second // 3")
        self.upstream(small, a=moved)
        with pytest.raises(ComposeError, check=says("^2.patch: conflict in 1 place;")):
            small.work.refresh()
        assert git(small.folder, "status", "--porcelain").splitlines() == ["UU sglang/a.py", "M  sglang/b.py"]
        text = (small.folder / "sglang/a.py").read_text()
        marked = text[text.index("<<<<<<<") : text.index(">>>>>>>")]
        assert "    third = second // 3\n" in marked.split("|||||||")[0]
        assert "    third = second * 3\n" in marked.split("|||||||")[1].split("=======")[0]
        assert "    third = second * 30\n" in marked.split("=======")[1]
        resolved = re.sub(
            r"(?s)<<<<<<< .*?\n(.*?)\|\|\|\|\|\|\| .*?>>>>>>> [^\n]*\n", lambda found: found[1], text
        ).replace("// 3", "// 30")
        (small.folder / "sglang/a.py").write_text(resolved)
        git(small.folder, "add", "--all")
        assert [path.name for path in small.work.export()] == ["2.patch", "3.patch"]
        expected = A3.replace("second * 30", "second // 30")
        assert small.compose()["sglang/a.py"] == "# moved\n" + expected
        assert small.compose()["sglang/b.py"] == B.replace("C = 2", "C = 20")
        assert small.work.refresh() == ""

    ADDED = "def unwrap(layer):\n    return layer.inner_layer\n\n\n"

    def adds(self, small: Fixture) -> None:
        """A series of one patch that adds a function, and a release that has it elsewhere in the file."""
        write_series(small.series, {"1.patch": diff("sglang/b.py", B, B.replace("C =", self.ADDED + "C ="))})
        for name in ("2.patch", "3.patch"):
            (small.series / name).unlink()
        small.work.refresh()
        self.upstream(small, b=B + self.ADDED)

    @pytest.mark.parametrize("top", ["", "# moved\n"], ids=["exact", "moved"])
    @pytest.mark.parametrize("by", ["refresh", "drop"])
    def test_what_upstream_has_is_not_added_twice(
        self, small: Fixture, capfd: pytest.CaptureFixture[str], top: str, by: str
    ) -> None:
        self.adds(small)
        self.upstream(small, b=top + B + self.ADDED)
        name = small.series / "1.patch"
        if by == "drop":
            write_series(small.series, {"0.patch": diff("sglang/a.py", A, A1), "1.patch": name.read_text()})
            name.write_text(name.read_text().replace(HEADER, "", 1))
        run = small.work.refresh if by == "refresh" else lambda: small.work.drop(["0"], "Not needed.")
        with pytest.raises(ComposeError, check=says("^1.patch: conflict in 1 place;")):
            run()
        at = 4 + len(top.splitlines())
        problem = f"1.patch: sglang/b.py: hunk 1: its result is there already, line {at}"
        assert f"warning: {problem}\n" in capfd.readouterr().err
        text = (small.folder / "sglang/b.py").read_text()
        assert text.startswith(top + B + "<<<<<<< "), "it is shown where it stands"
        # Kept as upstream has it, the patch holds nothing any more.
        (small.folder / "sglang/b.py").write_text(top + B + self.ADDED)
        git(small.folder, "add", "--all")
        with pytest.raises(ComposeError, check=says("1.patch: changes nothing; if .* build.py patch drop 1.patch")):
            small.work.export()
        small.work.drop(["1"], "Upstream has it.")
        assert small.compose()["sglang/b.py"].count("def unwrap") == 1

    def test_a_repetition_that_is_meant_is_accepted_once(self, small: Fixture) -> None:
        self.adds(small)
        with pytest.raises(ComposeError, check=says("^1.patch: conflict in 1 place;")):
            small.work.refresh()
        (small.folder / "sglang/b.py").write_text(B.replace("C =", self.ADDED + "C =") + self.ADDED)
        git(small.folder, "add", "--all")
        small.work.export()
        assert small.work.refresh() == ""
        assert small.compose()["sglang/b.py"].count("def unwrap") == 2

    def test_what_an_earlier_patch_brought_is_not_upstream(self, small: Fixture) -> None:
        twice = A.replace("def f(x):\n", "def f(x):\n    prepare_it_well(x)\n")
        later = twice.replace("    return third\n", "    prepare_it_well(x)\n    return third\n", 1)
        series = {"1.patch": diff("sglang/a.py", A, twice), "2.patch": diff("sglang/a.py", twice, later)}
        write_series(small.series, series)
        (small.series / "3.patch").unlink()
        small.work.refresh()
        self.upstream(small, a="# moved\n" + A)
        small.work.refresh()
        assert small.compose()["sglang/a.py"] == "# moved\n" + later

    def test_a_place_below_the_next_hunk_leaves_that_hunk_alone(self, small: Fixture) -> None:
        """What looks most like the first hunk stands at the second one, which fits."""
        write_series(small.series, {"1.patch": diff("sglang/a.py", A, A1.replace("second * 4", "second * 40"), 1)})
        for name in ("2.patch", "3.patch"):
            (small.series / name).unlink()
        small.work.refresh()
        self.upstream(small, a="".join(A.partition("def g")[1:]))
        with pytest.raises(ComposeError, check=says("^1.patch: conflict in 1 place;")):
            small.work.refresh()
        text = (small.folder / "sglang/a.py").read_text()
        assert text.count("second * 40") == 1
        assert text.index(">>>>>>>") < text.index("second * 40")

    def test_hunks_of_a_file_that_is_gone_wait_until_somebody_moved_or_removed_them(self, small: Fixture) -> None:
        (small.root / "tree/sglang/b.py").rename(small.root / "tree/sglang/c.py")
        with pytest.raises(ComposeError, check=says("^2.patch: conflict in 1 place;")):
            small.work.refresh()
        assert git(small.folder, "status", "--porcelain").splitlines() == ["M  sglang/a.py", "DU sglang/b.py"]
        assert OURS.findall((small.folder / "sglang/b.py").read_text()) == ["<<<<<<<", "=======", ">>>>>>>"]
        with pytest.raises(ComposeError, check=says("sglang/b.py is still in conflict")):
            small.work.export()
        (small.folder / "sglang/b.py").write_text("C = 20\n")
        git(small.folder, "add", "--all")
        with pytest.raises(ComposeError, check=says("sglang/b.py: is a new file")):
            small.work.export()
        git(small.folder, "rm", "--quiet", "--force", "sglang/b.py")
        small.edit("sglang/c.py", "C = 2\n", "C = 20\n")
        git(small.folder, "add", "--all")
        assert small.work.export() == [small.series / "2.patch"]
        assert small.compose()["sglang/c.py"] == B.replace("C = 2", "C = 20")


class TestNew:
    def fill(self, small: Fixture) -> None:
        message = git(small.folder, "log", "-1", "--format=%B").replace(WHY, "It was slow.")
        git(small.folder, "commit", "--quiet", "--allow-empty", "--amend", f"--message={message}")

    def test_new_patch_is_added_at_the_end_of_the_series(self, small: Fixture) -> None:
        write_files(small.series, {"series": "# first\n1.patch # why\n2.patch\n3.patch\n"})
        small.work.new("faster", "Make b  faster")
        self.fill(small)
        small.edit("sglang/b.py", "D = 3", "D = 30")
        small.amend()
        assert [path.name for path in small.work.export()] == ["faster.patch", "series"]
        assert (small.series / "series").read_text() == "# first\n1.patch # why\n2.patch\n3.patch\nfaster.patch\n"
        added = patches.read_series(small.series)[-1]
        assert added.header["Description"] == "Make b faster\n It was slow."
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", added.header["Last-Update"])
        assert small.compose()["sglang/b.py"] == "B = 1\nC = 20\nD = 30\n"
        assert small.work.export() == []
        small.edit("sglang/b.py", "D = 30", "D = 31")
        small.amend()
        assert [path.name for path in small.work.export()] == ["faster.patch"]

    def test_template_that_is_not_filled_is_refused(self, small: Fixture) -> None:
        small.work.new("faster", "Make b faster")
        small.edit("sglang/b.py", "D = 3", "D = 30")
        small.amend()
        with pytest.raises(ComposeError, check=says("faster.patch: the header does not say why; there: git commit")):
            small.work.export()
        assert not (small.series / "faster.patch").exists()

    def test_patch_without_a_change_is_refused(self, small: Fixture) -> None:
        small.work.new("faster", "Make b faster")
        self.fill(small)
        with pytest.raises(ComposeError, check=says("^faster.patch: changes nothing")):
            small.work.export()

    @pytest.mark.parametrize("name", ["1", "1.patch", "../x", "a/b", "A", "", "-x", "x y"])
    def test_name_that_is_taken_or_no_file_name_is_refused(self, small: Fixture, name: str) -> None:
        with pytest.raises(ComposeError, check=says("^patch name '.*patch': expected a new name")):
            small.work.new(name, "x")

    def test_first_patch_of_an_empty_series(self, tmp_path: Path) -> None:
        small = Fixture(tmp_path)
        for name in SERIES:
            small.work.drop([name], "not needed")
        small.work.new("first", "The first")
        self.fill(small)
        small.edit("sglang/b.py", "D = 3", "D = 30")
        small.amend()
        small.work.export()
        assert [patch.name for patch in patches.read_series(small.series)] == ["first.patch"]


class TestDrop:
    def test_file_and_line_go_the_reason_stays_and_later_ones_are_anchored_again(self, small: Fixture) -> None:
        write_files(small.series, {"series": "# first\n1.patch # why\n2.patch\n3.patch\n"})
        changed = small.work.drop(["1"], "Upstream has it: pull 1.")
        assert {path.name for path in changed} == {"2.patch", "3.patch", "series", "1.patch", "CHANGELOG.md"}
        assert not (small.series / "1.patch").exists()
        assert (small.series / "series").read_text() == "# first\n2.patch\n3.patch\n"
        log = (small.series / "CHANGELOG.md").read_text()
        assert re.fullmatch(r"# [^\n]*\n\n## \d{4}-\d\d-\d\d: 1\.patch\n\nUpstream has it: pull 1\.\n", log)
        assert small.compose()["sglang/a.py"] == A3.replace("second * 20", "second * 2")
        small.work.drop(["3"], "Not needed.")
        log = (small.series / "CHANGELOG.md").read_text()
        assert log.count("# Patches") == 1
        assert log.index("3.patch") < log.index("1.patch"), "the newest first"

    def test_several_go_at_once_and_the_others_move(self, small: Fixture) -> None:
        write_files(small.root / "tree", {"sglang/a.py": "import x\n" + A})
        changed = small.work.drop(["3", "1.patch"], "Upstream has both.")
        assert {path.name for path in changed} == {"2.patch", "series", "1.patch", "3.patch", "CHANGELOG.md"}
        assert [patch.name for patch in patches.read_series(small.series)] == ["2.patch"]
        assert small.compose()["sglang/a.py"] == "import x\n" + A.replace("second * 3", "second * 30")
        log = (small.series / "CHANGELOG.md").read_text()
        assert re.findall(r": (\d)\.patch\n\nUpstream has both", log) == ["1", "3"]

    def test_unknown_one_among_several_drops_none(self, small: Fixture) -> None:
        before = small.snapshot()
        with pytest.raises(ComposeError, check=says("^patch '9': expected one of")):
            small.work.drop(["1", "9"], "x")
        assert small.snapshot() == before

    @pytest.mark.parametrize("why", ["", "  \n"])
    def test_without_a_reason_it_is_refused(self, small: Fixture, why: str) -> None:
        with pytest.raises(ComposeError, check=says("^drop 1.patch: expected a reason")):
            small.work.drop(["1"], why)

    def test_patch_that_another_builds_on_leaves_the_conflict_and_goes_when_it_is_resolved(
        self, small: Fixture
    ) -> None:
        small.work.edit("3")
        small.edit("sglang/a.py", "second * 20", "second * 200")
        small.amend()
        small.work.export()
        before = small.snapshot()
        with pytest.raises(ComposeError, check=says("^3.patch: conflict in 1 place;")):
            small.work.drop(["1"], "Not needed.")
        assert small.snapshot() == before
        (small.folder / "sglang/a.py").write_text(A3.replace("second * 20", "second * 2"))
        git(small.folder, "add", "--all")
        changed = {path.name for path in small.work.export()}
        assert changed == {"2.patch", "3.patch", "series", "1.patch", "CHANGELOG.md"}
        assert small.compose()["sglang/a.py"] == A3.replace("second * 20", "second * 2")
        assert "Not needed." in (small.series / "CHANGELOG.md").read_text()
        assert small.work.export() == []


class TestDropInConflict:
    """A new upstream has what some patches do: each is dropped where the replay stops at it."""

    def upstream(self, small: Fixture, *patched: str) -> None:
        """The tree below is exchanged for one with the work of some patches, in another spelling."""
        text = A
        for number in patched:
            text = text.replace(f"second * {int(number) + 1}\n", f"10 * {int(number) + 1} * second\n")
        write_files(small.root / "tree", {"sglang/a.py": text, "sglang/b.py": B.replace("C = 2", "C = 20")})

    def stops(self, name: str) -> Any:
        return pytest.raises(ComposeError, check=says(f"^{name}.patch: conflict in [12] place"))

    def test_one_after_the_other(self, small: Fixture) -> None:
        self.upstream(small, "1", "2")
        with self.stops("1"):
            small.work.refresh()
        before = small.snapshot()
        with self.stops("2"):
            small.work.drop(["1"], "Upstream: pull 1.")
        assert small.snapshot() == before, "nothing is written before everything is proven"
        changed = small.work.drop(["2.patch"], "Upstream: pull 2.")
        assert {path.name for path in changed} == {"1.patch", "2.patch", "3.patch", "series", "CHANGELOG.md"}
        assert [patch.name for patch in patches.read_series(small.series)] == ["3.patch"]
        log = (small.series / "CHANGELOG.md").read_text()
        assert re.findall(r"Upstream: pull \d\.", log) == ["Upstream: pull 1.", "Upstream: pull 2."]
        assert "second * 40" in small.compose()["sglang/a.py"]
        assert small.work.export() == []

    def test_after_another_conflict_was_resolved(self, small: Fixture) -> None:
        self.upstream(small, "1", "2")
        with self.stops("1"):
            small.work.refresh()
        resolved = (small.root / "tree/sglang/a.py").read_text().replace("10 * 2 * second", "11 * 2 * second")
        (small.folder / "sglang/a.py").write_text(resolved)
        git(small.folder, "add", "--all")
        with self.stops("2"):
            small.work.export()
        changed = {path.name for path in small.work.drop(["2"], "Upstream: pull 2.")}
        assert changed == {"1.patch", "2.patch", "3.patch", "series", "CHANGELOG.md"}
        assert small.compose()["sglang/a.py"] == resolved.replace("second * 4", "second * 40")

    def test_last_one_leaves_no_work_tree(self, small: Fixture) -> None:
        self.upstream(small, "1", "2", "3")
        with self.stops("1"):
            small.work.refresh()
        for name, following in (("1", "2"), ("2", "3")):
            with self.stops(following):
                small.work.drop([name], "Upstream.")
        small.work.drop(["3"], "Upstream.")
        assert patches.read_series(small.series) == []
        assert not small.folder.exists()
        assert small.work.refresh() == ""

    def test_interrupt_while_the_next_conflict_is_laid_out_loses_nothing(
        self, small: Fixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.upstream(small, "1", "2")
        with self.stops("1"):
            small.work.refresh()
        text = git_module.text

        def cut(repository: Path, *arguments: str, **options: Any) -> str:
            if arguments[0] == "update-index":
                raise KeyboardInterrupt
            return text(repository, *arguments, **options)

        monkeypatch.setattr(git_module, "text", cut)
        with pytest.raises(KeyboardInterrupt):
            small.work.drop(["1"], "Upstream.")
        monkeypatch.undo()
        assert "1.patch" in small.snapshot()
        with self.stops("2"):
            small.work.drop(["1"], "Upstream.")

    def test_without_a_reason_it_is_refused(self, small: Fixture) -> None:
        self.upstream(small, "1")
        with self.stops("1"):
            small.work.refresh()
        with pytest.raises(ComposeError, check=says("^drop 1.patch: expected a reason")):
            small.work.drop(["1"], " ")


class TestCommands:
    @pytest.fixture(autouse=True)
    def _commands(self, small: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worktree, "Worktree", lambda _line: small.work)
        monkeypatch.setattr(cli, "build_lock", lambda: files.build_lock(small.root / "build"))

    def test_edit_export_and_refresh_say_what_they_made_and_what_comes_next(
        self, small: Fixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.run(["patch", "edit", "2"]) == 0
        out, err = capfd.readouterr()
        assert out == f"{small.folder}\n"
        assert "build.py patch export" in err
        assert cli.run(["patch", "export"]) == 0
        out, err = capfd.readouterr()
        assert out == ""
        assert "no patch file needed a change" in err
        small.edit("sglang/a.py", "second * 30", "second * 31")
        small.amend()
        assert cli.run(["patch", "export"]) == 0
        out, err = capfd.readouterr()
        assert out.splitlines() == [str(small.series / name) for name in ("2.patch", "3.patch")]
        assert err.endswith("now build.py compose --line qwen3.8-27b --write-lock\n")
        write_series(small.series, {"1.patch": SERIES["1.patch"]})
        for name in ("2.patch", "3.patch"):
            (small.series / name).unlink()
        assert cli.run(["patch", "refresh"]) == 0
        assert capfd.readouterr().out.startswith("--- a/1.patch\n+++ b/1.patch\n")

    def test_new_and_drop(self, small: Fixture, capfd: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["patch", "new", "x", "--description", "X"]) == 0
        assert capfd.readouterr().out == f"{small.folder}\n"
        assert cli.run(["patch", "drop", "3", "--why", "gone", "--json"]) == 0
        assert '"' + str(small.series / "CHANGELOG.md") + '"' in capfd.readouterr().out

    def test_conflict_is_one_red_line_after_a_warning_per_hunk(
        self, small: Fixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        write_files(small.root / "tree", {"sglang/a.py": A.replace("second * 2", "0").replace("second * 3", "0")})
        assert cli.run(["patch", "refresh"]) == ComposeError.exit_code
        err = capfd.readouterr().err
        assert err.count("warning: 1.patch: sglang/a.py: hunk 1: its old text is not in the file any more\n") == 1
        assert err.count("error: ") == 1
        assert err.splitlines()[-1].startswith("error: 1.patch: conflict in 1 place; in ")
