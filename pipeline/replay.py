"""Put a patch onto files that changed under it, or say exactly where a person has to look.

Two ways. Where the files are known from which the patch was made, git merges three ways. Where they are not (a pin
was bumped), a hunk is moved only if its old text occurs exactly once in the new file and below the same class or
function as before, and its result is not there already. Everything else is a conflict: nothing is guessed, and no hunk
is left out.
"""

import difflib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline import git, hunk_match, patches
from pipeline.errors import ComposeError
from pipeline.hunk_match import Match, Text, quoted
from pipeline.patch_text import Change, blob_id, heading, occurrences
from pipeline.patches import FilePatch, Hunk, Patch, split_lines
from pipeline.rebase_report import HunkStatus

MARKERS = (b"<<<<<<< ", b"||||||| ", b">>>>>>> ")


@dataclass(frozen=True)
class ConflictFile:
    """A file that a person must finish; the four versions are those of a git index in conflict and its work tree."""

    base: bytes
    ours: bytes | None
    """``None``: the tree does not have the file any more, and base and theirs hold just the hunks."""
    theirs: bytes
    marked: bytes


class Conflict(ComposeError):
    """A patch that does not go onto the files by itself."""

    def __init__(
        self, patch: Patch, problems: list[str], files: Mapping[str, ConflictFile], merged: Mapping[str, bytes]
    ) -> None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{problems[0]}{more}")
        self.patch = patch
        self.problems = problems
        self.files = files
        self.merged = merged
        """Files of the patch that need nobody's look."""


def apply(patch: Patch, files: Mapping[str, bytes]) -> Change:
    """The patch on the files for which it was written.

    Raises:
        ComposeError: it does not apply exactly.
    """
    after = patches.apply(patch, files)
    return Change(patch.name, patch.split[0], {path: files[path] for path in after}, after)


def is_made_for(patch: Patch, files: Mapping[str, bytes]) -> bool:
    """Whether a patch names these very bytes as those that it was written for, or names none."""
    return all(blob_id(files[file.path]).startswith(file.made_for) for file in patch.files)


def replay(patch: Patch, files: Mapping[str, bytes], origin: Change | None, below: Mapping[str, bytes]) -> Change:
    """The patch on ``files``.

    Args:
        origin: the same patch on the files for which it was written, where known.
        below: the files without the patches before it: what those brought is not upstream's.

    Raises:
        Conflict: a person has to decide.
    """
    before = {file.path: files[file.path] for file in patch.files if file.path in files}
    if origin is not None:
        return Change(patch.name, patch.split[0], before, _merge_all(patch, before, origin))
    try:
        exact = apply(patch, files)
        if is_made_for(patch, files) or not any(_doubled(file, before[file.path], below) for file in patch.files):
            return exact
    except ComposeError:
        pass
    return Change(patch.name, patch.split[0], before, _move_all(patch, before, below))


def _doubled(file: FilePatch, data: bytes, below: Mapping[str, bytes]) -> bool:
    """Whether a hunk of a patch that fits would bring what is there."""
    text = _text(file.path, data, below)
    return any(hunk_match.there_already(hunk, text, hunk.stated) for hunk in file.hunks)


def _text(path: str, data: bytes, below: Mapping[str, bytes]) -> Text:
    """A file as a hunk meets it, with the lines that the patches before it brought."""
    lines = split_lines(data)
    if data == below[path]:
        return Text(lines)
    matcher: difflib.SequenceMatcher[bytes] = difflib.SequenceMatcher(None, split_lines(below[path]), lines)
    spans = [range(code[3], code[4]) for code in matcher.get_opcodes() if code[0] != "equal"]
    return Text(lines, frozenset(index for span in spans for index in span))


def _merge_all(patch: Patch, ours: Mapping[str, bytes], origin: Change) -> dict[str, bytes]:
    merged: dict[str, bytes] = {}
    broken: dict[str, ConflictFile] = {}
    for path in ours:
        base, theirs = origin.before[path], origin.after[path]
        count, text = _merge(patch.name, base, ours[path], theirs)
        if count:
            broken[path] = ConflictFile(base, ours[path], theirs, text)
        else:
            merged[path] = text
    if broken:
        places = [f"{patch.name}: {path}: the same lines are changed below it" for path in broken]
        raise Conflict(patch, places, broken, merged)
    return merged


def _merge(name: str, base: bytes, ours: bytes, theirs: bytes) -> tuple[int, bytes]:
    """Number of conflicts and the merged text, with the usual markers."""
    with tempfile.TemporaryDirectory(prefix="merge-") as scratch:
        root = Path(scratch)
        for side, data in (("ours", ours), ("base", base), ("theirs", theirs)):
            (root / side).write_bytes(data)
        labels = [f"-L{label}" for label in ("below the patch", f"{name} was made for", name)]
        done = git.run(root, "merge-file", "--stdout", "--diff3", *labels, "ours", "base", "theirs")
    if done.returncode > 127:  # up to there it is the number of conflicts
        raise ComposeError(f"{name}: git merge-file: {done.stderr.decode(errors='replace').strip()}")
    return done.returncode, done.stdout


def _move_all(patch: Patch, files: Mapping[str, bytes], below: Mapping[str, bytes]) -> dict[str, bytes]:
    moved: dict[str, bytes] = {}
    broken: dict[str, ConflictFile] = {}
    problems: list[str] = []
    for file in patch.files:
        if file.path not in files:
            problem = "the tree has no such file any more"
            problems.append(f"{patch.name}: {file.path}: {problem}")
            nowhere = [_Placed(hunk, 0, 0, problem) for hunk in file.hunks]
            broken[file.path] = _conflict(patch.name, None, [], nowhere)
            continue
        lines = split_lines(files[file.path])
        placed = list(_place(file, _text(file.path, files[file.path], below)))
        found = [f"{patch.name}: {file.path}: hunk {n}: {p.problem}" for n, p in enumerate(placed, 1) if p.problem]
        if found:
            broken[file.path] = _conflict(patch.name, files[file.path], lines, placed)
        else:
            moved[file.path] = b"".join(_rewrite(lines, [(p.start, p.end, p.hunk.new) for p in placed]))
        problems += found
    if problems:
        raise Conflict(patch, problems, broken, moved)
    return moved


@dataclass(frozen=True)
class _Placed:
    """A hunk and the lines (from 0, end excluded) that it replaces; with a problem, those that look most like it."""

    hunk: Hunk
    start: int
    end: int
    problem: str | None = None


def _place(file: FilePatch, text: Text) -> Iterator[_Placed]:
    lines, position, offset = text.lines, 0, 0
    places = [[at for at in occurrences(lines, list(hunk.old)) if hunk.old or not lines] for hunk in file.hunks]
    for number, (hunk, found) in enumerate(zip(file.hunks, places, strict=True), 1):
        there = hunk_match.there_already(hunk, text, hunk.stated + offset)
        problem = _already(there) if there else _problem(hunk, lines, found, position)
        if problem is None:
            start, end = found[0], found[0] + len(hunk.old)
            offset = start - hunk.stated
        else:
            match = there or hunk_match.judge(hunk, text, hunk.stated + offset)
            later = [only for only, *others in filter(None, places[number:]) if not others and only >= position]
            start, end = _shown(hunk, match, position, min(later, default=len(lines)))
        yield _Placed(hunk, start, end, problem)
        position = end
        if there:
            text = replace(text, taken=text.taken | there.proof)


def _already(there: Match) -> str:
    at = (there.at or 0) + 1
    if there.status is HunkStatus.UPSTREAM:
        return f"its result is there already, line {at}"
    return f"some of its result is there already: {there.note}"


def _problem(hunk: Hunk, lines: list[bytes], found: list[int], position: int) -> str | None:
    if not found:
        return "its old text is not in the file any more"
    if len(found) > 1:
        places = ", ".join(str(at + 1) for at in found)
        return f"expected its old text once, found it at lines {places}"
    if found[0] < position:
        return f"its old text stands at line {found[0] + 1} now, above the hunk before"
    here = heading(lines, found[0])
    if hunk.heading and here != hunk.heading:
        return (
            f"expected its old text below {quoted(hunk.heading)}, found it below {quoted(here)} (line {found[0] + 1})"
        )
    return None


def _shown(hunk: Hunk, match: Match, low: int, high: int) -> tuple[int, int]:
    """The lines to show a person with a hunk: those that the report names, as far as other hunks leave them."""
    start, end = low, low
    if match.status is HunkStatus.UPSTREAM and match.at is not None:
        start, end = min(match.proof, default=match.at), max(match.proof, default=match.at - 1) + 1
    elif match.near is not None:
        start, end = match.near.at, match.near.end
    elif places := [at for at in (match.at, *match.places) if at is not None and at >= low]:
        start = places[0] if match.at is not None else min(places, key=lambda at: abs(at - hunk.stated))
        end = start + len(hunk.old)
    start = min(max(start, low), high)
    return start, max(start, min(end, high))


def _rewrite(lines: list[bytes], parts: list[tuple[int, int, tuple[bytes, ...]]]) -> Iterator[bytes]:
    position = 0
    for start, end, new in parts:
        yield from lines[position:start]
        yield from new
        position = end
    yield from lines[position:]


def _conflict(name: str, ours: bytes | None, lines: list[bytes], placed: list[_Placed]) -> ConflictFile:
    def version(text: str) -> bytes:
        return b"".join(_rewrite(lines, [(p.start, p.end, getattr(p.hunk, text)) for p in placed]))

    shown = [(p.start, p.end, _marked(name, lines, p) if p.problem else p.hunk.new) for p in placed]
    return ConflictFile(version("old"), ours, version("new"), b"".join(_rewrite(lines, shown)))


def _marked(name: str, lines: list[bytes], placed: _Placed) -> tuple[bytes, ...]:
    label = name.encode()
    sides = (
        (b"<<<<<<< below the patch", lines[placed.start : placed.end]),
        (b"||||||| " + label + b" was made for", placed.hunk.old),
        (b"=======", placed.hunk.new),
    )
    text: list[bytes] = []
    for marker, side in sides:
        text += [marker + b"\n", *(line if line.endswith(b"\n") else line + b"\n" for line in side)]
    return (*text, b">>>>>>> " + label + b"\n")


def leftover_markers(change: Change) -> list[str]:
    """Files of a change in which it adds a conflict marker."""

    def count(data: bytes) -> int:
        return sum(line.startswith(MARKERS) for line in split_lines(data))

    return sorted(path for path in change.after if count(change.after[path]) > count(change.before[path]))
