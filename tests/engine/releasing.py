"""Small releases that pass the gate, for tests against a real registry; they run in this process or in another.

Every release has layers that no other has, and the date of the day after the one before: released one after the other
into one repository they are its history.
"""

import datetime
import os
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline import registry as registries
from pipeline.base import LABEL_KIND
from pipeline.documents import CheckReport, CheckResult, CheckStatus, ComposeStep, Record, canonical_json
from pipeline.errors import EngineError, PipelineError
from pipeline.gate import LABEL_BASE, LABEL_TREE, Candidate
from pipeline.manifest import CpuBase, Line, Lock, LockedBase, Profiles, PublishedBase, PypiPin, Release, SourceLayer
from pipeline.oci import CONFIG_TYPE, Descriptor, Image, LayerEntry, append_layer, blob_path, digest_bytes, write_layer
from pipeline.registry import Registry, parse_pinned
from pipeline.release import LABEL_VERSION, ReleaseResult, release

FIRST = datetime.date(2026, 1, 1)
DIGEST = "sha256:" + "7" * 64
LAYER_BYTES = 40_000
PIN = PypiPin(kind="pypi", name="sglang", version="1", sha256={"cp311": "0" * 64})


@dataclass(frozen=True)
class Puller:
    """As much of an engine as a release needs: pulls by digest through the registry's API, and compares."""

    host: str = "in this process"

    def compare_pulled(self, image: Image, reference: str) -> None:
        """Read manifest and every blob as an engine would."""
        repository, digest = parse_pinned(reference)
        with Registry(repository) as registry:
            manifest = registry.get_manifest(digest)
            if manifest.content != image.manifest_bytes:
                raise EngineError(reference, expected=image.digest, found=manifest.digest)
            registry.get_blob(image.config_digest, 1 << 20)
            for layer in image.layers:
                registry.get_blob(layer.digest, layer.size)


def add_layer(base: Image, target: Path, text: str, labels: dict[str, str]) -> Image:
    """``base`` plus one layer that no other image has."""
    tar = target.with_suffix(".tar")
    layer = write_layer(tar, [LayerEntry("srv/file", (text.encode() * LAYER_BYTES)[:LAYER_BYTES])])
    created = "2026-01-01T00:00:00Z"
    return append_layer(base, target, tar, layer, environment={}, labels=labels, created=created, comment=text)


def make_candidate(folder: Path, day: int, published: str | None = None) -> Candidate:
    """The release of a day, on a local base of its own, or on one that is published in repository ``published``."""
    kind = "published" if published else "cpu"
    date = (FIRST + datetime.timedelta(days=day)).strftime("%Y%m%d")
    config = canonical_json({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}})
    descriptor = {"mediaType": CONFIG_TYPE, "digest": digest_bytes(config), "size": len(config)}
    manifest = canonical_json({"schemaVersion": 2, "config": descriptor, "layers": []})
    empty = Image(folder / "empty", digest_bytes(manifest), manifest, config)
    base = add_layer(empty, folder / f"base-{day}", f"base of day {day}", {})
    labels = {
        LABEL_VERSION: date,
        LABEL_KIND: kind,
        LABEL_BASE: base.digest,
        LABEL_TREE: DIGEST,
        "org.opencontainers.image.base.name": "small",
    }
    image = add_layer(base, folder / f"image-{day}", f"our layer of day {day}", labels)
    if published:  # then the base's layers lie in its repository alone
        image.blob(base.layers[0].digest).unlink()
    return _candidate(_line(date, base.digest, published), image)


def _line(date: str, base: str, published: str | None) -> Line:
    local = CpuBase(kind="cpu", suite="bookworm", debian=(), requirements="base-cpu.txt")
    pinned = f"{published}@{base}"
    remote = PublishedBase(kind="published", reference=pinned, package_root="/p", python_tag="cp311")
    manifest = Release(
        title="A title",
        model="A model",
        tag="model",
        release=date,
        pins={"sglang": PIN},
        layers=(SourceLayer(source="sglang"),),
        base=remote if published else local,
        environment={},
        architectures={},
    )
    lock = Lock(steps={}, base=LockedBase(digest=base))
    return Line(name="small", folder=Path("small"), release=manifest, profiles=Profiles(profiles={}), lock=lock)


def _candidate(line: Line, image: Image) -> Candidate:
    step = ComposeStep(name="source:sglang", changed=1, digest=DIGEST)
    check = CheckResult(name="tree", status=CheckStatus.PASSED, seconds=1, reason="equal")
    report = CheckReport(
        image=image.digest,
        base_kind=image.labels[LABEL_KIND],
        base=image.labels[LABEL_BASE],
        tree=DIGEST,
        checks_digest=DIGEST,
        manifest=DIGEST,
        checks=(check,),
    )
    pins = {"sglang": PIN.model_dump(mode="json")}
    record = Record(line="small", sources=pins, steps=(step,), digest=DIGEST, files={})
    return Candidate(line, image, record, report, DIGEST, DIGEST, {}, "c" * 40)


def run(candidate: Candidate, repository: str) -> ReleaseResult:
    """Release it, in this process."""
    return release(candidate, repository, Puller)


def run_in_a_process(candidate: Candidate, repository: str, environment: dict[str, str], backoff: float) -> None:
    """The same as the target of a process; exits with the error's code."""
    os.environ.update(environment)
    registries.BACKOFF_SECONDS = backoff
    try:
        run(candidate, repository)
    except PipelineError as error:
        raise SystemExit(error.exit_code) from error


def foreign(image: Image) -> Image:
    """Another image of the same blobs: what somebody else could tag."""
    content = image.manifest_bytes.replace(b'"schemaVersion":2', b'"schemaVersion": 2')
    return replace(image, digest=digest_bytes(content), manifest_bytes=content)


def base_blob(folder: Path, day: int, layer: Descriptor) -> Path:
    """Where the layer of a day's base lies."""
    return blob_path(folder / f"base-{day}", layer.digest)
