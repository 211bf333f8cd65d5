"""Fetch pinned inputs and read them as trees of bytes.

Wheels come through pip's own hash checking, so the user's configured index, proxy and certificates apply; they are
kept in a cache addressed by content. Compiled extensions and bytecode are named but are no part of a tree.
"""

import hashlib
import os
import re
import stat
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pipeline.errors import PinError
from pipeline.files import PROJECT, new_folder
from pipeline.manifest import DirPin, GitPin, Pin, PypiPin
from pipeline.oci import digest_file

GLIBC_MINOR_MAX = 36
"""Newest glibc (2.x) that wheels of the cpu base may need: Debian 12 has 2.36."""


@dataclass(frozen=True)
class SourceTree:
    """Files of one pin; paths are relative to the package root."""

    files: dict[str, bytes]
    extensions: frozenset[str] = field(default_factory=frozenset)
    """Dotted names of compiled modules that the pin holds beside its files."""


def wheel_tags(python_tag: str) -> list[str]:
    """pip options that select x86-64 wheels for one CPython, whichever Python runs pip."""
    version = f"{python_tag[2]}.{python_tag[3:]}"
    options = ["--only-binary=:all:", "--implementation=cp", f"--python-version={version}"]
    options += [f"--abi={abi}" for abi in (python_tag, "abi3", "none")]
    legacy = ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64", "any"]
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC_MINOR_MAX, 4, -1)] + legacy
    return options + [f"--platform={platform}" for platform in platforms]


def run_pip(arguments: Iterable[str], what: str, advice: str) -> None:
    """Run pip of this environment; a failure becomes one line.

    Raises:
        PinError: naming ``what``; a hash mismatch gives both hashes.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    output = done.stdout + done.stderr
    expected, found = re.search(r"Expected sha256 (\w+)", output), re.search(r"Got\s+(\w+)", output)
    if expected and found:
        raise PinError(
            what,
            expected=f"sha256 {expected[1]}",
            found=f"sha256 {found[1]}",
            do="the index serves another file than the pinned one: find out why before changing the pin",
        )
    errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
    raise PinError(f"{what}: {errors[-1] if errors else f'pip ended with {done.returncode}'}", do=advice)


def fetch(pin: PypiPin, python_tag: str, cache: Path) -> Path:
    """Path of the pinned wheel, from ``cache/sha256/<hash>/`` or the configured index.

    Raises:
        PinError: no hash for this Python, the index lacks it, or the bytes are not what the hash says.
    """
    if python_tag not in pin.sha256:
        raise PinError(
            f"{pin.name} {pin.version}",
            expected=f"a sha256 for {python_tag}",
            found=", ".join(sorted(pin.sha256)),
            do="add it to the pin in release.yaml",
        )
    wanted = pin.sha256[python_tag]
    folder = cache / "sha256" / wanted
    for wheel in folder.glob("*.whl"):
        if digest_file(wheel) == f"sha256:{wanted}":
            return wheel
        wheel.unlink()  # a damaged cache entry: fetch it again
    folder.mkdir(parents=True, exist_ok=True)
    return download(f"{pin.name}=={pin.version}", wanted, python_tag, folder)


def download(requirement: str, sha256: str, python_tag: str, folder: Path, extra: Iterable[str] = ()) -> Path:
    """Download exactly one wheel by hash into ``folder``; it appears there by rename."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".wheel.") as scratch:
        line = Path(scratch, "pin.txt")
        line.write_text(f"{requirement} --hash=sha256:{sha256}\n")
        options = ["download", "--no-deps", "--require-hashes", "--progress-bar=off", "--dest", scratch]
        run_pip(
            [*options, *wheel_tags(python_tag), *extra, "-r", str(line)],
            requirement,
            "check the network and the package index that pip is configured with",
        )
        (wheel,) = Path(scratch).glob("*.whl")
        return wheel.rename(folder / wheel.name)


def describe(pin: Pin) -> str:
    """One word for tables and labels: ``sglang==0.5.23``, a commit, or a folder."""
    match pin:
        case PypiPin():
            return f"{pin.name}=={pin.version}"
        case GitPin():
            return f"{pin.url}@{pin.commit}"
        case DirPin():
            return f"dir:{pin.path}"


def read(pin: Pin, python_tag: str, cache: Path) -> SourceTree:
    """The files of a pin, fetched when they are not in the cache."""
    match pin:
        case PypiPin():
            return read_wheel(fetch(pin, python_tag, cache))
        case GitPin():
            return read_commit(pin, cache)
        case DirPin():
            return read_folder(PROJECT / pin.path)


def _collect(entries: Iterable[tuple[str, bytes]], where: str) -> SourceTree:
    files: dict[str, bytes] = {}
    extensions = set[str]()
    for name, data in entries:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name:
            raise PinError(f"{where}: entry {name!r} leaves the tree", do="do not use this source")
        if path.suffix == ".so":
            extensions.add(".".join([*path.parts[:-1], path.name.split(".")[0]]))
        elif path.suffix != ".pyc" and "__pycache__" not in path.parts:
            files[str(path)] = data
    if not files:
        raise PinError(f"{where}: holds no files", do="check the pin's subdir or path")
    return SourceTree(files, frozenset(extensions))


def read_wheel(wheel: Path) -> SourceTree:
    """Files of a wheel without its ``.dist-info``."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [info for info in archive.infolist() if not info.is_dir()]
            kept = [info for info in names if not info.filename.split("/")[0].endswith((".dist-info", ".data"))]
            for info in kept:
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise PinError(f"{wheel}: entry {info.filename!r} is a symlink", do="do not use this source")
            return _collect(((info.filename, archive.read(info)) for info in kept), str(wheel))
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise PinError(f"{wheel}: {error}", expected="a wheel", do="remove the file and run again") from error


def _git(arguments: list[str], what: str, data: bytes | None = None) -> bytes:
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}  # a private URL must fail, not wait for a password
    done = subprocess.run(["git", *arguments], env=environment, input=data, capture_output=True, check=False)
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip().splitlines()
        raise PinError(f"{what}: git: {message[-1] if message else done.returncode}", do="check the URL and commit")
    return done.stdout


def read_commit(pin: GitPin, cache: Path) -> SourceTree:
    """Files of a commit, read as git objects, so that no checkout filter or attribute changes a byte."""
    what = describe(pin)
    store = cache / "git" / hashlib.sha256(what.encode()).hexdigest()[:16]
    if not store.is_dir():  # it appears whole: a git that is killed leaves locks that stop the next one
        with new_folder(store) as draft:
            _git(["init", "--quiet", "--bare", str(draft)], what)
            _git([f"--git-dir={draft}", "fetch", "--quiet", "--depth=1", "--", pin.url, pin.commit], what)
    git_dir = f"--git-dir={store}"
    listing = _git([git_dir, "ls-tree", "-r", "-z", "--full-tree", pin.commit, "--", pin.subdir or "."], what)
    wanted: list[tuple[str, str]] = []
    for row in listing.decode().split("\0")[:-1]:
        (mode, _, object_id), path = row.split("\t")[0].split(" "), row.split("\t", 1)[1]
        if mode not in ("100644", "100755"):
            raise PinError(f"{what}: {path}", expected="a regular file", found=f"mode {mode}", do="pin a tree without")
        wanted.append((str(PurePosixPath(path).relative_to(pin.subdir or ".")), object_id))
    blobs = _git([git_dir, "cat-file", "--batch"], what, "\n".join(oid for _, oid in wanted).encode())
    return _collect(_split_batch(wanted, blobs), what)


def _split_batch(wanted: list[tuple[str, str]], blobs: bytes) -> Iterable[tuple[str, bytes]]:
    position = 0
    for path, _ in wanted:
        end = blobs.index(b"\n", position)
        size = int(blobs[position:end].split()[2])
        yield path, blobs[end + 1 : end + 1 + size]
        position = end + 1 + size + 1


def read_folder(folder: Path) -> SourceTree:
    """Files of a folder of work in progress; symlinks are refused, for they may point anywhere."""
    if not folder.is_dir():
        raise PinError(str(folder), expected="a folder", found="nothing", do="correct the pin's path")
    paths = [path for path in sorted(folder.rglob("*")) if ".git" not in path.relative_to(folder).parts]
    for path in paths:
        if path.is_symlink():
            raise PinError(f"{path}: is a symlink", expected="regular files", do="copy what it points to")
    regular = [path for path in paths if path.is_file()]
    return _collect(((path.relative_to(folder).as_posix(), path.read_bytes()) for path in regular), str(folder))
