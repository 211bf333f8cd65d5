"""`build.py release` as a whole: from the build folder and git's word to the record, the table and the exit code."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline import cli, files, git, stages
from pipeline.documents import Record
from pipeline.errors import ReleaseError
from pipeline.manifest import DEFAULT_LINE, Line, OverlayLayer, load_line
from pipeline.oci import Image
from tests.fast.fake_registry import FakeRegistry, fake_registry
from tests.fast.test_release import CHECKS, MANIFEST, TREE, WHEEL, FakeEngine, make_image, make_line, make_report


def run_git(project: Path, *arguments: str) -> None:
    """Run git as a user with a name."""
    names = ["-c", "user.name=n", "-c", "user.email=n@example.com"]
    subprocess.run(["git", *names, *arguments], cwd=project, check=True, capture_output=True)


@dataclass
class Folders:
    """A project with a commit, and its build folder with a checked image."""

    project: Path
    build: Path
    line: Line
    fake: FakeRegistry
    image: Image

    @property
    def repository(self) -> str:
        """Where to release to."""
        return f"{self.fake.address}/team/image"

    @property
    def record(self) -> Path:
        """Where the record of a release to loopback lies."""
        return self.build / "model" / "releases" / "model-20261129-cpu.json"


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folders]:
    project, build = tmp_path / "project", tmp_path / "build"
    (project / "checks").mkdir(parents=True)
    (project / "manifests").mkdir()
    (project / "file").write_text("x")
    run_git(project, "init", "--quiet")
    run_git(project, "add", ".")
    run_git(project, "commit", "--quiet", "--message=first")
    image = make_image(build / "model" / "image")
    line = make_line(project / "manifests")
    record = Record(line="model", sources={"sglang": WHEEL}, steps=(), digest=TREE, files={})
    (build / "model" / "record.json").write_bytes(record.to_json())
    (build / "model" / "check-report.json").write_bytes(make_report(image).to_json())
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(stages, "manifest_digest", lambda *_: MANIFEST)
    monkeypatch.setattr("pipeline.check.checks_digest", lambda *_: CHECKS)
    release_image = stages.release_image
    monkeypatch.setattr(
        stages, "release_image", lambda *args, **named: release_image(*args, **named, build=build, project=project)
    )
    monkeypatch.setattr(cli, "BUILD", build)
    monkeypatch.setattr(cli, "build_lock", lambda: files.build_lock(build))
    monkeypatch.setattr(cli, "load_line", lambda _name: line)
    with fake_registry() as fake:
        engine: Any = FakeEngine(fake)
        engine.client = type("Client", (), {"close": lambda _self: None})()
        monkeypatch.setattr("pipeline.engine.find_or_start", lambda _build: engine)
        yield Folders(project, build, line, fake, image)


def test_a_release_prints_its_table_and_digest_and_keeps_the_record(
    folders: Folders, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["release", folders.repository]) == 0
    out, err = capfd.readouterr()
    assert out.splitlines()[-1] == f"{folders.repository}@{folders.image.digest}"
    assert "│ commit" in out
    assert f"record: {folders.record}" in err
    kept = json.loads(folders.record.read_bytes())
    assert kept["commit"] == git.head(folders.project)
    assert kept["dirty"] is False
    assert not (folders.project / "releases").exists()
    before = folders.record.read_bytes()
    folders.record.unlink()
    assert cli.run(["release", folders.repository, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["released"] is True
    assert folders.record.read_bytes() == before


def test_a_closed_gate_prints_its_table_and_exit_code(folders: Folders, capfd: pytest.CaptureFixture[str]) -> None:
    (folders.project / "file").write_text("y")
    (folders.project / "new").write_text("y")
    assert cli.run(["release", folders.repository]) == ReleaseError.exit_code
    out, err = capfd.readouterr()
    assert "│ failed" in out
    assert "expected a clean working tree, found file and 1 more" in out
    assert err.splitlines()[-1].startswith("error: ")
    assert not folders.record.exists()
    assert cli.run(["release", "--json", "--dry-run", folders.repository]) == ReleaseError.exit_code
    document = json.loads(capfd.readouterr().out)
    assert document["released"] is False
    assert [row["name"] for row in document["conditions"] if not row["passed"]] == ["commit"]
    assert folders.fake.writes == []
    assert cli.run(["release", folders.repository, "--allow-dirty"]) == 0


def test_a_dry_run_keeps_no_record(folders: Folders, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["release", "--dry-run", "--json", folders.repository]) == 0
    assert json.loads(capfd.readouterr().out)["released"] is False
    assert folders.fake.writes == []
    assert not folders.record.exists()


def test_a_record_that_is_not_committed_yet_makes_no_tree_dirty(folders: Folders) -> None:
    (folders.project / "releases").mkdir()
    (folders.project / "releases" / "x.json").write_text("{}")
    assert stages.candidate(folders.line, folders.build, folders.project).changed == ()


def test_records_are_listed(folders: Folders, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["release", folders.repository]) == 0
    capfd.readouterr()
    assert cli.run(["release", "list", "--json"]) == 0
    (row,) = json.loads(capfd.readouterr().out)
    assert row["image"]["digest"] == folders.image.digest
    assert cli.run(["release", "list"]) == 0
    out = capfd.readouterr().out
    assert "model-20261129-cpu" in out
    assert folders.image.digest in out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("record.json", "of another version: line: Field required; build.py image"),
        ("check-report.json", "of another version: image: Field required; build.py check"),
    ],
)
def test_a_document_of_another_version_is_one_line(folders: Folders, name: str, message: str) -> None:
    (folders.build / "model" / name).write_text("{}")
    with pytest.raises(ReleaseError) as caught:
        stages.candidate(folders.line, folders.build, folders.project)
    assert message in caught.value.line()


def test_an_image_without_its_record_is_one_line(folders: Folders) -> None:
    (folders.build / "model" / "record.json").unlink()
    with pytest.raises(ReleaseError, match=r"record\.json: no such file; build\.py image"):
        stages.candidate(folders.line, folders.build, folders.project)


def test_a_folder_without_git_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git.checked_out(tmp_path) == (None, ())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git.checked_out(tmp_path) == (None, ())


def test_the_commit_of_a_folder_of_another_user_is_read(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a CI container: git refuses such a folder unless it is told that it is meant."""
    expected = git.head(folders.project)
    environment = git.environment
    monkeypatch.setattr(
        git, "environment", lambda folder: environment(folder) | {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}
    )
    assert git.run(folders.project, "status").returncode != 0
    assert git.checked_out(folders.project) == (expected, ())


def test_the_manifest_hash_is_over_what_the_line_is_made_from_wherever_it_lies(tmp_path: Path) -> None:
    hashes = []
    for name in ("one", "two"):
        project = tmp_path / name
        for folder in (f"manifests/{DEFAULT_LINE}", f"patches/{DEFAULT_LINE}", "recipes", "overlays"):
            target = project / folder
            target.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-r", str(files.PROJECT / folder), str(target)], check=True)
        hashes.append(stages.manifest_digest(load_line(DEFAULT_LINE, project / "manifests"), project))
    assert hashes[0] == hashes[1]
    line = load_line(DEFAULT_LINE, project / "manifests")
    (project / "overlays" / "unused").mkdir()
    (project / "overlays" / "unused" / "x.py").write_text("")
    assert stages.manifest_digest(line, project) == hashes[0]
    layers = (*line.release.layers, OverlayLayer(overlay="unused"))
    used = line.model_copy(update={"release": line.release.model_copy(update={"layers": layers})})
    assert stages.manifest_digest(used, project) != hashes[0]
    for changed in ("release.yaml", "lock.yaml", "profiles.yaml", "base-cpu.txt"):
        before = stages.manifest_digest(line, project)
        with (line.folder / changed).open("a") as stream:
            stream.write("\n")
        assert stages.manifest_digest(line, project) != before
