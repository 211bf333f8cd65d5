"""Read somebody else's series of patches, as quilt, git format-patch or plain diff leave them.

Our own series has one strict form (:mod:`pipeline.patches`). Here a header is taken as it comes, paths lose as many
leading folders as the series says, and files may come and go whole. What no hunk says (a rename, a mode, bytes) is left
to a person, and the rest is judged. A patch that cannot be read is refused.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from email import message_from_string
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from pathlib import Path
from typing import Literal

from pipeline.errors import ComposeError
from pipeline.patches import HUNK, Hunk, Patch, read_hunk, split_lines

STARTS = re.compile(rb"^(diff --git |Index: |--- |\+\+\+ )", re.MULTILINE)
NOTHING = "/dev/null"
BY_HAND = {
    b"rename from ": "renames the file",
    b"copy from ": "copies the file",
    b"old mode ": "changes the file's mode",
    b"GIT binary patch": "changes the file's bytes: it is binary",
    b"Binary files ": "changes the file's bytes: it is binary",
}
"""Lines of a diff that say what no hunk does, and what to tell about them."""
MODE = re.compile(rb"^(new|deleted) file mode ")
GIT_PATHS = re.compile(rb"^diff --git (?:(?:a/)?(?P<same>.+) (?:b/)?(?P=same)|(?:a/)?(?P<old>.+) b/.+?)\r?\n$")

COMMENT = re.compile(r"(^|\s)#.*")
"""Of a ``series``: names may hold ``#``, quotes and apostrophes, as quilt takes them."""

Kind = Literal["change", "new", "delete"]


@dataclass(frozen=True)
class FileChange:
    """What a patch does to one file; one that comes or goes whole has one hunk, or none when it is empty."""

    path: str
    hunks: tuple[Hunk, ...]
    kind: Kind = "change"
    by_hand: str = ""
    """Why no hunk of it can be judged: a person has to do it."""


@dataclass(frozen=True)
class SeriesPatch:
    """One patch, whoever wrote it."""

    name: str
    summary: str
    origin: str
    files: tuple[FileChange, ...]


def of_ours(patch: Patch) -> SeriesPatch:
    """A patch of our own series."""
    files = tuple(FileChange(file.path, file.hunks) for file in patch.files)
    return SeriesPatch(patch.name, patch.summary, patch.header["Origin"], files)


def read(folder: Path, tree: Collection[str]) -> list[SeriesPatch]:
    """The patches of a folder: those of its ``series`` in order, else all ``.patch`` and ``.diff`` files by name.

    Args:
        tree: files of the new release, which tell what a path means where the series does not.

    Raises:
        ComposeError: no patches, a name without its file, an option other than ``-p0`` or ``-p1``, or a patch that
            cannot be read.
    """
    if not folder.is_dir():
        raise ComposeError(str(folder), expected="a folder of patches", found="none", do="correct --series")
    listed = list(_listed(folder))
    if not listed:
        raise ComposeError(str(folder), expected="a series file, or .patch or .diff files", found="neither")
    return [_parse(name, (folder / name).read_bytes(), str(folder / name), strip, tree) for name, strip in listed]


def _listed(folder: Path) -> Iterator[tuple[str, int | None]]:
    """Names, with how many leading folders of their paths go where the series says it."""
    series = folder / "series"
    if not series.is_file():
        names = sorted(path.name for path in folder.iterdir() if path.suffix in (".patch", ".diff"))
        yield from ((name, None) for name in names)
        return
    for number, line in enumerate(_text(series).split("\n"), 1):
        words = COMMENT.sub("", line).split()
        if not words:
            continue
        where, name, options = f"{series}:{number}", words[0], words[1:]
        if bad := [option for option in options if option not in ("-p0", "-p1")]:
            raise ComposeError(f"{where}: option {bad[0]}", expected="-p0 or -p1", do="make the patch without it")
        if ".." in Path(name).parts or not (folder / name).is_file():
            raise ComposeError(f"{where}: {name}", expected="a file in that folder", found="none", do="add it")
        yield name, int(options[-1][2:]) if options else None


def _text(series: Path) -> str:
    data = series.read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ComposeError(
            f"{series}:{line}", expected="UTF-8", found=f"byte 0x{data[error.start]:02x}", do="correct it"
        ) from error


def _parse(name: str, data: bytes, where: str, strip: int | None, tree: Collection[str]) -> SeriesPatch:
    start = STARTS.search(data)
    if start is None:
        raise ComposeError(f"{where}: holds no diff", do="export it again")
    summary, origin = _header(data[: start.start()])
    first = data[: start.start()].count(b"\n")
    files = tuple(_files(split_lines(data), first, where, strip, tree))
    if not files:
        raise ComposeError(f"{where}: holds no hunk", do="export it again")
    return SeriesPatch(name, summary, origin, files)


def _header(data: bytes) -> tuple[str, str]:
    """First line of the description and the origin, where the header has such fields, as mails and DEP-3 do."""
    fields = message_from_string(re.sub(r"\AFrom [^\n]*\n", "", data.decode("utf-8", "replace")))
    described = str(fields.get("Description") or "").strip()
    summary = next(iter(described.splitlines()), "") or _decoded(" ".join(str(fields.get("Subject") or "").split()))
    return re.sub(r"^\[PATCH[^]]*\]\s*", "", summary), str(fields.get("Origin") or "")


def _decoded(subject: str) -> str:
    """A subject with the words that mail encodes (``=?UTF-8?q?=C3=84?=``) as they are meant, else as it is."""
    try:
        return str(make_header(decode_header(subject)))
    except (HeaderParseError, LookupError, ValueError):
        return subject


def _files(
    lines: list[bytes], index: int, where: str, strip: int | None, tree: Collection[str]
) -> Iterator[FileChange]:
    # Editors and mail cut the space of an empty context line; inside a hunk it is put back.
    body = [b" " + line if line in (b"\n", b"\r\n") else line for line in lines]
    kind, named = "", ""
    while index < len(lines):
        line = lines[index]
        if line.startswith(b"diff --git "):
            yield from _empty(kind, named, tree)
            kind, named = "", _git_path(line)
        elif match := MODE.match(line):
            kind = match[1].decode()
        elif problem := next((text for marker, text in BY_HAND.items() if line.startswith(marker)), ""):
            yield FileChange(_known(named or _shown(line), tree), (), by_hand=problem)
            kind = ""
        elif line.startswith(b"--- ") and lines[index + 1 : index + 2] and lines[index + 1].startswith(b"+++ "):
            old, new = _name(line), _name(lines[index + 1])
            hunks, index = _hunks(body, lines, index + 2, where)
            yield _change(where, old, new, hunks, strip, tree)
            kind = named = ""
            continue
        elif line.startswith(b"@@ "):
            raise ComposeError(
                f"{where}:{index + 1}: a hunk of no file", expected="--- and +++ above it", do="export it again"
            )
        index += 1
    yield from _empty(kind, named, tree)


def _git_path(line: bytes) -> str:
    """The path that git's line names; of a renamed file the old one, and a quoted one as it is written."""
    match = GIT_PATHS.match(line)
    return _shown((match["same"] or match["old"]) if match else line.removeprefix(b"diff --git "))


def _shown(line: bytes) -> str:
    return line.decode("utf-8", "replace").strip()


def _change(
    where: str, old: str, new: str, hunks: tuple[Hunk, ...], strip: int | None, tree: Collection[str]
) -> FileChange:
    quoted = [name for name in (new, old) if name.startswith('"')]
    if quoted:
        return FileChange(quoted[0], (), by_hand="has a name that git quotes, which is not read here")
    return FileChange(_path(where, old, new, strip, tree), hunks, _kind(old, new))


def _hunks(body: list[bytes], lines: list[bytes], index: int, where: str) -> tuple[tuple[Hunk, ...], int]:
    found: list[Hunk] = []
    while index < len(lines) and (match := HUNK.match(lines[index].replace(b"\r\n", b"\n"))):
        hunk, index = read_hunk(match, body, index + 1, f"{where}:{index + 1}")
        found.append(hunk)
    if not found:
        raise ComposeError(f"{where}:{index + 1}: a file without a hunk", do="export it again")
    after = next((at for at in range(index, len(lines)) if lines[at].strip()), index)
    rest = b"".join(lines[after : after + 1])
    if rest.startswith((b" ", b"+", b"-")) and not rest.startswith((b"-- ", b"--- ", b"--\n")):
        raise ComposeError(
            f"{where}:{after + 1}: lines after a hunk that belong to none", do="its count is wrong: export it again"
        )
    return tuple(found), index


def _empty(kind: str, path: str, tree: Collection[str]) -> Iterator[FileChange]:
    """An empty file that comes or goes: git writes no hunk for it."""
    if kind and path:
        yield FileChange(_known(path, tree), (), "new" if kind == "new" else "delete")


def _name(line: bytes) -> str:
    return line[4:].split(b"\t")[0].rstrip(b"\r\n").decode("utf-8", "replace").strip()


def _kind(old: str, new: str) -> Kind:
    if old == NOTHING:
        return "new"
    return "delete" if new == NOTHING else "change"


def _path(where: str, old: str, new: str, strip: int | None, tree: Collection[str]) -> str:
    """The path inside the tree; without a word from the series, git's a/ and b/ go, or what leads to a known file."""
    names = [name for name in (new, old) if name != NOTHING]
    parts = [name.split("/") for name in names]
    if not names or any(name.startswith("/") or ".." in part for name, part in zip(names, parts, strict=True)):
        raise ComposeError(f"{where}: {old} and {new}", expected="plain paths inside the tree", do="export it again")
    choices = (1, 0) if strip is None else (strip,)
    paths = [_known("/".join(part[drop:]), tree) for drop in choices for part in parts if len(part) > drop]
    if not paths:
        raise ComposeError(f"{where}: {names[0]}", expected="a path below a folder", do="say -p0 in the series")
    return next((path for path in paths if path in tree), paths[0])


def _known(path: str, tree: Collection[str]) -> str:
    """The path as the release has it: SGLang's own repository keeps the package below ``python/``."""
    inner = path.removeprefix("python/")
    return inner if path not in tree and inner.startswith("sglang/") else path
