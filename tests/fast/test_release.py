"""The gate and the order of a release, against an in-process registry that logs every request."""

import fcntl
import json
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import release_record
from pipeline.documents import CheckReport, CheckResult, CheckStatus, Record, canonical_json
from pipeline.errors import BusyError, EngineError, ReleaseError
from pipeline.gate import Candidate, Condition, GateError, table
from pipeline.manifest import CpuBase, Line, Lock, LockedBase, PublishedBase, PypiPin, Release, SourceLayer
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
from pipeline.registry import Registry, Repository, referrers_tag
from pipeline.release import ReleaseResult, _Found, release, tags
from tests.fast.fake_registry import FakeRegistry, Fault, fake_registry

TREE, BASE, MANIFEST, CHECKS = ("sha256:" + digit * 64 for digit in "7654")
OTHER = "sha256:" + "8" * 64
COMMIT = "c" * 40
PINNED, MOVING = "model-20261129-cpu", "model-cpu"
WHEEL = {"kind": "pypi", "name": "sglang", "version": "0.5.23", "sha256": {"cp311": "1" * 64}}


def make_line(folder: Path, tag: str = "model", base: CpuBase | PublishedBase | None = None) -> Line:
    """A release line with nothing in it but what a release reads."""
    base = base or CpuBase.model_construct(kind="cpu", python_tag="cp311")
    made = Release.model_construct(
        tag=tag,
        release="20261129",
        base=base,
        layers=(SourceLayer(source="sglang"),),
        pins={"sglang": PypiPin.model_validate(WHEEL)},
        requires_checkpoints=(),
    )
    return Line.model_construct(
        name="model", folder=folder, release=made, lock=Lock(steps={}, base=LockedBase(digest=BASE))
    )


def published_base(host: str) -> PublishedBase:
    """A published base at ``host``."""
    return PublishedBase.model_construct(kind="published", reference=f"{host}/team/base@{BASE}", python_tag="cp311")


def make_image(
    layout: Path, kind: str = "cpu", layers: tuple[bytes, ...] = (b"base layer", b"our layer"), date: str = "20261129"
) -> Image:
    """A layout whose layers are any bytes."""
    labels = {
        "io.sglang-xpu.base.kind": kind,
        "io.sglang-xpu.tree.digest": TREE,
        "org.opencontainers.image.base.digest": BASE,
        "org.opencontainers.image.base.name": "base",
        "org.opencontainers.image.version": date,
    }
    config = canonical_json({"config": {"Labels": labels}})
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
    values: dict[str, Any] = {
        "image": checked.digest,
        "base_kind": checked.labels["io.sglang-xpu.base.kind"],
        "base": BASE,
        "tree": TREE,
        "checks_digest": CHECKS,
        "manifest": MANIFEST,
        "checks": checks,
    }
    return CheckReport(**(values | changes))


@dataclass
class FakeEngine:
    """An engine that pulls, or finds another image."""

    fake: FakeRegistry
    problem: str | None = None
    host: str = "fake://"

    def compare_pulled(self, image: Image, reference: str) -> None:
        """Log the pull among the requests."""
        assert reference.endswith(f"/team/image@{image.digest}")
        assert ("team/image", image.digest) in self.fake.manifests
        self.fake.log.append("PULL")
        if self.problem:
            raise EngineError(self.problem)


@dataclass
class Case:
    """Arguments of a release that passes; a test plants one fault."""

    fake: FakeRegistry
    folder: Path
    candidate: Candidate
    repository: str
    engine: FakeEngine
    allow_dirty: bool = False
    no_engine: str | None = None
    images: list[Image] = field(default_factory=list)

    @property
    def image(self) -> Image:
        """The image to release."""
        return self.candidate.image

    def release(self, dry_run: bool = False) -> ReleaseResult:
        """Release it."""

        def find() -> FakeEngine:
            if self.no_engine:
                raise EngineError(self.no_engine)
            return self.engine

        return release(self.candidate, self.repository, find, allow_dirty=self.allow_dirty, dry_run=dry_run)

    def change(self, **changes: Any) -> None:
        """Let the candidate be another."""
        self.candidate = replace(self.candidate, **changes)

    def report(self, **changes: Any) -> None:
        """Let the report say something else."""
        assert self.candidate.report is not None
        self.change(report=self.candidate.report.model_copy(update=changes))

    def line(self, **changes: Any) -> None:
        """Let the manifest say something else."""
        made = self.candidate.line
        self.change(line=made.model_copy(update={"release": made.release.model_copy(update=changes)}))

    def sources(self, **pins: dict[str, Any]) -> None:
        """Let the record name other pins."""
        self.change(record=self.candidate.record.model_copy(update={"sources": pins}))

    def set_tag(self, tag: str, image: Image | None = None) -> None:
        """Let the registry hold ``tag``, on an image that it gets with its config, or on other content."""
        content = image.manifest_bytes if image else b"{}"
        for reference in (tag, digest_bytes(content)):
            self.fake.manifests["team/image", reference] = (content, MANIFEST_TYPE)
        if image:
            self.fake.blobs["team/image", image.config_digest] = image.config_bytes

    def older(self, date: str = "20261128") -> Image:
        """An image of another release date."""
        return make_image(self.folder / f"of-{date}", date=date)

    def held(self, tag: str) -> str:
        """Digest that the registry holds under ``tag``."""
        return digest_bytes(self.fake.manifests["team/image", tag][0])

    def published(self, host: str, tag: str = "model") -> None:
        """Turn it into an image on a published base whose layer is not here."""
        image = make_image(self.folder / "published", "published")
        line = make_line(self.folder, tag, published_base(host))
        self.change(line=line, image=image, report=make_report(image))
        image.blob(image.layers[0].digest).unlink()


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("pipeline.registry.sleep", [].append)
    image = make_image(tmp_path / "image")
    record = Record(line="model", sources={"sglang": WHEEL}, steps=(), digest=TREE, files={})
    candidate = Candidate(
        line=make_line(tmp_path),
        image=image,
        record=record,
        report=make_report(image),
        manifest=MANIFEST,
        checks_digest=CHECKS,
        patches={"a.patch": "2" * 64},
        commit=COMMIT,
    )
    with fake_registry() as fake:
        yield Case(fake, tmp_path, candidate, f"{fake.address}/team/image", FakeEngine(fake))
    assert not any("latest" in row for row in fake.log)


def failed(conditions: tuple[Condition, ...]) -> list[str]:
    """Names of the conditions that failed."""
    return [condition.name for condition in conditions if not condition.passed]


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
    assert tags(make_line(Path()), base_kind) == expected


def test_an_unknown_base_kind_has_no_tags() -> None:
    with pytest.raises(ReleaseError, match="base kind 'cuda'"):
        tags(make_line(Path()), "cuda")


# -- the gate: one fault each, and exactly that condition fails --------------------------------------------------


def plant_no_report(case: Case) -> None:
    case.change(report=None)


def plant_failed_check(case: Case) -> None:
    case.change(report=make_report(case.image, CheckStatus.FAILED))


def plant_unfinished_check(case: Case) -> None:
    case.change(report=make_report(case.image, CheckStatus.NOT_RUN))


def plant_empty_report(case: Case) -> None:
    case.report(checks=())


def plant_report_on_other_image(case: Case) -> None:
    case.report(image=OTHER)


def plant_report_on_other_tree(case: Case) -> None:
    case.report(tree=OTHER)


def plant_record_of_other_tree(case: Case) -> None:
    case.change(record=case.candidate.record.model_copy(update={"digest": OTHER}))


def plant_report_on_other_base_kind(case: Case) -> None:
    case.report(base_kind="published")


def plant_report_on_other_base(case: Case) -> None:
    case.report(base=OTHER)


def plant_changed_checks(case: Case) -> None:
    case.change(checks_digest=OTHER)


def plant_changed_manifest(case: Case) -> None:
    case.change(manifest=OTHER)


def plant_work_in_progress(case: Case) -> None:
    case.sources(sglang=WHEEL, draft={"kind": "dir", "path": "wip"})


def plant_wheel_without_hash(case: Case) -> None:
    case.sources(sglang=WHEEL | {"sha256": {"cp312": "1" * 64}})


def plant_wheel_with_short_hash(case: Case) -> None:
    case.sources(sglang=WHEEL | {"sha256": {"cp311": "1" * 63}})


def plant_branch(case: Case) -> None:
    case.sources(sglang=WHEEL, draft={"kind": "git", "url": "https://example.com/x", "commit": "main"})


def plant_other_base(case: Case) -> None:
    case.published(case.fake.address)
    case.fake.blobs["team/image", case.image.layers[0].digest] = b"base layer"
    case.change(line=case.candidate.line.model_copy(update={"lock": Lock(steps={}, base=LockedBase(digest=OTHER))}))


def plant_no_locked_base(case: Case) -> None:
    plant_other_base(case)
    case.change(line=case.candidate.line.model_copy(update={"lock": None}))


def plant_repinned_base(case: Case) -> None:
    plant_other_base(case)
    lock = Lock(steps={}, base=LockedBase(digest=BASE))
    case.change(line=case.candidate.line.model_copy(update={"lock": lock}))
    base = case.candidate.line.release.base
    assert isinstance(base, PublishedBase)
    case.line(base=base.model_copy(update={"reference": base.reference.replace(BASE, OTHER)}))


def plant_dirty_tree(case: Case) -> None:
    case.change(changed=("pipeline/x.py", "y"))


def plant_no_commit(case: Case) -> None:
    case.change(commit=None)


def plant_missing_checkpoint_report(case: Case) -> None:
    case.line(requires_checkpoints=("target.json",))


def plant_checkpoint_report(case: Case, **changes: Any) -> None:
    values: dict[str, Any] = {
        "source": "owner/name",
        "revision": "d" * 40,
        "role": "target",
        "mode": "mtp",
        "pin": "sglang==0.5.23",
        "profile": None,
        "publishable_and_servable": True,
        "refused_by": [],
        "results": [],
        "bytes_read": 1,
        "requests": 1,
        "seconds": 1.0,
    }
    case.line(requires_checkpoints=("target.json",))
    (case.folder / "target.json").write_text(json.dumps(values | changes))


def plant_refused_checkpoint(case: Case) -> None:
    plant_checkpoint_report(case, publishable_and_servable=False, refused_by=["MTP-01"])


def plant_checkpoint_for_other_pin(case: Case) -> None:
    plant_checkpoint_report(case, pin="sglang==0.5.17")


def plant_checkpoint_of_a_folder(case: Case) -> None:
    plant_checkpoint_report(case, revision=None)


def plant_checkpoint_report_that_is_none(case: Case) -> None:
    plant_checkpoint_report(case, seconds="soon")


def plant_registry_off_loopback(case: Case) -> None:
    case.repository = "registry.example.com/team/image"
    case.fake.log.clear()


def plant_tag_latest(case: Case) -> None:
    case.published(case.fake.address, "latest")


def plant_registry_that_denies(case: Case) -> None:
    case.fake.faults = [Fault("HEAD", f"/{PINNED}$", 403, times=99)]


def plant_taken_tag(case: Case) -> None:
    case.set_tag(PINNED)


def plant_newer_release(case: Case) -> None:
    case.set_tag(MOVING, case.older("20261130"))


def plant_foreign_moving_tag(case: Case) -> None:
    case.set_tag(MOVING)


def plant_lost_blob(case: Case) -> None:
    case.image.blob(case.image.layers[0].digest).unlink()


def plant_base_elsewhere(case: Case) -> None:
    case.published("registry.example.com")


def plant_no_engine(case: Case) -> None:
    case.no_engine = "no engine here"


PLANTED: list[tuple[Any, str, str]] = [
    (plant_no_report, "checks", "no check report; build.py check"),
    (plant_failed_check, "checks", "registry failed; build.py check"),
    (plant_unfinished_check, "checks", "registry not_run; build.py check"),
    (plant_empty_report, "checks", "no check was run; build.py check"),
    (plant_report_on_other_image, "checked image", f"found {OTHER}; build.py check"),
    (plant_report_on_other_tree, "checked tree", f"expected {TREE}, found {OTHER}; build.py check"),
    (plant_record_of_other_tree, "recorded tree", f"expected {TREE}, found {OTHER}; build.py image"),
    (plant_report_on_other_base_kind, "checked base kind", "expected cpu, found published; build.py check"),
    (plant_report_on_other_base, "checked base", f"expected {BASE}, found {OTHER}; build.py check"),
    (plant_changed_checks, "checks digest", f"expected {OTHER}, found {CHECKS}; build.py check"),
    (plant_changed_manifest, "manifest hash", f"expected {OTHER}, found {MANIFEST}; build.py image"),
    (plant_work_in_progress, "pins", "draft: work in progress (kind dir); pin a wheel"),
    (plant_wheel_without_hash, "pins", "sglang: no sha256 for cp311; pin a wheel"),
    (plant_wheel_with_short_hash, "pins", "sglang: sha256.cp311: String should match"),
    (plant_branch, "pins", "draft: commit: String should match"),
    (plant_other_base, "base", f"expected the locked {OTHER}, found {BASE}; build.py base build --write-lock"),
    (plant_no_locked_base, "base", f"expected the locked none, found {BASE}"),
    (plant_repinned_base, "base", f"expected {OTHER} as release.yaml pins it, found {BASE}"),
    (plant_dirty_tree, "commit", "expected a clean working tree, found pipeline/x.py and 1 more; commit or remove"),
    (plant_no_commit, "commit", "expected a git commit, found none; release from a git checkout, or give"),
    (plant_missing_checkpoint_report, "checkpoints", "target.json: No such file or directory; build.py checkpoint"),
    (plant_refused_checkpoint, "checkpoints", "owner/name is refused by MTP-01"),
    (plant_checkpoint_for_other_pin, "checkpoints", "expected a verdict for sglang==0.5.23, found sglang==0.5.17"),
    (plant_checkpoint_of_a_folder, "checkpoints", "expected owner/name at a commit, found a folder"),
    (plant_checkpoint_report_that_is_none, "checkpoints", "not a report of build.py checkpoint --json"),
    (plant_registry_off_loopback, "registry", "found registry.example.com; release an image on a published base"),
    (plant_tag_latest, "tags", "latest-20261129, latest; name the model in tag"),
    (plant_no_engine, "engine", "no engine here; start one"),
    (plant_registry_that_denies, "repository", "expected status 200 or 404, found 403; use an account that may write"),
    (plant_taken_tag, "pinned tag", "a pinned tag never moves: set a new release date"),
    (plant_newer_release, "moving tag", "expected a release of 20261129 or older, found one of 20261130; the newer"),
    (plant_foreign_moving_tag, "moving tag", "expected an image of ours, found sha256:"),
    (plant_lost_blob, "blobs", "; build the image again"),
    (plant_base_elsewhere, "blobs", "; mirror the base first: build.py base mirror "),
]


@pytest.mark.parametrize(("plant", "condition", "message"), PLANTED, ids=[row[0].__name__ for row in PLANTED])
@pytest.mark.parametrize("dry_run", [False, True])
def test_one_fault_closes_the_gate_before_anything_is_sent(
    case: Case, plant: Any, condition: str, message: str, dry_run: bool
) -> None:
    plant(case)
    with pytest.raises(GateError) as caught:
        case.release(dry_run)
    assert failed(caught.value.conditions) == [condition]
    assert f"{case.repository}: not released: {condition}: " in caught.value.line()
    assert message in caught.value.line()
    assert case.fake.writes == []


def test_every_condition_has_a_planted_fault_and_a_place_in_the_documentation(case: Case) -> None:
    names = [condition.name for condition in case.release(dry_run=True).conditions]
    assert set(names) == {condition for _, condition, _ in PLANTED}
    page = (Path(__file__).parents[2] / "docs" / "release.md").read_text(encoding="utf-8")
    assert [name for name in names if f"| `{name}` |" not in page] == []


def test_every_condition_that_failed_is_told(case: Case) -> None:
    plant_failed_check(case)
    plant_work_in_progress(case)
    plant_taken_tag(case)
    with pytest.raises(GateError, match=r"not released \(and 2 more\): checks: ") as caught:
        case.release()
    assert failed(caught.value.conditions) == ["checks", "pins", "pinned tag"]
    assert case.fake.writes == []
    shown = table(caught.value.conditions)
    assert shown.row_count == len(caught.value.conditions)


@pytest.mark.parametrize("plant", [plant_registry_off_loopback, plant_tag_latest])
def test_a_registry_that_may_not_be_used_is_not_asked(case: Case, monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    plant(case)
    monkeypatch.setattr("requests.Session.request", lambda *_, **__: pytest.fail("a request was made"))
    with pytest.raises(ReleaseError):
        case.release()


@pytest.mark.parametrize("plant", [plant_dirty_tree, plant_no_commit])
def test_a_dirty_tree_may_be_released_to_loopback_when_asked_and_the_record_says_so(case: Case, plant: Any) -> None:
    plant(case)
    case.allow_dirty = True
    record = case.release().record
    assert record is not None
    assert record.dirty


def test_a_dirty_tree_is_never_released_elsewhere(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.published("registry.example.com")
    case.repository = "registry.example.com/team/image"
    case.change(changed=("x",), report=None)
    case.allow_dirty = True
    monkeypatch.setattr("pipeline.release._look", lambda *_: _Found(None, None, None, (), None))
    with pytest.raises(GateError) as caught:
        case.release()
    row = next(row for row in caught.value.conditions if row.name == "commit")
    assert not row.passed
    assert "--allow-dirty is for loopback only" in row.detail


def test_a_local_base_other_than_the_locked_one_may_go_to_loopback(case: Case) -> None:
    case.change(line=case.candidate.line.model_copy(update={"lock": Lock(steps={}, base=LockedBase(digest=OTHER))}))
    result = case.release()
    (row,) = (row for row in result.conditions if row.name == "base")
    assert "a local base on loopback need not be the locked one" in row.detail


def test_required_checkpoint_reports_open_the_gate_and_are_recorded(case: Case) -> None:
    plant_checkpoint_report(case)
    record = case.release().record
    assert record is not None
    assert record.checkpoints == {"target.json": digest_bytes((case.folder / "target.json").read_bytes())}


# -- the push --------------------------------------------------------------------------------------------------


def test_a_release_looks_first_then_sends_and_sets_the_moving_tag_last(case: Case) -> None:
    result = case.release()
    manifests = "/v2/team/image/manifests"
    artifact = next(reference for _, reference in case.fake.manifests if reference not in (*result.tags, result.digest))
    upload = "PUT /v2/team/image/blobs/uploads/1"
    rows = [row for row in case.fake.log if row.startswith(("PUT", "PULL")) or "manifests" in row]
    assert rows == [
        f"HEAD {manifests}/{PINNED}",
        f"HEAD {manifests}/{MOVING}",
        *[upload] * 3,
        f"PUT {manifests}/{case.image.digest}",
        "PULL",
        *[upload] * 2,
        f"PUT {manifests}/{artifact}",
        f"HEAD {manifests}/{PINNED}",
        f"PUT {manifests}/{PINNED}",
        f"HEAD {manifests}/{MOVING}",
        f"PUT {manifests}/{MOVING}",
        f"HEAD {manifests}/{PINNED}",
        f"HEAD {manifests}/{MOVING}",
    ]
    assert case.held(PINNED) == case.held(MOVING) == result.digest == case.image.digest
    assert result.tags == (PINNED, MOVING)
    assert failed(result.conditions) == []
    assert result.bytes_missing == sum(layer.size for layer in case.image.layers) + len(case.image.config_bytes)
    assert json.loads(result.to_json())["repository"] == case.repository


def test_a_release_that_is_there_sends_nothing_and_keeps_its_record(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = case.release().record
    case.fake.log.clear()
    monkeypatch.setattr(release_record, "now", lambda: "2030-01-01T00:00:00Z")
    case.change(commit="e" * 40)
    result = case.release()
    assert case.fake.writes == []
    assert result.bytes_sent == 0
    assert result.record == first


def test_a_release_that_broke_off_before_the_moving_tag_is_completed(case: Case) -> None:
    case.release()
    case.set_tag(MOVING, case.older())
    case.fake.log.clear()
    case.release()
    assert case.fake.writes == [f"PUT /v2/team/image/manifests/{MOVING}"]
    assert case.held(MOVING) == case.image.digest


@pytest.mark.parametrize("has_api", [True, False])
def test_a_failure_at_any_write_leaves_both_tags_right_and_a_rerun_completes(case: Case, has_api: bool) -> None:
    case.fake.referrers = has_api
    older = case.older()
    writes = 0
    while True:
        case.fake.manifests.clear()
        case.fake.blobs.clear()
        case.set_tag(MOVING, older)
        case.fake.log.clear()
        case.fake.allowed_writes = writes
        try:
            case.release()
            break
        except ReleaseError:
            assert case.held(MOVING) == older.digest
            assert ("team/image", PINNED) not in case.fake.manifests or case.held(PINNED) == case.image.digest
        case.fake.allowed_writes = None
        case.release()
        assert case.held(PINNED) == case.held(MOVING) == case.image.digest
        writes += 1
    assert writes == (14 if has_api else 15)
    assert case.held(PINNED) == case.held(MOVING) == case.image.digest


def test_an_engine_that_gets_another_image_leaves_both_tags(case: Case) -> None:
    case.set_tag(MOVING, case.older())
    before = case.held(MOVING)
    case.engine.problem = "another image"
    with pytest.raises(EngineError, match="another image"):
        case.release()
    assert case.held(MOVING) == before
    assert ("team/image", PINNED) not in case.fake.manifests
    case.engine.problem = None
    case.release()
    assert case.held(PINNED) == case.held(MOVING) == case.image.digest


def test_a_dry_run_sends_nothing_and_says_what_it_would(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    case.fake.blobs["team/image", case.image.layers[0].digest] = b"base layer"
    result = case.release(dry_run=True)
    missing = 9 + len(case.image.config_bytes)
    assert case.fake.writes == []
    assert (result.dry_run, result.bytes_missing, result.bytes_sent, result.record) == (True, missing, 0, None)
    said = capsys.readouterr().err
    assert f"  present {case.image.layers[0].digest} 10 bytes\n" in said
    assert f"  send    {case.image.layers[1].digest} 9 bytes\n" in said
    assert f"  tag     {PINNED}: none -> {case.image.digest}\n" in said
    assert f"dry run: nothing was sent; {missing} bytes of blobs would be\n" in said


@pytest.mark.parametrize("tag", [PINNED, MOVING])
def test_a_tag_set_during_the_push_is_not_overwritten(case: Case, monkeypatch: pytest.MonkeyPatch, tag: str) -> None:
    def meanwhile(_image: Image, _reference: str) -> None:
        case.set_tag(tag)

    monkeypatch.setattr(case.engine, "compare_pulled", meanwhile)
    with pytest.raises(ReleaseError, match="was set by another release meanwhile"):
        case.release()
    assert case.held(tag) == digest_bytes(b"{}")
    assert tag == MOVING or ("team/image", MOVING) not in case.fake.manifests


def test_a_tag_that_reads_back_otherwise_is_an_error(case: Case) -> None:
    case.release()
    case.set_tag(MOVING, case.older())
    before = case.held(MOVING)
    other = {"Docker-Content-Digest": before}
    case.fake.faults = [Fault("HEAD", f"manifests/{MOVING}$", 200, times=3, headers=other)]
    with pytest.raises(ReleaseError) as caught:
        case.release()
    assert f"{case.repository}:{MOVING}: expected {case.image.digest}, found {before};" in caught.value.line()


def _hold(path: Path, ready: Any, done: Any) -> None:
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.write("4711\n")
        stream.flush()
        ready.set()
        done.wait()


def test_a_second_release_to_the_same_repository_is_refused_before_it_asks(case: Case) -> None:
    case.release(dry_run=True)
    (lock,) = (case.folder / "cache" / "sglang-xpu-images").iterdir()
    case.fake.log.clear()
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(lock, ready, done))
    other.start()
    ready.wait()
    try:
        with pytest.raises(BusyError, match=r"team/image: in use by another release \(pid 4711\)"):
            case.release()
    finally:
        done.set()
        other.join()
    assert case.fake.log == []
    case.release()


# -- the record ------------------------------------------------------------------------------------------------


def test_the_record_names_everything_and_is_the_same_but_for_its_time(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_record, "now", lambda: "2026-11-29T00:00:00Z")
    record = case.release().record
    assert record is not None
    image = case.image
    assert record.image.model_dump() == {
        "digest": image.digest,
        "config": image.config_digest,
        "layer": image.layers[-1].digest,
        "tree": TREE,
        "base": BASE,
        "base_kind": "cpu",
        "base_name": "base",
    }
    assert (record.line, record.release, record.tags) == ("model", "20261129", (PINNED, MOVING))
    assert (record.pins, record.patches) == ({"sglang": WHEEL}, {"a.patch": "2" * 64})
    assert [(check.name, check.status) for check in record.checks] == [("tree", "passed"), ("registry", "passed")]
    assert (record.manifest, record.checks_digest, record.commit, record.dirty) == (MANIFEST, CHECKS, COMMIT, False)
    assert record.tools["requirements.lock"].startswith("sha256:")
    slower = make_report(image).checks[0].model_copy(update={"seconds": 9.0})
    case.report(checks=(slower, make_report(image).checks[1]))
    again = release_record.make(case.candidate, Repository.parse(case.repository), (PINNED, MOVING))
    assert again.to_json() == record.to_json()


@pytest.mark.parametrize("has_api", [True, False])
def test_the_record_is_attached_to_the_image_with_the_bytes_that_are_kept(case: Case, has_api: bool) -> None:
    case.fake.referrers = has_api
    record = case.release().record
    assert record is not None
    with Registry(Repository.parse(case.repository)) as registry:
        assert release_record.fetch(registry, case.image.digest) == [record]
        (artifact,) = registry.list_referrers(case.image.digest, release_record.ARTIFACT_TYPE)
        kept = release_record.write(record, case.folder / "releases")
        assert kept.name == f"{PINNED}.json"
        assert registry.get_referrer(artifact, release_record.LIMIT) == kept.read_bytes()
    assert release_record.read(kept) == record
    assert (("team/image", referrers_tag(case.image.digest)) in case.fake.manifests) is not has_api


def test_a_document_that_is_no_record_is_passed_over(case: Case) -> None:
    subject = Descriptor(MANIFEST_TYPE, case.image.digest, len(case.image.manifest_bytes))
    with Registry(Repository.parse(case.repository)) as registry:
        registry.push_referrer(subject, release_record.ARTIFACT_TYPE, b"{}")
        record = case.release().record
        assert release_record.fetch(registry, case.image.digest) == [record]


def test_records_are_listed_real_ones_first(case: Case) -> None:
    record = case.release().record
    assert record is not None
    build, project = case.folder / "build", case.folder / "project"
    real = record.model_copy(update={"tags": ("model-20261129", "model"), "dirty": True})
    release_record.write(record, release_record.folder("model", True, build, project))
    release_record.write(real, release_record.folder("model", False, build, project))
    assert (project / "releases" / "model-20261129.json").is_file()
    assert release_record.known("model", build, project) == [real, record]
    assert release_record.known("other", build, project) == []
    assert release_record.table([real, record]).row_count == 2


def test_a_damaged_record_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=r"none\.json: No such file"):
        release_record.read(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ReleaseError, match=r"x\.json: not a release record: line: Field required"):
        release_record.read(tmp_path / "x.json")


# -- a published base ------------------------------------------------------------------------------------------


def test_base_layers_are_mounted_first_and_never_sent(case: Case) -> None:
    case.published(case.fake.address)
    base = case.image.layers[0]
    case.fake.blobs["team/base", base.digest] = b"base layer"
    result = case.release()
    assert case.fake.writes[0] == "POST /v2/team/image/blobs/uploads/"
    assert ("team/image", base.digest) in case.fake.blobs
    assert case.held("model-20261129") == case.held("model") == case.image.digest
    assert result.bytes_missing == 9 + len(case.image.config_bytes)


def test_a_registry_that_will_not_mount_gets_nothing(case: Case) -> None:
    case.published(case.fake.address)
    case.fake.mounts = False
    with pytest.raises(ReleaseError) as caught:
        case.release()
    assert "found a registry that will not; mirror the base first" in caught.value.line()
    assert [row.split()[0] for row in case.fake.writes] == ["POST", "DELETE"]


def test_a_mirrored_base_is_taken_as_it_is(case: Case) -> None:
    case.published("registry.example.com")
    case.fake.blobs["team/image", case.image.layers[0].digest] = b"base layer"
    case.release()
    assert Registry(Repository.parse(case.repository)).head_manifest("model") == case.image.digest
