"""The record of a release: made, attached to the image in its registry, kept in ``releases/``, and listed.

A record of a release to a registry on loopback is nothing to commit: it lies below ``.build/<line>/releases``.
"""

import json
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from pydantic import ValidationError
from rich.table import Table

from pipeline.documents import ReleasedCheck, ReleasedImage, ReleaseRecord
from pipeline.errors import ReleaseError
from pipeline.files import BUILD, PROJECT, write_atomic
from pipeline.gate import Candidate
from pipeline.oci import Descriptor, digest_file
from pipeline.registry import Registry, Repository

ARTIFACT_TYPE = "application/vnd.sglang-xpu.release-record.v1+json"
LIMIT = 4 << 20
"""Bytes that a record may have; one has a few KiB."""
FOLDER = "releases"
_OF_THE_RUN = ("recorded_at", "commit", "dirty", "tools")
"""What may differ between two runs that release the same image; the first of them recorded it."""


def now() -> str:
    """The time as RFC 3339, UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def make(candidate: Candidate, repository: Repository, tags: tuple[str, ...]) -> ReleaseRecord:
    """The record of releasing ``candidate``, whose checks have passed."""
    line, image, report = candidate.line, candidate.image, candidate.report
    assert report is not None  # the gate let it through
    return ReleaseRecord(
        line=candidate.record.line,
        release=line.release.release,
        repository=str(repository),
        tags=tags,
        image=ReleasedImage(
            digest=image.digest,
            config=image.config_digest,
            layer=image.layers[-1].digest,
            tree=candidate.record.digest,
            base=candidate.base_digest,
            base_kind=candidate.base_kind,
            base_name=image.labels["org.opencontainers.image.base.name"],
        ),
        pins=candidate.record.sources,
        steps=candidate.record.steps,
        patches=candidate.patches,
        manifest=candidate.manifest,
        checks_digest=candidate.checks_digest,
        checks=tuple(ReleasedCheck(name=c.name, status=c.status, reason=c.reason) for c in report.checks),
        checkpoints={name: digest_file(line.folder / name) for name in line.release.requires_checkpoints},
        tools={
            "python": platform.python_version(),
            "pytest": version("pytest"),
            "requirements.lock": digest_file(PROJECT / "requirements.lock"),
        },
        commit=candidate.commit,
        dirty=bool(candidate.changed) or candidate.commit is None,
        recorded_at=now(),
    )


def attach(registry: Registry, subject: Descriptor, record: ReleaseRecord) -> ReleaseRecord:
    """Push the record as a referrer of its image, unless an earlier run did; the one that the registry holds."""
    ours = record.model_dump(exclude=set(_OF_THE_RUN))
    for held in fetch(registry, subject.digest):
        if held.model_dump(exclude=set(_OF_THE_RUN)) == ours:
            return held
    registry.push_referrer(subject, ARTIFACT_TYPE, record.to_json())
    return record


def fetch(registry: Registry, digest: str) -> list[ReleaseRecord]:
    """The records that the registry holds for an image, in its order; others' documents are passed over."""
    found = []
    for artifact in registry.list_referrers(digest, ARTIFACT_TYPE):
        try:
            record = ReleaseRecord.model_validate_json(registry.get_referrer(artifact, LIMIT))
        except ValidationError:
            continue  # of another version, or nobody's record: it opens nothing and closes nothing
        if record.image.digest == digest:
            found.append(record)
    return found


def folder(line_name: str, is_loopback: bool, build: Path = BUILD, project: Path = PROJECT) -> Path:
    """Where the records of a line's releases lie."""
    return build / line_name / FOLDER if is_loopback else project / FOLDER


def write(record: ReleaseRecord, target: Path) -> Path:
    """Keep a record as ``<pinned tag>.json``, with the very bytes that the registry holds; its path."""
    path = target / f"{record.tags[0]}.json"
    write_atomic(path, record.to_json())
    return path


def read(path: Path) -> ReleaseRecord:
    """Read a record.

    Raises:
        ReleaseError: it is missing or not one.
    """
    try:
        return ReleaseRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ReleaseError(f"{path}: {error.strerror}", do="build.py release list shows the records") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ReleaseError(f"{path}: not a release record: {where}: {first['msg']}", do="restore it") from error


def known(line_name: str, build: Path = BUILD, project: Path = PROJECT) -> list[ReleaseRecord]:
    """Records of a line, real releases first, each by pinned tag."""
    found: list[ReleaseRecord] = []
    for is_loopback in (False, True):
        files = sorted(folder(line_name, is_loopback, build, project).glob("*.json"))
        found += [record for record in map(read, files) if record.line == line_name]
    return found


def table(records: list[ReleaseRecord]) -> Table:
    """The records for people."""
    result = Table("release", "recorded", "commit")
    result.add_column("repository and image", overflow="fold")
    for record in records:
        commit = (record.commit or "none")[:10] + ("+" if record.dirty else "")
        result.add_row(record.tags[0], record.recorded_at, commit, f"{record.repository}\n{record.image.digest}")
    return result


def as_json(records: list[ReleaseRecord]) -> list[object]:
    """The records for programs."""
    return [json.loads(record.to_json()) for record in records]
