"""Put a patch onto files that changed under it, or say exactly where a person has to look.

Two ways. Where the files are known from which the patch was made, git merges three ways. Where they are not (a pin
was bumped), a hunk is moved only if its old text occurs exactly once in the new file and below the same class or
function as before. Everything else is a conflict: nothing is guessed, and no hunk is left out.
"""

import difflib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline import git, patches
from pipeline.errors import ComposeError
from pipeline.patch_text import Change, heading, occurrences
from pipeline.patches import FilePatch, Hunk, Patch, split_lines

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


def replay(patch: Patch, files: Mapping[str, bytes], origin: Change | None) -> Change:
    """The patch on ``files``; ``origin`` is the same patch on the files for which it was written, where known.

    Raises:
        Conflict: a person has to decide.
    """
    before = {file.path: files[file.path] for file in patch.files if file.path in files}
    if origin is not None:
        return Change(patch.name, patch.split[0], before, _merge_all(patch, before, origin))
    try:
        return apply(patch, files)
    except ComposeError:
        return Change(patch.name, patch.split[0], before, _move_all(patch, before))


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


def _move_all(patch: Patch, files: Mapping[str, bytes]) -> dict[str, bytes]:
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
        placed = list(_place(file, lines))
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


def _place(file: FilePatch, lines: list[bytes]) -> Iterator[_Placed]:
    position, offset = 0, 0
    for hunk in file.hunks:
        stated = hunk.old_start - 1 if hunk.old else hunk.old_start
        found = [at for at in occurrences(lines, list(hunk.old)) if hunk.old or not lines]
        problem = _problem(hunk, lines, found, position)
        start = found[0] if not problem else _likeliest(hunk, lines, found, position, stated + offset)
        end = min(start + len(hunk.old), len(lines))
        yield _Placed(hunk, start, end, problem)
        position, offset = end, start - stated


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
        return f"expected its old text below {_text(hunk.heading)}, found it below {_text(here)} (line {found[0] + 1})"
    return None


def _text(line: bytes) -> str:
    return repr(line.decode("utf-8", "replace")) if line else "no class or function"


def _likeliest(hunk: Hunk, lines: list[bytes], found: list[int], position: int, expected: int) -> int:
    """Where to show a person the hunk: the nearest exact place, else the most similar lines."""
    later = [at for at in found if at >= position]
    if later:
        return min(later, key=lambda at: abs(at - expected))
    matcher: difflib.SequenceMatcher[bytes] = difflib.SequenceMatcher(None, [], list(hunk.old), autojunk=False)

    def likeness(at: int) -> tuple[float, int]:
        matcher.set_seq1(lines[at : at + len(hunk.old)])
        return matcher.ratio(), -abs(at - expected)

    return max(range(position, len(lines)), key=likeness, default=position)


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
