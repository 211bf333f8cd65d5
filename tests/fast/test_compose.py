"""Composing small lines: order is part of the contract, and the record says where every byte came from."""

import hashlib
import json
import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from pipeline import compose as composing
from pipeline.compose import Composed, ComposeLockError
from pipeline.documents import ComposeStep, FileEntry, Record
from pipeline.errors import ComposeError, ManifestError
from pipeline.manifest import Line, Lock, load_line
from tests.fast.builders import SHA256, diff, make_commit, make_line, says, write_files, write_series

TREE = {"sglang/__init__.py": "", "sglang/a.py": "A = 1\n", "sglang/b.py": "B = 1\nC = 2\n"}
Compose = Callable[..., Composed]


@pytest.fixture
def small(tmp_path: Path) -> Compose:
    """Compose a line below ``tmp_path``: both ``dir`` pins are ``tree/``; overlays and series lie beside it."""
    write_files(tmp_path / "tree", TREE)

    def run(*layers: dict[str, Any], **replaced: Any) -> Composed:
        tree = {"kind": "dir", "path": str(tmp_path / "tree")}
        pins = {"sglang": tree, "second": tree, **replaced.pop("pins", {})}
        line = make_line(tmp_path, pins=pins, layers=[{"source": "sglang"}, *layers], **replaced)
        return composing.compose(line, tmp_path / "build", tmp_path / "overlays", tmp_path / "patches")

    return run


def steps(composed: Composed) -> list[tuple[str, int]]:
    return [(step.name, step.changed) for step in composed.record.steps]


def test_sources_overlays_and_patches_are_applied_in_order(small: Compose, tmp_path: Path) -> None:
    write_files(tmp_path / "overlays" / "new", {"sglang/new.py": "N = 1\n", "README.md": "for people"})
    write_series(
        tmp_path / "patches",
        {
            "1.patch": diff("sglang/a.py", "A = 1\n", "A = 2\n"),
            "2.patch": diff("sglang/a.py", "A = 2\n", "A = 3\n") + diff("sglang/new.py", "N = 1\n", "N = 2\n"),
        },
    )
    composed = small({"overlay": "new"}, {"patches": "series"})
    assert composed.files == {
        "sglang/__init__.py": b"",
        "sglang/a.py": b"A = 3\n",
        "sglang/b.py": b"B = 1\nC = 2\n",
        "sglang/new.py": b"N = 2\n",
    }
    assert steps(composed) == [("source:sglang", 3), ("overlay:new", 1), ("patch:1.patch", 1), ("patch:2.patch", 2)]
    assert len({step.digest for step in composed.record.steps}) == 4
    assert composed.record.digest == composed.record.steps[-1].digest
    entries = {path: (entry.origin, entry.patches) for path, entry in composed.record.files.items()}
    assert entries == {
        "sglang/__init__.py": ("source:sglang", ()),
        "sglang/a.py": ("source:sglang", ("1.patch", "2.patch")),
        "sglang/b.py": ("source:sglang", ()),
        "sglang/new.py": ("overlay:new", ("2.patch",)),
    }
    assert composed.upstream == {"sglang/a.py": b"A = 1\n"}


def test_second_source_lays_only_its_listed_files_and_says_how_many_differ(small: Compose, tmp_path: Path) -> None:
    write_files(tmp_path / "second", TREE | {"sglang/a.py": "A = 2\n", "sglang/other.py": "x\n"})
    second = {"second": {"kind": "dir", "path": str(tmp_path / "second")}}
    composed = small({"source": "second", "files": ["sglang/a.py", "sglang/b.py"]}, pins=second)
    assert composed.files["sglang/a.py"] == b"A = 2\n"
    assert "sglang/other.py" not in composed.files
    assert composed.record.steps[1].note == "1 of 2 files differ from the tree before"
    assert composed.record.files["sglang/b.py"].origin == "source:second", "it came from there though it is equal"
    assert composed.upstream == {path: composed.files[path] for path in ("sglang/a.py", "sglang/b.py")}


def test_equal_second_source_says_that_no_file_differs(small: Compose) -> None:
    composed = small({"source": "second", "files": ["sglang/a.py"]})
    assert composed.record.steps[1].note == "0 of 1 files differ from the tree before"
    assert composed.record.steps[1].digest == composed.record.steps[0].digest
    assert composed.upstream == {"sglang/a.py": b"A = 1\n"}


def test_listed_file_that_the_second_source_lacks_is_refused(small: Compose) -> None:
    with pytest.raises(ComposeError, check=says("source:second: sglang/none.py: expected the file in that pin")):
        small({"source": "second", "files": ["sglang/none.py"]})


def test_source_over_a_patched_file_is_refused_naming_both(small: Compose, tmp_path: Path) -> None:
    write_series(tmp_path / "patches", {"1.patch": diff("sglang/a.py", "A = 1\n", "A = 2\n")})
    with pytest.raises(ComposeError, check=says("^source:second overwrites sglang/a.py, which 1.patch changed")):
        small({"patches": "series"}, {"source": "second", "files": ["sglang/a.py"]})


def test_overlay_over_a_patched_file_is_refused_naming_both(small: Compose, tmp_path: Path) -> None:
    write_files(tmp_path / "overlays" / "new", {"sglang/a.py": "x = 1\n"})
    write_series(tmp_path / "patches", {"1.patch": diff("sglang/a.py", "A = 1\n", "A = 2\n")})
    with pytest.raises(ComposeError, check=says("^overlay:new overwrites sglang/a.py, which 1.patch changed")):
        small({"patches": "series"}, {"overlay": "new"})


def test_overlay_over_an_existing_file_is_refused_with_its_origin(small: Compose, tmp_path: Path) -> None:
    write_files(tmp_path / "overlays" / "new", {"sglang/a.py": "A = 1\n"})
    said = says("^overlay:new: sglang/a.py exists already, from source:sglang: expected new files only")
    with pytest.raises(ComposeError, check=said):
        small({"overlay": "new"})


@pytest.mark.parametrize("known", [(), ("other",)])
def test_missing_overlay_is_refused_with_the_known_ones(small: Compose, tmp_path: Path, known: tuple[str, ...]) -> None:
    for name in known:
        write_files(tmp_path / "overlays" / name, {"x.py": ""})
    with pytest.raises(ComposeError, check=says(f"^overlay 'new': .*found {', '.join(known) or 'none'};")):
        small({"overlay": "new"})


def test_patch_that_changes_nothing_is_refused(small: Compose, tmp_path: Path) -> None:
    write_series(tmp_path / "patches", {"1.patch": "--- a/sglang/a.py\n+++ b/sglang/a.py\n@@ -1 +1 @@\n-A\n+A\n"})
    with pytest.raises(ComposeError, check=says("1.patch: .*changes nothing")):
        small({"patches": "series"})


def test_unresolved_import_is_refused_with_both_origins(small: Compose, tmp_path: Path) -> None:
    write_files(tmp_path / "overlays" / "new", {"sglang/new.py": "from sglang.a import missing\nimport sglang.none\n"})
    said = says(
        "^sglang/new.py:1 imports missing from sglang.a; file from overlay:new, module from source:sglang",
        "and 1 more",
    )
    with pytest.raises(ComposeError, check=said):
        small({"overlay": "new"})


def test_import_from_a_patched_file_is_checked(small: Compose, tmp_path: Path) -> None:
    write_series(tmp_path / "patches", {"1.patch": diff("sglang/a.py", "A = 1\n", "from sglang.b import D\n")})
    with pytest.raises(ComposeError, check=says("^sglang/a.py:1 imports D from sglang.b")):
        small({"patches": "series"})


def test_import_in_an_untouched_file_of_the_first_source_is_not_ours_to_check(small: Compose, tmp_path: Path) -> None:
    write_files(tmp_path / "tree", {"sglang/c.py": "from sglang.a import missing\n"})
    assert "sglang/c.py" in small().files


def test_import_of_a_compiled_extension_of_the_source_is_no_error(small: Compose, tmp_path: Path) -> None:
    write_files(tmp_path / "tree", {"sglang/fast.cpython-311.so": b"elf"})
    write_files(tmp_path / "overlays" / "new", {"sglang/new.py": "from sglang.fast import anything\n"})
    composed = small({"overlay": "new"})
    assert not [path for path in composed.files if path.endswith(".so")]


class TestLock:
    @pytest.fixture
    def pin(self, tmp_path: Path) -> dict[str, Any]:
        """A ``git`` pin: unlike work in progress, it is compared with the lock."""
        (tmp_path / "repository").mkdir()
        commit = make_commit(tmp_path / "repository", TREE)
        return {"kind": "git", "url": str(tmp_path / "repository"), "commit": commit}

    def make(self, folder: Path, pin: dict[str, Any], locked: dict[str, str] | None) -> Line:
        lock = None if locked is None else {"steps": locked}
        layers = [{"source": "sglang"}, {"patches": "series"}]
        write_series(folder / "patches", {"1.patch": diff("sglang/a.py", "A = 1\n", "A = 2\n")})
        return make_line(folder, pins={"sglang": pin}, layers=layers, lock=lock)

    def compose(self, folder: Path, line: Line) -> Composed:
        return composing.compose(line, folder / "build", folder / "overlays", folder / "patches")

    def accepted(self, folder: Path, pin: dict[str, Any]) -> dict[str, str]:
        """What ``--write-lock`` would accept."""
        with pytest.raises(ComposeLockError) as raised:
            self.compose(folder, self.make(folder, pin, None))
        return {step.name: step.digest for step in raised.value.record.steps}

    def test_without_a_lock_the_error_carries_the_record_to_accept(self, tmp_path: Path, pin: dict[str, Any]) -> None:
        steps = self.accepted(tmp_path, pin)
        assert list(steps) == ["source:sglang", "patch:1.patch"]
        composed = self.compose(tmp_path, self.make(tmp_path, pin, steps))
        assert composed.record.digest == steps["patch:1.patch"]

    def test_other_digest_is_refused_at_the_first_step_that_differs(self, tmp_path: Path, pin: dict[str, Any]) -> None:
        steps = self.accepted(tmp_path, pin)
        wrong = steps | {"patch:1.patch": f"sha256:{SHA256}"}
        said = says(
            f"^{tmp_path}/manifests/small/lock.yaml: tree after patch:1.patch \\(step 2\\): "
            f"expected sha256:{SHA256}, found {steps['patch:1.patch']}",
            "compose --line small --write-lock",
        )
        with pytest.raises(ComposeLockError, check=said):
            self.compose(tmp_path, self.make(tmp_path, pin, wrong))

    def test_step_that_the_lock_lacks_is_refused(self, tmp_path: Path, pin: dict[str, Any]) -> None:
        steps = self.accepted(tmp_path, pin)
        del steps["patch:1.patch"]
        with pytest.raises(ComposeLockError, check=says("patch:1.patch \\(step 2\\): expected no such step")):
            self.compose(tmp_path, self.make(tmp_path, pin, steps))

    def test_step_that_only_the_lock_has_is_refused(self, tmp_path: Path, pin: dict[str, Any]) -> None:
        steps = self.accepted(tmp_path, pin) | {"patch:2.patch": f"sha256:{SHA256}"}
        said = says("lock.yaml: steps: expected .*patch:2.patch, found source:sglang, patch:1.patch;")
        with pytest.raises(ComposeLockError, check=said):
            self.compose(tmp_path, self.make(tmp_path, pin, steps))

    def test_other_order_of_steps_is_refused(self, tmp_path: Path, pin: dict[str, Any]) -> None:
        steps = dict(reversed(self.accepted(tmp_path, pin).items()))
        with pytest.raises(ComposeLockError, check=says("lock.yaml: steps: expected patch:1.patch, source:sglang")):
            self.compose(tmp_path, self.make(tmp_path, pin, steps))

    def test_work_in_progress_has_no_lock_to_compare_with(self, small: Compose) -> None:
        assert small(lock={"steps": {"source:sglang": f"sha256:{SHA256}"}}).record.digest != f"sha256:{SHA256}"

    def test_written_lock_is_the_one_that_then_matches_and_keeps_the_base(
        self, tmp_path: Path, pin: dict[str, Any]
    ) -> None:
        steps = self.accepted(tmp_path, pin)
        line = self.make(tmp_path, pin, {})
        composing.write_lock(line, base={"digest": f"sha256:{SHA256}", "debian": {"a": "1"}, "python": {}})
        line = make_line(tmp_path, lock=yaml.safe_load((line.folder / "lock.yaml").read_text()))
        composing.write_lock(line, steps=steps)
        text = (line.folder / "lock.yaml").read_text()
        assert text.startswith("# Written by build.py")
        assert list(yaml.safe_load(text)["steps"].items()) == list(steps.items())
        assert yaml.safe_load(text)["base"]["debian"] == {"a": "1"}

    def test_lock_of_a_folder_that_is_gone_is_not_written(self, tmp_path: Path) -> None:
        line = make_line(tmp_path)
        line.folder.rename(tmp_path / "gone")
        with pytest.raises(ManifestError, check=says(f"{line.folder}: expected a folder")):
            composing.write_lock(line, steps={})


class TestListedFiles:
    """A base release, and two files of the next one: each from the revision that the lock says, or not at all."""

    OLD = TREE | {"sglang/worker.py": "W = 18\n", "sglang/utils.py": "U = 18\n"}
    NEW = TREE | {"sglang/worker.py": "from sglang.utils import U2\n", "sglang/utils.py": "U2 = 19\n"}
    BOTH: ClassVar = ["sglang/worker.py", "sglang/utils.py"]

    @pytest.fixture
    def pins(self, tmp_path: Path) -> dict[str, Any]:
        """The base release as ``sglang``, the next one as ``next``, and a fork of the base as ``fork``."""
        trees = {"sglang": self.OLD, "next": self.NEW, "fork": self.OLD | {"sglang/worker.py": "W = 0\n"}}
        found = {}
        for name, tree in trees.items():
            (tmp_path / name).mkdir()
            found[name] = {"kind": "git", "url": str(tmp_path / name), "commit": make_commit(tmp_path / name, tree)}
        return found

    def line(self, folder: Path, pins: dict[str, Any], *layers: dict[str, Any]) -> Line:
        """The line with these layers after the base, and the lock that lies there."""
        lock = folder / "manifests/small/lock.yaml"
        layer = {"patches": "series"}
        document = yaml.safe_load(lock.read_text()) if lock.is_file() else None
        return make_line(folder, pins=pins, layers=[{"source": "sglang"}, *layers, layer], lock=document)

    def compose(self, folder: Path, line: Line, *, write_lock: bool = False) -> Composed:
        where = (folder / "build", folder / "overlays", folder / "patches")
        if write_lock:
            composing.accept(line, *where)
            line = load_line(line.name, folder / "manifests")
        return composing.compose(line, *where)

    def locked(self, folder: Path, pins: dict[str, Any]) -> Composed:
        """The sound line: both files of the next release, accepted."""
        write_series(folder / "patches", {"1.patch": diff("sglang/worker.py", self.NEW["sglang/worker.py"], "W = 1\n")})
        return self.compose(folder, self.line(folder, pins, {"source": "next", "files": self.BOTH}), write_lock=True)

    @staticmethod
    def of(pins: dict[str, Any], name: str) -> str:
        pin = pins[name]
        return re.escape(f"source:{name} ({pin['url']}@{pin['commit']})")

    def test_lock_holds_each_listed_file_as_it_was_before_patches(self, tmp_path: Path, pins: dict[str, Any]) -> None:
        assert self.locked(tmp_path, pins).files["sglang/worker.py"] == b"W = 1\n"
        lock = yaml.safe_load((tmp_path / "manifests/small/lock.yaml").read_text())
        assert list(lock) == ["steps", "files"]
        hashes = {path: hashlib.sha256(self.NEW[path].encode()).hexdigest() for path in self.BOTH}
        pin = pins["next"]
        assert lock["files"] == {"next": {"revision": f"{pin['url']}@{pin['commit']}", "sha256": hashes}}

    @pytest.mark.parametrize("path", BOTH)
    def test_file_that_is_no_longer_listed_is_refused_naming_both_revisions(
        self, tmp_path: Path, pins: dict[str, Any], path: str
    ) -> None:
        self.locked(tmp_path, pins)
        others = [other for other in self.BOTH if other != path]
        said = says(
            f"^{path}: expected sha256:[0-9a-f]{{64}} of {self.of(pins, 'next')}, "
            f"found sha256:[0-9a-f]{{64}} of {self.of(pins, 'sglang')}; .*--line small --write-lock$"
        )
        with pytest.raises(ComposeError, check=said):
            self.compose(tmp_path, self.line(tmp_path, pins, {"source": "next", "files": others}))

    def test_equal_file_of_another_source_is_refused(self, tmp_path: Path, pins: dict[str, Any]) -> None:
        """The same bytes today are not the same file after the next bump of one of the pins."""
        write_series(tmp_path / "patches", {})
        listed = ["sglang/a.py", "sglang/b.py"]
        self.compose(tmp_path, self.line(tmp_path, pins, {"source": "next", "files": listed}), write_lock=True)
        said = says(f"^sglang/b.py: .* of {self.of(pins, 'next')}, found .* of {self.of(pins, 'sglang')};")
        with pytest.raises(ComposeError, check=said):
            self.compose(tmp_path, self.line(tmp_path, pins, {"source": "next", "files": listed[:1]}))

    def test_layer_that_lays_another_revision_over_it_is_refused(self, tmp_path: Path, pins: dict[str, Any]) -> None:
        self.locked(tmp_path, pins)
        layers = [{"source": "next", "files": self.BOTH}, {"source": "fork", "files": ["sglang/worker.py"]}]
        said = says(f"^sglang/worker.py: .* of {self.of(pins, 'next')}, found .* of {self.of(pins, 'fork')};")
        with pytest.raises(ComposeError, check=said):
            self.compose(tmp_path, self.line(tmp_path, pins, *layers))

    def test_layer_that_is_gone_is_refused(self, tmp_path: Path, pins: dict[str, Any]) -> None:
        self.locked(tmp_path, pins)
        with pytest.raises(ComposeError, check=says(f"^sglang/worker.py: .*found .* of {self.of(pins, 'sglang')};")):
            self.compose(tmp_path, self.line(tmp_path, pins))

    def test_file_that_the_lock_does_not_know_is_refused(self, tmp_path: Path, pins: dict[str, Any]) -> None:
        self.locked(tmp_path, pins)
        said = says(f"^sglang/a.py: expected no such file in .*lock.yaml, found .* of {self.of(pins, 'next')};")
        with pytest.raises(ComposeError, check=said):
            self.compose(tmp_path, self.line(tmp_path, pins, {"source": "next", "files": [*self.BOTH, "sglang/a.py"]}))

    def test_another_revision_with_the_same_files_is_refused(self, tmp_path: Path, pins: dict[str, Any]) -> None:
        self.locked(tmp_path, pins)
        later = pins["next"] | {"commit": make_commit(tmp_path / "next", {"sglang/c.py": ""})}
        said = says(f"lock.yaml: source:next: expected .*@{pins['next']['commit']}, found .*@{later['commit']};")
        line = self.line(tmp_path, pins | {"next": later}, {"source": "next", "files": self.BOTH})
        with pytest.raises(ComposeError, check=said):
            self.compose(tmp_path, line)

    def test_patch_that_misfits_names_the_revision_of_the_file_and_the_locked_one(
        self, tmp_path: Path, pins: dict[str, Any]
    ) -> None:
        """Also where the lock is to be written anew, so that nothing compares the files with it."""
        self.locked(tmp_path, pins)
        line = self.line(tmp_path, pins, {"source": "next", "files": ["sglang/utils.py"]})
        said = says(
            f"^1.patch: sglang/worker.py: hunk 1, in the file of {self.of(pins, 'sglang')}, "
            f"which .*lock.yaml has of {self.of(pins, 'next')}: expected "
        )
        with pytest.raises(ComposeError, check=said):
            self.compose(tmp_path, line, write_lock=True)

    def test_import_that_breaks_names_both_revisions(self, tmp_path: Path, pins: dict[str, Any]) -> None:
        write_series(tmp_path / "patches", {})
        line = self.line(tmp_path, pins, {"source": "next", "files": ["sglang/worker.py"]})
        said = says(f"imports U2 from .*; file from {self.of(pins, 'next')}, module from {self.of(pins, 'sglang')};")
        with pytest.raises(ComposeError, check=said):
            self.compose(tmp_path, line, write_lock=True)

    def test_steps_alone_prove_a_recorded_tree(self, tmp_path: Path, pins: dict[str, Any]) -> None:
        composed = self.locked(tmp_path, pins)
        line = self.line(tmp_path, pins, {"source": "next", "files": self.BOTH})
        lock = Lock(steps={step.name: step.digest for step in composed.record.steps})
        where = (tmp_path / "build", tmp_path / "overlays", tmp_path / "patches")
        again = composing.compose(line.model_copy(update={"lock": lock}), *where, prove_files=False)
        assert again.record == composed.record

    def test_work_in_progress_is_not_locked(self, tmp_path: Path, pins: dict[str, Any]) -> None:
        write_series(tmp_path / "patches", {})
        work = {"next": {"kind": "dir", "path": str(tmp_path / "next")}}
        line = self.line(tmp_path, pins | work, {"source": "next", "files": self.BOTH})
        assert self.compose(tmp_path, line, write_lock=True)
        assert not (tmp_path / "manifests/small/lock.yaml").exists()


class TestDigest:
    FILES = ("sglang/a.py", "sglang/a/b.py", "sglang/a-b.py", "sglang/B.py", "sglang/ü.py", "sglang/a b'c\".py", "x y")

    def test_digest_is_that_of_the_shell_pipeline_in_its_docstring(self, small: Compose, tmp_path: Path) -> None:
        odd = {f"sglang/odd/{name}": name for name in self.FILES} | {f"sglang/n{number}": "x" for number in range(1500)}
        write_files(tmp_path / "tree", odd)
        composed = small()
        composing.write(composed, make_line(tmp_path), tmp_path / "build")
        docstring = composing.tree_digest.__doc__ or ""
        pipeline = docstring.split("``")[-2]
        assert pipeline.startswith("find sglang ")
        done = subprocess.run(
            pipeline, shell=True, cwd=tmp_path / "build/small/tree", capture_output=True, text=True, check=True
        )
        assert composed.record.digest == "sha256:" + done.stdout.split()[0]

    def test_digest_depends_on_names_and_bytes_and_not_on_order(self) -> None:
        hashes = dict.fromkeys(self.FILES, SHA256)
        shuffled = list(hashes)
        random.Random(1).shuffle(shuffled)
        digest = composing.tree_digest(hashes)
        assert composing.tree_digest({path: hashes[path] for path in shuffled}) == digest
        assert composing.tree_digest(hashes | {"sglang/a.py": "1" * 64}) != digest
        assert composing.tree_digest(hashes | {"new": SHA256}) != digest


class TestRecord:
    def test_json_is_canonical_and_independent_of_insertion_order(self) -> None:
        entries = {f"sglang/{name}.py": FileEntry(sha256=SHA256, origin="source:ü") for name in "cab"}
        step = ComposeStep(name="source:ü", changed=3, digest=f"sha256:{SHA256}")
        made = [
            Record(line="a", sources={}, steps=(step,), digest=f"sha256:{SHA256}", files=dict(order))
            for order in (entries.items(), reversed(entries.items()))
        ]
        first, second = (record.to_json() for record in made)
        assert first == second
        assert first.endswith(b"}\n")
        assert first.count(b"\n") == 1
        assert "source:ü".encode() in first
        document = json.loads(first)
        assert first[:-1] == json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        assert Record.model_validate_json(first) == made[0]

    def test_record_is_the_same_whatever_the_order_on_disk(self, small: Compose, tmp_path: Path) -> None:
        first = small().record.to_json()
        for path in TREE:
            (tmp_path / "tree" / path).unlink()
        write_files(tmp_path / "tree", dict(reversed(TREE.items())))
        assert small().record.to_json() == first

    def test_written_tree_replaces_the_old_one_whole(self, small: Compose, tmp_path: Path) -> None:
        line = make_line(tmp_path)
        composed = small()
        write_files(tmp_path / "build" / "small" / "tree", {"stale.py": "x"})
        composing.write(composed, line, tmp_path / "build")
        out = tmp_path / "build" / "small"
        written = {str(path.relative_to(out / "tree")) for path in (out / "tree").rglob("*") if path.is_file()}
        assert written == set(TREE)
        assert (out / "record.json").read_bytes() == composed.record.to_json()
        assert sorted(path.name for path in out.iterdir()) == ["record.json", "tree"]

    def test_failed_write_leaves_the_old_tree(
        self, small: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        composed = small()
        old = write_files(tmp_path / "build" / "small", {"tree/old.py": "x"})

        def full(_self: Path, _data: bytes) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space"):
            composing.write(composed, make_line(tmp_path), tmp_path / "build")
        assert [str(path.relative_to(old)) for path in old.rglob("*")] == ["tree", "tree/old.py"]
