"""Small file habits that every stage shares: outputs appear by rename, one run at a time."""

import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pipeline.errors import BusyError, HostError

PROJECT = Path(__file__).resolve().parent.parent
BUILD = PROJECT / ".build"
ASIDE = ".old."
"""Part of the name of the folder where :func:`new_folder` keeps the old one until the new one is in place."""


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file that is either absent, old or whole, never half; goes over the draft of a killed run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for draft in path.parent.glob(f".{glob.escape(path.name)}.????????"):
        draft.unlink(missing_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as stream:
        temporary = Path(stream.name)
        try:
            stream.write(data)
            stream.flush()
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``target``; on success it takes ``target``'s place, on failure it is gone."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    draft.chmod(0o755)
    try:
        yield draft
        if target.exists():
            aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}{ASIDE}"))
            target.replace(aside / target.name)
            draft.replace(target)
            shutil.rmtree(aside)
        else:
            draft.replace(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        _put_back(target.parent)
        raise


def _put_back(folder: Path) -> None:
    """Finish the exchanges of folders that broke off: an old one goes back where no new one took its place."""
    for aside in folder.glob(f".*{ASIDE}????????"):
        for old in aside.iterdir():
            if not (folder / old.name).exists():
                old.replace(folder / old.name)
        shutil.rmtree(aside)


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold a lock that dies with its process.

    Raises:
        BlockingIOError: another process holds it; the error's text is its pid.
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise BlockingIOError(lock.read(32).strip() or "unknown") from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


@contextmanager
def build_lock(build: Path = BUILD) -> Iterator[None]:
    """Keep a second run out of the same build folder.

    Raises:
        BusyError: another run holds it.
        HostError: the folder cannot be written.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock(build / "lock"))
        except BlockingIOError as error:
            raise BusyError(f"{build}: in use by another run (pid {error})", do="wait for it, or stop it") from None
        except OSError as error:
            raise HostError(
                f"{build}: {error.strerror}",
                expected="a folder that can be written",
                do="make room for it, or give this user the right",
            ) from error
        remove_leftovers(build)
        yield


def remove_leftovers(build: Path) -> None:
    """Remove drafts that a killed run left behind: only names as the drafts get them, ``.<name>.<8 characters>``."""
    caches = (build / "cache" / "sha256", build / "cache" / "git")
    for folder in (build, *caches, *(child for child in build.iterdir() if child.is_dir())):
        _put_back(folder)
        for draft in folder.glob(".*.????????"):
            if draft.is_dir() and not draft.is_symlink():
                shutil.rmtree(draft, ignore_errors=True)
            else:
                draft.unlink()
