"""The image: exactly what differs from the base, and the same digest everywhere."""

import hashlib
import json
import os
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipeline import image as images
from pipeline.base import LABEL_KIND, BaseImage
from pipeline.compose import Composed, tree_digest
from pipeline.documents import RECORD_PATH, ComposeStep, FileEntry, Inventory, InventoryFile, Record
from pipeline.errors import ImageError
from pipeline.oci import Image, digest_file
from tests.fast.builders import ROOT, SHA256, make_base, make_line, says

P = ROOT.strip("/")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_inventory(files: Mapping[str, bytes], modes: Mapping[str, int] | None = None) -> Inventory:
    entries = {path: InventoryFile(sha256=sha256(d), mode=(modes or {}).get(path, 0o644)) for path, d in files.items()}
    return Inventory(base=f"sha256:{SHA256}", package_root=ROOT, files=entries, debian={}, python={"torch": "1"})


def make_composed(files: Mapping[str, bytes]) -> Composed:
    hashes = {path: sha256(data) for path, data in files.items()}
    names = ("source:sglang", "patch:1.patch", "patch:2.patch")
    record = Record(
        line="small",
        sources={},
        steps=tuple(ComposeStep(name=name, changed=1, digest=tree_digest(hashes)) for name in names),
        digest=tree_digest(hashes),
        files={path: FileEntry(sha256=value, origin="source:sglang") for path, value in hashes.items()},
    )
    return Composed(dict(files), {}, record)


BASE = {
    "sglang/__init__.py": b"",
    "sglang/__pycache__/__init__.cpython-311.pyc": b"code",
    "sglang/same.py": b"same",
    "sglang/__pycache__/same.cpython-311.pyc": b"code",
    "sglang/changed.py": b"old",
    "sglang/__pycache__/changed.cpython-311.pyc": b"code",
    "sglang/__pycache__/changed.cpython-311.opt-1.pyc": b"code",
    "sglang/changed.pyc": b"code",
    "sglang/gone.py": b"old",
    "sglang/__pycache__/gone.cpython-311.pyc": b"code",
    "sglang/fast.cpython-311.so": b"elf",
    "sglang/lib/other.so": b"elf",
    "sglang/deep/gone.json": b"old",
    "torch/__init__.py": b"other package",
    "torch/__pycache__/__init__.cpython-311.pyc": b"code",
    "sglang-0.5.dist-info/METADATA": b"Name: sglang",
    "top.py": b"other",
}
TREE = {
    "sglang/__init__.py": b"",
    "sglang/same.py": b"same",
    "sglang/changed.py": b"new",
    "sglang/new/deep/file.py": b"new",
}


class TestDifference:
    def test_changed_and_new_files_are_laid_and_equal_ones_are_not(self) -> None:
        delta = images.difference(make_composed(TREE).record, make_inventory(BASE))
        assert delta.changed == {"sglang/changed.py": 0o644, "sglang/new/deep/file.py": 0o644}

    def test_files_that_the_tree_lost_and_stale_bytecode_are_removed_and_extensions_kept(self) -> None:
        delta = images.difference(make_composed(TREE).record, make_inventory(BASE))
        assert delta.removed == (
            "sglang/__pycache__/changed.cpython-311.opt-1.pyc",
            "sglang/__pycache__/changed.cpython-311.pyc",
            "sglang/__pycache__/gone.cpython-311.pyc",
            "sglang/changed.pyc",
            "sglang/deep/gone.json",
            "sglang/gone.py",
        )

    def test_changed_file_keeps_the_mode_of_the_base(self) -> None:
        inventory = make_inventory(BASE, {"sglang/changed.py": 0o755})
        assert images.difference(make_composed(TREE).record, inventory).changed["sglang/changed.py"] == 0o755

    def test_equal_tree_needs_nothing(self) -> None:
        tree = {path: BASE[path] for path in ("sglang/__init__.py", "sglang/same.py", "sglang/changed.py")}
        delta = images.difference(make_composed(tree).record, make_inventory(tree | {"sglang/x.so": b"", "a.py": b""}))
        assert delta == images.Difference({}, ())

    @pytest.mark.parametrize(
        ("bytecode", "source"),
        [
            ("a/__pycache__/b.cpython-311.pyc", "a/b.py"),
            ("a/__pycache__/b.cpython-311.opt-2.pyc", "a/b.py"),
            ("a/b.pyc", "a/b.py"),
            ("__pycache__/b.cpython-311.pyc", "b.py"),
        ],
    )
    def test_source_of_bytecode(self, bytecode: str, source: str) -> None:
        assert images.source_of(bytecode) == source


@pytest.fixture
def base(tmp_path: Path) -> BaseImage:
    return make_base(tmp_path / "base", BASE, make_inventory(BASE))


def members(image: Image) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(image.blob(image.layers[-1].digest), "r:") as tar:
        return {member.name: member for member in tar}


def build(folder: Path, base: BaseImage, composed: Composed | None = None) -> Image:
    variable = {"value": "level_zero:gpu", "why": "w"}
    line = make_line(folder, environment={"DEVICE": variable}, title="A title")
    return images.build(line, composed or make_composed(TREE), base, folder / "out" / "image")


class TestBuild:
    def test_layer_holds_the_difference_the_record_and_only_new_directories(
        self, tmp_path: Path, base: BaseImage
    ) -> None:
        found = members(build(tmp_path, base))
        assert {name for name, member in found.items() if member.isdir()} == {
            f"{P}/sglang/new",
            f"{P}/sglang/new/deep",
            "usr/local/share/sglang-xpu",
        }
        assert {name for name, member in found.items() if not member.isdir()} == {
            f"{P}/sglang/changed.py",
            f"{P}/sglang/new/deep/file.py",
            f"{P}/sglang/.wh.changed.pyc",
            f"{P}/sglang/.wh.gone.py",
            f"{P}/sglang/deep/.wh.gone.json",
            f"{P}/sglang/__pycache__/.wh.changed.cpython-311.pyc",
            f"{P}/sglang/__pycache__/.wh.changed.cpython-311.opt-1.pyc",
            f"{P}/sglang/__pycache__/.wh.gone.cpython-311.pyc",
            RECORD_PATH,
        }

    def test_layout_is_loadable_and_says_what_is_inside(self, tmp_path: Path, base: BaseImage) -> None:
        image, composed = build(tmp_path, base), make_composed(TREE)
        assert Image.load(tmp_path / "out" / "image") == image
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["image"]
        assert sorted(path.name for path in image.layout.iterdir()) == ["blobs", "index.json", "oci-layout"]
        assert image.environment == {"A": "1", "DEVICE": "level_zero:gpu"}
        assert image.config["created"] == "2026-01-31T00:00:00Z"
        assert image.labels == {
            "org.opencontainers.image.title": "A title",
            "org.opencontainers.image.version": "20260131",
            "org.opencontainers.image.revision": "sglang==1",
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.base.name": "small-base:cpu",
            "org.opencontainers.image.base.digest": base.image.digest,
            LABEL_KIND: "cpu",
            "io.sglang-xpu.line": "small",
            "io.sglang-xpu.tree.digest": composed.record.digest,
            "io.sglang-xpu.patches": "1.patch,2.patch",
        }
        assert image.layers[-1].digest == image.config["rootfs"]["diff_ids"][-1]
        assert digest_file(image.blob(image.layers[-1].digest)) == image.layers[-1].digest

    def test_digest_is_the_same_in_another_folder_order_umask_time_zone_and_time(
        self, tmp_path: Path, base: BaseImage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = build(tmp_path / "one", base)
        before = os.umask(0o077)
        monkeypatch.setenv("TZ", "Pacific/Kiritimati")
        time.tzset()
        monkeypatch.setattr(time, "time", lambda: 1.0)
        try:
            reverse = dict(reversed(BASE.items()))
            other = make_base(tmp_path / "reversed", BASE, make_inventory(reverse))
            second = build(tmp_path / "two", other, make_composed(dict(reversed(TREE.items()))))
        finally:
            os.umask(before)
            monkeypatch.undo()
            time.tzset()
        assert second.digest == first.digest
        assert second.manifest_bytes == first.manifest_bytes
        assert second.blob(second.layers[-1].digest).read_bytes() == first.blob(first.layers[-1].digest).read_bytes()

    def test_only_manifest_config_and_inventory_of_the_base_are_read(self, tmp_path: Path, base: BaseImage) -> None:
        digest = build(tmp_path / "one", base).digest
        for layer in base.image.layers:
            base.image.blob(layer.digest).unlink()
        assert build(tmp_path / "two", base).digest == digest

    def test_layer_that_is_too_large_is_refused_and_the_old_image_stays(
        self, tmp_path: Path, base: BaseImage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = build(tmp_path, base)
        monkeypatch.setattr(images, "LAYER_LIMIT", 9000)
        with pytest.raises(
            ImageError, check=says("our layer: expected at most 9000 bytes, found 10240 bytes, 2 files")
        ):
            build(tmp_path, base)
        assert Image.load(tmp_path / "out" / "image") == old
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["image"]

    def test_limit_is_eight_mebibytes(self) -> None:
        assert images.LAYER_LIMIT == 8 * 1024 * 1024


def test_facts_are_what_the_checks_are_promised_as_json(tmp_path: Path, base: BaseImage) -> None:
    composed = make_composed(TREE)
    image = build(tmp_path, base, composed)
    architecture = {"C": {"file": "sglang/c.py", "why": "w", "must_have": ["x"]}}
    variable = {"DEVICE": {"value": "v", "why": "w"}}
    line = make_line(tmp_path, architectures=architecture, environment=variable)
    facts = images.facts(line, composed.record, base, image)
    assert json.loads(json.dumps(facts)) == facts
    record, inventory = facts.pop("record"), facts.pop("inventory")
    assert Record.model_validate(record) == composed.record
    assert Inventory.model_validate(inventory) == base.inventory
    assert facts == {
        "line": "small",
        "base_kind": "cpu",
        "package_root": ROOT,
        "record_path": f"/{RECORD_PATH}",
        "allows": [],
        "removed": list(images.difference(composed.record, base.inventory).removed),
        "layer_paths": sorted([f"{P}/sglang/changed.py", f"{P}/sglang/new/deep/file.py", RECORD_PATH]),
        "environment": {"base": {"A": "1"}, "defaults": {"DEVICE": {"value": "v", "why": "w", "read_by": None}}},
        "architectures": architecture,
        "profiles": {},
        "configs": {},
    }


def test_layer_paths_are_those_above_the_base_without_whiteouts(tmp_path: Path, base: BaseImage) -> None:
    image = build(tmp_path, base)
    paths = images.layer_paths(image, base.image)
    assert f"{P}/sglang/changed.py" in paths
    assert f"{P}/sglang/same.py" not in paths
    assert not [path for path in paths if ".wh." in path]
