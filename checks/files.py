"""Walk and hash the package tree."""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BUFFER = memoryview(bytearray(1 << 18))
"""One buffer for all files: a new one for each of 50,000 mostly small files costs more than the hashing. Threads
make it slower still, since the time goes into small calls under the interpreter lock."""


@dataclass(frozen=True)
class Found:
    """A regular file or symlink of the image; the sha256 of a symlink is that of its target's text."""

    sha256: str
    mode: int
    symlink: bool


def scan(root: Path) -> tuple[dict[str, Found], list[str]]:
    """Hash every regular file and symlink below a folder.

    Returns:
        The files by their path below the folder, and one line for each path that cannot be read or is neither
        file, folder nor symlink.
    """
    problems: list[str] = []
    paths = list(walk(root, problems))
    found = {}
    for path in paths:
        result = _look(root, path)
        if isinstance(result, Found):
            found[path] = result
        else:
            problems.append(result)
    return found, problems


def walk(root: Path, problems: list[str], below: str = "") -> Iterator[str]:
    """Paths below a folder that are no folders; symlinks are not followed. Adds a line for each unreadable one."""
    try:
        entries = sorted(os.scandir(root / below), key=lambda entry: entry.name)
    except OSError as error:
        problems.append(f"{below or root}: cannot be listed: {error.strerror}; every user must be able to read it")
        return
    for entry in entries:
        path = f"{below}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from walk(root, problems, path + "/")
        else:
            yield path


def _look(root: Path, path: str) -> Found | str:
    """One file, or what is wrong with it."""
    full = root / path
    try:
        status = full.lstat()
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISLNK(status.st_mode):
            return Found(hashlib.sha256(os.fsencode(full.readlink())).hexdigest(), mode, symlink=True)
        if not stat.S_ISREG(status.st_mode):
            return f"{path}: expected a file or symlink, found another kind of node"
        return Found(sha256(full), mode, symlink=False)
    except OSError as error:
        return f"{path}: cannot be read: {error.strerror}; every user must be able to read it"


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(BUFFER):
            digest.update(BUFFER[:count])
    return digest.hexdigest()
