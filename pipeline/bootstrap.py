"""Set-up, before any package of ours can be imported: look at the machine, install what is missing, make the venv.

Standard library only, for this runs on the system's Python. ``build.py`` calls :func:`enter` first; it returns inside
the project's own virtual environment or ends the process.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from pipeline.errors import HostError

PROJECT = Path(__file__).resolve().parent.parent
BUILD = PROJECT / ".build"
HEARTBEAT_SECONDS = 8.0
SPACE_FIRST = 10 << 30
"""Free bytes that the first image needs. Measured: 7.8 GiB at the peak, when layout and engine hold the base once each
and the engine unpacks it."""
SPACE_LATER = 1 << 30
FIRST_RUN = "the first image takes 3 to 8 minutes and about 700 MB of downloads; later ones less than a minute"
POLICY = Path("/usr/sbin/policy-rc.d")
NEEDS_BOOTSTRAP = {"image", "check", "base"}
"""Commands that may build the local base."""
NEEDS_ENGINE = {"image", "check", "engine"}
"""Commands that want a container engine."""


def say(text: str) -> None:
    """One line to people."""
    print(text, file=sys.stderr, flush=True)


def enter(arguments: list[str]) -> None:
    """Return if this process runs in the project's environment; else set up and start again in it.

    Raises:
        HostError: something is missing that this user may not or cannot install.
    """
    if Path(sys.prefix).parent == BUILD:
        return
    command = next((word for word in arguments if not word.startswith("-")), "")
    development = command == "setup" and "--dev" in arguments
    if command == "image" and not any(BUILD.glob("bases/*/index.json")):
        look()
    prepare(debian_packages(command, development), development)
    if command == "setup":
        return
    python = environment_folder(development) / "bin" / "python"
    os.execv(python, [str(python), str(PROJECT / "build.py"), *arguments])


def look() -> None:
    """Say what this machine is and what the first image costs; refuse when the disk is too small for it.

    Raises:
        HostError: too little free space.
    """
    user = "root" if os.geteuid() == 0 else "not root"
    private = "a private one will be started" if os.geteuid() == 0 else "a private one needs root, so checks cannot run"
    engine = "answers" if engine_answers() else f"none answers, {private}"
    free = shutil.disk_usage(PROJECT).free / 2**30
    say(f"Python {sys.version.split()[0]}; {user}; {free:.1f} GiB free; container engine: {engine}")
    require_space(PROJECT, SPACE_FIRST)
    say(FIRST_RUN)


def require_space(folder: Path, needed: int) -> None:
    """Compare the free space where a folder lies with what is needed, in bytes.

    Raises:
        HostError: there is less.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise HostError(
            f"{folder}: free space",
            expected=f"{needed / 2**30:.0f} GiB",
            found=f"{free / 2**30:.1f} GiB",
            do="free some, or clone the project onto a larger disk",
        )


def prepare(wanted: dict[str, bool], development: bool) -> None:
    """Check Python, install missing Debian packages, make or refresh the virtual environment."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this is the line that tells so on an older one
        raise HostError("Python", expected="3.11 or newer", found=sys.version.split()[0], do="run it with python3.11")
    missing = [package for package, present in wanted.items() if not present]
    if missing:
        install_debian(missing)
    make_environment(development)


def debian_packages(command: str, development: bool) -> dict[str, bool]:
    """Debian packages that a command needs, and whether what they bring is already there."""
    wanted = {"python3-venv": importlib.util.find_spec("ensurepip") is not None, "git": _has("git")}
    if command in NEEDS_BOOTSTRAP or development:
        wanted["mmdebstrap"] = _has("mmdebstrap")
        if os.geteuid() != 0:  # mmdebstrap then works in a user namespace
            wanted["uidmap"] = _has("newuidmap")
    if command in NEEDS_ENGINE:
        wanted["docker.io"] = _has("dockerd") or engine_answers()
    if development:  # the tests start engines and registries of their own
        wanted["docker.io"] = _has("dockerd")
        wanted["docker-registry"] = _has("docker-registry")
    return wanted


def _has(program: str) -> bool:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None


def engine_answers() -> bool:
    """Whether an engine answers where the Docker client would look: ``DOCKER_HOST``, else the default socket."""
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    where = urllib.parse.urlsplit(host)
    try:
        if where.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(3)
                client.connect(where.path)
                client.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
                return b" 200 " in client.recv(64)
        with socket.create_connection((where.hostname or "", where.port or 2375), timeout=3):
            return True
    except OSError:
        return False


def install_debian(packages: list[str]) -> None:
    """Show the apt line; run it when root, else say who must.

    Raises:
        HostError: not root, no apt, or apt failed.
    """
    line = f"apt-get install --no-install-recommends {' '.join(packages)}"
    if shutil.which("apt-get") is None:
        raise HostError("Debian packages", expected=" ".join(packages), found="no apt-get here", do="install them")
    if os.geteuid() != 0:
        raise HostError("Debian packages are missing", do=f"as root: {line}")
    say(f"missing from Debian, installing: {line}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    with no_service_starts():
        watch(["apt-get", "update", "-qq"], "apt-get update", environment)
        watch(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "--no-remove", *packages],
            "apt-get install",
            environment,
        )


@contextmanager
def no_service_starts() -> Iterator[None]:
    """Keep packages from starting services (Debian's policy-rc.d: 101 is "not allowed"); an existing policy stays."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def watch(command: list[str], title: str, environment: dict[str, str] | None = None) -> None:
    """Run a command without its output, with a line every few seconds; on failure its last line is the message."""
    started = time.monotonic()
    log = BUILD / "set-up.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w+", errors="replace") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while True:
                try:
                    process.wait(HEARTBEAT_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    say(f"  … {title}, {time.monotonic() - started:.0f} s")
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        output.seek(0)
        lines = [text.strip() for text in output if text.strip()]
    if process.returncode:
        marked = [text for text in lines if text.startswith(("E: ", "ERROR: "))] or lines[-1:]
        raise HostError(f"{title} ended with {process.returncode}: {' '.join(marked[:1])}", do=f"{log} has all of it")
    say(f"✓ {title} ({time.monotonic() - started:.1f} s)")


def environment_folder(development: bool) -> Path:
    """Where the virtual environment lies: one for the pipeline, one with the test tools beside it."""
    return BUILD / ("venv-dev" if development else "venv")


def make_environment(development: bool) -> None:
    """Make the virtual environment from the hashed lock file, unless one of that lock is there."""
    folder = environment_folder(development)
    lock = PROJECT / ("requirements-dev.lock" if development else "requirements.lock")
    stamp = folder / "lock.sha256"
    wanted = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "venv.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == wanted:
            return
        shutil.rmtree(folder, ignore_errors=True)
        started = time.monotonic()
        venv.create(folder, with_pip=True)
        say(f"✓ virtual environment {folder.relative_to(PROJECT)} ({time.monotonic() - started:.1f} s)")
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
        watch([*pip, "--quiet", "--require-hashes", "--no-deps", "-r", str(lock)], f"install {lock.name}")
        stamp.write_text(wanted)


def refuse(error: HostError) -> NoReturn:
    """End the process with one red line."""
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
    say(f"{red}error:{plain} {error.line()}")
    sys.exit(error.exit_code)


def main(arguments: list[str], run: Callable[[list[str]], int]) -> NoReturn:
    """Enter the environment, then ``run``; a missing piece of the machine ends as one red line."""
    try:
        enter(arguments)
        if arguments[:1] == ["setup"] and Path(sys.prefix).parent != BUILD:
            sys.exit(0)
        sys.exit(run(arguments))
    except HostError as error:
        refuse(error)
    except OSError as error:
        what = f"{error.filename or 'operating system'}: {error.strerror or error}"
        refuse(HostError(what, do="free space or rights, then again"))
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)
