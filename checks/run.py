"""Run every check of this folder in the image's own Python and write one JSON document to standard output.

The document is ``{"checks": [{"name", "status", "seconds", "reason"}, ...], "junit": "<xml>"}``, with one row for
each ``test_<check>.py``. Everything that a check or an imported package prints goes to standard error. The exit
status is 0 when every check passed or had nothing to judge, else 1.
"""

import importlib
import json
import os
import sys
import tempfile
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REASON_LIMIT = 500


@dataclass
class Row:
    """One check while it runs."""

    status: str = "not_run"
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    found: int = 0
    proofs: list[str] = field(default_factory=list)
    table: list[dict[str, str]] = field(default_factory=list)
    nothing: list[str] = field(default_factory=list)

    def note(self, properties: list[tuple[str, Any]]) -> None:
        """Take over what a verdict left in the properties of a test."""
        self.table += [row for name, rows in properties if name == "table" for row in rows]
        self._judge(dict(properties))

    def _judge(self, properties: dict[str, Any]) -> None:
        if "problem" in properties:
            self.problems.append(properties["problem"])
            self.found += properties["problems"]
        elif "proof" in properties:
            self.proofs.append(properties["proof"])
        elif "not_applicable" in properties:
            self.nothing.append(properties["not_applicable"])

    def close(self, name: str, ended: str) -> dict[str, object]:
        """The row as the report wants it; ``ended`` says how pytest ended, for checks that never ran."""
        if self.errors:
            status, reason = "error", self.errors[0]
        elif self.problems:
            status = "failed"
            reason = self.problems[0] + (f" (and {self.found - 1} more)" if self.found > 1 else "")
        elif self.status == "not_run":
            status, reason = "not_run", ended
        elif self.nothing:
            status, reason = "not_applicable", self.nothing[0]
        elif not self.proofs:
            status, reason = "error", "the check ended without saying what it proved"
        else:
            status, reason = "passed", "; ".join(self.proofs)
        line = " ".join(reason.split())
        if len(line) > REASON_LIMIT:
            line = line[: REASON_LIMIT - 1] + "…"
        row = {"name": name, "status": status, "seconds": round(self.seconds, 3), "reason": line}
        return row | {"table": self.table} if self.table else row


class Rows:
    """Pytest plugin that gathers one row per check file."""

    def __init__(self, files: list[Path]) -> None:
        self.rows = {path.name: Row() for path in files}

    def pytest_collectreport(self, report: Any) -> None:
        row = self.rows.get(report.nodeid)
        if row is not None and report.failed:
            row.errors.append(_crash(report.longrepr))

    def pytest_runtest_logreport(self, report: Any) -> None:
        row = self.rows[report.nodeid.split("::", 1)[0]]
        row.seconds += report.duration
        if report.when != "call":
            if not report.passed:
                row.errors.append(_crash(report.longrepr))
            return
        row.status = "ran"
        row.note(report.user_properties)
        if not report.passed and "problem" not in dict(report.user_properties):
            row.errors.append(_crash(report.longrepr))


def _crash(trace: Any) -> str:
    """One line of what pytest knows about a crash."""
    crash = getattr(trace, "reprcrash", None)
    if crash is not None:
        return str(crash.message).strip().split("\n", 1)[0]
    return str(trace).strip().rsplit("\n", 1)[-1]


def _prepare_imports() -> None:
    """Make this folder importable as ``checks`` and its ``lib`` as the last resort for other names.

    The folder's parent must not be on ``sys.path``: in the container that is ``/``, and ``import lib`` or
    ``import opt`` would then succeed for the packages under test.
    """
    package = types.ModuleType("checks")
    package.__path__ = [str(HERE)]
    sys.modules["checks"] = package
    sys.path.append(str(HERE / "lib"))
    importlib.import_module("checks.given")  # keeps the environment; pytest will set variables of its own


def run(files: list[Path]) -> dict[str, object]:
    """Run the check files in this process."""
    import pytest

    plugin = Rows(files)
    with tempfile.TemporaryDirectory() as scratch:
        junit = Path(scratch, "junit.xml")
        options = ["-q", "--tb=short", "-p", "no:cacheprovider", "--disable-plugin-autoload", "-c", os.devnull]
        options += [f"--rootdir={HERE}", f"--confcutdir={HERE}", "--import-mode=importlib"]
        options += ["--continue-on-collection-errors", f"--junit-xml={junit}", *map(str, files)]
        status = int(pytest.main(options, plugins=[plugin]))
        text = junit.read_text(encoding="utf-8") if junit.is_file() else ""
    ended = f"pytest ended with status {status} before this check; its output says why"
    rows = [row.close(Path(name).stem.removeprefix("test_"), ended) for name, row in plugin.rows.items()]
    return {"checks": rows, "junit": text}


def main() -> int:
    """Keep the real standard output for the document alone."""
    output = os.dup(1)
    os.dup2(2, 1)
    _prepare_imports()
    document = run(sorted(HERE.glob("test_*.py")))
    with os.fdopen(output, "w", encoding="utf-8") as stream:
        json.dump(document, stream)
        stream.write("\n")
    rows: Any = document["checks"]
    return 0 if rows and all(row["status"] in ("passed", "not_applicable") for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
