"""The rebase report as one HTML file, to read, to print or to attach: nothing is fetched, and no script runs in it.

Names, descriptions and lines of patches come from others: the template escapes every value.
"""

from collections import Counter

from pipeline.rebase_report import HunkStatus, HunkVerdict, RebaseReport, many
from pipeline.templates import render as fill
from pipeline.upstream_changes import UpstreamChanges

MEANINGS = {
    HunkStatus.EXACT: "At its stated line with all its context. Nothing to do.",
    HunkStatus.MOVED: "At another line with all its context. build.py patch refresh moves it; read the difference.",
    HunkStatus.UPSTREAM: "Its result is there already. Drop the hunk, or the patch if all are, once its tests agree.",
    HunkStatus.FUZZ: "Fits only with less context, and is never applied so. Look at what changed beside it, then edit.",
    HunkStatus.PARTLY: "Some of its changes are there, others are not. Edit the patch down to what is missing.",
    HunkStatus.CONFLICT: "Fits nowhere, or in several places. Port the change by hand, from the nearest lines shown.",
}
"""What each status says, and what to do about it, from the best to the worst."""
KINDS = {"+": "came", "-": "went"}


def render(report: RebaseReport) -> str:
    """The report as a page."""
    changes = report.changes if isinstance(report.changes, UpstreamChanges) else None
    return fill(
        "rebase.html.j2",
        report=report,
        changes=changes,
        meanings=MEANINGS,
        verdict=verdict(report),
        lines=diff_lines,
        place=place,
    )


def verdict(report: RebaseReport) -> str:
    """The outcome in one sentence or two."""
    counts = Counter(hunk.status for patch in report.patches for hunk in patch.hunks)
    listed = ", ".join(f"{counts[status]} {status}" for status in HunkStatus if counts[status]) or "none"
    outcome = "All is exact." if report.exact else "It does not fit as it is."
    return f"{many(len(report.patches), 'patch', 'es')}, {many(counts.total(), 'hunk', 's')}: {listed}. {outcome}"


def place(hunk: HunkVerdict) -> str:
    """Where a hunk stands, and what else is to be said."""
    parts = [f"line {hunk.line}{f' ({hunk.offset:+d})' if hunk.offset else ''}"] if hunk.line is not None else []
    if hunk.places:
        parts.append(f"also at {', '.join(map(str, hunk.places))}")
    if hunk.fuzz:
        parts.append(f"fuzz {hunk.fuzz}")
    if hunk.pristine is not None:
        same = hunk.pristine is hunk.status
        parts.append(f"{'the same' if same else hunk.pristine} on the release without the patches before it")
    return "; ".join([*parts, *([hunk.note] if hunk.note else [])])


def diff_lines(text: str) -> list[tuple[str, str]]:
    """The lines of a diff, each with the class that it is shown in."""
    return [(KINDS.get(line[:1], ""), line) for line in text.splitlines()]
