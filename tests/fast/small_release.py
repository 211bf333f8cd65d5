"""A small line of one repository and one patch, its image on a local base, and the record of its release."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline import base as bases
from pipeline import compose as composing
from pipeline import image as images
from pipeline import stages
from pipeline.base import BaseImage
from pipeline.compose import ComposeLockError
from pipeline.documents import Inventory, InventoryFile, Record, ReleasedImage, ReleaseRecord
from pipeline.manifest import Line, Lock
from pipeline.oci import Image, digest_bytes, digest_file
from pipeline.verify import Verification, verify
from tests.fast.builders import ROOT, diff, make_base, make_commit, make_line, write_series

TREE = {"sglang/__init__.py": "", "sglang/a.py": "A = 1\n", "sglang/b.py": "B = 1\n"}
PATCH = {"one.patch": diff("sglang/a.py", "A = 1\n", "A = 2\n")}
OTHER = "sha256:" + "9" * 64
COMMIT = "c" * 40


@dataclass
class Released:
    """A small line, its image, and the record of it; verification looks at ``folder``."""

    folder: Path
    line: Line
    base: BaseImage
    image: Image
    record: ReleaseRecord
    inside: Record
    """The record in the image."""

    def verify(self, record: ReleaseRecord | None = None, target: str | None = None) -> Verification:
        """Verify a record written as a file, or a reference."""
        file = self.folder / "record.json"
        file.write_bytes((record or self.record).to_json())
        return verify(target or str(file), self.folder / "build", self.folder / "manifests")

    def change(self, **parts: Any) -> ReleaseRecord:
        """The record with other objects."""
        return self.record.model_copy(update={"image": self.record.image.model_copy(update=parts)})


def make_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Released:
    """Build the line below ``tmp_path``, and let the stages find it there."""
    monkeypatch.setattr("pipeline.registry.BACKOFF_SECONDS", 0.01)
    commit = make_commit(tmp_path / "upstream", TREE)
    pin = {"kind": "git", "url": str(tmp_path / "upstream"), "commit": commit}
    write_series(tmp_path / "patches" / "small", PATCH)
    monkeypatch.setattr(composing, "PATCHES", tmp_path / "patches")
    monkeypatch.setattr(stages, "manifest_digest", lambda line: digest_file(line.folder / "release.yaml"))
    line = make_line(tmp_path, pins={"sglang": pin}, layers=[{"source": "sglang"}, {"patches": "series"}])
    upstream = {path: data.encode() for path, data in TREE.items()}
    files = {path: InventoryFile(sha256=digest_bytes(data)[7:], mode=0o644) for path, data in upstream.items()}
    taken = Inventory(base=OTHER, package_root=ROOT, files=files, debian={}, python={})
    base = make_base(tmp_path / "base", upstream, taken)
    monkeypatch.setattr(bases, "cached", lambda _line, _build: True)
    monkeypatch.setattr(bases, "get", lambda _line, _build: base)
    composed = composing.compose(with_lock(line, tmp_path / "build"), tmp_path / "build")
    image = images.build(line, composed, base, tmp_path / "image")
    made = ReleasedImage(
        digest=image.digest,
        config=image.config_digest,
        layer=image.layers[-1].digest,
        tree=composed.record.digest,
        base=base.image.digest,
        base_kind="cpu",
        base_name=base.name,
    )
    record = ReleaseRecord(
        line="small",
        release="20260131",
        repository="127.0.0.1:1/team/image",
        tags=("a-20260131-cpu", "a-cpu"),
        image=made,
        pins=composed.record.sources,
        steps=composed.record.steps,
        patches={"one.patch": digest_file(tmp_path / "patches/small/one.patch")[7:]},
        manifest=digest_file(line.folder / "release.yaml"),
        checks_digest=OTHER,
        checks=(),
        checkpoints={},
        tools={},
        commit=COMMIT,
        dirty=False,
        recorded_at="2026-01-31T00:00:00Z",
    )
    return Released(tmp_path, line, base, image, record, composed.record)


def with_lock(line: Line, build: Path) -> Line:
    """The line, locked on what it composes to."""
    with pytest.raises(ComposeLockError) as raised:
        composing.compose(line, build)
    steps = {entry.name: entry.digest for entry in raised.value.record.steps}
    return line.model_copy(update={"lock": Lock(steps=steps)})
