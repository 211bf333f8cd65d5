"""What a newer upstream release does to a series of patches: patch by patch, hunk by hunk, in order.

The patches are judged on a running tree. Only hunks that fit with all their context are applied to it; a hunk whose
result upstream has already is done. After a miss, later hunks of that file are judged against the pristine release as
well, so that one miss is not read as many. Nothing is written, and nobody's patch is dropped.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Literal

from pipeline import foreign_series, hunk_match, imports, onto, patches, upstream_changes
from pipeline.compose import OVERLAYS, PATCHES, Draft, grow, read_overlay
from pipeline.console import step, warn
from pipeline.documents import Document
from pipeline.errors import ComposeError, RebaseError
from pipeline.files import BUILD
from pipeline.foreign_series import FileChange, SeriesPatch
from pipeline.hunk_match import Match, Text, is_telling
from pipeline.manifest import Line, OverlayLayer, PatchesLayer
from pipeline.onto import Onto
from pipeline.patches import Hunk, split_lines
from pipeline.pins import SourceTree, describe
from pipeline.rebase_report import (
    HunkStatus,
    HunkVerdict,
    Nearest,
    OracleStatus,
    OracleVerdict,
    OverlayStatus,
    OverlayVerdict,
    PatchVerdict,
    RebaseReport,
    many,
)

SAME_FILE = 0.5
"""Share of a file's lines that must be found again under the same name elsewhere to call it moved."""
TELLING_LINES = 8
"""So many of a foreign patch's lines, whose whole file is not known, must be found there as well."""
OUTSIDE = "outside the package, not judged"
SHOWN_LINES = 60
SHOWN_FILES = 2
AROUND = 3
"""Lines shown on both sides of nearest lines that say nothing themselves."""
SCOPE = re.compile(rb"(class|def)[ \t]+\w+")
APPLIED = (HunkStatus.EXACT, HunkStatus.MOVED)
FINE = (*APPLIED, HunkStatus.UPSTREAM)

Before = Mapping[str, bytes]
"""Files as a patch was made for them."""


class Interrupted(KeyboardInterrupt):
    """Somebody did not wait for the patches' own tests."""

    def __init__(self, report: RebaseReport) -> None:
        super().__init__()
        self.report = report


@dataclass(frozen=True)
class Made:
    """A line as it is: what upstream gave it, and what each patch was made for."""

    upstream: dict[str, bytes]
    before: dict[str, Before]
    """Per patch, the files that it touches."""


def made(line: Line, build: Path = BUILD, overlays: Path = OVERLAYS, series: Path | None = None) -> Made:
    """Compose a line step by step.

    Raises:
        PinError: an input cannot be had or is not what its hash says.
        ComposeError: a patch does not apply exactly to its own base.
    """
    folder = series or PATCHES / line.name
    layers = tuple(layer for layer in line.release.layers if not isinstance(layer, PatchesLayer))
    unpatched = line.model_copy(update={"release": line.release.model_copy(update={"layers": layers})})
    draft = Draft()
    for _ in grow(draft, unpatched, build, overlays, folder):
        pass
    upstream = {path: data for path, data in draft.files.items() if draft.origins[path].startswith("source:")}
    files, before = dict(draft.files), dict[str, Before]()
    for patch in patches.read_series(folder):
        changed = patches.apply(patch, files)
        before[patch.name] = {path: files[path] for path in changed}
        files.update(changed)
    return Made(upstream, before)


def of_line(
    line: Line,
    new: Onto,
    old: Made,
    *,
    overlays: Path = OVERLAYS,
    series: Path | None = None,
    changes: Document | None = None,
) -> RebaseReport:
    """What a release does to a line.

    Args:
        changes: what vanished or changed upstream beside the series.
    """
    given = [foreign_series.of_ours(patch) for patch in patches.read_series(series or PATCHES / line.name)]
    sets = [layer.overlay for layer in line.release.layers if isinstance(layer, OverlayLayer)]
    brought = {name: read_overlay(name, overlays) for name in sets}
    tree = {path: data for files in brought.values() for path, data in files.items()} | new.tree.files
    judge = _Series(tree, old.before)
    verdicts = tuple(_judge_all(judge, given))
    with step("Check imports of the new tree"):
        overlay_verdicts, missing = _imports(judge, new, brought)
    pins = sorted({describe(pin) for pin in line.release.pins.values()})
    return RebaseReport(
        series=line.name,
        onto=new.name,
        onto_sha256=new.sha256,
        old=", ".join(pins),
        patches=verdicts,
        overlays=overlay_verdicts,
        imports=missing,
        changes=changes,
    )


def of_folder(folder: Path, new: Onto) -> RebaseReport:
    """What a release does to somebody else's series.

    Raises:
        ComposeError: the folder holds no series, or one that cannot be judged hunk by hunk.
    """
    given = foreign_series.read(folder, new.tree.files.keys())
    verdicts = tuple(_judge_all(_Series(new.tree.files, {}), given))
    return RebaseReport(series=str(folder), onto=new.name, onto_sha256=new.sha256, old="", patches=verdicts)


def report_of_line(line: Line, release: str, build: Path = BUILD, *, ask: bool = True) -> RebaseReport:
    """What the release that ``--onto`` names does to a line.

    Args:
        ask: whether the patches' own tests are run on that release.

    Raises:
        Interrupted: while the tests ran; it has the report without their answers.
    """
    from pipeline import oracles  # it brings the container engine's SDK, which a foreign series does not need

    with step(f"Compose {line.name} as it is"):
        old = made(line, build)
    new = onto.read(release, line.release.base.python_tag, build / "cache")
    with step("Compare files, variables and flags"):
        second, uses = upstream_changes.second_source(line), upstream_changes.uses_of(line)
        changes = upstream_changes.compare(old.upstream, new.tree.files, second, uses)
    report = of_line(line, new, old, changes=changes)
    if not ask:
        return report
    try:
        return with_answers(report, oracles.judge(line, new.tree.files, build))
    except KeyboardInterrupt as error:
        warn("the patches' tests were not run: interrupted")
        none = OracleVerdict(status=OracleStatus.NOT_RUN, detail="interrupted")
        raise Interrupted(with_answers(report, {patch.name: none for patch in report.patches})) from error


def with_answers(report: RebaseReport, answers: Mapping[str, OracleVerdict]) -> RebaseReport:
    """The report with what the patches' own tests say on the new release without them."""
    told = [patch.model_copy(update={"oracle": answers.get(patch.name)}) for patch in report.patches]
    return report.model_copy(update={"patches": tuple(told)})


def report_of_folder(folder: Path, release: str, build: Path = BUILD) -> RebaseReport:
    """What the release that ``--onto`` names does to somebody else's series."""
    return of_folder(folder, onto.read(release, onto.PYTHON_TAG, build / "cache"))


def require_exact(report: RebaseReport) -> None:
    """End with an error where anything is not exact.

    Raises:
        RebaseError: naming how many patches, overlays and imports.
    """
    if report.exact:
        return
    patched = sum(patch.status is not HunkStatus.EXACT for patch in report.patches)
    laid = sum(overlay.status is not OverlayStatus.FITS for overlay in report.overlays)
    found = [(patched, "patch", "es"), (laid, "overlay", "s"), (len(report.imports), "import", "s")]
    raise RebaseError(
        f"{report.series} onto {report.onto}",
        expected="all exact",
        found=", ".join(f"{many(*each)} that {'is' if each[0] == 1 else 'are'} not" for each in found if each[0]),
        do="see docs/rebase.md",
    )


def _judge_all(series: "_Series", given: list[SeriesPatch]) -> Iterator[PatchVerdict]:
    with step(f"Judge {many(len(given), 'patch', 'es')}") as state:
        for number, patch in enumerate(given, 1):
            state.detail = f"{number} of {len(given)}, {patch.name}"
            hunks = tuple(hunk for change in patch.files for hunk in series.judge(patch.name, change))
            yield PatchVerdict(
                name=patch.name,
                summary=patch.summary,
                origin=patch.origin,
                status=_worst([hunk.status for hunk in hunks]),
                hunks=hunks,
            )
        state.detail = ""


def _worst(statuses: list[HunkStatus]) -> HunkStatus:
    """The worst status; where some hunks are upstream and others are not, that is ``partly`` at least."""
    worst = max(statuses, key=lambda status: status.rank)
    mixed = HunkStatus.UPSTREAM in statuses and set(statuses) != {HunkStatus.UPSTREAM}
    return max(worst, HunkStatus.PARTLY, key=lambda status: status.rank) if mixed else worst


@dataclass
class _File:
    """A file of the running tree."""

    lines: list[bytes]
    ours: list[bool]
    """Per line, whether the series brought it."""
    missed: list[tuple[str, Hunk]] = field(default_factory=list)
    """Hunks that were not applied, with what to call them."""
    drift: int = 0
    """How far the last hunk that was found stands from where it says."""

    @property
    def taken(self) -> frozenset[int]:
        return frozenset(index for index, ours in enumerate(self.ours) if ours)

    def apply(self, edits: list[tuple[int, Hunk]]) -> None:
        """Apply hunks that fit at these indices and do not overlap."""
        for at, hunk in sorted(edits, key=lambda edit: edit[0], reverse=True):
            self.lines[at : at + len(hunk.old)] = hunk.new
            lead, tail = hunk_match.context_of(hunk)
            fresh = len(hunk.new) - lead - tail
            ours = self.ours[at : at + len(hunk.old)]
            self.ours[at : at + len(hunk.old)] = [*ours[:lead], *[True] * fresh, *ours[len(ours) - tail :]]


class _Series:
    """The running tree, and the release as it came."""

    def __init__(self, tree: Mapping[str, bytes], before: Mapping[str, Before]) -> None:
        self.pristine = tree
        self.before = before
        self.running: dict[str, _File] = {}
        self.gone: dict[str, str] = {}
        """Files that a patch removed, and which one."""
        self.folders = {path.split("/")[0] for path in tree}
        """What the release consists of; tests, documents and packaging of the repository are not in a wheel."""
        self._lines: dict[str, frozenset[bytes]] = {}

    @property
    def changed(self) -> dict[str, bytes]:
        """Files that hold lines of the series, as they are now."""
        return {path: b"".join(file.lines) for path, file in self.running.items() if any(file.ours)}

    def judge(self, patch: str, change: FileChange) -> list[HunkVerdict]:
        """Judge the hunks of one file, and apply those that fit."""
        if change.by_hand:
            status = HunkStatus.CONFLICT
            return [HunkVerdict(file=change.path, header="the file itself", status=status, note=change.by_hand)]
        if change.path.split("/")[0] not in self.folders:
            return self._outside(change)
        if change.kind == "new":
            return [self._new(patch, change)]
        if change.kind == "delete":
            return [self._delete(patch, change)]
        file = self._file(change.path)
        if file is None:
            return self._of_gone_file(patch, change)
        before = self.before.get(patch, {}).get(change.path)
        found = _FileJudge(patch, change, file, self.pristine.get(change.path, b""), before).verdicts()
        pairs = zip(change.hunks, found, strict=True)
        return [self._with_scope(hunk, verdict) for hunk, verdict in pairs]

    def _outside(self, change: FileChange) -> list[HunkVerdict]:
        """Conflicts, for somebody has to look: not even of a new file is it known whether one of its name is there."""
        whole = {"new": ["new file"], "delete": ["deleted file"]}
        headers = whole.get(change.kind) or [header_of(hunk) for hunk in change.hunks]
        verdict = HunkVerdict(file=change.path, header="", status=HunkStatus.CONFLICT, note=OUTSIDE)
        return [verdict.model_copy(update={"header": header}) for header in headers]

    def _with_scope(self, hunk: Hunk, verdict: HunkVerdict) -> HunkVerdict:
        """A conflict with a word on the class or function of the hunk, where the file has it no more."""
        scope = SCOPE.search(hunk.heading)
        if verdict.status is not HunkStatus.CONFLICT or scope is None:
            return verdict
        definition = re.compile(rb"^[ \t]*(async[ \t]+)?" + re.escape(scope[0]) + rb"\b", re.MULTILINE)
        if definition.search(b"".join(self.running[verdict.file].lines)):
            return verdict
        folder = str(PurePosixPath(verdict.file).parents[0])
        there = [path for path, data in self.pristine.items() if scope[0] in data and definition.search(data)]
        there.sort(key=lambda path: (not path.startswith(folder), path))
        name = scope[0].decode("utf-8", "replace")
        where = f": {' and '.join(there)} has it" if 0 < len(there) <= SHOWN_FILES else ""
        note = f"{name!r} is not in the file any more{where}"
        return verdict.model_copy(update={"note": "; ".join(part for part in (verdict.note, note) if part)})

    def _file(self, path: str) -> _File | None:
        if path in self.gone:
            return None
        if path not in self.running and path in self.pristine:
            lines = split_lines(self.pristine[path])
            self.running[path] = _File(lines, [False] * len(lines))
        return self.running.get(path)

    # Files that come or go whole

    def _new(self, patch: str, change: FileChange) -> HunkVerdict:
        wanted = [line for hunk in change.hunks for line in hunk.new]
        file = self._file(change.path)
        verdict = HunkVerdict(file=change.path, header="new file", status=HunkStatus.EXACT)
        if file is None:
            self.gone.pop(change.path, None)
            self.running[change.path] = _File(wanted, [True] * len(wanted))
            return verdict
        if file.lines == wanted:
            return verdict.model_copy(update={"status": HunkStatus.UPSTREAM, "note": "the same file is there"})
        file.missed += [(patch, hunk) for hunk in change.hunks]
        return self._other_content(verdict, wanted, file, "result", "a file of that name is there, with other content")

    def _delete(self, patch: str, change: FileChange) -> HunkVerdict:
        wanted = [line for hunk in change.hunks for line in hunk.old]
        file = self._file(change.path)
        verdict = HunkVerdict(file=change.path, header="deleted file", status=HunkStatus.EXACT)
        if file is None:
            return verdict.model_copy(update={"status": HunkStatus.UPSTREAM, "note": "the file is gone"})
        if file.lines == wanted:
            self.running.pop(change.path)
            self.gone[change.path] = patch
            return verdict
        file.missed += [(patch, hunk) for hunk in change.hunks]
        return self._other_content(verdict, wanted, file, "old text", "the file is not the one that is to go")

    def _other_content(
        self, verdict: HunkVerdict, wanted: list[bytes], file: _File, of: Literal["old text", "result"], note: str
    ) -> HunkVerdict:
        similarity = round(_share(frozenset(wanted), frozenset(file.lines)), 2)
        diff = _shortened(hunk_match.difference(wanted, file.lines))
        near = Nearest(file=verdict.file, line=1, of=of, similarity=similarity, diff=diff)
        return verdict.model_copy(update={"status": HunkStatus.CONFLICT, "note": note, "nearest": near})

    # Files that are not there any more

    def _of_gone_file(self, patch: str, change: FileChange) -> list[HunkVerdict]:
        headers = [header_of(hunk) for hunk in change.hunks]
        empty = [HunkVerdict(file=change.path, header=header, status=HunkStatus.CONFLICT) for header in headers]
        if change.path in self.gone:
            note = f"{self.gone[change.path]} removed the file"
            return [verdict.model_copy(update={"note": note}) for verdict in empty]
        before = self.before.get(patch, {}).get(change.path)
        path, count, is_same = self._heir(change, before)
        if path is None:
            return [verdict.model_copy(update={"note": "the file is gone"}) for verdict in empty]
        if not is_same:
            whose = "its" if before is not None else "the patch's"
            note = f"the file is gone; nearest file: {path}, with {count} of {whose} lines"
            return [verdict.model_copy(update={"note": note}) for verdict in empty]
        lines = split_lines(self.pristine[path])
        scratch = _File(lines, [False] * len(lines))
        found = _FileJudge(patch, change, scratch, self.pristine[path], before).verdicts()
        return [_elsewhere(verdict, change.path, path) for verdict in found]

    def _heir(self, change: FileChange, before: bytes | None) -> tuple[str | None, str, bool]:
        """The file of the release that holds the most lines of one that is gone, how many, and whether it is it.

        Where the whole file is not known, the few lines of its hunks must be enough of them to tell.
        """
        lines = split_lines(before) if before is not None else [line for hunk in change.hunks for line in hunk.old]
        wanted, gone = frozenset(filter(is_telling, lines)), PurePosixPath(change.path)
        alike = [path for path in self.pristine if PurePosixPath(path).suffix == gone.suffix]
        shared = {path: len(wanted & self._lines_of(path)) for path in alike}
        same_name = [path for path in alike if PurePosixPath(path).name == gone.name]
        least = TELLING_LINES if before is None else 1
        for choice, share, is_same in ((same_name, SAME_FILE, True), (alike, hunk_match.SHOWN, False)):
            best = max(choice, key=lambda path: (shared[path], path in same_name), default=None)
            if best is not None and shared[best] >= max(share * len(wanted), least if is_same else 1):
                return best, f"{shared[best]} of {len(wanted)}", is_same
        return None, "", False

    def _lines_of(self, path: str) -> frozenset[bytes]:
        if path not in self._lines:
            self._lines[path] = frozenset(split_lines(self.pristine[path]))
        return self._lines[path]


def _share(wanted: frozenset[bytes], found: frozenset[bytes]) -> float:
    return len(wanted & found) / len(wanted) if wanted else 0.0


def _elsewhere(verdict: HunkVerdict, path: str, heir: str) -> HunkVerdict:
    """The verdict on a hunk of a file that is another one now: a conflict, whatever it would be there."""
    there = f"there it would be {verdict.status}" + (f" at line {verdict.line}" if verdict.line else "")
    note = "; ".join(part for part in (f"the file is gone; it is {heir} now: {there}", verdict.note) if part)
    near = verdict.nearest.model_copy(update={"file": heir}) if verdict.nearest else None
    return verdict.model_copy(
        update={"file": path, "status": HunkStatus.CONFLICT, "note": note, "nearest": near, "line": None, "offset": 0}
    )


@dataclass
class _FileJudge:
    """The hunks of one patch in one file; they are judged on the file as it is before the patch."""

    patch: str
    change: FileChange
    file: _File
    pristine: bytes
    before: bytes | None

    def verdicts(self) -> list[HunkVerdict]:
        """One verdict a hunk; those that fit are applied together."""
        text = Text(list(self.file.lines), self.file.taken, self._made_for)
        edits: list[tuple[int, Hunk]] = []
        found: list[HunkVerdict] = []
        for number, hunk in enumerate(self.change.hunks, 1):
            match = self._without_overlap(hunk_match.judge(hunk, text, hunk.stated + self.file.drift), hunk, edits)
            if match.status in FINE and match.at is not None:
                self.file.drift = match.at - hunk.stated
            if match.status in APPLIED and match.at is not None:
                edits.append((match.at, hunk))
            text = replace(text, taken=text.taken | match.proof)
            found.append(self._verdict(hunk, match))
            if match.status not in FINE:
                self.file.missed.append((f"{self.patch} hunk {number}", hunk))
        self.file.apply(edits)
        return found

    def _without_overlap(self, match: Match, hunk: Hunk, edits: list[tuple[int, Hunk]]) -> Match:
        if match.status not in APPLIED or match.at is None:
            return match
        for at, other in edits:
            if match.at < at + len(other.old) and at < match.at + len(hunk.old):
                note = f"would overlap the hunk at line {at + 1}"
                return Match(HunkStatus.CONFLICT, places=(match.at,), note=note)
        return match

    @cached_property
    def _made_for(self) -> list[bytes] | None:
        return split_lines(self.before) if self.before is not None else None

    @cached_property
    def _as_it_came(self) -> Text:
        return Text(split_lines(self.pristine), before=self._made_for)

    def _verdict(self, hunk: Hunk, match: Match) -> HunkVerdict:
        pristine, cause = None, None
        if self.file.missed:
            pristine = hunk_match.judge(hunk, self._as_it_came).status
            cause = self._cause(hunk, match, pristine) if match.status not in FINE else None
        at = match.at
        note = "; ".join(part for part in (match.note, f"may follow from {cause}" if cause else "") if part)
        return HunkVerdict(
            file=self.change.path,
            header=header_of(hunk),
            status=match.status,
            line=None if at is None else at + 1,
            offset=0 if at is None else at - hunk.stated,
            fuzz=match.fuzz,
            places=tuple(place + 1 for place in match.places),
            cascading=cause is not None,
            pristine=pristine,
            nearest=self._nearest(match),
            note=note,
        )

    def _cause(self, hunk: Hunk, match: Match, pristine: HunkStatus) -> str | None:
        """The earlier miss from which this one may follow: the last one whose lines it has to do with."""
        absent = frozenset(filter(is_telling, hunk.old)) - frozenset(self.file.lines)
        near = self.file.lines[match.near.at : match.near.end] if match.near else []
        extra = frozenset(filter(is_telling, near)) - frozenset(hunk.old)
        for name, missed in reversed(self.file.missed):
            old, new = frozenset(missed.old), frozenset(missed.new)
            if absent & (new - old) or extra & (old - new):
                return name
        return self.file.missed[-1][0] if pristine in FINE else None

    def _nearest(self, match: Match) -> Nearest | None:
        near = match.near
        if near is None:
            return None
        at, end = near.at, near.end
        if not any(map(is_telling, self.file.lines[at:end])):  # blank lines and brackets: what stands around them tells
            at, end = max(at - AROUND, 0), end + AROUND
        diff = hunk_match.difference(near.wanted, self.file.lines[at:end])
        return Nearest(
            file=self.change.path,
            line=at + 1,
            of="result" if near.is_result else "old text",
            similarity=near.similarity,
            diff=_shortened(diff),
        )


def header_of(hunk: Hunk) -> str:
    """The ``@@`` line."""
    old, new = f"{hunk.old_start},{len(hunk.old)}", f"{hunk.new_start},{len(hunk.new)}"
    return f"@@ -{old} +{new} @@ {hunk.heading.decode('utf-8', 'replace')}".rstrip()


def _shortened(diff: str) -> str:
    lines = diff.split("\n")
    more = len(lines) - SHOWN_LINES
    return "\n".join([*lines[:SHOWN_LINES], f"… {more} more lines"]) if more > 0 else diff


def _imports(
    series: _Series, new: Onto, brought: Mapping[str, Mapping[str, bytes]]
) -> tuple[tuple[OverlayVerdict, ...], tuple[str, ...]]:
    """Verdicts on the overlays, and the imports of patched files that the new tree cannot answer."""
    tree = {**series.pristine, **series.changed}
    owner = {path: name for name, files in brought.items() for path in files if path not in new.tree.files}
    origins = {path: f"overlay:{owner[path]}" if path in owner else new.name for path in tree}
    problems = _missing(tree, {*owner, *series.changed}, origins, new.tree)
    verdicts: list[OverlayVerdict] = []
    for name, files in brought.items():
        there = [path for path in sorted(files) if path in new.tree.files]
        same = [new.tree.files[path] == files[path] for path in there]
        exists = [
            f"{path}: {'the same' if equal else 'another'} file is upstream"
            for path, equal in zip(there, same, strict=True)
        ]
        lacking = [text for path, text in problems if owner.get(path) == name]
        status = OverlayStatus.EXISTS if exists else OverlayStatus.IMPORTS if lacking else OverlayStatus.FITS
        verdicts.append(OverlayVerdict(name=name, status=status, problems=(*exists, *lacking)))
    return tuple(verdicts), tuple(text for path, text in problems if path not in owner)


def _missing(
    tree: Mapping[str, bytes], ours: Collection[str], origins: Mapping[str, str], source: SourceTree
) -> list[tuple[str, str]]:
    """File and problem of each import that fails; one that is not Python, for it got only some of its hunks, too."""

    def check(paths: Collection[str]) -> list[tuple[str, str]]:
        return [(entry.file, entry.text) for entry in imports.check(tree, paths, origins, source.extensions)]

    try:
        return check(ours)
    except ComposeError:
        found: list[tuple[str, str]] = []
    for path in sorted(ours):
        try:
            found += check([path])
        except ComposeError as error:
            found.append((path, error.line()))
    return found
