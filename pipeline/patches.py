"""Read a patch series and apply it so that no hunk can land anywhere but where it says.

``git apply`` accepts a hunk at another line than stated, silently and with exit status 0. Here every hunk is first
proven to stand exactly at its stated lines; then git applies the patch; then git's result must equal the one that
the proof predicts.
"""

import email
import io
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pipeline import git
from pipeline.errors import ComposeError

DEP3_REQUIRED = ("Description", "Origin", "Forwarded", "Last-Update")
HUNK = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)")
INDEX = re.compile(rb"^index ([0-9a-f]{7,40})\.\.[0-9a-f]")
DIFF = re.compile(rb"^(diff --git |--- )", re.MULTILINE)
REFUSED = {
    b"new file mode": "creates a file: put new files into overlays/",
    b"deleted file mode": "deletes a file",
    b"rename from": "renames a file",
    b"copy from": "copies a file",
    b"old mode": "changes a file mode",
    b"GIT binary patch": "is binary",
    b"Binary files": "is binary",
}


class MisfitError(ComposeError):
    """A hunk does not stand where it says, in the file ``path``."""

    def __init__(self, path: str, problem: ComposeError) -> None:
        super().__init__(problem.what, expected=problem.expected, found=problem.found, do=problem.do)
        self.path = path


@dataclass(frozen=True)
class Hunk:
    """One hunk; line numbers count from 1, lines keep their newline."""

    old_start: int
    new_start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    heading: bytes = b""
    """What stands behind the second ``@@``: the class or function above the hunk. git does not look at it."""

    @property
    def stated(self) -> int:
        """Index at which it says that its old text stands; an insertion names the line that it follows."""
        return self.old_start - 1 if self.old else self.old_start


@dataclass(frozen=True)
class FilePatch:
    """All hunks of one file."""

    path: str
    hunks: tuple[Hunk, ...]
    made_for: str = ""
    """Name that git gives to the file's bytes for which it was written, or its beginning; empty where it does not say.
    """


@dataclass(frozen=True)
class Patch:
    """One patch of a series with its DEP-3 header fields."""

    name: str
    header: Mapping[str, str]
    files: tuple[FilePatch, ...]
    data: bytes

    @property
    def summary(self) -> str:
        """First line of the description."""
        return self.header["Description"].splitlines()[0]

    @property
    def split(self) -> tuple[bytes, bytes]:
        """The bytes of the header and those of the diff."""
        header, mark, rest = DIFF.split(self.data, 1)
        return header, mark + rest


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their newline; only LF ends a line, as in git (``bytes.splitlines`` also splits at CR)."""
    return io.BytesIO(data).readlines()


def read_series(folder: Path) -> list[Patch]:
    """The patches of ``folder/series``, in order.

    Raises:
        ComposeError: a doubled line, a line without its file, a file without its line, or a malformed patch.
    """
    series = folder / "series"
    for path in (folder, series):
        if path.is_symlink():
            raise ComposeError(f"{path}: is a symlink", expected="patches that lie here", do="copy what it points to")
    if not series.is_file():
        raise ComposeError(
            str(series), expected="a list of patch files", found="nothing", do="create it (it may be empty)"
        )
    names: list[str] = []
    for number, line in enumerate(series.read_text(encoding="utf-8").splitlines(), 1):
        name = line.split("#")[0].strip()
        if not name:
            continue
        where = f"{series}:{number}: {name}"
        if "/" in name or not name.endswith(".patch"):
            raise ComposeError(where, expected="the name of a .patch file beside it", do="correct the line")
        if name in names:
            raise ComposeError(f"{where}: listed twice", do="remove one of the lines")
        if not (folder / name).is_file() or (folder / name).is_symlink():
            raise ComposeError(
                where, expected="a regular file of that name", found="none", do="add it or drop the line"
            )
        names.append(name)
    stray = sorted(path.name for path in folder.glob("*.patch") if path.name not in names)
    if stray:
        raise ComposeError(f"{folder / stray[0]}: is in no series", do=f"add it to {series} or remove it")
    return [parse_patch(name, (folder / name).read_bytes(), folder / name) for name in names]


def parse_patch(name: str, data: bytes, where: Path | str) -> Patch:
    """Parse and validate one patch; ``where`` is named in errors."""
    if b"\r\n" in data:
        raise ComposeError(f"{where}: has CRLF line ends", expected="LF", do="convert it")
    if not data.endswith(b"\n"):
        raise ComposeError(f"{where}: last line has no newline", do="the file may be cut short: export it again")
    start = DIFF.search(data)
    if start is None:
        raise ComposeError(f"{where}: holds no diff", do="export it again")
    try:
        message = email.message_from_string(data[: start.start()].decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ComposeError(f"{where}: header", expected="UTF-8", found=error, do="convert it") from error
    header = {key: " ".join(value.split()) if key != "Description" else value for key, value in message.items()}
    missing = [key for key in DEP3_REQUIRED if not header.get(key)]
    if missing:
        raise ComposeError(f"{where}: DEP-3 header lacks {', '.join(missing)}", do="docs/add-a-patch.md has an example")
    for marker, problem in REFUSED.items():
        if re.search(rb"^" + re.escape(marker), data[start.start() :], re.MULTILINE):
            raise ComposeError(
                f"{where}: {problem}", expected="changes inside existing text files", do="export it without that"
            )
    files = tuple(_file_patches(split_lines(data[start.start() :]), where))
    if not files:
        raise ComposeError(f"{where}: holds no hunk", do="export it again")
    paths = [file.path for file in files]
    if len(set(paths)) != len(paths):
        raise ComposeError(f"{where}: names a file twice", do="export it again")
    return Patch(name, header, files, data)


def _file_patches(lines: list[bytes], where: Path | str) -> Iterator[FilePatch]:
    index, made_for = 0, ""
    while index < len(lines):
        if match := INDEX.match(lines[index]):
            made_for = match[1].decode()
        if not lines[index].startswith(b"--- "):
            # git drops what follows the counted lines of a hunk; the end of an exported mail is "-- " alone.
            if lines[index].startswith((b" ", b"+", b"-", b"\\", b"@@")) and lines[index] != b"-- \n":
                raise ComposeError(
                    f"{where}: {_show(lines[index])} belongs to no hunk",
                    do="a hunk header is miscounted or broken: export it again",
                )
            index += 1
            continue
        path = _path(lines[index], b"--- a/", where)
        if index + 1 >= len(lines) or _path(lines[index + 1], b"+++ b/", where) != path:
            raise ComposeError(f"{where}: --- and +++ name different files", expected=path, do="export it again")
        index += 2
        hunks: list[Hunk] = []
        while index < len(lines) and (match := HUNK.match(lines[index])):
            hunk, index = read_hunk(match, lines, index + 1, where)
            hunks.append(hunk)
        if not hunks:
            raise ComposeError(f"{where}: {path} has no hunk", do="export it again")
        yield FilePatch(path, tuple(hunks), made_for)
        made_for = ""


def _path(line: bytes, prefix: bytes, where: Path | str) -> str:
    text = line.rstrip(b"\n").decode("utf-8", "replace")
    path = PurePosixPath(text.removeprefix(prefix.decode()))
    if not line.startswith(prefix) or path.is_absolute() or ".." in path.parts or "\t" in text:
        raise ComposeError(
            f"{where}: {text!r}", expected=f"{prefix.decode()}<path inside the tree>", do="export it again"
        )
    return str(path)


def read_hunk(match: re.Match[bytes], lines: list[bytes], index: int, where: Path | str) -> tuple[Hunk, int]:
    """The hunk whose ``@@`` line matched and whose body starts at ``index``, and the index after it."""
    stated = match[0].removesuffix(match[5]).decode()
    old_count, new_count = (int(match[group]) if match[group] is not None else 1 for group in (2, 4))
    old: list[bytes] = []
    new: list[bytes] = []
    while index < len(lines) and (len(old) < old_count or len(new) < new_count or lines[index][:1] == b"\\"):
        sign, text = lines[index][:1], lines[index][1:]
        if sign == b"\\":  # "\ No newline at end of file" belongs to the line before it
            for side in {b" ": (old, new), b"-": (old,), b"+": (new,)}.get(lines[index - 1][:1], ()):
                side[-1] = side[-1].rstrip(b"\n")
        elif sign in (b" ", b"-", b"+"):
            if sign != b"+":
                old.append(text)
            if sign != b"-":
                new.append(text)
        else:
            break
        index += 1
    if (len(old), len(new)) != (old_count, new_count):
        raise ComposeError(
            f"{where}: hunk {stated} is cut short or miscounted",
            expected=f"{old_count} old and {new_count} new lines",
            found=f"{len(old)} and {len(new)}",
            do="export it again",
        )
    if old == new:
        raise ComposeError(f"{where}: hunk {stated} changes nothing", do="drop the hunk")
    return Hunk(int(match[1]), int(match[3]), tuple(old), tuple(new), match[5].strip()), index


def prove(patch: Patch, file: FilePatch, source: bytes) -> bytes:
    """The bytes that ``file`` must have after the patch, given that every hunk stands at its stated lines.

    Raises:
        ComposeError: a hunk stands elsewhere (the offset is named) or nowhere (the first differing line is).
    """
    lines = split_lines(source)
    result: list[bytes] = []
    position = 0
    for number, hunk in enumerate(file.hunks, 1):
        start = hunk.stated
        where = f"{patch.name}: {file.path}: hunk {number}"
        if start < position:
            raise ComposeError(f"{where} overlaps the one before", do="export the patch again")
        if start > len(lines):
            raise ComposeError(where, expected=f"line {start}", found=f"{len(lines)} lines", do="export it again")
        if tuple(lines[start : start + len(hunk.old)]) != hunk.old:
            raise _misfit(where, hunk, lines)
        result += lines[position:start]
        stated = hunk.new_start - 1 if hunk.new else hunk.new_start
        if len(result) != stated:
            raise ComposeError(
                f"{where}: new position",
                expected=f"line {len(result) + 1}",
                found=f"line {hunk.new_start}",
                do="export the patch again",
            )
        result += hunk.new
        position = start + len(hunk.old)
    result += lines[position:]
    return b"".join(result)


def _misfit(where: str, hunk: Hunk, lines: list[bytes]) -> ComposeError:
    length = len(hunk.old)
    places = [at + 1 for at in range(len(lines) - length + 1) if tuple(lines[at : at + length]) == hunk.old]
    if places:
        offsets = ", ".join(f"{place} (offset {place - hunk.old_start:+d})" for place in places)
        return ComposeError(
            where,
            expected=f"its context at line {hunk.old_start}",
            found=f"it at line {offsets}",
            do="a moved hunk is never applied: `build.py patch refresh` re-anchors it and shows the difference",
        )
    for offset, wanted in enumerate(hunk.old):
        at = hunk.old_start - 1 + offset
        found = lines[at] if at < len(lines) else b"end of file\n"
        if found != wanted:
            break
    return ComposeError(
        where,
        expected=f"{_show(wanted)} at line {at + 1}",
        found=_show(found),
        do="the source changed under the patch: `build.py patch refresh` leads to the place",
    )


def _show(line: bytes) -> str:
    text = repr(line.decode("utf-8", "replace").strip("\n")[:80])
    return text if line.endswith(b"\n") else f"{text} without a newline"


def apply(patch: Patch, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """New contents of the files that ``patch`` touches.

    Raises:
        MisfitError: a hunk does not stand at its stated lines.
        ComposeError: a file is missing, or git and the proof differ.
    """
    expected: dict[str, bytes] = {}
    for file in patch.files:
        if file.path not in files:
            raise ComposeError(
                f"{patch.name}: {file.path}",
                expected="the file in the tree",
                found="none",
                do="the file moved or was removed upstream: rewrite or drop the patch",
            )
        try:
            expected[file.path] = prove(patch, file, files[file.path])
        except ComposeError as error:
            raise MisfitError(file.path, error) from error
    result = _git_apply(patch, {path: files[path] for path in expected})
    for path, data in expected.items():
        if result[path] != data:
            raise ComposeError(
                f"{patch.name}: {path}: git's result differs from the proven one",
                do="report this with the patch: one of the two is wrong",
            )
        if data == files[path]:
            raise ComposeError(f"{patch.name}: {path} is not changed by it", do="drop the patch: it does nothing")
    return result


def _git_apply(patch: Patch, files: Mapping[str, bytes]) -> dict[str, bytes]:
    # Outside any repository and without user configuration: inside one, git silently skips paths that it takes to
    # lie elsewhere, and core.autocrlf would change bytes.
    with tempfile.TemporaryDirectory(prefix="patch-") as scratch:
        root = Path(scratch)
        for path, data in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
        done = git.run(root, "apply", "--whitespace=nowarn", "-", data=patch.data)
        if done.returncode:
            message = done.stderr.decode(errors="replace").strip().splitlines()
            raise ComposeError(f"{patch.name}: git apply: {message[-1] if message else done.returncode}")
        return {path: (root / path).read_bytes() for path in files}
