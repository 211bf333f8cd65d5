"""Checks in a real container: what it is given, what it is kept from, and how its end is reported."""

import json
import os
import shutil
import signal
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline import check, container
from pipeline.documents import CheckStatus
from pipeline.engine import PrivateEngine
from pipeline.oci import Image
from pipeline.store import Engine

CHECKS = Path(check.CHECKS)
TREE = "sha256:" + "3" * 64
GIVEN: dict[str, Any] = {"record": {"digest": TREE}, "word": "größe"}
SUBJECT = check.Subject("cpu", "sha256:" + "b" * 64, TREE, "sha256:" + "c" * 64)
UPSTREAM = {"sglang/deep/a.py": b"upstream\n"}


@pytest.fixture
def loaded(engine: Engine, python_base: Image) -> Iterator[Engine]:
    """The engine, holding the Python base; at the end nothing of a run may be left in it."""
    engine.ensure_base(python_base, "base")
    yield engine
    assert left_in(engine) == []


def left_in(engine: Engine) -> list[str]:
    containers = [str(found.name) for found in engine.client.containers.list(all=True)]
    return containers + [str(found.name) for found in engine.client.volumes.list()]


def fake_checks(folder: Path, script: str, *names: str) -> Path:
    """A checks folder whose run.py is ``script``; it finds ``answer(rows)`` defined."""
    folder.mkdir()
    head = """\
        import json, os, socket, sys, time
        def answer(**reasons):
            rows = [{"name": n, "status": "passed", "seconds": 0, "reason": r} for n, r in reasons.items()]
            print(json.dumps({"checks": rows, "junit": ""}))
        """
    (folder / "run.py").write_text(textwrap.dedent(head) + textwrap.dedent(script))
    for name in names:
        (folder / f"test_{name}.py").write_text("")
    return folder


def run(engine: Engine, image: Image, checks: Path, **limits: Any) -> check.Outcome:
    log = checks.parent / "check.log"
    return check.run_checks(engine, image, GIVEN, UPSTREAM, checks, subject=SUBJECT, log=log, **limits)


FACTS = """\
    def tries(action):
        try:
            action()
        except OSError as error:
            return error.strerror
        return "done"
    def first(*paths):
        return next(open(path).read().strip() for path in paths if os.path.exists(path))
    status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
    mounts = {line.split()[4]: line.split()[5].split(",") for line in open("/proc/self/mountinfo")}
    modes = {}
    for folder, _, files in os.walk("/checks"):
        for path in [folder, *(folder + "/" + name for name in files)]:
            found = os.stat(path)
            # The engine makes the top folder; its time is its own.
            when = int(found.st_mtime) if path != "/checks" else 1577836800
            modes.setdefault(oct(found.st_mode), set()).add((found.st_uid, found.st_gid, when))
    answer(facts=json.dumps({
        "ids": [os.getuid(), os.getgid(), os.getgroups()],
        "capabilities": [status[name].strip() for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")],
        "no_new_privileges": status["NoNewPrivs"].strip(),
        "seccomp": status["Seccomp"].strip(),
        "interfaces": sorted(os.listdir("/sys/class/net")),
        "connect": tries(lambda: socket.create_connection(("192.0.2.1", 80), timeout=5)),
        "write": [tries(lambda: open(path, "w").close()) for path in ("/x", "/usr/x", "/checks/x", "/tmp/x")],
        "tmp": [name for name in ("noexec", "nosuid", "nodev") if name in mounts["/tmp"]],
        "memory": first("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        "processes": first("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"),
        "environment": sorted(os.environ),
        "folder": os.getcwd(),
        "isolated": [sys.flags.isolated, sys.dont_write_bytecode],
        "modes": {mode: sorted(owners) for mode, owners in modes.items()},
        "input": json.load(open("/checks/input.json", encoding="utf-8")),
        "upstream": open("/checks/upstream/sglang/deep/a.py").read(),
        "pytest": os.path.isfile("/checks/lib/pytest/__init__.py"),
    }))
    """


def test_container_is_confined_and_given_its_volume(loaded: Engine, python_base: Image, tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        checks = fake_checks(tmp_path / "checks", FACTS, "facts")
        assert (checks / "run.py").stat().st_mode & 0o777 == 0o600
        report = run(loaded, python_base, checks).report
    finally:
        os.umask(umask)
    assert report.passed, report.checks
    facts = json.loads(report.checks[0].reason)
    epoch = 1577836800
    assert facts == {
        "ids": [65534, 65534, [65534]],
        "capabilities": ["0000000000000000"] * 4,
        "no_new_privileges": "1",
        "seccomp": "2",
        "interfaces": ["lo"],
        "connect": "Network is unreachable",
        "write": ["Read-only file system", "Read-only file system", "Read-only file system", "done"],
        "tmp": ["noexec", "nosuid", "nodev"],
        "memory": str(check.MEMORY_BYTES),
        "processes": str(container.PROCESSES),
        # HOSTNAME and HOME come from the engine, the others from the image.
        "environment": ["GREETING", "HOME", "HOSTNAME", "PATH"],
        "folder": "/",
        "isolated": [1, True],
        "modes": {"0o40755": [[0, 0, epoch]], "0o100644": [[0, 0, epoch]]},
        "input": GIVEN,
        "upstream": "upstream\n",
        "pytest": True,
    }


def test_our_run_py_runs_pytest_from_the_volume(loaded: Engine, python_base: Image, tmp_path: Path) -> None:
    checks = tmp_path / "checks"
    checks.mkdir()
    for name in ("run.py", "conftest.py", "given.py", "verdict.py", "xpu.py"):
        shutil.copy(CHECKS / name, checks)
    (checks / "test_good.py").write_text(
        "def test_good(verdict):\n    print('noise')\n    verdict.conclude('2 of 2')\n"
    )
    (checks / "test_bad.py").write_text(
        "def test_bad(verdict):\n    verdict.problem('a.py is wrong')\n    verdict.conclude('')\n"
    )
    (checks / "test_odd.py").write_text("import nothing_of_that_name\n")
    outcome = run(loaded, python_base, checks)
    rows = {row.name: (row.status, row.reason) for row in outcome.report.checks}
    assert rows["good"] == (CheckStatus.PASSED, "2 of 2")
    assert rows["bad"] == (CheckStatus.FAILED, "a.py is wrong")
    assert rows["odd"][0] is CheckStatus.ERROR
    assert outcome.junit.count("<testcase") == 3
    assert "1 passed" in (tmp_path / "check.log").read_text()


def test_large_answer_and_noise_stay_apart(loaded: Engine, python_base: Image, tmp_path: Path) -> None:
    script = """\
        for number in range(2000):
            print("noise", number, file=sys.stderr)
        answer(big="r" * 1_000_000)
        """
    report = run(loaded, python_base, fake_checks(tmp_path / "checks", script, "big")).report
    assert report.passed
    assert len(report.checks[0].reason) == 1_000_000
    assert (tmp_path / "check.log").read_text().splitlines() == [f"noise {number}" for number in range(2000)]


@pytest.mark.parametrize(
    ("script", "limits", "reason"),
    [
        (
            "answer(a='ok')\nsys.stdout.flush()\nb = bytearray(1 << 30)\nb[::4096] = b'x' * len(b[::4096])\n",
            {"memory": 128 << 20},
            "the check container ran out of memory (limit 0.12 GiB)",
        ),
        (
            "answer(a='ok')\nsys.stdout.flush()\ntime.sleep(600)\n",
            {"seconds": 2},
            "the check container did not end within 2 s and was killed",
        ),
        (
            "answer(a='ok')\nsys.stdout.flush()\nos._exit(3)\n",
            {},
            "the check container ended with status 3 and gave no results",
        ),
        ("sys.exit(1)\n", {}, "the check container ended with status 1 and gave no results"),
    ],
)
def test_bad_end_runs_nothing_and_leaves_nothing(
    loaded: Engine, python_base: Image, tmp_path: Path, script: str, limits: dict[str, Any], reason: str
) -> None:
    report = run(loaded, python_base, fake_checks(tmp_path / "checks", script, "a"), **limits).report
    assert [(row.status, row.reason) for row in report.checks] == [(CheckStatus.NOT_RUN, reason)]


def test_answer_without_a_row_for_a_check(loaded: Engine, python_base: Image, tmp_path: Path) -> None:
    checks = fake_checks(tmp_path / "checks", "answer(a='ok')\n", "a", "b")
    rows = {row.name: row.status for row in run(loaded, python_base, checks).report.checks}
    assert rows == {"a": CheckStatus.PASSED, "b": CheckStatus.NOT_RUN}


def start_endless(engine: Engine, image: Image, folder: Path, pool: ThreadPoolExecutor) -> "Future[check.Outcome]":
    """Run a check that never ends in another thread; return when its container prints."""
    checks = fake_checks(folder / "checks", "print('up', file=sys.stderr, flush=True)\ntime.sleep(600)\n", "a")
    future = pool.submit(run, engine, image, checks)
    log = folder / "check.log"
    pause = threading.Event()
    while not future.done() and not (log.is_file() and log.read_bytes()):
        pause.wait(0.05)
    assert not future.done()
    return future


def test_container_that_someone_kills(loaded: Engine, python_base: Image, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = start_endless(loaded, python_base, tmp_path, pool)
        (found,) = loaded.client.containers.list()
        found.kill()
        row = future.result().report.checks[0]
    assert row.status is CheckStatus.NOT_RUN
    assert row.reason == "the check container ended with status 137 and gave no results"


def test_interrupt_leaves_nothing(
    loaded: Engine, python_base: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_container: object, _seconds: float) -> None:
        assert len(left_in(loaded)) == 2
        raise KeyboardInterrupt

    monkeypatch.setattr(container, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(loaded, python_base, fake_checks(tmp_path / "checks", "time.sleep(600)\n", "a"))
    assert left_in(loaded) == []


# docker-py leaves a socket open for each connection that is refused.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_engine_that_dies_runs_nothing_and_is_cleaned_up_later(
    python_base: Image, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = PrivateEngine.of(tmp_path / "build")
    try:
        engine = private.start()
        engine.ensure_base(python_base, "base")
        with ThreadPoolExecutor(1) as pool:
            future = start_endless(engine, python_base, tmp_path, pool)
            pid = private.pid()
            assert pid
            os.kill(pid, signal.SIGKILL)
            row = future.result().report.checks[0]
        engine.client.close()
        assert row.status is CheckStatus.NOT_RUN
        assert row.reason.startswith("the engine failed: run the check container: found ")
        assert "warning: remove" in " ".join(capsys.readouterr().err.split())

        again = private.start()
        assert len(left_in(again)) == 2
        again.remove_ours()
        assert left_in(again) == []
        again.client.close()
    finally:
        private.stop()
