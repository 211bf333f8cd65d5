"""Run git so that nobody's configuration, hooks or repository changes what it does."""

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline.errors import ComposeError

COMMITTER = "patch series <series@localhost> 946684800 +0000"
"""Author, committer and date of every commit made here: the same content gets the same commit hash."""


def run(folder: Path, *arguments: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run git in ``folder``; a repository further up is never taken for it. The caller judges the exit status."""
    return subprocess.run(
        ["git", *arguments], cwd=folder, env=environment(folder), input=data, capture_output=True, check=False
    )


def environment(folder: Path) -> dict[str, str]:
    """All that git gets of this process."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C",
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }


def output(repository: Path, *arguments: str, data: bytes | None = None) -> bytes:
    """Standard output of a git that must succeed.

    Raises:
        ComposeError: it failed; its last line is the message.
    """
    done = run(repository, *arguments, data=data)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise ComposeError(
            f"{repository}: git {arguments[0]}: {lines[-1] if lines else done.returncode}",
            do="if the work tree is damaged, remove it and run build.py patch edit again",
        )
    return done.stdout


def text(repository: Path, *arguments: str, data: bytes | None = None) -> str:
    """The same as text, without the last newline."""
    return output(repository, *arguments, data=data).decode("utf-8", "surrogateescape").rstrip("\n")


def checked_out(project: Path) -> tuple[str | None, tuple[str, ...]]:
    """Commit of this project, None where there is none to be had, and the paths that differ from it.

    The folder may belong to another user, as in a CI container: git is told that it is meant.
    """
    trusted = ("-c", f"safe.directory={project}")
    try:
        found = run(project, *trusted, "rev-parse", "--verify", "HEAD")
        if found.returncode:
            return None, ()
        listed = ("status", "--porcelain", "-z", "--untracked-files=all", "--no-renames")
        rows = output(project, *trusted, *listed).decode("utf-8", "surrogateescape").split("\0")[:-1]
    except FileNotFoundError:  # no git
        return None, ()
    return found.stdout.decode().strip(), tuple(row[3:] for row in rows)


def head(repository: Path) -> str:
    """Hash of the commit that is checked out."""
    return text(repository, "rev-parse", "HEAD")


def status(repository: Path) -> list[tuple[str, str]]:
    """Code and path of everything that is not as in HEAD."""
    rows = text(repository, "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames").split("\0")[:-1]
    return [(row[:2], row[3:]) for row in rows]


def blob(repository: Path, object_id: str) -> bytes:
    """Content of a file by its hash."""
    return output(repository, "cat-file", "blob", object_id)


def store(repository: Path, data: bytes) -> str:
    """Keep content in the repository; its hash."""
    return text(repository, "hash-object", "-w", "--stdin", data=data)


def message(repository: Path, commit_id: str) -> bytes:
    """A commit's message, cleaned: editing it strips blanks."""
    return clean(output(repository, "cat-file", "commit", commit_id).partition(b"\n\n")[2])


def clean(words: bytes) -> bytes:
    """Without the blanks that git strips from messages."""
    return b"\n".join(line.rstrip() for line in words.strip().split(b"\n"))


def commit(repository: Path, parent: str | None, commits: Iterable[tuple[bytes, Mapping[str, bytes]]]) -> list[str]:
    """Add commits of the given messages and changed files on top of each other; their hashes. HEAD stays."""
    stream: list[bytes] = []
    for number, (words, files) in enumerate(commits, 1):
        words = words.strip() + b"\n"
        stream.append(f"commit refs/series/made\nmark :{number}\ncommitter {COMMITTER}\n".encode())
        stream.append(b"data %d\n%s" % (len(words), words))
        if parent:
            stream.append(f"from {parent}\n".encode())
        for path, data in files.items():
            stream += [f"M 100644 inline {path}\ndata {len(data)}\n".encode(), data, b"\n"]
        stream.append(f"\nget-mark :{number}\n".encode())
        parent = f":{number}"
    return text(repository, "fast-import", "--quiet", "--force", data=b"".join(stream)).split()
