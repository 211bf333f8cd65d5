"""Finding and starting an engine, with the machine faked: process table, mounts, rights, and dockerd itself."""

import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline import engine
from pipeline.engine import PrivateEngine
from pipeline.errors import EngineError, PipelineError

STATUS = "Name:\tpython3\nUid:\t0\t0\t0\t0\nCapPrm:\t{0}\nCapEff:\t{0}\nCapBnd:\t000001ffffffffff\n"
ROOT = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
OVERLAY_ROOT = "22 1 0:50 / / rw,relatime - overlay overlay rw,lowerdir=/a:/b,upperdir=/c,workdir=/d\n"
CGROUP_V1 = "".join(
    f"{number} 25 0:{number} / /sys/fs/cgroup/{name} {{mode}},relatime - cgroup cgroup rw,{name}\n"
    for number, name in enumerate(("devices", "memory", "pids"), start=30)
)
CGROUP_V2 = "30 22 0:26 / /sys/fs/cgroup {mode},nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def says(pattern: str) -> Callable[[PipelineError], bool]:
    """Whether an error's one line matches."""
    return lambda error: bool(re.search(pattern, error.line()))


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PrivateEngine:
    """A private engine's paths, on a machine without any other engine."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(engine, "DEFAULT_SOCKET", tmp_path / "no.sock")
    monkeypatch.setattr(engine, "RUNTIME_PARENT", tmp_path)
    made = PrivateEngine.of(tmp_path / "build")
    made.folder.mkdir(parents=True)
    return made


def fake_process(proc: Path, pid: int, comm: str, *command: str) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "comm").write_text(comm + "\n")
    (folder / "cmdline").write_bytes(b"".join(part.encode() + b"\0" for part in command))


def test_pid_is_that_of_the_dockerd_with_our_data(
    private: PrivateEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = tmp_path / "proc"
    data = f"--data-root={private.data_root}"
    fake_process(proc, 10, "dockerd", "dockerd", "--data-root=/var/lib/docker")
    fake_process(proc, 11, "less", "less", data)
    fake_process(proc, 12, "dockerd")  # a zombie has no command line
    fake_process(proc, 13, "dockerd", "dockerd", data + "/other")
    (proc / "self").mkdir()
    monkeypatch.setattr(engine, "PROC", proc)
    assert private.pid() is None
    fake_process(proc, 14, "dockerd", "dockerd", "--bridge=none", data)
    assert private.pid() == 14


@pytest.mark.parametrize("owner", ["gone", "foreign"])
def test_stale_pid_file_is_removed_and_its_process_left_alone(
    private: PrivateEngine, monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    pid = os.getpid() if owner == "foreign" else 2**22
    private.pid_file.write_text(str(pid))
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda target, _signal: killed.append(target))
    assert private.stop() is False
    monkeypatch.setattr(engine, "what_is_missing", lambda _folder: [])
    monkeypatch.setattr(engine, "find_dockerd", lambda: Path("/bin/false"))
    with pytest.raises(EngineError, check=says("dockerd ended while starting")):
        private.start()
    assert not private.pid_file.exists()
    assert killed == []


def test_stop_without_a_build_folder_does_nothing(tmp_path: Path) -> None:
    assert engine.stop(tmp_path / "none") is False
    assert list(tmp_path.iterdir()) == []


def test_capabilities() -> None:
    assert engine.has_sys_admin(STATUS.format("000001fffeffffff"))
    assert engine.has_sys_admin(STATUS.format("0000000000200000"))
    assert not engine.has_sys_admin(STATUS.format("00000000a80425fb"))  # Docker's default set
    assert not engine.has_sys_admin("Name:\tx\n")


@pytest.mark.parametrize(
    ("mounts", "lack"),
    [
        (CGROUP_V1.format(mode="rw"), None),
        (CGROUP_V2.format(mode="rw"), None),
        (CGROUP_V1.format(mode="ro"), "writable control groups (devices, memory, pids)"),
        (CGROUP_V2.format(mode="ro"), "writable control groups (devices, memory, pids)"),
        ("".join(CGROUP_V1.format(mode="rw").splitlines(True)[:2]), "writable control groups (pids)"),
        # Hybrid: the second hierarchy carries no controller.
        (
            CGROUP_V2.format(mode="rw").replace("/cgroup ", "/cgroup/unified "),
            "writable control groups (devices, memory, pids)",
        ),
        ("", "writable control groups (devices, memory, pids)"),
    ],
)
def test_control_groups(mounts: str, lack: str | None) -> None:
    assert engine.lacking_cgroups(ROOT + mounts) == lack


def test_overlay_below_the_data_root_is_named() -> None:
    folder = Path("/srv/my project/.build/engine")
    volume = "40 22 254:1 / /srv/my\\040project rw - ext4 /dev/vdb rw\n"
    hidden = "41 40 0:51 / /srv/my\\040project/.build rw - overlay overlay rw\n"
    assert engine.lacking_file_system(ROOT, folder) is None
    assert engine.lacking_file_system(OVERLAY_ROOT + volume, folder) is None
    for mounts in (OVERLAY_ROOT, ROOT + volume + hidden):
        assert engine.lacking_file_system(mounts, folder) == f"a file system other than overlay for {folder}"


def test_start_names_everything_that_is_missing(
    private: PrivateEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/mountinfo").write_text(OVERLAY_ROOT)
    (proc / "self/status").write_text(STATUS.format("00000000a80425fb"))
    monkeypatch.setattr(engine, "PROC", proc)
    monkeypatch.setattr(engine, "find_dockerd", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EngineError) as caught:
        engine.find_or_start(private.folder.parent)
    assert caught.value.line() == (
        "no engine answers, and a private dockerd cannot run here: missing dockerd (apt-get install"
        " --no-install-recommends docker.io), root (this is uid 1000), CAP_SYS_ADMIN, writable control groups"
        f" (devices, memory, pids), a file system other than overlay for {private.folder}; provide that, access"
        f" to {tmp_path}/no.sock, or DOCKER_HOST"
    )
    assert not private.runtime.exists()


def test_socket_path_is_short_however_deep_the_build_folder_is(tmp_path: Path) -> None:
    deep = PrivateEngine.of(tmp_path.joinpath(*["a" * 50] * 5))
    assert len(os.fsencode(deep.socket)) <= 107
    assert len(os.fsencode(deep.runtime / "exec/containerd/containerd-debug.sock.ttrpc")) <= 107
    assert deep.runtime != PrivateEngine.of(tmp_path).runtime


def test_private_folder_is_made_and_accepted_again(tmp_path: Path) -> None:
    for _ in range(2):
        engine.make_private_folder(tmp_path / "run")
        assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("fault", ["symlink", "file", "open", "foreign"])
def test_private_folder_that_is_not_ours_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    path = tmp_path / "run"
    if fault == "symlink":
        (tmp_path / "else").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "else")
    elif fault == "file":
        path.write_text("")
    else:
        path.mkdir(mode=0o700)
    if fault == "open":
        path.chmod(0o755)
    if fault == "foreign":
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(EngineError, check=says(r"run is not ours: expected drwx------ of uid \d+, found ")):
        engine.make_private_folder(path)


def test_start_goes_through_no_foreign_symlink(private: PrivateEngine, tmp_path: Path) -> None:
    (tmp_path / "else").mkdir(mode=0o700)
    private.runtime.symlink_to(tmp_path / "else")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "what_is_missing", lambda _folder: [])
        with pytest.raises(EngineError, check=says("is not ours")):
            private.start()
    assert private.stop() is False
    assert private.runtime.is_symlink()
    assert (tmp_path / "else").is_dir()


def test_docker_host_that_does_not_answer_is_an_error_not_another_engine(
    private: PrivateEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening: refuses
        host = f"tcp://127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setenv("DOCKER_HOST", host)
        monkeypatch.setattr(PrivateEngine, "start", lambda _self: pytest.fail("started a private engine"))
        build = private.folder.parent
        with pytest.raises(EngineError, check=says(f"DOCKER_HOST={host} does not answer")):
            engine.find_or_start(build)
        assert engine.status(build) == engine.EngineStatus(False, "given", host)


def test_status_of_nothing(private: PrivateEngine) -> None:
    assert engine.status(private.folder.parent) == engine.EngineStatus(False, "private", private.host)


def test_socket_that_nobody_serves_is_no_engine(
    private: PrivateEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dead = tmp_path / "no.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(dead))
    assert dead.is_socket()
    monkeypatch.setattr(engine, "what_is_missing", lambda _folder: ["a reason"])
    with pytest.raises(EngineError, check=says("missing a reason; provide that")):
        engine.find_or_start(private.folder.parent)


@pytest.fixture
def fake_dockerd(private: PrivateEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A script in dockerd's place; what a test leaves running is ended."""
    script = tmp_path / "bin/dockerd"
    script.parent.mkdir()
    monkeypatch.setattr(engine, "find_dockerd", lambda: script)
    monkeypatch.setattr(engine, "what_is_missing", lambda _folder: [])
    yield script
    if pid := private.pid():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def write_script(path: Path, body: str) -> None:
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)


def test_dockerd_that_dies_while_starting_is_quoted(private: PrivateEngine, fake_dockerd: Path) -> None:
    write_script(
        fake_dockerd,
        "echo 'failed to start daemon: no space left on device'\n"
        'echo \'time="x" level=warning msg="bye"\' >&2\nexit 1\n',
    )
    with pytest.raises(EngineError) as caught:
        private.start()
    assert caught.value.line() == (
        f"dockerd ended while starting: found failed to start daemon: no space left on device; read {private.log}"
    )


def test_dockerd_that_never_answers(
    private: PrivateEngine, fake_dockerd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_script(fake_dockerd, "while :; do sleep 0.1; done\n")
    monkeypatch.setattr(engine, "START_SECONDS", 0.3)
    with pytest.raises(EngineError, check=says(r"dockerd \(pid \d+\) does not answer at .*an empty log")):
        private.start()
    assert engine.status(private.folder.parent).pid == private.pid()
    assert private.stop() is True
    assert private.pid() is None


def test_dockerd_that_ignores_sigterm_is_reported_not_killed(
    private: PrivateEngine, fake_dockerd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_script(fake_dockerd, "trap '' TERM\necho stubborn\nwhile :; do sleep 0.1; done\n")
    monkeypatch.setattr(engine, "START_SECONDS", 0.5)
    with pytest.raises(EngineError, check=says("does not answer")):
        private.start()
    monkeypatch.setattr(engine, "STOP_SECONDS", 0.3)
    with pytest.raises(
        EngineError, check=says(r"process \d+ of the private engine still runs 0 s after SIGTERM: found stubborn")
    ):
        private.stop()
    assert private.pid() is not None


def test_build_folder_that_cannot_be_written_is_one_line(private: PrivateEngine) -> None:
    (private.folder / "lock").mkdir()  # root writes through modes, but not into a folder
    with pytest.raises(EngineError, check=says(f"private engine in {private.folder}: found .*Is a directory")):
        private.start()


def test_last_problem_skips_warnings(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('level=error msg="first"\nlevel=error msg="second"\nlevel=info msg="x"\n\n')
    assert engine.last_problem(log) == 'level=error msg="second"'
    log.write_text('level=info msg="x"\n')
    assert engine.last_problem(log) == 'level=info msg="x"'
