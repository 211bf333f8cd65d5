"""Release an image by digest: the gate, the push, the pinned tag, the moving tag.

Every condition of the gate and every tag is looked at before the first byte is sent. A pinned tag never moves;
the moving tag is set last, so that a release that broke off leaves it where it was and a rerun completes it.
"""

from typing import Literal, NamedTuple

from pipeline.console import note, step
from pipeline.documents import CheckReport, Digest, Document, Record
from pipeline.errors import ReleaseError
from pipeline.manifest import Line, PublishedBase
from pipeline.oci import Descriptor, Image
from pipeline.registry import Registry, Repository, parse_pinned

LOCAL_BASE = "cpu"
"""Kind of the base that is built here: its images carry the kind in their tags and stay on loopback."""
PLAIN_BASES = frozenset({"published", "xpu"})
"""Kinds of base whose images may carry the plain tags."""


class Tags(NamedTuple):
    """Tags of one release: ``pinned`` never moves, ``moving`` follows the newest release of the model."""

    pinned: str
    moving: str


class Condition(Document):
    """One condition of the gate."""

    name: str
    passed: bool
    detail: str
    """One line: what was found, and what was expected where that is something else."""
    do: str | None = None
    """What to do about it."""


class ReleaseResult(Document):
    """What a release did, or what a dry run would do."""

    repository: str
    digest: Digest
    tags: tuple[str, ...]
    """The pinned tag, then the moving one."""
    dry_run: bool
    conditions: tuple[Condition, ...]
    bytes_missing: int
    """Size of the blobs that the repository lacked, and that no mount brings, before anything was sent."""
    bytes_sent: int
    """Bodies of blobs and manifests sent."""


class _Blob(NamedTuple):
    """A blob of the image, and how it gets into the repository."""

    descriptor: Descriptor
    way: Literal["present", "mount", "send", "unreachable"]


class _Found(NamedTuple):
    """What the repository held before anything was sent."""

    pinned: str | None
    moving: str | None
    blobs: tuple[_Blob, ...]
    source: Repository | None
    """Repository of a published base, when it is one of the same registry."""

    def size(self, way: str) -> int:
        """Bytes of the blobs that get there in this way."""
        return sum(blob.descriptor.size for blob in self.blobs if blob.way == way)


def tags(line: Line, base_kind: str) -> Tags:
    """Pinned and moving tag of a line for one kind of base.

    Raises:
        ReleaseError: a kind of base that has no tags.
    """
    if base_kind not in {LOCAL_BASE, *PLAIN_BASES}:
        raise ReleaseError(f"base kind {base_kind!r}", expected=f"{LOCAL_BASE}, {', '.join(sorted(PLAIN_BASES))}")
    suffix = f"-{base_kind}" if base_kind == LOCAL_BASE else ""
    tag = line.release.tag
    return Tags(f"{tag}-{line.release.release}{suffix}", f"{tag}{suffix}")


def release(
    line: Line,
    image: Image,
    record: Record,
    report: CheckReport | None,
    base_kind: str,
    repository: str,
    dry_run: bool = False,
) -> ReleaseResult:
    """Push ``image`` to ``repository`` and tag it, if every condition of the gate passes.

    A release that is there already, both tags included, sends nothing. A dry run never does.

    Raises:
        ReleaseError: a condition failed (each is printed, the first is named), or the registry did.
    """
    wanted = tags(line, base_kind)
    with Registry(Repository.parse(repository)) as registry:
        conditions = [*_checked(image, record, report, base_kind), _releasable_pins(record)]
        conditions += [_allowed_registry(registry.repository, base_kind), _not_latest(wanted)]
        found = None
        if all(condition.passed for condition in conditions[-2:]):  # else it must not even be asked
            with step(f"Look at {registry.repository}"):
                found = _look(registry, line, image, wanted)
            conditions += [_free_tag(found, wanted, image), _reachable_blobs(found, line, registry.repository)]
        _pass(conditions, registry.repository)
        assert found is not None  # the last two conditions above passed
        if dry_run:
            _print_plan(found, image, wanted)
        else:
            _push(registry, image, wanted, found)
    return ReleaseResult(
        repository=str(registry.repository),
        digest=image.digest,
        tags=wanted,
        dry_run=dry_run,
        conditions=tuple(conditions),
        bytes_missing=found.size("send"),
        bytes_sent=registry.bytes_sent,
    )


def _checked(image: Image, record: Record, report: CheckReport | None, base_kind: str) -> list[Condition]:
    """Whether all checks passed, and passed for exactly this image; without a report there is one row."""
    again = "build.py check"
    if report is None:
        return [Condition(name="checks", passed=False, detail="no check report", do=again)]
    bad = [f"{check.name} {check.status}" for check in report.checks if check.status != "passed"]
    verdict = f"{len(report.checks)} of {len(report.checks)} passed" if report.passed else ", ".join(bad)
    return [
        Condition(name="checks", passed=report.passed, detail=verdict or "no check was run", do=again),
        _equal("checked image", image.digest, report.image, again),
        _equal("checked tree", record.digest, report.tree, again),
        _equal("checked base kind", base_kind, report.base_kind, again),
    ]


def _equal(name: str, expected: str, found: str, do: str) -> Condition:
    same = expected == found
    detail = found if same else f"expected {expected}, found {found}"
    return Condition(name=name, passed=same, detail=detail, do=do)


def _releasable_pins(record: Record) -> Condition:
    loose = sorted(name for name, pin in record.sources.items() if pin.get("kind") == "dir")
    detail = f"{', '.join(loose)}: work in progress (kind dir)" if loose else f"{len(record.sources)} pinned"
    return Condition(name="pins", passed=not loose, detail=detail, do="pin a version or a commit")


def _allowed_registry(repository: Repository, base_kind: str) -> Condition:
    allowed = base_kind != LOCAL_BASE or repository.is_loopback
    detail = f"{repository.host} for a {base_kind} base"
    return Condition(
        name="registry",
        passed=allowed,
        detail=detail if allowed else f"expected a loopback registry for a {base_kind} base, found {repository.host}",
        do="release an image on a published base there",
    )


def _not_latest(wanted: Tags) -> Condition:
    return Condition(name="tags", passed="latest" not in wanted, detail=", ".join(wanted), do="name the model in tag")


def _free_tag(found: _Found, wanted: Tags, image: Image) -> Condition:
    if found.pinned in (None, image.digest):
        detail = f"{wanted.pinned} is {'free' if found.pinned is None else 'this image already'}"
        return Condition(name="pinned tag", passed=True, detail=detail)
    detail = f"{wanted.pinned}: expected {image.digest} or none, found {found.pinned}"
    return Condition(
        name="pinned tag", passed=False, detail=detail, do="a pinned tag never moves: set a new release date"
    )


def _reachable_blobs(found: _Found, line: Line, repository: Repository) -> Condition:
    missing = [blob.descriptor.digest for blob in found.blobs if blob.way == "unreachable"]
    where, do = "the image's layout", "build the image again"
    if isinstance(line.release.base, PublishedBase):
        where, do = repository.host, "mirror the base first"
    detail = f"{len(found.blobs)} can be had"
    if missing:
        detail = f"expected every blob in {where}, found {len(missing)} missing: {missing[0]}"
    return Condition(name="blobs", passed=not missing, detail=detail, do=do)


def _pass(conditions: list[Condition], repository: Repository) -> None:
    """Print every condition; raise for the first that failed."""
    for condition in conditions:
        note(f"  {'passed' if condition.passed else 'FAILED'}  {condition.name}: {condition.detail}")
    failed = [condition for condition in conditions if not condition.passed]
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise ReleaseError(f"{repository}: not released{more}: {failed[0].name}: {failed[0].detail}", do=failed[0].do)


def _look(registry: Registry, line: Line, image: Image, wanted: Tags) -> _Found:
    """Ask for both tags and every blob; sends nothing."""
    source = _base_repository(line, registry.repository)
    own_layers = image.layers[-1:] if isinstance(line.release.base, PublishedBase) else image.layers
    config = image.manifest["config"]
    own = (*own_layers, Descriptor(config["mediaType"], config["digest"], config["size"]))
    blobs = []
    for descriptor in dict.fromkeys((*image.layers, *own)):
        if registry.has_blob(descriptor.digest):
            blobs.append(_Blob(descriptor, "present"))
        elif descriptor in own and image.blob(descriptor.digest).exists():
            blobs.append(_Blob(descriptor, "send"))
        else:
            blobs.append(_Blob(descriptor, "mount" if source else "unreachable"))
    pinned, moving = (registry.head_manifest(tag) for tag in wanted)
    return _Found(pinned, moving, tuple(blobs), source)


def _base_repository(line: Line, target: Repository) -> Repository | None:
    """Where base layers can be mounted from; mounts work inside one registry only."""
    base = line.release.base
    if not isinstance(base, PublishedBase):
        return None
    repository, _ = parse_pinned(base.reference)
    return repository if repository.host == target.host else None


def _print_plan(found: _Found, image: Image, wanted: Tags) -> None:
    for blob in found.blobs:
        note(f"  {blob.way:<7} {blob.descriptor.digest} {blob.descriptor.size:,} bytes")
    for tag, held in zip(wanted, (found.pinned, found.moving), strict=True):
        note(f"  tag     {tag}: {held or 'none'} -> {image.digest}")
    note(f"dry run: nothing was sent; {found.size('send'):,} bytes of blobs would be")


def _push(registry: Registry, image: Image, wanted: Tags, found: _Found) -> None:
    if found.pinned is None:
        _push_blobs(registry, image, found)
        with step(f"Tag {wanted.pinned}"):
            registry.put_manifest(image.digest, image.manifest_bytes, image.media_type)
            _still_free(registry, wanted.pinned, image)
            registry.put_manifest(wanted.pinned, image.manifest_bytes, image.media_type)
    if found.moving != image.digest:
        with step(f"Tag {wanted.moving}"):
            registry.put_manifest(wanted.moving, image.manifest_bytes, image.media_type)
    for tag in wanted:
        held = registry.head_manifest(tag)
        if held != image.digest:
            raise ReleaseError(
                f"{registry.repository}:{tag}",
                expected=image.digest,
                found=held or "no such tag",
                do="find out who else writes to this repository, then run again",
            )


def _push_blobs(registry: Registry, image: Image, found: _Found) -> None:
    """Mounts first: where the registry will not mount, nothing of ours was sent."""
    with step("Push blobs") as state:
        for descriptor, way in found.blobs:
            if way == "mount" and found.source and not registry.mount_blob(descriptor.digest, found.source.path):
                raise ReleaseError(
                    f"{registry.repository}: base layer {descriptor.digest}",
                    expected=f"a mount from {found.source}",
                    found="a registry that will not",
                    do="mirror the base first",
                )
        for descriptor, way in found.blobs:
            if way == "send":
                registry.push_blob(image.blob(descriptor.digest), descriptor)
                state.detail = f"{registry.bytes_sent:,} bytes sent"


def _still_free(registry: Registry, tag: str, image: Image) -> None:
    """Look once more: the registry has no way to set a tag only when it is free."""
    held = registry.head_manifest(tag)
    if held not in (None, image.digest):
        raise ReleaseError(
            f"{registry.repository}:{tag} was set by another release meanwhile",
            expected=image.digest,
            found=held,
            do="a pinned tag never moves: set a new release date",
        )
