"""The rebase report for a terminal: a table of patches, then what is to be said about each that is not exact.

Names, descriptions and lines of patches come from others: what a terminal would obey in them is shown and not sent.
"""

from collections.abc import Iterator
from itertools import groupby

from rich.markup import escape
from rich.table import Table

from pipeline.console import visible
from pipeline.hunk_match import SHOWN
from pipeline.rebase_page import place, verdict
from pipeline.rebase_report import HunkStatus, HunkVerdict, OracleStatus, OverlayStatus, PatchVerdict, RebaseReport
from pipeline.upstream_changes import NameChange, UpstreamChanges


def table(report: RebaseReport) -> Table:
    """One row a patch."""
    oracles = any(patch.oracle for patch in report.patches)
    found = Table("patch", "verdict", "hunks", *(["without it"] if oracles else []))
    for patch in report.patches:
        counts = [f"{patch.count(status)} {status}" for status in HunkStatus if patch.count(status)]
        row = [visible(patch.name), str(patch.status), ", ".join(counts)]
        found.add_row(*map(escape, [*row, patch.oracle.status if patch.oracle else ""][: len(found.columns)]))
    return found


def title(report: RebaseReport) -> str:
    """What is put onto what."""
    old = f" (made for {report.old})" if report.old else ""
    sha256 = f", sha256 {report.onto_sha256}" if report.onto_sha256 else ""
    return visible(f"{report.series}{old} onto {report.onto}{sha256}")


def details(report: RebaseReport) -> Iterator[str]:
    """What the table does not say, as plain lines."""
    return (visible(line) for line in _details(report))


def _details(report: RebaseReport) -> Iterator[str]:
    for patch in report.patches:
        yield from _patch(patch)
    for overlay in report.overlays:
        if overlay.status is not OverlayStatus.FITS:
            yield f"overlay {overlay.name}: {overlay.status}"
            yield from (f"  {problem}" for problem in overlay.problems)
    if report.imports:
        yield "imports of the tree with what was applied:"
        yield from (f"  {problem}" for problem in report.imports)
    if isinstance(report.changes, UpstreamChanges):
        yield from _changes(report.changes)
    yield verdict(report)


def _patch(patch: PatchVerdict) -> Iterator[str]:
    # Why tests were not run is one reason for all, and has been said.
    answer = patch.oracle if patch.oracle and patch.oracle.status is not OracleStatus.NOT_RUN else None
    if answer is None and patch.status is HunkStatus.EXACT:
        return
    oracle = f"; without it: {answer.status}" if answer else ""
    more = f" ({answer.detail})" if answer and answer.detail else ""
    yield f"{patch.name}: {patch.status}{oracle}{more}"
    for file, hunks in groupby(patch.hunks, key=lambda hunk: hunk.file):
        yield from _file(file, [hunk for hunk in hunks if not hunk.is_exact])


def _file(file: str, hunks: list[HunkVerdict]) -> Iterator[str]:
    if not hunks:
        return
    yield f"  {file}"
    for hunk in hunks:
        cascading = ", may be cascading" if hunk.cascading else ""
        where = place(hunk.model_copy(update={"note": ""}))
        yield f"    {hunk.status}{cascading}{f', {where}' if where else ''}: {hunk.header}"
        if hunk.note:
            yield f"      {hunk.note}"
        near = hunk.nearest
        if near is not None:
            moved = f" of {near.file}" if near.file != hunk.file else ""
            like = (
                f"{near.similarity:.0%} like its {near.of}" if near.similarity >= SHOWN else "by what stands around it"
            )
            yield f"      nearest: line {near.line}{moved}, {like}:"
            yield from (f"        {line}" for line in near.diff.removesuffix("\n").split("\n"))


def _changes(changes: UpstreamChanges) -> Iterator[str]:
    moved = [file for file in changes.files if file.status not in ("same", "new")]
    if moved:
        yield "files of the second source, and what they import:"
    for file in moved:
        to = f" to {file.to}" if file.to else ""
        counts = f", +{file.added} -{file.removed}" if file.added or file.removed else ""
        yield f"  {file.status}{to}: {file.path}{counts} ({file.why})"
    for kind, names in (("environment variables", changes.variables), ("launch flags", changes.flags)):
        others = len(names.changes) - len(names.ours)
        yield f"{kind}: {names.before} before, {names.after} now; {others} changed that this line does not use"
        yield from (f"  {_name(change)}" for change in names.ours)
        yield from (f"  not compared: {reason}" for reason in names.not_compared)


def _name(change: NameChange) -> str:
    values = "" if change.what == "vanished" else f" {change.old or 'nothing'} -> {change.new or 'nothing'}"
    return f"{change.name}: {change.what}{values} (used by {', '.join(change.used_by)})"
