"""The verdict: what becomes of a run's answer, and of runs that give none. The engine is faked."""

import importlib.metadata
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from io import StringIO
from pathlib import Path, PurePosixPath
from typing import Any, cast

import docker
import pytest
from rich.console import Console

from pipeline import check, container
from pipeline.container import Ended, Limits
from pipeline.documents import CheckReport, CheckResult, CheckStatus
from pipeline.errors import EngineError, HostError, PipelineError
from pipeline.oci import Image
from pipeline.store import Engine, tag_of

IMAGE = Image(Path("none"), "sha256:" + "1" * 64, b'{"config": {"digest": "sha256:2"}}', b"{}")
TREE = "sha256:" + "3" * 64
SUBJECT = check.Subject("cpu", "sha256:" + "b" * 64, TREE, "sha256:" + "c" * 64)
GIVEN = {"record": {"digest": TREE}}
PASSED = CheckResult(name="tree", status=CheckStatus.PASSED, seconds=1.5, reason="2 files")


def says(pattern: str) -> Callable[[PipelineError], bool]:
    """Whether an error's one line matches."""
    return lambda error: bool(re.search(pattern, error.line()))


def answer(*rows: dict[str, Any], junit: str = "") -> bytes:
    return json.dumps({"checks": rows, "junit": junit}).encode()


def row(name: str, status: str = "passed") -> dict[str, Any]:
    return {"name": name, "status": status, "seconds": 1, "reason": "x"}


@pytest.fixture
def checks(tmp_path: Path) -> Path:
    """A folder with two checks."""
    folder = tmp_path / "checks"
    (folder / "__pycache__").mkdir(parents=True)
    for name in ("run.py", "test_tree.py", "test_registry.py", "__pycache__/x.py", "notes.txt"):
        (folder / name).write_text(f"# {name}\n")
    return folder


class OneImage:
    """The images of an engine that holds ours and answers nothing else."""

    def list(self, **_filters: object) -> list[Any]:
        stored = type("Stored", (), {"id": IMAGE.digest, "attrs": {}, "tags": [tag_of(IMAGE, "owner", "line")]})
        return [stored]


class Client:
    """As much of a client as the checks ask for before the container; no volume can be made."""

    def __init__(self, images: Any) -> None:
        self.images = images

    @property
    def volumes(self) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")


def fake_engine(images: Any) -> Engine:
    return Engine(cast(docker.DockerClient, Client(images)), "given", "fake://", "owner")


def run(checks: Path, monkeypatch: pytest.MonkeyPatch, ended: Ended) -> check.Outcome:
    monkeypatch.setattr(check, "run_confined", lambda *_arguments: ended)
    log = checks.parent / "check.log"
    return check.run_checks(fake_engine(OneImage()), IMAGE, GIVEN, {}, checks, subject=SUBJECT, log=log)


def verdicts(report: CheckReport) -> list[tuple[str, str, str]]:
    return [(result.name, str(result.status), result.reason) for result in report.checks]


def test_all_rows_passed(checks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run(checks, monkeypatch, Ended(answer(row("tree"), row("registry")), "")).report
    assert report.passed
    assert [result.name for result in report.checks] == ["registry", "tree"]
    assert (report.image, report.checks_digest) == (IMAGE.digest, check.checks_digest(checks))
    assert (report.base_kind, report.base, report.tree, report.manifest) == SUBJECT


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([row("tree")], ("registry", "not_run", "the check container's document has no row for it")),
        (
            [row("tree"), row("registry"), row("registry")],
            ("registry", "error", "the check container gave 2 rows for it"),
        ),
        (
            [row("tree"), row("registry"), row("extra")],
            ("extra", "error", "the check container gave a row for a check that does not exist"),
        ),
        ([row("tree"), row("registry", "failed")], ("registry", "failed", "x")),
    ],
)
def test_rows_that_do_not_fit_are_never_passed(
    checks: Path, monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], fault: tuple[str, str, str]
) -> None:
    report = run(checks, monkeypatch, Ended(answer(*rows), "")).report
    assert not report.passed
    assert [verdict for verdict in verdicts(report) if verdict[1] != "passed"] == [fault]


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (b"Segmentation fault", "is not valid: Invalid JSON"),
        (b'{"checks": []}', "is not valid: junit: Field required"),
        (answer({**row("tree"), "status": "fine"}), "is not valid: checks: 0: status: Input should be"),
        (answer(row("tree"), row("registry"), junit="<a>"), "is not valid: junit: .*is not XML"),
        (answer() + b"{}", "is not valid: Invalid JSON: trailing characters"),
    ],
)
def test_answer_that_is_no_document_runs_nothing(
    checks: Path, monkeypatch: pytest.MonkeyPatch, output: bytes, problem: str
) -> None:
    report = run(checks, monkeypatch, Ended(output, "")).report
    assert [result.status for result in report.checks] == [CheckStatus.NOT_RUN] * 2
    assert all(re.search(problem, result.reason) for result in report.checks)


def test_reason_of_a_bad_end_reaches_every_row(checks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run(checks, monkeypatch, Ended(None, "out of memory")).report
    assert verdicts(report) == [
        ("registry", "not_run", "out of memory"),
        ("tree", "not_run", "out of memory"),
    ]


def test_engine_that_dies_is_not_a_pass(checks: Path, tmp_path: Path) -> None:
    outcome = check.run_checks(fake_engine(OneImage()), IMAGE, GIVEN, {}, checks, subject=SUBJECT, log=tmp_path / "log")
    assert {result.status for result in outcome.report.checks} == {CheckStatus.NOT_RUN}
    assert re.search(r"the engine failed: create the volume.*refused", outcome.report.checks[0].reason)


def test_image_that_the_engine_lacks_is_an_error(checks: Path, tmp_path: Path) -> None:
    class NoImage:
        def list(self, **_filters: object) -> list[Any]:
            return []

    with pytest.raises(EngineError, check=says(f"fake:// does not hold image {IMAGE.digest}; load it first")):
        check.run_checks(fake_engine(NoImage()), IMAGE, GIVEN, {}, checks, subject=SUBJECT, log=tmp_path / "log")


def test_no_engine(checks: Path) -> None:
    outcome = check.not_run(IMAGE, SUBJECT, "no engine", checks)
    assert verdicts(outcome.report) == [("registry", "not_run", "no engine"), ("tree", "not_run", "no engine")]
    assert not outcome.report.passed


class Stopped:
    """A container that has ended (or not), as the API describes it."""

    def __init__(self, output: bytes = b"", code: int = 0, oom: bool = False, running: bool = False) -> None:
        self.output = output
        self.attrs = {"State": {"Running": running, "ExitCode": code, "OOMKilled": oom}}

    def reload(self) -> None:
        """The state never changes."""

    def logs(self, *, stdout: bool, stderr: bool) -> bytes:
        assert stdout
        assert not stderr
        return self.output


@pytest.mark.parametrize(
    ("stopped", "ended"),
    [
        (Stopped(b"{}"), Ended(b"{}", "")),
        (Stopped(b"{}", code=1), Ended(b"{}", "")),
        # A child process was killed, and the script lived to tell.
        (Stopped(b"{}", code=1, oom=True), Ended(b"{}", "")),
        (
            Stopped(b"{}", code=137, oom=True),
            Ended(None, "the check container ran out of memory (limit 0.5 GiB)"),
        ),
        (
            Stopped(b"{}", code=139),
            Ended(None, "the check container ended with status 139 and gave no results"),
        ),
        (Stopped(code=0), Ended(None, "the check container ended with status 0 and gave no results")),
        (
            Stopped(b"{}", running=True),
            Ended(None, "the check container did not end within 0 s and was killed"),
        ),
    ],
)
def test_how_a_container_ended(stopped: Any, ended: Ended) -> None:
    limits = Limits(memory=1 << 29, seconds=0)
    assert container._ended(stopped, container._wait(stopped, limits.seconds), limits) == ended


def test_volume_holds_checks_pytest_expectations_and_upstream(checks: Path) -> None:
    entries = {entry.path: entry for entry in check.volume_entries(GIVEN, {"sglang/a.py": b"a"}, checks)}
    own = {path for path in entries if not path.startswith("lib/")}
    assert own == {"run.py", "test_tree.py", "test_registry.py", "input.json", "upstream/sglang/a.py"}
    assert json.loads(cast(bytes, entries["input.json"].content)) == GIVEN
    assert entries["upstream/sglang/a.py"].content == b"a"
    assert {entry.mode for entry in entries.values()} == {0o644}


def test_pytest_comes_with_all_that_it_imports() -> None:
    files = check.pytest_files()
    tops = {PurePosixPath(path).parts[0] for path in files if not path.split("/")[0].endswith(".dist-info")}
    assert tops == {"_pytest", "pytest", "py.py", "pluggy", "iniconfig", "packaging", "pygments"}
    assert not [path for path in files if "__pycache__" in path or path.endswith((".pyc", ".so"))]
    assert all(file.is_file() for file in files.values())


class Installed:
    """A distribution with the given files."""

    version = "1"
    requires = ("gone>=1; python_version > '3'", "never; extra == 'dev'")

    def __init__(self, *files: str) -> None:
        self.files = [importlib.metadata.PackagePath(file) for file in files]


def test_pytest_that_is_incomplete_or_compiled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(name: str) -> Installed:
        if name != "pytest":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    installed = Installed()
    with pytest.raises(HostError, check=says("gone is not installed beside the pipeline")):
        check.pytest_files()
    installed = Installed("pytest/fast.so")
    with pytest.raises(HostError, check=says(r"pytest 1 has compiled parts \(pytest/fast.so\)")):
        check.pytest_files()


def test_junit_keeps_pytests_own_and_adds_what_pytest_did_not_give() -> None:
    report = CheckReport(
        image=IMAGE.digest,
        checks_digest=TREE,
        **SUBJECT._asdict(),
        checks=(PASSED, PASSED.model_copy(update={"name": "registry", "status": CheckStatus.NOT_RUN})),
    )
    inner = '<testsuites><testsuite name="pytest"><testcase name="tree"/></testsuite></testsuites>'
    root = ET.fromstring(check.junit_xml(report, check.Answer(checks=(PASSED,), junit=inner)))
    assert [case.get("name") for case in root.iter("testcase")] == ["tree", "registry"]
    assert [error.get("message") for error in root.iter("error")] == ["2 files"]
    complete = report.model_copy(update={"checks": (PASSED,)})
    root = ET.fromstring(check.junit_xml(complete, check.Answer(checks=(PASSED,), junit=inner)))
    assert not list(root.iter("error"))


def test_outcome_is_written(checks: Path, tmp_path: Path) -> None:
    outcome = check.not_run(IMAGE, SUBJECT, "no engine", checks)
    check.write_outcome(outcome, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["check-report.json", "junit.xml"]
    stored = CheckReport.model_validate_json((tmp_path / "out/check-report.json").read_bytes())
    assert stored == outcome.report
    assert len(list(ET.parse(tmp_path / "out/junit.xml").iter("error"))) == 2


def test_table_shows_every_row_whole() -> None:
    reason = "[bold] is text; " + "word " * 40 + "end"
    report = CheckReport(
        image=IMAGE.digest,
        checks_digest=TREE,
        **SUBJECT._asdict(),
        checks=(PASSED, PASSED.model_copy(update={"status": CheckStatus.FAILED, "reason": reason})),
    )
    screen = Console(width=80, file=StringIO())
    screen.print(check.table(report))
    text = cast(StringIO, screen.file).getvalue()
    assert re.search(r"tree +│ passed +│ +1\.5 │ 2 files", text)
    assert "[bold] is text" in text
    assert text.count("word") == 40
    assert "end" in text


def test_the_checks_digest_is_over_names_and_bytes_of_checks_and_data(checks: Path) -> None:
    before = check.checks_digest(checks)
    (checks / "__pycache__" / "test_tree.cpython-311.pyc").write_bytes(b"1")
    assert check.checks_digest(checks) == before
    (checks / "features.yaml").write_text("[]")
    with_data = check.checks_digest(checks)
    (checks / "features.yaml").rename(checks / "other.yaml")
    renamed = check.checks_digest(checks)
    assert len({before, with_data, renamed}) == 3
    elsewhere = checks.rename(checks.parent / "elsewhere")
    assert check.checks_digest(elsewhere) == renamed


@pytest.mark.parametrize(
    ("statuses", "passed"),
    [
        (["passed", "not_applicable"], True),
        (["not_applicable"], False),
        ([], False),
        (["passed", "not_run"], False),
        (["passed", "not_applicable", "failed"], False),
    ],
)
def test_report_passes_when_something_passed_and_nothing_speaks_against_it(statuses: list[str], passed: bool) -> None:
    digest = "sha256:" + "0" * 64
    rows = tuple(PASSED.model_copy(update={"status": CheckStatus(status)}) for status in statuses)
    named = dict.fromkeys(("image", "base", "tree", "checks_digest", "manifest"), digest)
    assert CheckReport(**named, base_kind="cpu", checks=rows).passed is passed
