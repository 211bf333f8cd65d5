"""The command line: exit codes, one line per failure, JSON where there is a result."""

import errno
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

import click
import pytest

from pipeline import bootstrap, cli, files, stages
from pipeline.errors import (
    BaseError,
    BusyError,
    CheckError,
    ComposeError,
    EngineError,
    HostError,
    ImageError,
    ManifestError,
    PinError,
    PipelineError,
    ReleaseError,
    VerifyError,
)
from tests.fast.builders import make_line

ERRORS = [
    HostError,
    ManifestError,
    PinError,
    ComposeError,
    BaseError,
    ImageError,
    EngineError,
    CheckError,
    ReleaseError,
    BusyError,
    VerifyError,
]


@pytest.fixture(autouse=True)
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build folder of its own, so that the project's may be in use."""
    folder = tmp_path / "build"
    monkeypatch.setattr(cli, "BUILD", folder)
    monkeypatch.setattr(cli, "build_lock", lambda: files.build_lock(folder))
    return folder


def commands(group: click.Group = cli.main, *path: str) -> Iterator[list[str]]:
    """Every command and group, as people type it."""
    yield list(path)
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield [*path, name]


def failing(monkeypatch: pytest.MonkeyPatch, problem: BaseException) -> None:
    """Make ``compose`` fail in its stage."""

    def compose_tree(*_arguments: object, **_options: object) -> None:
        raise problem

    monkeypatch.setattr(stages, "compose_tree", compose_tree)


def test_every_command_of_the_documentation_exists() -> None:
    found = {" ".join(command) for command in commands()}
    assert found >= {
        *("plan", "compose", "base build", "base inventory", "image", "check", "release", "verify", "patch list"),
        *("patch edit", "patch new", "patch export", "patch refresh", "patch drop"),
        *("base mirror", "release push", "release list"),
        *("engine start", "engine stop", "engine status", "features", "setup"),
    }


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_help_of_every_command_tells_how_it_is_used(
    command: list[str], flag: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*command, flag]) == 0
    out, err = capfd.readouterr()
    assert out.startswith(f"Usage: {' '.join(['build.py', *command])} ")
    assert err == ""


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["imge"], "No such command 'imge'"),
        (["plan", "--nosuch"], "--nosuch"),
        (["plan", "extra"], "unexpected extra argument"),
        (["release"], "Missing argument 'REPOSITORY'"),
        (["base", "nosuch"], "No such command 'nosuch'"),
        (["rebase", "--onto", "x", "--html", "/"], "'--html': File '/' is a directory"),
        (["rebase", "--onto", "x", "--series", "/no/such"], "'--series': Directory '/no/such' does not exist"),
        (["rebase", "--onto", "x", "--series", "/", "--line", "x"], "--series and --line: give one of them"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert line in err


@pytest.mark.parametrize("arguments", [[], ["base"], ["patch"], ["engine"]])
def test_command_that_is_not_complete_shows_the_help(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("Usage: build.py")
    assert "\nCommands:\n" in err


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_failure_of_a_stage_is_one_line_and_its_exit_code(
    kind: type[PipelineError], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, kind("file", expected="a", found="b\n[c]", do="go"))
    assert cli.run(["compose"]) == kind.exit_code
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "error: file: expected a, found b [c]; go\n"


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "{build} or {tmp}: No space left on device"),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), "/x/y: No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "/x: Permission denied"),
    ],
)
def test_full_disk_or_missing_right_is_one_line(
    build: Path, problem: OSError, line: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, problem)
    said = line.format(build=build, tmp=gettempdir())
    assert cli.run(["compose"]) == HostError.exit_code
    assert capfd.readouterr().err == f"error: {said}; free space or rights, then again\n"


def test_interrupt_is_one_line_and_frees_the_lock(
    build: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    assert cli.run(["compose"]) == 130
    err = capfd.readouterr().err
    assert err.lstrip("\n").startswith("error: interrupted; ")
    assert "Traceback" not in err
    with files.build_lock(build):
        pass


def test_second_run_is_refused_with_its_own_exit_code(build: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with files.build_lock(build):
        assert cli.run(["compose"]) == BusyError.exit_code
    assert "in use by another run (pid " in capfd.readouterr().err


def test_unknown_line_is_one_line_with_the_known_ones(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plan", "--line", "qwen3.8-72b"]) == ManifestError.exit_code
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "qwen3.8-27b" in err


def test_plan_as_json_names_every_stage_and_writes_nothing(build: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plan", "--json"]) == 0
    out, err = capfd.readouterr()
    rows = json.loads(out)
    assert err == ""
    assert {row["stage"] for row in rows} >= {"pin", "layer", "patch", "base", "engine", "check", "tags"}
    assert all(row.keys() == {"stage", "what", "state"} for row in rows)
    assert {row["state"] for row in rows if row["stage"] == "pin"} == {"to be fetched"}
    assert not build.exists()


def test_plan_as_table_goes_to_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plan"]) == 0
    out, err = capfd.readouterr()
    assert "sglang==0.5.23" in out
    assert err == ""


def test_patch_list_as_json_is_the_series(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["patch", "list", "--json"]) == 0
    out, err = capfd.readouterr()
    rows = json.loads(out)
    series = (files.PROJECT / "patches" / "qwen3.8-27b" / "series").read_text(encoding="utf-8")
    assert [row["name"] for row in rows] == [line for line in series.split("\n") if line and not line.startswith("#")]
    assert all(row["files"] and row["header"]["Description"] for row in rows)
    assert err == ""


def test_patch_list_as_table_goes_to_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["patch", "list"]) == 0
    assert ".patch" in capfd.readouterr().out


def test_too_little_space_is_refused_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "SPACE_LATER", 1 << 60)
    monkeypatch.setattr(stages, "is_cached", lambda _line, _build: True)
    with pytest.raises(HostError, match="free space") as raised:
        stages.require_space(make_line(tmp_path), tmp_path)
    assert "expected 1073741824 GiB, found " in raised.value.line()


def test_starting_the_command_line_imports_no_engine_client() -> None:
    code = "import sys, pipeline.cli; sys.exit('docker' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=files.PROJECT, check=False)
    assert done.returncode == 0
