"""Find a container engine, or run a private one for this build folder.

In this order: the engine at ``DOCKER_HOST`` (which must answer), the one at the default socket if it answers, a
private ``dockerd`` with its data below ``<build>/engine``. The private one has no bridge and touches no packet
filter, so it runs beside any other engine.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import docker
from docker.errors import DockerException

from pipeline.errors import EngineError
from pipeline.store import Engine, Kind, engine_errors

DEFAULT_SOCKET = Path("/var/run/docker.sock")
RUNTIME_PARENT = Path("/run")
"""Where the private engine's socket folder lies: a socket's path ends at 107 bytes, a build folder's does not."""

PROC = Path("/proc")
INSTALL = "apt-get install --no-install-recommends docker.io"

PING_SECONDS = 10
API_SECONDS = 300
"""Longest silence of an engine: it answers a load only when a layer of some GB is unpacked."""
START_SECONDS = 60.0
STOP_SECONDS = 20.0
SHUTDOWN_SECONDS = 5
"""What the private engine grants its containers when it stops; less than ``STOP_SECONDS``."""

CAP_SYS_ADMIN = 21
"""Bit number, from ``linux/capability.h``."""
CONTROLLERS = ("devices", "memory", "pids")
"""Control groups without which a container cannot be limited as the checks demand."""


@dataclass(frozen=True)
class EngineStatus:
    """What ``build.py engine status`` tells; ``pid`` is known for the private engine only."""

    running: bool
    kind: Kind
    host: str
    version: str | None = None
    pid: int | None = None


def find_or_start(build: Path) -> Engine:
    """Return an engine that answers, starting the private one if there is no other.

    Raises:
        EngineError: ``DOCKER_HOST`` does not answer, or the private engine cannot run here; what it lacks is
            said in full.
    """
    return _given(build) or PrivateEngine.of(build).start()


def status(build: Path) -> EngineStatus:
    """Say which engine would be used and whether it runs, without starting one."""
    private = PrivateEngine.of(build)
    try:
        engine = _given(build) or private.connect()
    except EngineError:
        return EngineStatus(False, "given", os.environ["DOCKER_HOST"])
    if engine is None:
        return EngineStatus(False, "private", private.host, pid=private.pid())
    with engine_errors(f"{engine.host}: version"), contextlib.closing(engine.client):
        version = str(engine.client.version()["Version"])
    return EngineStatus(True, engine.kind, engine.host, version, private.pid() if engine.kind == "private" else None)


def stop(build: Path) -> bool:
    """Stop the private engine; ``False`` if it was not running. A given engine is never stopped.

    Raises:
        EngineError: it is still there 20 seconds after SIGTERM.
    """
    return PrivateEngine.of(build).stop()


def folder_id(build: Path) -> str:
    """Twelve hex digits that stand for a build folder where its path would be too long."""
    return hashlib.sha256(os.fsencode(build.resolve())).hexdigest()[:12]


def _given(build: Path) -> Engine | None:
    host = os.environ.get("DOCKER_HOST")
    if host:
        with engine_errors(f"DOCKER_HOST={host} does not answer"):
            return _answering(docker.DockerClient.from_env(timeout=PING_SECONDS), "given", host, folder_id(build))
    return _connect(DEFAULT_SOCKET, "given", folder_id(build))


def _connect(path: Path, kind: Kind, owner: str) -> Engine | None:
    host = f"unix://{path}"
    with contextlib.suppress(DockerException, OSError):
        # Tried first by hand: the SDK leaves a socket open for every connection that is refused.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
        return _answering(docker.DockerClient(host, timeout=PING_SECONDS), kind, host, owner)
    return None


def _answering(client: docker.DockerClient, kind: Kind, host: str, owner: str) -> Engine:
    client.ping()
    client.api.timeout = API_SECONDS
    return Engine(client, kind, host, owner)


@dataclass(frozen=True)
class PrivateEngine:
    """The ``dockerd`` of one build folder: ``folder`` holds what lasts, ``runtime`` its socket and exec root."""

    folder: Path
    runtime: Path
    owner: str

    @classmethod
    def of(cls, build: Path, parent: Path | None = None) -> "PrivateEngine":
        """The private engine of ``build``, running or not."""
        owner = folder_id(build)
        return cls(build.resolve() / "engine", (parent or RUNTIME_PARENT) / f"sglang-xpu-{owner}", owner)

    @property
    def socket(self) -> Path:
        """Its API socket."""
        return self.runtime / "docker.sock"

    @property
    def host(self) -> str:
        """Its API address."""
        return f"unix://{self.socket}"

    @property
    def data_root(self) -> Path:
        """Images, containers and volumes."""
        return self.folder / "data"

    @property
    def pid_file(self) -> Path:
        """Written by dockerd, which also refuses to start when it names any live process."""
        return self.folder / "dockerd.pid"

    @property
    def log(self) -> Path:
        """Output of the last start."""
        return self.folder / "dockerd.log"

    def pid(self) -> int | None:
        """Process ID of the running dockerd.

        Asked of the process table, not of the pid file: that one can be gone, stale, or name a process that got
        the number later.
        """
        return find_process("dockerd", _option("data-root", self.data_root))

    def connect(self) -> Engine | None:
        """The engine, if it runs and answers."""
        return _connect(self.socket, "private", self.owner) if self.pid() else None

    def start(self) -> Engine:
        """Start it if it does not run; return when it answers (at most 60 seconds)."""
        with self._locked():
            if engine := self.connect():
                return engine
            if pid := self.pid():
                return self._wait_until_ready(pid)
            if lacks := what_is_missing(self.folder):
                raise EngineError(
                    f"no engine answers, and a private dockerd cannot run here: missing {', '.join(lacks)}",
                    do=f"provide that, access to {DEFAULT_SOCKET}, or DOCKER_HOST",
                )
            make_private_folder(self.runtime)
            self._clear_stale()
            return self._wait_until_ready(self._spawn())

    def stop(self) -> bool:
        """End it by SIGTERM and remove its runtime folder; ``False`` if it was not running."""
        if self.pid() is None:
            return False
        with self._locked():
            pid = self.pid()
            if pid is None:
                return False
            self._terminate(pid)
            shutil.rmtree(self.runtime, ignore_errors=True)  # what cannot go does no harm
        return True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One start or stop at a time; both are bounded, so waiting for the lock is."""
        with engine_errors(f"private engine in {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / "lock").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield

    def _clear_stale(self) -> None:
        """Remove the pid files of a dockerd that was killed: each is believed while any process has that number.

        Its containerd may outlive it by a moment. The rest of the runtime folder stays, so that the new one
        finds, and ends, the containers that were running.
        """
        folder = self.runtime / "exec/containerd"
        if pid := find_process("containerd", str(folder / "containerd.toml")):
            self._terminate(pid)
        (folder / "containerd.pid").unlink(missing_ok=True)
        self.pid_file.unlink(missing_ok=True)

    def _spawn(self) -> int:
        # The host's /etc/docker/daemon.json would contradict our flags, so an empty one of ours is named.
        settings = self.folder / "daemon.json"
        settings.write_text("{}\n")
        options = {
            "config-file": settings,
            "data-root": self.data_root,
            "exec-root": self.runtime / "exec",
            "host": self.host,
            "pidfile": self.pid_file,
            "bridge": "none",
            "iptables": "false",
            "ip6tables": "false",
            "ip-forward": "false",
            "storage-driver": "overlay2",
            "exec-opt": "native.cgroupdriver=cgroupfs",
            "shutdown-timeout": SHUTDOWN_SECONDS,
            "log-level": "warn",
        }
        # In a mount namespace of its own, nothing stays mounted here, not even when dockerd is killed.
        command = ["unshare", "--mount", str(find_dockerd())]
        command += [_option(name, value) for name, value in options.items()]
        output = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        # Not subprocess: the daemon outlives this process, and its own session keeps Ctrl-C from it.
        return os.posix_spawnp(
            command[0],
            command,
            {**os.environ, "PATH": _search_path()},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log), output, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )

    def _wait_until_ready(self, pid: int) -> Engine:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if engine := _connect(self.socket, "private", self.owner):
                return engine
            if _is_gone(pid):
                raise EngineError("dockerd ended while starting", found=last_problem(self.log), do=f"read {self.log}")
            time.sleep(0.05)
        raise EngineError(
            f"dockerd (pid {pid}) does not answer at {self.host}",
            expected=f"an answer within {START_SECONDS:.0f} s",
            found=last_problem(self.log),
            do=f"read {self.log}, then stop the engine",
        )

    def _terminate(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while not _is_gone(pid):
            if time.monotonic() > deadline:
                raise EngineError(
                    f"process {pid} of the private engine still runs {STOP_SECONDS:.0f} s after SIGTERM",
                    found=last_problem(self.log),
                    do=f"read {self.log}",
                )
            time.sleep(0.05)


def _option(name: str, value: object) -> str:
    return f"--{name}={value}"


def find_process(name: str, argument: str) -> int | None:
    """Process ID of a running program of that name that was given exactly that argument."""
    for entry in PROC.iterdir():
        with contextlib.suppress(OSError):  # the process ended while we looked
            if not entry.name.isdigit() or (entry / "comm").read_text() != name + "\n":
                continue
            if argument.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                return int(entry.name)
    return None


def _is_gone(pid: int) -> bool:
    """Whether a process has ended; a child of ours is reaped, another's zombie has an empty command line."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    try:
        return not (PROC / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True


def make_private_folder(path: Path) -> None:
    """Make a folder that only we can enter, or accept the one we made earlier.

    Raises:
        EngineError: something else is there: a symlink, a file, another user's folder, or one open to others.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o700:
        raise EngineError(
            f"{path} is not ours",
            expected=f"drwx------ of uid {os.geteuid()}",
            found=f"{stat.filemode(found.st_mode)} of uid {found.st_uid}",
            do="remove it",
        )


def what_is_missing(folder: Path) -> list[str]:
    """What a private dockerd with its data below ``folder`` (which must exist) lacks on this machine."""
    mounts = (PROC / "self/mountinfo").read_text()
    lacks = [
        None if find_dockerd() else f"dockerd ({INSTALL})",
        None if os.geteuid() == 0 else f"root (this is uid {os.geteuid()})",
        None if has_sys_admin((PROC / "self/status").read_text()) else "CAP_SYS_ADMIN",
        lacking_cgroups(mounts),
        lacking_file_system(mounts, folder),
    ]
    return [lack for lack in lacks if lack]


def find_dockerd() -> Path | None:
    """The installed dockerd, also when ``PATH`` lacks the system folders (as a user's often does)."""
    found = shutil.which("dockerd", path=_search_path())
    return Path(found) if found else None


def _search_path() -> str:
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def has_sys_admin(process_status: str) -> bool:
    """Whether the effective capabilities in the text of ``/proc/<pid>/status`` contain CAP_SYS_ADMIN."""
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", process_status, re.MULTILINE)
    return bool(effective and int(effective[1], 16) >> CAP_SYS_ADMIN & 1)


def mount_points(mountinfo: str) -> list[tuple[Path, list[str]]]:
    """Mount point and remaining fields per line of ``/proc/<pid>/mountinfo`` (see proc(5)), in mount order.

    The remaining fields are: mount options, file system type, source, super options.
    """
    points = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        where = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        points.append((Path(where), [fields[5], *right.split(" ", 2)]))
    return points


def lacking_cgroups(mountinfo: str) -> str | None:
    """Say which control groups are not mounted writable, given the text of ``/proc/self/mountinfo``."""
    held: set[str] = set()
    for point, (options, kind, _, super_options) in mount_points(mountinfo):
        if "rw" not in options.split(","):
            continue
        if kind == "cgroup":
            held.update(super_options.split(","))
        elif kind == "cgroup2" and point == Path("/sys/fs/cgroup"):
            held.update(CONTROLLERS)
    lacks = [name for name in CONTROLLERS if name not in held]
    return f"writable control groups ({', '.join(lacks)})" if lacks else None


def lacking_file_system(mountinfo: str, folder: Path) -> str | None:
    """Say whether ``folder`` lies on an overlay, which cannot carry another overlay's layers."""
    # Mounts come in mount order: of those that lead to the folder, the last one holds it.
    kinds = [fields[1] for point, fields in mount_points(mountinfo) if point == folder or point in folder.parents]
    return f"a file system other than overlay for {folder}" if kinds[-1:] == ["overlay"] else None


def last_problem(log: Path) -> str:
    """The last line of dockerd's log that tells of a problem, else its last line."""
    text = log.read_text(errors="replace") if log.is_file() else ""
    lines = [line for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if not re.search(r"level=(debug|info|warning)\b", line)]
    return (telling or lines or ["an empty log"])[-1]
