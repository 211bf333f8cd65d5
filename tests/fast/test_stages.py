"""How the stages hang together: space, the base against its lock, the report against the image."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline import bootstrap, stages
from pipeline.base import BaseImage
from pipeline.documents import Inventory, InventoryFile
from pipeline.errors import HostError, ImageError
from pipeline.manifest import DEFAULT_LINE, Line, Lock, LockedBase, load_line
from pipeline.oci import Image

DIGEST = "sha256:" + "1" * 64
OTHER = "sha256:" + "2" * 64


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
