"""The gate and the order of a release, against an in-process registry that logs every request."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipeline.documents import CheckReport, CheckResult, CheckStatus, Record, canonical_json
from pipeline.errors import ReleaseError
from pipeline.manifest import CpuBase, Line, PublishedBase, Release
from pipeline.oci import (
    CONFIG_TYPE,
    LAYER_TYPE,
    MANIFEST_TYPE,
    Descriptor,
    Image,
    blob_path,
    digest_bytes,
    write_index,
)
from pipeline.registry import Registry, Repository
from pipeline.release import ReleaseResult, release, tags
from tests.fast.fake_registry import FakeRegistry, Fault, fake_registry

TREE = "sha256:" + "7" * 64
OTHER = "sha256:" + "8" * 64
PINNED, MOVING = "model-20261129-cpu", "model-cpu"


def make_line(tag: str = "model", base: CpuBase | PublishedBase | None = None) -> Line:
    """A release line with nothing in it but what a release reads."""
    base = base or CpuBase.model_construct(kind="cpu")
    return Line.model_construct(release=Release.model_construct(tag=tag, release="20261129", base=base))


def published_base(host: str) -> PublishedBase:
    """A published base at ``host``."""
    return PublishedBase.model_construct(kind="published", reference=f"{host}/team/base@{OTHER}")


def make_image(layout: Path, layers: tuple[bytes, ...] = (b"base layer", b"our layer")) -> Image:
    """A layout whose layers are any bytes."""
    config = b"{}"
    descriptors = [Descriptor(LAYER_TYPE, digest_bytes(data), len(data)) for data in layers]
    blob_path(layout, digest_bytes(config)).parent.mkdir(parents=True)
    for data in layers:
        blob_path(layout, digest_bytes(data)).write_bytes(data)
    manifest = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": Descriptor(CONFIG_TYPE, digest_bytes(config), len(config)).as_json(),
            "layers": [descriptor.as_json() for descriptor in descriptors],
        }
    )
    write_index(layout, MANIFEST_TYPE, manifest, config)
    return Image.load(layout)


def make_report(checked: Image, status: CheckStatus = CheckStatus.PASSED, **changes: Any) -> CheckReport:
    """A report on ``checked`` whose second check ended with ``status``."""
    checks = (
        CheckResult(name="tree", status=CheckStatus.PASSED, seconds=1, reason="r"),
        CheckResult(name="registry", status=status, seconds=1, reason="r"),
    )
    values: dict[str, Any] = {"image": checked.digest, "base_kind": "cpu", "tree": TREE, "checks": checks}
    return CheckReport(**(values | changes))


@dataclass
class Case:
    """Arguments of a release that passes; a test plants one fault."""

    fake: FakeRegistry
    image: Image
    report: CheckReport | None
    repository: str
    line: Line = field(default_factory=make_line)
    sources: dict[str, dict[str, Any]] = field(default_factory=lambda: {"sglang": {"kind": "pypi"}})
    base_kind: str = "cpu"

    def release(self, dry_run: bool = False) -> ReleaseResult:
        """Release it."""
        record = Record(line="model", sources=self.sources, steps=(), digest=TREE, files={})
        return release(self.line, self.image, record, self.report, self.base_kind, self.repository, dry_run)

    def set_tag(self, tag: str, digest: str | None = None) -> None:
        """Let the registry hold ``tag``, on this image or on other content."""
        content = self.image.manifest_bytes if digest == self.image.digest else b"{}"
        self.fake.manifests["team/image", tag] = (content, MANIFEST_TYPE)

    def held(self, tag: str) -> str:
        """Digest that the registry holds under ``tag``."""
        return digest_bytes(self.fake.manifests["team/image", tag][0])

    def publish_base(self, host: str) -> None:
        """Turn it into an image on a published base whose layer is not here."""
        self.line, self.base_kind = make_line(base=published_base(host)), "published"
        self.report = make_report(self.image, base_kind="published")
        self.image.blob(self.image.layers[0].digest).unlink()


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr("pipeline.registry.sleep", [].append)
    image = make_image(tmp_path / "image")
    with fake_registry() as fake:
        yield Case(fake, image, make_report(image), f"{fake.address}/team/image")
    assert not any("latest" in row for row in fake.log)


def failed(text: str) -> list[str]:
    """Names of the conditions that were printed as failed."""
    rows = [row.split("  ") for row in text.splitlines() if row.startswith("  FAILED")]
    return [row[2].partition(":")[0] for row in rows]


# -- tags ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base_kind", "expected"),
    [
        ("cpu", ("model-20261129-cpu", "model-cpu")),
        ("published", ("model-20261129", "model")),
        ("xpu", ("model-20261129", "model")),
    ],
)
def test_the_base_kind_is_part_of_the_tags(base_kind: str, expected: tuple[str, str]) -> None:
    assert tags(make_line(), base_kind) == expected


def test_an_unknown_base_kind_has_no_tags() -> None:
    with pytest.raises(ReleaseError, match="base kind 'cuda'"):
        tags(make_line(), "cuda")


# -- the gate: one fault each, and exactly that condition fails --------------------------------------------------


def plant_no_report(case: Case) -> None:
    case.report = None


def plant_failed_check(case: Case) -> None:
    case.report = make_report(case.image, CheckStatus.FAILED)


def plant_unfinished_check(case: Case) -> None:
    case.report = make_report(case.image, CheckStatus.NOT_RUN)


def plant_empty_report(case: Case) -> None:
    case.report = make_report(case.image, checks=())


def plant_report_on_other_image(case: Case) -> None:
    case.report = make_report(case.image, image=OTHER)


def plant_report_on_other_tree(case: Case) -> None:
    case.report = make_report(case.image, tree=OTHER)


def plant_report_on_other_base(case: Case) -> None:
    case.report = make_report(case.image, base_kind="published")


def plant_work_in_progress(case: Case) -> None:
    case.sources["draft"] = {"kind": "dir", "path": "wip"}


def plant_registry_off_loopback(case: Case) -> None:
    case.repository = "registry.example.com/team/image"


def plant_tag_latest(case: Case) -> None:
    case.line, case.base_kind = make_line(tag="latest", base=published_base(case.fake.address)), "published"
    case.report = make_report(case.image, base_kind="published")


def plant_taken_tag(case: Case) -> None:
    case.set_tag(PINNED, OTHER)


def plant_lost_blob(case: Case) -> None:
    case.image.blob(case.image.layers[0].digest).unlink()


def plant_base_elsewhere(case: Case) -> None:
    case.publish_base("registry.example.com")


@pytest.mark.parametrize(
    ("plant", "condition", "message"),
    [
        (plant_no_report, "checks", "no check report; build.py check"),
        (plant_failed_check, "checks", "registry failed; build.py check"),
        (plant_unfinished_check, "checks", "registry not_run; build.py check"),
        (plant_empty_report, "checks", "no check was run; build.py check"),
        (plant_report_on_other_image, "checked image", f"found {OTHER}; build.py check"),
        (plant_report_on_other_tree, "checked tree", f"expected {TREE}, found {OTHER}; build.py check"),
        (plant_report_on_other_base, "checked base kind", "expected cpu, found published; build.py check"),
        (plant_work_in_progress, "pins", "draft: work in progress (kind dir); pin a version or a commit"),
        (plant_registry_off_loopback, "registry", "found registry.example.com; release an image on a published base"),
        (plant_tag_latest, "tags", "latest-20261129, latest; name the model in tag"),
        (plant_taken_tag, "pinned tag", "a pinned tag never moves: set a new release date"),
        (plant_lost_blob, "blobs", "; build the image again"),
        (plant_base_elsewhere, "blobs", "; mirror the base first"),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_one_fault_closes_the_gate_before_anything_is_sent(
    case: Case, capsys: pytest.CaptureFixture[str], plant: Any, condition: str, message: str, dry_run: bool
) -> None:
    plant(case)
    with pytest.raises(ReleaseError) as caught:
        case.release(dry_run)
    assert failed(capsys.readouterr().err) == [condition]
    assert f"{case.repository}: not released: {condition}: " in caught.value.line()
    assert message in caught.value.line()
    assert case.fake.writes == []


def test_every_condition_that_failed_is_printed(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    plant_failed_check(case)
    plant_work_in_progress(case)
    plant_taken_tag(case)
    with pytest.raises(ReleaseError, match=r"not released \(and 2 more\): checks: "):
        case.release()
    assert failed(capsys.readouterr().err) == ["checks", "pins", "pinned tag"]
    assert case.fake.writes == []


@pytest.mark.parametrize("plant", [plant_registry_off_loopback, plant_tag_latest])
def test_a_registry_that_may_not_be_used_is_not_asked(case: Case, monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    plant(case)
    monkeypatch.setattr("requests.Session.request", lambda *_, **__: pytest.fail("a request was made"))
    with pytest.raises(ReleaseError):
        case.release()


# -- the push --------------------------------------------------------------------------------------------------


def test_a_release_looks_first_then_sends_and_sets_the_moving_tag_last(case: Case) -> None:
    result = case.release()
    manifests = "/v2/team/image/manifests"
    assert [row for row in case.fake.log if row.startswith("PUT") or "manifests" in row] == [
        f"HEAD {manifests}/{PINNED}",
        f"HEAD {manifests}/{MOVING}",
        *["PUT /v2/team/image/blobs/uploads/1"] * 3,
        f"PUT {manifests}/{case.image.digest}",
        f"HEAD {manifests}/{PINNED}",
        f"PUT {manifests}/{PINNED}",
        f"PUT {manifests}/{MOVING}",
        f"HEAD {manifests}/{PINNED}",
        f"HEAD {manifests}/{MOVING}",
    ]
    assert case.held(PINNED) == case.held(MOVING) == result.digest == case.image.digest
    assert result.tags == (PINNED, MOVING)
    blobs = sum(layer.size for layer in case.image.layers) + len(case.image.config_bytes)
    assert result.bytes_missing == blobs
    assert result.bytes_sent == blobs + 3 * len(case.image.manifest_bytes)
    assert json.loads(result.to_json())["repository"] == case.repository


def test_a_release_that_is_there_sends_nothing(case: Case) -> None:
    case.release()
    case.fake.log.clear()
    result = case.release()
    assert case.fake.writes == []
    assert result.bytes_sent == 0


def test_a_release_that_broke_off_before_the_moving_tag_is_completed(case: Case) -> None:
    case.release()
    case.set_tag(MOVING, OTHER)
    case.fake.log.clear()
    case.release()
    assert case.fake.writes == [f"PUT /v2/team/image/manifests/{MOVING}"]
    assert case.held(MOVING) == case.image.digest


def test_a_failure_before_the_pinned_tag_leaves_both_tags(case: Case) -> None:
    case.set_tag(MOVING, OTHER)
    before = case.held(MOVING)
    case.fake.faults = [Fault("PUT", f"manifests/{case.image.digest}", 500, times=99)]
    with pytest.raises(ReleaseError, match="put manifest sha256:"):
        case.release()
    assert case.held(MOVING) == before
    assert ("team/image", PINNED) not in case.fake.manifests


def test_a_dry_run_sends_nothing_and_says_what_it_would(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    case.fake.blobs["team/image", case.image.layers[0].digest] = b"base layer"
    result = case.release(dry_run=True)
    assert case.fake.writes == []
    assert (result.dry_run, result.bytes_missing, result.bytes_sent) == (True, 11, 0)
    said = capsys.readouterr().err
    assert f"  present {case.image.layers[0].digest} 10 bytes\n" in said
    assert f"  send    {case.image.layers[1].digest} 9 bytes\n" in said
    assert f"  tag     {PINNED}: none -> {case.image.digest}\n" in said
    assert "dry run: nothing was sent; 11 bytes of blobs would be\n" in said


def test_a_tag_taken_during_the_push_is_not_overwritten(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    push_blob = Registry.push_blob

    def meanwhile(registry: Registry, path: Path, descriptor: Descriptor) -> int:
        case.set_tag(PINNED, OTHER)
        return push_blob(registry, path, descriptor)

    monkeypatch.setattr(Registry, "push_blob", meanwhile)
    with pytest.raises(ReleaseError, match="was set by another release meanwhile"):
        case.release()
    assert case.held(PINNED) == digest_bytes(b"{}")
    assert ("team/image", MOVING) not in case.fake.manifests


def test_a_tag_that_reads_back_otherwise_is_an_error(case: Case) -> None:
    other = {"Docker-Content-Digest": OTHER}
    case.release()
    case.set_tag(MOVING, OTHER)
    case.fake.faults = [Fault("HEAD", f"manifests/{MOVING}$", 200, times=2, headers=other)]
    with pytest.raises(ReleaseError) as caught:
        case.release()
    assert f"{case.repository}:{MOVING}: expected {case.image.digest}, found {OTHER};" in caught.value.line()


# -- a published base ------------------------------------------------------------------------------------------


def test_base_layers_are_mounted_first_and_never_sent(case: Case) -> None:
    case.publish_base(case.fake.address)
    base = case.image.layers[0]
    case.fake.blobs["team/base", base.digest] = b"base layer"
    result = case.release()
    assert case.fake.writes[0] == "POST /v2/team/image/blobs/uploads/"
    assert ("team/image", base.digest) in case.fake.blobs
    assert case.held("model-20261129") == case.held("model") == case.image.digest
    assert result.bytes_missing == 11


def test_a_registry_that_will_not_mount_gets_nothing(case: Case) -> None:
    case.publish_base(case.fake.address)
    case.fake.mounts = False
    with pytest.raises(ReleaseError) as caught:
        case.release()
    assert "found a registry that will not; mirror the base first" in caught.value.line()
    assert [row.split()[0] for row in case.fake.writes] == ["POST", "DELETE"]


def test_a_mirrored_base_is_taken_as_it_is(case: Case) -> None:
    case.publish_base("registry.example.com")
    case.fake.blobs["team/image", case.image.layers[0].digest] = b"base layer"
    case.release()
    assert Registry(Repository.parse(case.repository)).head_manifest("model") == case.image.digest
