"""The gate before a release: what must hold here, before a registry is asked anything.

``docs/release.md`` says of every condition what it means and what to do when it fails.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from rich.table import Table
from rich.text import Text

from pipeline.base import LABEL_KIND
from pipeline.checkpoint.gate import pinned_release
from pipeline.checkpoint.report import Report
from pipeline.documents import CheckReport, Document, Record
from pipeline.errors import CheckpointError, ReleaseError
from pipeline.manifest import DirPin, Line, Pin, PublishedBase, PypiPin
from pipeline.oci import Image
from pipeline.registry import Repository

LOCAL_BASE = "cpu"
"""Kind of the base that is built here: its images carry the kind in their tags and stay on loopback."""
PLAIN_BASES = frozenset({"published", "xpu"})
"""Kinds of base whose images may carry the plain tags."""
LABEL_BASE = "org.opencontainers.image.base.digest"
LABEL_TREE = "io.sglang-xpu.tree.digest"

_AGAIN = "build.py check"


class Condition(Document):
    """One condition of the gate."""

    name: str
    passed: bool
    detail: str
    """One line: what was found, and what was expected where that is something else."""
    do: str | None = None
    """What to do where it does not hold."""


class GateError(ReleaseError):
    """The gate is closed; the first condition that failed makes the message."""

    def __init__(self, repository: Repository, conditions: tuple[Condition, ...]) -> None:
        failed = [condition for condition in conditions if not condition.passed]
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        super().__init__(f"{repository}: not released{more}: {failed[0].name}: {failed[0].detail}", do=failed[0].do)
        self.conditions = conditions


@dataclass(frozen=True)
class Candidate:
    """What would be released, and the state of the folder that it would be released from."""

    line: Line
    image: Image
    record: Record
    report: CheckReport | None
    manifest: str
    """Digest of what the line is made from now."""
    checks_digest: str
    """Digest of the checks as they are now."""
    patches: dict[str, str]
    """Patch file name to SHA-256."""
    commit: str | None
    changed: tuple[str, ...] = ()
    """Paths of the working tree that differ from the commit."""

    @property
    def base_kind(self) -> str:
        """Kind of the base that the image says it stands on."""
        return self.image.labels.get(LABEL_KIND, "none")

    @property
    def base_digest(self) -> str:
        """Digest of the base that the image says it stands on."""
        return self.image.labels.get(LABEL_BASE, "none")


def conditions(candidate: Candidate, repository: Repository, allow_dirty: bool) -> list[Condition]:
    """Every condition that needs no registry and no engine."""
    return [
        *_checked(candidate),
        _pins(candidate),
        _base(candidate, repository),
        _commit(candidate, repository, allow_dirty),
        _checkpoints(candidate.line),
        _registry(candidate, repository),
    ]


def table(rows: Iterable[Condition]) -> Table:
    """The conditions for people."""
    result = Table("condition", "status")
    result.add_column("found", overflow="fold")
    for row in rows:
        status = Text("passed", "green") if row.passed else Text("failed", "red")
        detail = row.detail if row.passed or row.do is None else f"{row.detail}\n→ {row.do}"
        result.add_row(Text(row.name), status, Text(detail))
    return result


def _checked(candidate: Candidate) -> list[Condition]:
    """Whether all checks passed, and passed for exactly this; without a report there is one row."""
    report = candidate.report
    if report is None:
        return [Condition(name="checks", passed=False, detail="no check report", do=_AGAIN)]
    bad = [f"{check.name} {check.status}" for check in report.checks if not check.status.is_sound]
    verdict = f"{len(report.checks)} of {len(report.checks)} passed" if report.passed else ", ".join(bad)
    tree = candidate.image.labels.get(LABEL_TREE, "none")
    return [
        Condition(name="checks", passed=report.passed, detail=verdict or "no check was run", do=_AGAIN),
        _equal("checked image", candidate.image.digest, report.image, _AGAIN),
        _equal("checked tree", tree, report.tree, _AGAIN),
        _equal("recorded tree", tree, candidate.record.digest, "build.py image"),
        _equal("checked base kind", candidate.base_kind, report.base_kind, _AGAIN),
        _equal("checked base", candidate.base_digest, report.base, _AGAIN),
        _equal("checks digest", candidate.checks_digest, report.checks_digest, _AGAIN),
        _equal("manifest hash", candidate.manifest, report.manifest, "build.py image"),
    ]


def _equal(name: str, expected: str, found: str, do: str) -> Condition:
    same = expected == found
    detail = found if same else f"expected {expected}, found {found}"
    return Condition(name=name, passed=same, detail=detail, do=do)


def _pins(candidate: Candidate) -> Condition:
    """Every source by hash: a wheel by SHA-256 for the base's Python, a repository by its whole commit."""
    loose = [
        f"{name}: {problem}"
        for name, pin in sorted(candidate.record.sources.items())
        if (problem := _loose(pin, candidate.line.release.base.python_tag))
    ]
    return Condition(
        name="pins",
        passed=not loose,
        detail="; ".join(loose) or f"{len(candidate.record.sources)} pinned by hash",
        do="pin a wheel by sha256 or a commit of 40 hex digits",
    )


def _loose(pin: dict[str, object], python_tag: str) -> str | None:
    """Why a pin does not fix its content."""
    try:
        parsed: Pin = TypeAdapter(Pin).validate_python(pin)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'][1:])) or 'kind'}: {first['msg']}"
    if isinstance(parsed, DirPin):
        return "work in progress (kind dir)"
    if isinstance(parsed, PypiPin) and python_tag not in parsed.sha256:
        return f"no sha256 for {python_tag}"
    return None


def _base(candidate: Candidate, repository: Repository) -> Condition:
    """The base that was locked; a local base is rebuilt from a moving mirror, so on loopback another may do."""
    base, lock = candidate.line.release.base, candidate.line.lock
    locked = lock.base.digest if lock and lock.base else "none"
    pinned = base.reference.partition("@")[2] if isinstance(base, PublishedBase) else locked
    found = candidate.base_digest
    detail = found if found == locked else f"expected the locked {locked}, found {found}"
    if found == locked != pinned:
        detail = f"expected {pinned} as release.yaml pins it, found {found}"
    passed = found == locked == pinned
    if not passed and candidate.base_kind == LOCAL_BASE and repository.is_loopback:
        passed, detail = True, f"{detail}; a local base on loopback need not be the locked one"
    return Condition(
        name="base", passed=passed, detail=detail, do="build.py base build --write-lock, then build.py image"
    )


def _commit(candidate: Candidate, repository: Repository, allow_dirty: bool) -> Condition:
    problem = None
    if candidate.commit is None:
        problem = "expected a git commit, found none"
    elif candidate.changed:
        more = f" and {len(candidate.changed) - 1} more" if len(candidate.changed) > 1 else ""
        problem = f"expected a clean working tree, found {candidate.changed[0]}{more}"
    if problem is None:
        return Condition(name="commit", passed=True, detail=str(candidate.commit))
    if allow_dirty and repository.is_loopback:
        return Condition(name="commit", passed=True, detail=f"{problem}; --allow-dirty, on loopback")
    refused = "; --allow-dirty is for loopback only" if allow_dirty else ""
    do = "commit or remove what differs" if candidate.commit else "release from a git checkout"
    if repository.is_loopback:
        do += ", or give --allow-dirty for this registry on loopback"
    return Condition(name="commit", passed=False, detail=problem + refused, do=do)


def _checkpoints(line: Line) -> Condition:
    wanted = line.release.requires_checkpoints
    problems = [f"{name}: {problem}" for name in wanted if (problem := _refused(line, line.folder / name))]
    return Condition(
        name="checkpoints",
        passed=not problems,
        detail="; ".join(problems) or (f"{len(wanted)} reports" if wanted else "the manifest requires none"),
        do="build.py checkpoint owner/name@revision --role … --json > that file",
    )


def _refused(line: Line, file: Path) -> str | None:
    """Why a checkpoint report does not open the gate."""
    try:
        report = Report.model_validate_json(file.read_bytes())
        expected = str(pinned_release(line))
    except OSError as error:
        return f"{error.strerror}"
    except ValidationError:
        return "not a report of build.py checkpoint --json"
    except CheckpointError as error:
        return error.line()
    if not report.publishable_and_servable or report.refused_by:
        return f"{report.source} is refused by {', '.join(report.refused_by) or 'the gate'}"
    if report.pin != expected:
        return f"expected a verdict for {expected}, found {report.pin}"
    if not re.fullmatch(r"[0-9a-f]{40}", report.revision or ""):
        return f"expected {report.source} at a commit, found {report.revision or 'a folder'}"
    return None


def _registry(candidate: Candidate, repository: Repository) -> Condition:
    kind = candidate.base_kind
    allowed = kind != LOCAL_BASE or repository.is_loopback
    detail = f"{repository.host} for a {kind} base"
    return Condition(
        name="registry",
        passed=allowed,
        detail=detail if allowed else f"expected a loopback registry for a {kind} base, found {repository.host}",
        do="release an image on a published base there",
    )
