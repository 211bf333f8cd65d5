"""The verdict: every rule that applies with its status, and what reading it cost."""

from collections.abc import Iterable
from contextlib import nullcontext
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict
from rich.table import Table
from rich.text import Text

from pipeline.checkpoint.ignore import Refused, time_limit
from pipeline.checkpoint.rule import Case, Rule, Severity, Skip, Undecided

MAX_FINDINGS = 20
"""Lines per rule in a report; the rest is counted."""
MAX_LINE = 400
"""Characters of one line; names in a damaged checkpoint may be of any length."""


class Status(StrEnum):
    """What came of a rule."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_DECIDED = "not decided"
    NOT_RUN = "not run"
    """A rule that it needs did not pass."""
    SKIPPED = "skipped"
    """There was nothing to look at, or it was not asked for."""


class Result(BaseModel):
    """One row."""

    model_config = ConfigDict(frozen=True)

    id: str
    severity: Severity
    status: Status
    title: str
    findings: tuple[str, ...] = ()
    """One line each: what is wrong, or why there is no answer."""
    remedy: str = ""
    """What to do, where the status is ``failed``."""

    @property
    def refuses(self) -> bool:
        return self.severity is Severity.ERROR and self.status in (Status.FAILED, Status.NOT_DECIDED)


class Report(BaseModel):
    """The whole answer."""

    model_config = ConfigDict(frozen=True)

    source: str
    revision: str | None
    role: str
    mode: str
    pin: str
    profile: str | None
    publishable_and_servable: bool
    refused_by: tuple[str, ...]
    results: tuple[Result, ...]
    bytes_read: int
    requests: int
    seconds: float


def judge(rule: Rule, case: Case, before: dict[str, Status]) -> Result:
    """Ask one rule."""
    missing = [name for name in rule.needs if before.get(name) in (Status.FAILED, Status.NOT_RUN, Status.NOT_DECIDED)]
    if missing:
        return _result(rule, Status.NOT_RUN, [f"needs {', '.join(missing)}"])
    try:
        with time_limit() if rule.matches else nullcontext():
            findings = list(rule.check(case))
    except (Undecided, Refused) as reason:
        return _result(rule, Status.NOT_DECIDED, [str(reason)])
    except Skip as reason:
        return _result(rule, Status.SKIPPED, [str(reason)])
    return _result(rule, Status.FAILED, findings) if findings else _result(rule, Status.PASSED, [])


def _result(rule: Rule, status: Status, findings: Iterable[str]) -> Result:
    lines = [one_line(text) for text in findings]
    if len(lines) > MAX_FINDINGS:
        lines = [*lines[:MAX_FINDINGS], f"and {len(lines) - MAX_FINDINGS} more"]
    remedy = rule.remedy if status is Status.FAILED else ""
    return Result(
        id=rule.id, severity=rule.severity, status=status, title=rule.title, findings=tuple(lines), remedy=remedy
    )


def one_line(text: str) -> str:
    """Text of a checkpoint made safe to print: no control characters, no end."""
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return shown if len(shown) <= MAX_LINE else f"{shown[:MAX_LINE]}…"


_COLOURS = {Status.PASSED: "green", Status.FAILED: "red", Status.NOT_DECIDED: "red", Status.NOT_RUN: "yellow"}


def table(report: Report) -> Table:
    """The report for people."""
    served = f"{report.role} for {report.mode}, {report.pin}{f', profile {report.profile}' if report.profile else ''}"
    shown = Table("rule", "severity", "status", "what", title=one_line(f"{report.source}: {served}"))
    for row in report.results:
        lines = [row.title, *(f"• {line}" for line in row.findings), *([f"→ {row.remedy}"] if row.remedy else [])]
        colour = _COLOURS.get(row.status, "dim")
        if row.status is Status.FAILED and row.severity is not Severity.ERROR:
            colour = "yellow"
        shown.add_row(row.id, row.severity, Text(row.status, colour), Text("\n".join(lines)))
    return shown


def summary(report: Report) -> str:
    """What the verdict cost, as one line."""
    at = f" at {report.revision}" if report.revision else ""
    size = f"{report.bytes_read / (1 << 20):.2f} MiB"
    return one_line(f"{report.source}{at}: {size} read in {report.requests} requests, {report.seconds:.1f} s")


def as_json(report: Report) -> dict[str, Any]:
    """The report for programs."""
    return report.model_dump(mode="json")
