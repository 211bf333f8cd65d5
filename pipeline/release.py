"""Release an image by digest: the gate, staging, the pinned tag, the moving tag, the record.

Every condition of the gate and every tag is looked at before the first byte is sent. A pinned tag never moves;
the moving tag is set last, so that a release that broke off leaves it where it was and a rerun completes it.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from pipeline import gate, release_record
from pipeline.console import note, step
from pipeline.documents import Digest, Document, ReleaseRecord
from pipeline.errors import BusyError, EngineError, ReleaseError
from pipeline.files import file_lock
from pipeline.gate import LOCAL_BASE, PLAIN_BASES, Candidate, Condition, GateError
from pipeline.manifest import Line, PublishedBase
from pipeline.oci import Descriptor, Image
from pipeline.registry import Registry, Repository, parse_pinned

CONFIG_LIMIT = 8 << 20
"""Bytes of the config of what a moving tag stands for."""
LABEL_VERSION = "org.opencontainers.image.version"


class Engine(Protocol):
    """As much of a container engine as a release needs."""

    @property
    def host(self) -> str:
        """Its address."""

    def compare_pulled(self, image: Image, reference: str) -> None:
        """Pull ``repository@sha256:…``; anything but ``image`` is an :class:`EngineError`."""


class Tags(NamedTuple):
    """Tags of one release: ``pinned`` never moves, ``moving`` follows the newest release of the model."""

    pinned: str
    moving: str


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
    record: ReleaseRecord | None
    """None for a dry run."""


class _Blob(NamedTuple):
    """A blob of the image, and how it gets into the repository."""

    descriptor: Descriptor
    way: Literal["present", "mount", "send", "unreachable"]


class _Found(NamedTuple):
    """What the repository held before anything was sent."""

    pinned: str | None
    moving: str | None
    version: str | None
    """Release date of the image under the moving tag; None where it states none."""
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
    candidate: Candidate,
    repository: str,
    find_engine: Callable[[], Engine],
    *,
    allow_dirty: bool = False,
    dry_run: bool = False,
) -> ReleaseResult:
    """Push the candidate's image to ``repository``, tag and record it, if every condition of the gate passes.

    A release that is there already, both tags and the record included, sends nothing. A dry run never does.

    Raises:
        GateError: a condition failed; it holds all of them.
        ReleaseError: the registry did not do what was asked.
        EngineError: the engine could not pull what was staged, or pulled another image.
        BusyError: another release to this repository is at work.
    """
    image, wanted = candidate.image, tags(candidate.line, candidate.base_kind)
    with Registry(Repository.parse(repository)) as registry, _repository_lock(registry.repository):
        conditions = [*gate.conditions(candidate, registry.repository, allow_dirty), _not_latest(wanted)]
        engine, answers = _engine(find_engine)
        conditions.append(answers)
        found = None
        if all(condition.passed for condition in conditions if condition.name in ("registry", "tags")):
            found, answers = _look_at(registry, candidate.line, image, wanted)
            conditions.append(answers)
        if found is not None:
            conditions += [_free_tag(found, wanted, image), _not_back(found, wanted, candidate)]
            conditions.append(_reachable_blobs(found, candidate.line, registry.repository))
        if found is None or engine is None or not all(condition.passed for condition in conditions):
            raise GateError(registry.repository, tuple(conditions))
        record = None
        if dry_run:
            _print_plan(found, image, wanted)
        else:
            record = _push(registry, candidate, wanted, found, engine)
    return ReleaseResult(
        repository=str(registry.repository),
        digest=image.digest,
        tags=wanted,
        dry_run=dry_run,
        conditions=tuple(conditions),
        bytes_missing=found.size("send"),
        bytes_sent=registry.bytes_sent,
        record=record,
    )


@contextmanager
def _repository_lock(repository: Repository) -> Iterator[None]:
    """Keep this user's other releases to a repository out, from whichever folder they run."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(str(repository).encode()).hexdigest()[:16]
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock(cache / "sglang-xpu-images" / f"{name}.lock"))
        except BlockingIOError as error:
            message = f"{repository}: in use by another release (pid {error})"
            raise BusyError(message, do="wait for it, or stop it") from None
        yield


def _engine(find: Callable[[], Engine]) -> tuple[Engine | None, Condition]:
    try:
        found = find()
    except EngineError as error:
        do = "start one (build.py engine start) or name one in DOCKER_HOST"
        return None, Condition(name="engine", passed=False, detail=error.line(), do=do)
    return found, Condition(name="engine", passed=True, detail=found.host)


def _look_at(registry: Registry, line: Line, image: Image, wanted: Tags) -> tuple[_Found | None, Condition]:
    try:
        with step(f"Look at {registry.repository}"):
            found = _look(registry, line, image, wanted)
    except ReleaseError as error:
        problem = ReleaseError(error.what, expected=error.expected, found=error.found).line()
        return None, Condition(name="repository", passed=False, detail=problem, do=error.do)
    return found, Condition(name="repository", passed=True, detail=f"{registry.repository} answers")


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


def _not_back(found: _Found, wanted: Tags, candidate: Candidate) -> Condition:
    """The moving tag goes forward only: a rerun of an older release must not take it from a newer one."""
    ours = candidate.line.release.release
    if found.moving in (None, candidate.image.digest):
        detail = f"{wanted.moving} is {'free' if found.moving is None else 'this image already'}"
        return Condition(name="moving tag", passed=True, detail=detail)
    if found.version is None:
        detail = f"{wanted.moving}: expected an image of ours, found {found.moving}"
        do = "find out who set that tag, and remove it"
        return Condition(name="moving tag", passed=False, detail=detail, do=do)
    passed = found.version <= ours  # dates, YYYYMMDD
    detail = f"{wanted.moving} goes from {found.version} to {ours}"
    if not passed:
        detail = f"{wanted.moving}: expected a release of {ours} or older, found one of {found.version}"
    return Condition(
        name="moving tag", passed=passed, detail=detail, do="the newer release stays: set a new release date"
    )


def _reachable_blobs(found: _Found, line: Line, repository: Repository) -> Condition:
    missing = [blob.descriptor.digest for blob in found.blobs if blob.way == "unreachable"]
    where, do = "the image's layout", "build the image again"
    if isinstance(line.release.base, PublishedBase):
        where, do = repository.host, f"mirror the base first: build.py base mirror {repository}"
    detail = f"{len(found.blobs)} can be had"
    if missing:
        detail = f"expected every blob in {where}, found {len(missing)} missing: {missing[0]}"
    return Condition(name="blobs", passed=not missing, detail=detail, do=do)


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
    version = _version(registry, moving) if moving not in (None, image.digest) else None
    return _Found(pinned, moving, version, tuple(blobs), source)


def _version(registry: Registry, digest: str | None) -> str | None:
    """Release date that an image of ours states, None for anything else."""
    if digest is None:
        return None
    try:
        config = json.loads(registry.get_manifest(digest).content)["config"]["digest"]
        version = json.loads(registry.get_blob(config, CONFIG_LIMIT))["config"]["Labels"][LABEL_VERSION]
    except (ValueError, KeyError, TypeError):
        return None
    return str(version) if re.fullmatch(r"\d{8}", str(version)) else None


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


def _push(registry: Registry, candidate: Candidate, wanted: Tags, found: _Found, engine: Engine) -> ReleaseRecord:
    image, repository = candidate.image, registry.repository
    if found.pinned is None:
        _push_blobs(registry, image, found)
        with step(f"Stage {image.digest}"):
            registry.put_manifest(image.digest, image.manifest_bytes, image.media_type)
        # What the engine gets from there is the image whose checks have passed: the verdict holds for it.
        engine.compare_pulled(image, f"{repository}@{image.digest}")
    with step("Record"):
        subject = Descriptor(image.media_type, image.digest, len(image.manifest_bytes))
        record = release_record.attach(registry, subject, release_record.make(candidate, repository, wanted))
    if found.pinned is None:
        with step(f"Tag {wanted.pinned}"):
            _as_before(registry, wanted.pinned, None, image, "a pinned tag never moves: set a new release date")
            registry.put_manifest(wanted.pinned, image.manifest_bytes, image.media_type)
    if found.moving != image.digest:
        with step(f"Tag {wanted.moving}"):
            _as_before(registry, wanted.moving, found.moving, image, "run again: the gate looks at it anew")
            registry.put_manifest(wanted.moving, image.manifest_bytes, image.media_type)
    for tag in wanted:
        held = registry.head_manifest(tag)
        if held != image.digest:
            raise ReleaseError(
                f"{repository}:{tag}",
                expected=image.digest,
                found=held or "no such tag",
                do="find out who else writes to this repository, then run again",
            )
    return record


def _push_blobs(registry: Registry, image: Image, found: _Found) -> None:
    """Mounts first: where the registry will not mount, nothing of ours was sent."""
    with step("Push blobs") as state:
        for descriptor, way in found.blobs:
            if way == "mount" and found.source and not registry.mount_blob(descriptor.digest, found.source.path):
                raise ReleaseError(
                    f"{registry.repository}: base layer {descriptor.digest}",
                    expected=f"a mount from {found.source}",
                    found="a registry that will not",
                    do=f"mirror the base first: build.py base mirror {registry.repository}",
                )
        for descriptor, way in found.blobs:
            if way == "send":
                registry.push_blob(image.blob(descriptor.digest), descriptor)
                state.detail = f"{registry.bytes_sent:,} bytes sent"


def _as_before(registry: Registry, tag: str, before: str | None, image: Image, do: str) -> None:
    """Look once more: the registry has no way to set a tag only when it is what it was."""
    held = registry.head_manifest(tag)
    if held not in (before, image.digest):
        raise ReleaseError(
            f"{registry.repository}:{tag} was set by another release meanwhile",
            expected=before or "no such tag",
            found=held or "no such tag",
            do=do,
        )
