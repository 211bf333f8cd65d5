"""How the stages hang together: space, the base against its lock, the report against the image."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline import bootstrap, stages
from pipeline.base import BaseImage
from pipeline.documents import CheckReport, CheckResult, CheckStatus, Inventory, InventoryFile, Record, canonical_json
from pipeline.errors import HostError, ImageError
from pipeline.files import PROJECT
from pipeline.manifest import DEFAULT_LINE, DirPin, Line, Lock, LockedBase, load_line
from pipeline.oci import CONFIG_TYPE, MANIFEST_TYPE, Descriptor, Image, digest_bytes, write_index

DIGEST = "sha256:" + "1" * 64
OTHER = "sha256:" + "2" * 64
NAMED: dict[str, Any] = {"base_kind": "cpu"} | dict.fromkeys(("base", "tree", "checks_digest", "manifest"), DIGEST)


def inventory(**debian: str) -> Inventory:
    files = {"sglang/a.py": InventoryFile(sha256="0" * 64, mode=0o644)}
    return Inventory(base=DIGEST, package_root="/p", files=files, debian=debian, python={"torch": "2.13.0+cpu"})


def base_with(debian: dict[str, str]) -> BaseImage:
    return BaseImage("cpu", "name", cast(Image, SimpleNamespace(digest=DIGEST)), inventory(**debian))


def locked(base: LockedBase | None) -> Line:
    line = load_line(DEFAULT_LINE)
    assert line.lock is not None
    return line.model_copy(update={"lock": Lock(steps=line.lock.steps, base=base)})


def get_base(monkeypatch: pytest.MonkeyPatch, line: Line, base: BaseImage) -> BaseImage:
    monkeypatch.setattr("pipeline.base.get", lambda _line, _build: base)
    return stages.get_base(line)


def test_base_that_is_the_locked_one_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = base_with({"openssl": "3"})
    assert get_base(monkeypatch, locked(LockedBase(digest=DIGEST)), base) is base
    assert capsys.readouterr().err == ""


def test_base_of_a_newer_mirror_is_used_and_its_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    base = base_with({"openssl": "3.0.18", "libnew": "1"})
    before = LockedBase(digest=OTHER, debian={"openssl": "3.0.17"}, python={"torch": "2.13.0+cpu"})
    assert get_base(monkeypatch, locked(before), base) is base
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("warning: ")
    assert OTHER in line
    assert DIGEST in line
    assert "2 packages differ: libnew (absent) → 1; openssl 3.0.17 → 3.0.18" in line


def test_base_without_a_lock_says_how_to_lock_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    get_base(monkeypatch, locked(None), base_with({}))
    assert "build.py base build --write-lock" in capfd.readouterr().err


def test_too_little_space_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=3 << 30))
    with pytest.raises(HostError, match="free space") as caught:
        stages.require_space(load_line(DEFAULT_LINE), tmp_path)
    assert f"{bootstrap.SPACE_FIRST >> 30} GiB" in caught.value.line()
    assert "found 3.0 GiB" in caught.value.line()


def test_image_of_other_inputs_is_not_checked(tmp_path: Path) -> None:
    line = load_line(DEFAULT_LINE)
    composed: Any = SimpleNamespace(record=SimpleNamespace(digest=DIGEST))
    image: Any = SimpleNamespace(labels={"io.sglang-xpu.tree.digest": OTHER}, layout=tmp_path)
    with pytest.raises(ImageError, match=r"run build\.py image"):
        stages.check_image(line, composed, base_with({}), image, tmp_path)


def test_plan_names_every_stage(tmp_path: Path) -> None:
    rows = stages.plan(load_line(DEFAULT_LINE), tmp_path)
    assert {stage for stage, _, _ in rows} == {"pin", "layer", "patch", "base", "engine", "check", "tags"}
    assert ("base", "cpu: Debian bookworm, base-cpu.txt", "to be made") in rows


class TestUnchanged:
    """A run that would make the same image and judge it by the same checks is not made."""

    @pytest.fixture
    def project(self, tmp_path: Path) -> Path:
        project = tmp_path / "project"
        for name in ("manifests", "patches", "overlays", "pipeline", "checks", "recipes"):
            shutil.copytree(PROJECT / name, project / name)
        shutil.copyfile(PROJECT / "requirements.lock", project / "requirements.lock")
        return project

    @pytest.fixture
    def line(self, project: Path) -> Line:
        return load_line(DEFAULT_LINE, project / "manifests")

    @pytest.fixture
    def build(self, line: Line, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(stages, "is_cached", lambda _line, _build: True)
        build = tmp_path / "build"
        out = build / line.name
        (out / "image").mkdir(parents=True)
        config = b'{"rootfs":{"diff_ids":[]}}'
        manifest = canonical_json(
            {
                "schemaVersion": 2,
                "config": Descriptor(CONFIG_TYPE, digest_bytes(config), len(config)).as_json(),
                "layers": [],
            }
        )
        write_index(out / "image", MANIFEST_TYPE, manifest, config)
        row = CheckResult(name="tree", status=CheckStatus.PASSED, seconds=1, reason="equal")
        report = CheckReport(image=digest_bytes(manifest), checks=(row,), **NAMED)
        (out / "check-report.json").write_bytes(report.to_json())
        record = Record(line=line.name, sources={}, steps=(), digest=DIGEST, files={})
        (out / "record.json").write_bytes(record.to_json())
        stages.remember(line, report, build, project)
        return build

    def test_verdict_stands_when_nothing_changed(self, line: Line, project: Path, build: Path) -> None:
        report = stages.unchanged(line, build, project)
        assert report is not None
        assert report.passed

    @pytest.mark.parametrize(
        "name",
        [
            "manifests/qwen3.8-27b/release.yaml",
            "manifests/qwen3.8-27b/lock.yaml",
            "manifests/qwen3.8-27b/base-cpu.txt",
            "patches/qwen3.8-27b/gdn-beta-fp32.patch",
            "manifests/qwen3.8-27b/features.yaml",
            "checks/test_tree.py",
            "pipeline/image.py",
            "recipes/cpu/stubs/torchvision/__init__.py",
            "requirements.lock",
        ],
    )
    def test_a_changed_input_calls_for_a_run(self, line: Line, project: Path, build: Path, name: str) -> None:
        with (project / name).open("ab") as stream:
            stream.write(b"\n")
        assert stages.unchanged(line, build, project) is None

    @pytest.mark.parametrize("name", ["check-report.json", "image/index.json", "inputs", "record.json"])
    def test_a_missing_output_calls_for_a_run(self, line: Line, project: Path, build: Path, name: str) -> None:
        (build / line.name / name).unlink()
        assert stages.unchanged(line, build, project) is None

    def test_report_on_another_image_calls_for_a_run(self, line: Line, project: Path, build: Path) -> None:
        path = build / line.name / "check-report.json"
        report = CheckReport.model_validate_json(path.read_bytes())
        path.write_bytes(report.model_copy(update={"image": OTHER}).to_json())
        assert stages.unchanged(line, build, project) is None

    def test_tree_of_other_inputs_composed_meanwhile_calls_for_a_run(
        self, line: Line, project: Path, build: Path
    ) -> None:
        path = build / line.name / "record.json"
        record = Record.model_validate_json(path.read_bytes())
        path.write_bytes(record.model_copy(update={"digest": OTHER}).to_json())
        assert stages.unchanged(line, build, project) is None

    def test_failed_report_is_not_remembered(self, line: Line, project: Path, tmp_path: Path) -> None:
        row = CheckResult(name="tree", status=CheckStatus.FAILED, seconds=1, reason="differs")
        report = CheckReport(image=DIGEST, checks=(row,), **NAMED)
        stages.remember(line, report, tmp_path / "other", project)
        assert not (tmp_path / "other").exists()

    def test_work_in_progress_always_runs(self, line: Line, project: Path) -> None:
        pins = {**line.release.pins, "dflash2": DirPin(kind="dir", path="elsewhere")}
        changed = line.model_copy(update={"release": line.release.model_copy(update={"pins": pins})})
        assert stages.inputs(changed, project) is None
