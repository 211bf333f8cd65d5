"""The one way in which the diff of a patch is written, so that the same change is always the same bytes.

Per file: ``diff --git``, ``index`` with the full hashes of both blobs, ``---``, ``+++``, and hunks. Each hunk has the
fewest lines of context (at least one on either side) with which its old text occurs exactly once in the file. No dates.
"""

import hashlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline import git
from pipeline.errors import ComposeError
from pipeline.patches import HUNK, split_lines

HEADING = re.compile(rb"^[ \t]*((class|(async[ \t]+)?def)[ \t].*)$")
"""Lines that git's own driver for Python puts behind the second ``@@`` of a hunk."""
HEADING_BYTES = 80
"""git cuts headings there."""


@dataclass(frozen=True)
class Change:
    """One patch as what it does to files, which hold these bytes before and after it."""

    name: str
    header: bytes
    before: Mapping[str, bytes]
    after: Mapping[str, bytes]

    @property
    def data(self) -> bytes:
        """The patch file.

        Raises:
            ComposeError: nothing is changed, or a file is binary.
        """
        changed = [path for path in sorted(self.after) if self.after[path] != self.before[path]]
        if not changed:
            raise ComposeError(
                f"{self.name}: changes nothing", do=f"if it is not needed any more: build.py patch drop {self.name}"
            )
        return self.header + b"".join(
            _file_diff(self.name, path, self.before[path], self.after[path]) for path in changed
        )


@dataclass
class _Span:
    """Lines ``start`` to ``end`` (from 0, end excluded) of the old file that become one hunk, and the edits therein."""

    start: int
    end: int
    edits: list[tuple[int, int, list[bytes]]]
    """Start and end of the lines that go, and the lines that come."""


def _file_diff(name: str, path: str, old: bytes, new: bytes) -> bytes:
    if b"\0" in old + new:
        raise ComposeError(f"{name}: {path}: is binary", expected="changes inside existing text files")
    lines = split_lines(old)
    head = f"diff --git a/{path} b/{path}\nindex {blob_id(old)}..{blob_id(new)} 100644\n--- a/{path}\n+++ b/{path}\n"
    parts, moved = [head.encode()], 0
    for span in _spans(lines, _edits(old, new)):
        hunk, moved = _hunk(lines, span, moved)
        parts.append(hunk)
    return b"".join(parts)


def blob_id(data: bytes) -> str:
    """The name that git gives to these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _edits(old: bytes, new: bytes) -> Iterator[tuple[int, int, list[bytes]]]:
    """The edits that git's diff finds, in order."""
    with tempfile.TemporaryDirectory(prefix="diff-") as scratch:
        root = Path(scratch)
        (root / "old").write_bytes(old)
        (root / "new").write_bytes(new)
        output = git.run(root, "diff", "--no-index", "--text", "--unified=0", "old", "new").stdout
    lines = split_lines(new)
    for match in re.finditer(HUNK.pattern, output, re.MULTILINE):
        old_at, old_count, new_at, new_count = (int(match[group] or 1) for group in (1, 2, 3, 4))
        start = old_at - 1 if old_count else old_at  # an insertion names the line that it follows
        first = new_at - 1 if new_count else new_at
        yield start, start + old_count, lines[first : first + new_count]


def _spans(lines: list[bytes], edits: Iterable[tuple[int, int, list[bytes]]]) -> list[_Span]:
    """Edits with their surroundings; hunks may not overlap, and those that touch are one, as in git."""
    done: list[_Span] = []
    for edit in edits:
        span = _Span(*_unique(lines, edit[0], edit[1]), [edit])
        while done and span.start <= done[-1].end:
            last = done.pop()
            span = _Span(min(span.start, last.start), max(span.end, last.end), [*last.edits, *span.edits])
        done.append(span)
    return done


def _unique(lines: list[bytes], start: int, end: int) -> tuple[int, int]:
    """The smallest surroundings whose text occurs once; the whole file always does."""
    low, high = start, end
    while (low, high) != (0, len(lines)):
        low, high = max(0, low - 1), min(len(lines), high + 1)
        if len(occurrences(lines, lines[low:high])) == 1:
            break
    return low, high


def occurrences(lines: list[bytes], wanted: list[bytes]) -> list[int]:
    """Indices (from 0) at which ``wanted`` stands in ``lines``."""
    first, count = wanted[:1], len(wanted)
    places = range(len(lines) - count + 1)
    return [at for at in places if lines[at : at + 1] == first and lines[at : at + count] == wanted]


def _hunk(lines: list[bytes], span: _Span, moved: int) -> tuple[bytes, int]:
    body: list[bytes] = []
    added = removed = 0
    position = span.start
    for start, end, new in span.edits:
        body += [b" " + line for line in lines[position:start]]
        body += [b"-" + line for line in lines[start:end]]
        body += [b"+" + line for line in new]
        added, removed, position = added + len(new), removed + end - start, end
    body += [b" " + line for line in lines[position : span.end]]
    old_count = span.end - span.start
    new_count = old_count + added - removed
    old_range, new_range = _range(span.start, old_count), _range(span.start + moved, new_count)
    title = heading(lines, span.start)
    first = f"@@ -{old_range} +{new_range} @@".encode() + (b" " + title if title else b"") + b"\n"
    ended = [line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in body]
    return first + b"".join(ended), moved + added - removed


def _range(start: int, count: int) -> str:
    line = start + 1 if count else start
    return f"{line}" if count == 1 else f"{line},{count}"


def heading(lines: list[bytes], at: int) -> bytes:
    """The class or function line above index ``at``, as git shows it; empty when there is none."""
    for line in reversed(lines[:at]):
        if match := HEADING.match(line.rstrip(b"\n")):
            return match[1][:HEADING_BYTES].decode("utf-8", "ignore").encode().strip()
    return b""
