"""Run the checks inside an image and keep the verdict: one row per ``test_<check>.py``.

Whatever keeps a check from giving its row makes that row ``not_run``, never ``passed``.
"""

import importlib.metadata
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import ValidationError, field_validator
from rich.table import Table
from rich.text import Text

from pipeline import console
from pipeline.container import Ended, Limits, run_confined
from pipeline.documents import CheckReport, CheckResult, CheckStatus, Document, canonical_json
from pipeline.errors import EngineError, HostError
from pipeline.files import write_atomic
from pipeline.oci import Image, LayerEntry, digest_tree
from pipeline.store import Engine

CHECKS = Path(__file__).resolve().parent.parent / "checks"

MEMORY_BYTES = 6 << 30
"""Importing SGLang's whole model registry takes about 1 GiB, and a machine that builds images has this much."""
TIME_SECONDS = 600.0
"""A run takes a minute or two on two slow cores."""


@dataclass(frozen=True)
class Outcome:
    """The verdict and its JUnit XML."""

    report: CheckReport
    junit: str


class Subject(NamedTuple):
    """What is judged beside the image itself: the report names it, so that a release can tell it is the same."""

    base_kind: str
    base: str
    """Digest."""
    tree: str
    """Digest."""
    manifest: str
    """Digest: see :func:`pipeline.stages.manifest_digest`."""


class Answer(Document):
    """What ``checks/run.py`` writes to standard output; ``junit`` is empty when pytest wrote none."""

    checks: tuple[CheckResult, ...]
    junit: str

    @field_validator("junit")
    @classmethod
    def _is_xml(cls, value: str) -> str:
        try:
            if value:
                ET.fromstring(value)
        except ET.ParseError as error:
            raise ValueError(f"is not XML: {error}") from None
        return value


NO_ANSWER = Answer(checks=(), junit="")


def run_checks(
    engine: Engine,
    image: Image,
    given: Mapping[str, Any],
    upstream: Mapping[str, bytes],
    checks: Path,
    *,
    subject: Subject,
    log: Path,
    memory: int = MEMORY_BYTES,
    seconds: float = TIME_SECONDS,
) -> Outcome:
    """Run every check of a folder in one container of ``image``, which the engine must hold.

    Args:
        given: the expectations, ``input.json``.
        upstream: tree path to pristine bytes of every upstream file that we changed.
        checks: folder with ``run.py`` and ``test_*.py``.
        subject: what the report names beside the image.
        log: file for everything that the container prints.
        memory: limit in bytes.
        seconds: limit of the container's run time.

    Raises:
        EngineError: the image is not in the engine. An engine that fails later makes checks ``not_run``.
    """
    tag = engine.find(image)
    if tag is None:
        raise EngineError(f"{engine.host} does not hold image {image.digest}", do="load it first")
    entries = volume_entries(given, upstream, checks)
    with console.step(f"check {tag}") as step:
        try:
            ended = run_confined(engine, tag, entries, Limits(memory, seconds), log, step)
        except EngineError as error:
            ended = Ended(None, f"the engine failed: {error.line()}")
        step.detail = f"output in {log}"
    answer, reason = (NO_ANSWER, ended.reason) if ended.output is None else parse(ended.output)
    return _outcome(image, subject, checks, answer, reason)


def not_run(image: Image, subject: Subject, reason: str, checks: Path = CHECKS) -> Outcome:
    """The outcome when there is no engine: every check is there, and none has run."""
    return _outcome(image, subject, checks, NO_ANSWER, reason)


def checks_digest(checks: Path = CHECKS) -> str:
    """Digest of everything that judges: the checks, what runs them, and their data files."""
    return digest_tree({"checks": checks})


def expected_checks(checks: Path) -> list[str]:
    """Names of the checks of a folder, in order: ``test_tree.py`` is ``tree``."""
    return sorted(path.stem.removeprefix("test_") for path in checks.glob("test_*.py"))


def write_outcome(outcome: Outcome, folder: Path) -> None:
    """Write ``check-report.json`` and ``junit.xml``, each by rename."""
    write_atomic(folder / "junit.xml", outcome.junit.encode())
    write_atomic(folder / "check-report.json", outcome.report.to_json())


def table(report: CheckReport) -> Table:
    """The table that people read."""
    colours = {CheckStatus.PASSED: "green", CheckStatus.NOT_RUN: "yellow", CheckStatus.NOT_APPLICABLE: "dim"}
    result = Table("check", "status")
    result.add_column("seconds", justify="right")
    result.add_column("reason", overflow="fold")
    for row in report.checks:
        colour = colours.get(row.status, "red")
        result.add_row(Text(row.name), f"[{colour}]{row.status}[/]", f"{row.seconds:.1f}", Text(row.reason))
    return result


def volume_entries(given: Mapping[str, Any], upstream: Mapping[str, bytes], checks: Path) -> list[LayerEntry]:
    """Everything below /checks; modes and owners are ours, whatever the checkout's are."""
    entries = [LayerEntry("input.json", canonical_json(given))]
    entries += [LayerEntry(f"upstream/{path}", data) for path, data in upstream.items()]
    entries += [
        LayerEntry(path.relative_to(checks).as_posix(), path)
        for path in checks.rglob("*.py")
        if "__pycache__" not in path.parts
    ]
    return entries + [LayerEntry(f"lib/{path}", file) for path, file in pytest_files().items()]


def pytest_files(*also: str) -> dict[str, Path]:
    """Python files and metadata of the installed pytest, of what ``also`` names, and of what these require.

    Keyed by path below ``lib``.

    Raises:
        HostError: one of them is not installed, or has compiled parts that another Python could not load.
    """
    files: dict[str, Path] = {}
    todo, seen = ["pytest", *also], set[str]()
    while todo:
        name = canonicalize_name(todo.pop())
        if name in seen:
            continue
        seen.add(name)
        distribution = _distribution(name)
        for path in distribution.files or ():
            if path.suffix in (".so", ".pyd"):
                raise HostError(
                    f"{name} {distribution.version} has compiled parts ({path})",
                    do="lock a pure Python release of it",
                )
            if path.suffix == ".py" or path.parts[0].endswith(".dist-info"):
                files[str(path)] = Path(str(path.locate()))
        wanted = (Requirement(text) for text in distribution.requires or ())
        todo += [item.name for item in wanted if item.marker is None or item.marker.evaluate({"extra": ""})]
    return files


def _distribution(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise HostError(
            f"{name} is not installed beside the pipeline, and the checks need it", do="run make setup again"
        ) from None


def parse(output: bytes) -> tuple[Answer, str]:
    """The answer in a run's standard output, and why a check may have no row in it."""
    try:
        return Answer.model_validate_json(output), "the check container's document has no row for it"
    except ValidationError as error:
        problem = error.errors()[0]
        where = "".join(f"{part}: " for part in problem["loc"])
        return NO_ANSWER, f"the check container's document is not valid: {where}{problem['msg']}"


def _outcome(image: Image, subject: Subject, checks: Path, answer: Answer, reason: str) -> Outcome:
    rows = tuple(merge(expected_checks(checks), answer.checks, reason))
    named = subject._asdict()
    report = CheckReport(image=image.digest, checks_digest=checks_digest(checks), checks=rows, **named)
    return Outcome(report, junit_xml(report, answer))


def merge(expected: Sequence[str], given: Sequence[CheckResult], missing: str) -> Iterator[CheckResult]:
    """One row per expected check, then an error for each row that nobody expected.

    Args:
        missing: why an expected check may have no row; it is then ``not_run``.
    """
    for name in expected:
        match [row for row in given if row.name == name]:
            case [row]:
                yield row
            case []:
                yield _row(name, CheckStatus.NOT_RUN, missing)
            case rows:
                yield _row(name, CheckStatus.ERROR, f"the check container gave {len(rows)} rows for it")
    for name in sorted({row.name for row in given} - set(expected)):
        yield _row(name, CheckStatus.ERROR, "the check container gave a row for a check that does not exist")


def _row(name: str, status: CheckStatus, reason: str) -> CheckResult:
    return CheckResult(name=name, status=status, seconds=0.0, reason=reason)


def junit_xml(report: CheckReport, answer: Answer) -> str:
    """Pytest's own JUnit XML, with an error for each row of the report that pytest did not give."""
    root = ET.fromstring(answer.junit) if answer.junit else ET.Element("testsuites")
    extra = [row for row in report.checks if row not in answer.checks]
    if extra:
        count = str(len(extra))
        suite = ET.SubElement(root, "testsuite", name="pipeline", tests=count, errors=count, failures="0")
        for row in extra:
            case = ET.SubElement(suite, "testcase", classname="checks", name=row.name, time="0")
            ET.SubElement(case, "error", message=row.reason, type=row.status)
    return ET.tostring(root, encoding="unicode", xml_declaration=True)
