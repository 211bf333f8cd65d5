"""Outputs appear whole or not at all, and one run at a time works in a build folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import BusyError, HostError
from pipeline.files import PROJECT, build_lock, new_folder, remove_leftovers, write_atomic
from tests.fast.builders import says, write_files

HOLD = """
import sys
from pathlib import Path
from pipeline.files import build_lock
with build_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_file_is_written_with_its_folder_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_atomic(tmp_path / "new" / "file", b"data")
    finally:
        os.umask(before)
    assert (tmp_path / "new" / "file").read_bytes() == b"data"
    assert (tmp_path / "new" / "file").stat().st_mode & 0o777 == 0o644
    assert names(tmp_path / "new") == ["file"]


def test_failed_write_leaves_the_old_file_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomic(tmp_path / "file", b"old")

    def full(_self: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("exists", [False, True])
def test_new_folder_takes_its_place_whole(tmp_path: Path, exists: bool) -> None:
    target = tmp_path / "parent" / "folder"
    if exists:
        write_files(target, {"old": "x", "sub/old": "x"})
    with new_folder(target) as draft:
        assert draft.parent == target.parent
        (draft / "new").touch()
        assert target.exists() == exists
    assert names(target) == ["new"]
    assert target.stat().st_mode & 0o777 == 0o755
    assert names(target.parent) == ["folder"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("exists", [False, True])
def test_failure_in_a_new_folder_leaves_what_was_there(
    tmp_path: Path, exists: bool, error: type[BaseException]
) -> None:
    target = tmp_path / "folder"
    if exists:
        write_files(target, {"old": "x"})
    with pytest.raises(error), new_folder(target) as draft:  # noqa: PT012 - the failure must follow a write
        (draft / "half").touch()
        raise error
    assert names(tmp_path) == (["folder"] if exists else [])
    if exists:
        assert names(target) == ["old"]


def test_exchange_of_folders_that_breaks_off_brings_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write_files(tmp_path / "folder", {"old": "x"})
    replace = Path.replace

    def breaks_off(self: Path, to: Path) -> Path:
        if to == target and self.parent == tmp_path:
            raise KeyboardInterrupt
        return replace(self, to)

    monkeypatch.setattr(Path, "replace", breaks_off)
    with pytest.raises(KeyboardInterrupt), new_folder(target) as draft:
        (draft / "new").touch()
    assert names(tmp_path) == ["folder"]
    assert names(target) == ["old"]


@pytest.mark.parametrize("new", [False, True])
def test_exchange_of_folders_that_a_kill_cut_is_finished_by_the_next_run(tmp_path: Path, new: bool) -> None:
    write_files(tmp_path, {"line/.tree.old.abcdefgh/tree/old": "x"} | ({"line/tree/new": "x"} if new else {}))
    remove_leftovers(tmp_path)
    assert names(tmp_path / "line") == ["tree"]
    assert names(tmp_path / "line/tree") == ["new" if new else "old"]


def test_write_goes_over_the_draft_of_a_killed_run_and_no_other(tmp_path: Path) -> None:
    write_files(tmp_path, {".lock.yaml.abcdefgh": "half", ".other.yaml.abcdefgh": "half", ".lock.yaml": "x"})
    write_atomic(tmp_path / "lock.yaml", b"data")
    assert names(tmp_path) == [".lock.yaml", ".other.yaml.abcdefgh", "lock.yaml"]


def test_second_run_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    write_files(tmp_path, {"lock": "4194304999\n"})  # what an older run left
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with first:
        assert first.stdout
        assert first.stdout.readline() == "held\n"
        refused = pytest.raises(BusyError, check=says(f"{tmp_path}.*pid {first.pid}\\)"))
        with refused, build_lock(tmp_path):
            pass
        first.kill()
    with build_lock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_lock_is_free_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError, match="within"), build_lock(tmp_path):
        raise BlockingIOError("within")
    with build_lock(tmp_path):
        pass


def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, {"file": "x"})
    with (
        pytest.raises(HostError, check=says(f"{tmp_path}/file/build: Not a directory")),
        build_lock(tmp_path / "file" / "build"),
    ):
        pass


def test_leftovers_of_a_killed_run_are_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = {"lock": "", "line/tree/a.py": "", "line/.hidden": "", ".dot/x": "", "cache/sha256/abc/x.whl": ""}
    left = {
        ".image.ab12_xyz/blob": "",
        "line/.tree.abcdefgh/a.py": "",
        "line/.record.json.abcdefgh": "",
        "cache/sha256/.wheel.abcdefgh/x.whl": "",
    }
    write_files(tmp_path, kept | left)
    (tmp_path / "outside").mkdir()
    remove_leftovers(tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == set(kept)


def test_symlink_named_like_a_leftover_is_removed_without_its_target(tmp_path: Path) -> None:
    write_files(tmp_path, {"target/file": "x"})
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / ".tree.abcdefgh").symlink_to(tmp_path / "target")
    remove_leftovers(tmp_path / "build")
    assert names(tmp_path / "build") == []
    assert names(tmp_path / "target") == ["file"]
