"""Set-up on the system's Python: what is missing is said in one line or installed, and nothing more."""

import hashlib
import os
import shutil
import socket
import sys
import tempfile
import threading
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from pipeline import bootstrap
from pipeline.errors import HostError
from tests.fast.builders import says, write_files


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own on a machine with apt and no policy, and no engine to ask."""
    monkeypatch.setattr(bootstrap, "PROJECT", tmp_path)
    monkeypatch.setattr(bootstrap, "BUILD", tmp_path / ".build")
    monkeypatch.setattr(bootstrap, "POLICY", tmp_path / "policy-rc.d")
    monkeypatch.setattr(shutil, "which", lambda program, **_path: f"/usr/bin/{program}")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    return tmp_path


def forbid(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Any call of these functions of the module is a failure of the test."""

    def refuse(*arguments: object) -> NoReturn:
        raise AssertionError(f"called with {arguments}")

    for name in names:
        monkeypatch.setattr(bootstrap, name, refuse)


def present(monkeypatch: pytest.MonkeyPatch, *programs: str) -> None:
    monkeypatch.setattr(bootstrap, "_has", lambda program: program in programs)


@contextmanager
def engine(answer: bytes) -> Iterator[str]:
    """A Unix socket that gives one answer to every request; its path is short, as sockets need it."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        path = f"{folder}/s"
        server.bind(path)
        server.listen()

        def serve() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1024)
                client.sendall(answer)

        worker = threading.Thread(target=serve, daemon=True)
        worker.start()
        yield f"unix://{path}"
        worker.join(10)


class TestDebian:
    def test_missing_packages_are_one_apt_line_when_not_root(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        forbid(monkeypatch, "watch", "make_environment")
        said = says("^Debian packages are missing; as root: apt-get install --no-install-recommends a b$")
        with pytest.raises(HostError, check=said):
            bootstrap.prepare({"a": False, "there": True, "b": False}, development=False)

    def test_machine_without_apt_is_told_what_it_needs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "which", lambda _program: None)
        forbid(monkeypatch, "watch")
        with pytest.raises(HostError, check=says("expected a b, found no apt-get here")):
            bootstrap.install_debian(["a", "b"])

    def test_root_installs_without_recommends_removals_and_service_starts(
        self, machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        commands: list[list[str]] = []

        def watch(command: list[str], _title: str, environment: dict[str, str]) -> None:
            commands.append(command)
            assert environment["DEBIAN_FRONTEND"] == "noninteractive"
            assert (machine / "policy-rc.d").read_text() == "#!/bin/sh\nexit 101\n"
            assert os.access(machine / "policy-rc.d", os.X_OK)

        monkeypatch.setattr(bootstrap, "watch", watch)
        bootstrap.install_debian(["a", "b"])
        assert [command[:2] for command in commands] == [["apt-get", "update"], ["apt-get", "install"]]
        assert {"--no-install-recommends", "--no-remove"} <= set(commands[1])
        assert commands[1][-2:] == ["a", "b"]
        assert "apt-get install --no-install-recommends a b" in capsys.readouterr().err
        assert not (machine / "policy-rc.d").exists()

    def test_nothing_is_installed_when_nothing_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        forbid(monkeypatch, "install_debian")
        made: list[bool] = []
        monkeypatch.setattr(bootstrap, "make_environment", made.append)
        bootstrap.prepare({"a": True}, development=True)
        assert made == [True]

    @pytest.mark.parametrize(
        ("command", "packages"),
        [
            ("plan", {"python3-venv", "git"}),
            ("compose", {"python3-venv", "git"}),
            ("", {"python3-venv", "git"}),
            ("image", {"python3-venv", "git", "mmdebstrap", "docker.io"}),
            ("check", {"python3-venv", "git", "mmdebstrap", "docker.io"}),
        ],
    )
    def test_command_wants_only_what_it_needs(
        self, monkeypatch: pytest.MonkeyPatch, command: str, packages: set[str]
    ) -> None:
        present(monkeypatch)
        wanted = bootstrap.debian_packages(command, development=False)
        assert set(wanted) == packages
        assert wanted["python3-venv"] is True
        assert not any(there for package, there in wanted.items() if package != "python3-venv")

    def test_no_engine_is_installed_when_one_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        present(monkeypatch, "git", "mmdebstrap")
        with engine(b"HTTP/1.0 200 OK\r\n\r\nOK") as host:
            monkeypatch.setenv("DOCKER_HOST", host)
            assert all(bootstrap.debian_packages("image", development=False).values())

    def test_no_engine_is_installed_when_the_daemon_is_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        present(monkeypatch, "git", "mmdebstrap", "dockerd")
        assert all(bootstrap.debian_packages("image", development=False).values())

    def test_tests_want_a_daemon_of_their_own_even_when_an_engine_answers(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        present(monkeypatch, "git")
        monkeypatch.setattr(bootstrap, "engine_answers", lambda: True)
        wanted = bootstrap.debian_packages("setup", development=True)
        assert {package for package, there in wanted.items() if not there} == {
            "mmdebstrap",
            "docker.io",
            "docker-registry",
        }

    @pytest.mark.parametrize(("uid", "wanted"), [(0, False), (1000, True)])
    def test_user_namespaces_are_wanted_by_who_is_not_root(
        self, monkeypatch: pytest.MonkeyPatch, uid: int, wanted: bool
    ) -> None:
        monkeypatch.setattr("os.geteuid", lambda: uid)
        assert ("uidmap" in bootstrap.debian_packages("image", development=False)) == wanted


class TestEngineAnswers:
    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            (b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\nOK", True),
            (b"HTTP/1.1 500 Internal Server Error\r\n\r\n", False),
            (b"", False),
        ],
    )
    def test_only_a_good_answer_to_ping_counts(
        self, monkeypatch: pytest.MonkeyPatch, answer: bytes, expected: bool
    ) -> None:
        with engine(answer) as host:
            monkeypatch.setenv("DOCKER_HOST", host)
            assert bootstrap.engine_answers() is expected

    def test_socket_that_is_not_there_or_not_one_is_no_engine(
        self, machine: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert bootstrap.engine_answers() is False
        write_files(machine, {"file": "x"})
        monkeypatch.setenv("DOCKER_HOST", f"unix://{machine}/file")
        assert bootstrap.engine_answers() is False

    def test_remote_engine_counts_when_its_port_is_open(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.getsockname()[1]}")
            assert bootstrap.engine_answers() is True
        assert bootstrap.engine_answers() is False


class TestPolicy:
    def test_policy_is_there_for_the_installation_only_also_when_that_fails(self, machine: Path) -> None:
        def apt() -> NoReturn:
            assert (machine / "policy-rc.d").stat().st_mode & 0o777 == 0o755
            raise HostError("apt failed")

        with pytest.raises(HostError, match="apt failed"), bootstrap.no_service_starts():
            apt()
        assert not (machine / "policy-rc.d").exists()

    def test_existing_policy_is_left_as_it_is(self, machine: Path) -> None:
        write_files(machine, {"policy-rc.d": "theirs"})
        with bootstrap.no_service_starts():
            assert (machine / "policy-rc.d").read_text() == "theirs"
        assert (machine / "policy-rc.d").read_text() == "theirs"


class TestWatch:
    def test_success_is_one_line_without_the_commands_output(self, capfd: pytest.CaptureFixture[str]) -> None:
        bootstrap.watch(["sh", "-c", "echo out; echo err >&2"], "Work")
        out, err = capfd.readouterr()
        assert out == ""
        assert err.startswith("✓ Work (")
        assert err.count("\n") == 1

    @pytest.mark.parametrize(
        ("script", "quoted"),
        [
            ("echo first; echo last; exit 3", "Work ended with 3: last;"),
            ("echo 'E: Unable to locate'; echo noise; exit 3", "Work ended with 3: E: Unable to locate;"),
            ("echo noise; echo 'ERROR: no match'; echo hint; exit 1", "Work ended with 1: ERROR: no match;"),
            ("exit 1", "Work ended with 1: ;"),
            ("printf '\\377last\\n\\n'; exit 1", "Work ended with 1: .last;"),
        ],
    )
    def test_failure_quotes_the_error_or_the_last_line_and_names_the_log(
        self, machine: Path, script: str, quoted: str
    ) -> None:
        log = machine / ".build" / "set-up.log"
        with pytest.raises(HostError, check=says(f"^{quoted} {log} has all of it$")):
            bootstrap.watch(["sh", "-c", script], "Work")
        assert log.exists()

    def test_long_work_beats(self, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        os.mkfifo(machine / "pipe")
        said: list[str] = []

        def say(text: str) -> None:
            said.append(text)
            if len(said) == 2:
                (machine / "pipe").write_text("go on\n")

        monkeypatch.setattr(bootstrap, "say", say)
        monkeypatch.setattr(bootstrap, "HEARTBEAT_SECONDS", 0.01)
        bootstrap.watch(["sh", "-c", f"read line < {machine}/pipe"], "Work")
        assert said[:2] == ["  … Work, 0 s"] * 2
        assert said[-1].startswith("✓ Work (")

    def test_interrupted_work_is_ended(self, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def say(_text: str) -> None:
            if (machine / "pid").exists():
                raise KeyboardInterrupt

        monkeypatch.setattr(bootstrap, "say", say)
        monkeypatch.setattr(bootstrap, "HEARTBEAT_SECONDS", 0.01)
        script = f"echo $$ > {machine}/draft; mv {machine}/draft {machine}/pid; exec sleep 1000"
        with pytest.raises(KeyboardInterrupt):
            bootstrap.watch(["sh", "-c", script], "Work")
        with pytest.raises(ProcessLookupError):
            os.kill(int((machine / "pid").read_text()), 0)


class TestEnvironment:
    @pytest.fixture
    def made(self, machine: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        """Commands that fill the environment; making it is faked."""
        write_files(machine, {"requirements.lock": "a==1\n", "requirements-dev.lock": "b==1\n"})
        monkeypatch.setattr(venv, "create", lambda folder, **_options: (folder / "bin").mkdir(parents=True))
        commands: list[list[str]] = []
        monkeypatch.setattr(bootstrap, "watch", lambda command, _title: commands.append(command))
        return commands

    @pytest.mark.parametrize(("dev", "name", "lock"), [(False, "venv", ""), (True, "venv-dev", "-dev")])
    def test_environment_is_made_once_from_the_hashed_lock(
        self, machine: Path, made: list[list[str]], dev: bool, name: str, lock: str
    ) -> None:
        bootstrap.make_environment(dev)
        bootstrap.make_environment(dev)
        (command,) = made
        assert command[0] == str(machine / ".build" / name / "bin" / "python")
        assert {"--require-hashes", "--no-deps", str(machine / f"requirements{lock}.lock")} <= set(command)

    def test_environment_of_this_lock_is_left_alone(self, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        stamp = hashlib.sha256(b"a==1\n" + sys.version.encode()).hexdigest()
        write_files(machine, {"requirements.lock": "a==1\n", ".build/venv/lock.sha256": stamp})
        monkeypatch.setattr(venv, "create", None)
        bootstrap.make_environment(development=False)

    def test_other_lock_makes_it_anew(self, machine: Path, made: list[list[str]]) -> None:
        bootstrap.make_environment(development=False)
        write_files(machine, {"requirements.lock": "a==2\n", ".build/venv/old": "x"})
        bootstrap.make_environment(development=False)
        assert len(made) == 2
        assert not (machine / ".build" / "venv" / "old").exists()

    def test_environment_that_was_not_filled_is_made_anew(
        self, machine: Path, made: list[list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_command: list[str], _title: str) -> NoReturn:
            raise HostError("pip failed")

        with monkeypatch.context() as patch:
            patch.setattr(bootstrap, "watch", fail)
            with pytest.raises(HostError):
                bootstrap.make_environment(development=False)
        assert not (machine / ".build" / "venv" / "lock.sha256").exists()
        bootstrap.make_environment(development=False)
        assert len(made) == 1


class TestEnter:
    def test_inside_the_environment_nothing_is_done(self, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "prefix", str(machine / ".build" / "venv"))
        forbid(monkeypatch, "prepare")
        bootstrap.enter(["image"])

    def test_outside_it_is_set_up_and_the_same_command_started_in_it(
        self, machine: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        prepared: list[tuple[set[str], bool]] = []
        started: list[tuple[object, ...]] = []
        monkeypatch.setattr(bootstrap, "prepare", lambda wanted, dev: prepared.append((set(wanted), dev)))
        monkeypatch.setattr(os, "execv", lambda *arguments: started.append(arguments))
        bootstrap.enter(["plan", "--json"])
        python = machine / ".build" / "venv" / "bin" / "python"
        assert prepared == [({"python3-venv", "git"}, False)]
        assert started == [(python, [str(python), str(machine / "build.py"), "plan", "--json"])]

    def test_old_python_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "version_info", (3, 10, 1))
        forbid(monkeypatch, "install_debian", "make_environment")
        with pytest.raises(HostError, check=says("^Python: expected 3.11 or newer, found ")):
            bootstrap.prepare({"a": False}, development=False)


class TestMain:
    def run(self, monkeypatch: pytest.MonkeyPatch, problem: BaseException) -> int | str | None:
        def enter(_arguments: list[str]) -> NoReturn:
            raise problem

        monkeypatch.setattr(bootstrap, "enter", enter)
        with pytest.raises(SystemExit) as ended:
            bootstrap.main(["plan"], lambda _arguments: 0)
        return ended.value.code

    @pytest.mark.parametrize(
        ("problem", "code", "line"),
        [
            (HostError("Python", expected="3.11"), 3, "error: Python: expected 3.11\n"),
            (
                PermissionError(13, "Permission denied", "/x/.build"),
                3,
                "error: /x/.build: Permission denied; free space or rights, then again\n",
            ),
            (
                OSError(28, "No space left on device"),
                3,
                "error: operating system: No space left on device; free space or rights, then again\n",
            ),
            (KeyboardInterrupt(), 130, "interrupted\n"),
        ],
    )
    def test_what_stops_the_set_up_is_one_line(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        problem: BaseException,
        code: int,
        line: str,
    ) -> None:
        assert self.run(monkeypatch, problem) == code
        assert capsys.readouterr().err == line

    def test_exit_code_is_that_of_the_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bootstrap, "enter", lambda _arguments: None)
        with pytest.raises(SystemExit) as ended:
            bootstrap.main(["plan"], lambda arguments: len(arguments) + 6)
        assert ended.value.code == 7


class TestLook:
    def test_machine_and_price_are_said_first(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(bootstrap, "SPACE_FIRST", 1)
        monkeypatch.setattr(bootstrap, "engine_answers", lambda: False)
        monkeypatch.setattr("os.geteuid", lambda: 1000)
        bootstrap.look()
        machine, price = capsys.readouterr().err.splitlines()
        assert "not root" in machine
        assert "GiB free" in machine
        assert "none answers" in machine
        assert "minutes" in price
        assert "MB of downloads" in price

    def test_small_disk_is_refused_before_anything_is_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bootstrap, "SPACE_FIRST", 1 << 60)
        with pytest.raises(HostError, match="free space"):
            bootstrap.look()
