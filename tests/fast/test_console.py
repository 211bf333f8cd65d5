"""What people see on stderr, with and without a terminal."""

import os
import pty
import subprocess
import sys
import threading

import pytest

from pipeline import console
from pipeline.files import PROJECT


def on_terminal(code: str, **environment: str) -> str:
    """What ``code`` writes to stderr when that is a terminal."""
    ours, theirs = pty.openpty()
    variables = {"PATH": os.environ["PATH"], "TERM": "xterm", "COLUMNS": "80", **environment}
    command = [sys.executable, "-c", f"from pipeline import console\n{code}"]
    process = subprocess.Popen(command, cwd=PROJECT, env=variables, stderr=theirs)
    os.close(theirs)
    written = b""
    try:
        while piece := os.read(ours, 4096):
            written += piece
    except OSError:  # how a terminal says that its other side is closed
        assert process.wait() == 0
    finally:
        os.close(ours)
    return written.decode()


def test_lines_are_plain_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with console.step("Work [1/2]") as state:
        state.detail = "3 [files]"
    console.note("a note [x]")
    console.warn("a warning [x]")
    console.fail("a failure [x]")
    out, err = capfd.readouterr()
    lines = err.splitlines()
    assert lines[0].startswith("✓ Work [1/2]: 3 [files] (")
    assert lines[0].endswith(" s)")
    assert lines[1:] == ["a note [x]", "warning: a warning [x]", "error: a failure [x]"]
    assert out == ""


def test_long_line_is_not_broken(capfd: pytest.CaptureFixture[str]) -> None:
    text = "word " * 100 + "end"
    console.fail(text)
    assert capfd.readouterr().err == f"error: {text}\n"


def test_file_and_line_number_are_not_taken_for_an_emoji(capfd: pytest.CaptureFixture[str]) -> None:
    console.fail("series:100: a.patch :smile:")
    console.out.print(":100:")
    out, err = capfd.readouterr()
    assert (out, err) == (":100:\n", "error: series:100: a.patch :smile:\n")


def test_running_step_beats_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "HEARTBEAT_SECONDS", 0.001)
    beaten = threading.Event()

    class Watched(console.Step):
        """Tells when it is looked at, which is when the step beats."""

        @property
        def detail(self) -> str:
            beaten.set()
            return ""

        @detail.setter
        def detail(self, _text: str) -> None:
            pass

    monkeypatch.setattr(console, "Step", Watched)
    with console.step("Slow"):
        assert beaten.wait(30)
    assert "  … Slow, 0 s\n" in capfd.readouterr().err


def test_failed_step_stops_beating_and_claims_no_success(capfd: pytest.CaptureFixture[str]) -> None:
    threads = threading.active_count()
    with pytest.raises(ValueError, match="no"), console.step("Work"):
        raise ValueError("no")
    assert threading.active_count() == threads
    assert "✓" not in capfd.readouterr().err


def test_failure_is_one_red_line_on_a_terminal() -> None:
    assert on_terminal("console.fail('broken: why')") == "\x1b[31merror: broken: why\x1b[0m\r\n"


def test_no_color_is_honoured_on_a_terminal() -> None:
    assert on_terminal("console.fail('broken: why')", NO_COLOR="1") == "error: broken: why\r\n"


def test_step_on_a_terminal_ends_with_its_duration() -> None:
    assert "Work" in on_terminal("with console.step('Work'): pass").splitlines()[-1]


def test_escapes_of_others_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for say in (console.note, console.warn, console.fail):
        say("a\x1b[31mb")
    with console.step("a\x1b[31mb"):
        pass
    text = capsys.readouterr().err
    assert text.count(r"a\x1b[31mb") == 4
