"""Verdicts of the patches' oracles on a new release, and the marks in ``tests/tree`` that say whose test is whose.

The oracles themselves run in containers (``tests/image/test_oracles.py``); here small trees stand in for a release.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline import oracles, tree_tests
from pipeline.errors import BaseError, EngineError
from pipeline.files import PROJECT
from pipeline.manifest import DEFAULT_LINE, Line, lines, load_line
from pipeline.patches import read_series
from pipeline.rebase_report import OracleStatus, OracleVerdict
from pipeline.tree_tests import Case, Outcome
from tests.fast.builders import write_files

LINES = {name: load_line(name) for name in lines()}
PATCHES = [
    pytest.param(line, patch.name, id=f"{name} {patch.name}")
    for name, line in LINES.items()
    for patch in read_series(PROJECT / "patches" / name)
]
P = "p.patch"


def case(name: str, outcome: str, *trees: str, patches: tuple[str, ...] = (P,), message: str = "") -> Case:
    return Case("test_m", name, Outcome(outcome), message, "", frozenset(patches), frozenset(trees))


HOLDS, LACKS = case("holds", "passed", "composed"), case("lacks", "failed", "composed", message="assert 1 == 2")
BOTH, DIFFER = case("both", "passed", "composed", "upstream"), case("differ", "failed", "composed", "upstream")
DEFECT, REPAIRED = case("defect", "passed", "upstream"), case("defect", "failed", "upstream")
SKIPPED = case("skipped", "skipped", "composed", message="not of this line")
OF_ANOTHER = case("other", "failed", "composed", patches=("q.patch",))
NEEDED, DROPPABLE, NONE = OracleStatus.NEEDED, OracleStatus.DROPPABLE, OracleStatus.NONE
NO_ANSWER = OracleStatus.NO_ANSWER


@pytest.mark.parametrize(
    ("cases", "status", "detail"),
    [
        ([HOLDS], DROPPABLE, "1 test passed without it, none failed"),
        ([HOLDS, BOTH, REPAIRED, OF_ANOTHER, SKIPPED], DROPPABLE, "2 tests passed without it, none failed"),
        ([HOLDS, LACKS, REPAIRED], NEEDED, "1 of 2 tests failed; the first: test_m: lacks: assert 1 == 2"),
        ([HOLDS, DIFFER], NEEDED, "1 of 2 tests failed; the first: test_m: differ"),
        ([LACKS, DEFECT], NEEDED, "1 of 1 test failed; the first: test_m: lacks: assert 1 == 2"),
        (
            [HOLDS, REPAIRED, DEFECT],
            NEEDED,
            "contradiction: 1 test passed without it, and so did one that finds the defect",
        ),
        ([REPAIRED], NONE, "no test in tests/tree is marked with it"),
        ([DEFECT, OF_ANOTHER], NONE, "no test in tests/tree is marked with it"),
        ([SKIPPED], NONE, "1 test skipped, none ran; the first: test_m: skipped: not of this line"),
        ([case("alone", "passed")], NONE, "no test in tests/tree is marked with it"),
        ([], NONE, "no test in tests/tree is marked with it"),
    ],
)
def test_verdict(cases: list[Case], status: OracleStatus, detail: str) -> None:
    found = oracles.verdict(P, cases)
    assert (found.status, found.detail[: len(detail)]) == (status, detail)


def test_a_patch_that_other_tiers_prove_says_so() -> None:
    found = oracles.verdict(P, [], ("tests/tree/test_m.py", "tests/e2e/test_e.py", "tests/gpu/test_g.py"))
    assert found == OracleVerdict(status=NONE, detail="proven by tests/e2e/test_e.py, tests/gpu/test_g.py alone")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("    def test_x():\n>       assert a\nE       assert [3] == [4]\nE         Full diff", "assert [3] == [4]"),
        ("the device is gone\nand more\n", "the device is gone"),
        ("a" * 300, "a" * 199 + "…"),
    ],
)
def test_the_reason_is_one_telling_line(text: str, reason: str) -> None:
    failed = replace(case("t", "failed", "composed", message="cut\n[+1 more line]"), text=text)
    assert oracles.verdict(P, [failed]).detail == f"1 of 1 test failed; the first: test_m: t: {reason}"


RAISED = "x: Traceback (most recent call last):\n  File\nOSError: offline\nSee the manual.\n"


def test_what_a_driver_raised_is_told_apart() -> None:
    raised = replace(case("raised", "failed", "composed"), text=RAISED)
    alone = oracles.verdict(P, [raised])
    assert alone.status is NO_ANSWER
    assert "the first: test_m: raised: OSError: offline; none found anything wrong" in alone.detail
    assert oracles.verdict(P, [raised, HOLDS]).status is NO_ANSWER
    beside = oracles.verdict(P, [raised, LACKS])
    assert beside.status is NEEDED
    assert beside.detail == "2 of 2 tests failed; the first: test_m: lacks: assert 1 == 2"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x on SGX_TREE=/checks/tree failed:\n", "x on SGX_TREE=/checks/tree failed:"),
        (
            "    done = run()\nE   subprocess.TimeoutExpired: Command x timed out",
            "subprocess.TimeoutExpired: Command x",
        ),
    ],
    ids=["killed", "too long"],
)
def test_a_driver_that_came_to_no_end_found_nothing(text: str, reason: str) -> None:
    ended = replace(case("ended", "failed", "composed"), text=text)
    alone = oracles.verdict(P, [ended, HOLDS])
    assert alone.status is NO_ANSWER
    assert alone.detail.startswith(f"1 of 2 tests failed; the first: test_m: ended: {reason}")
    assert oracles.verdict(P, [ended, LACKS]).status is NEEDED


def test_a_defect_that_is_found_counts_also_where_the_others_could_not_ask() -> None:
    raised = replace(case("raised", "failed", "composed"), text=RAISED)
    found = oracles.verdict(P, [raised, HOLDS, DEFECT])
    assert found.status is NEEDED
    assert found.detail.startswith("one that finds the defect there passed: test_m: defect; 1 of 2 tests failed; ")
    assert oracles.verdict(P, [raised, REPAIRED]).status is NO_ANSWER


# --- judge ---


@pytest.fixture
def line() -> Line:
    return LINES[DEFAULT_LINE]


def test_without_a_base_nothing_is_built_and_nothing_is_judged(line: Line, tmp_path: Path) -> None:
    found = oracles.judge(line, {}, tmp_path)
    assert list(found) == [patch.name for patch in read_series(PROJECT / "patches" / line.name)]
    assert {verdict.status for verdict in found.values()} == {OracleStatus.NOT_RUN}
    assert found["gdn-beta-fp32.patch"].detail.endswith(
        "expected the line's base, found none; run build.py base build first"
    )


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (EngineError("tests: out of memory", do="read the log"), "tests: out of memory; read the log"),
        (BaseError("base: broken", found="nothing"), "base: broken: found nothing"),
        (ET.ParseError("no element found"), "the tests' own report is no XML: no element found"),
    ],
)
def test_a_run_that_fails_is_no_verdict_and_says_so_once(
    line: Line, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], problem: Exception, reason: str
) -> None:
    def fails(*_: Any) -> tuple[Case, ...]:
        raise problem

    monkeypatch.setattr(oracles, "_ask", fails)
    names = ["gdn-beta-fp32.patch", "mtp-load-coverage.patch"]
    found = oracles.judge(line, {}, names=names)
    assert found == dict.fromkeys(names, OracleVerdict(status=OracleStatus.NOT_RUN, detail=reason))
    assert capsys.readouterr().err.count(reason) == 1


def test_only_modules_of_the_patches_in_question_run(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[str]] = []

    def record(_line: Line, _files: Any, chosen: set[str], _build: Path) -> tuple[Case, ...]:
        asked.append(chosen)
        return ()

    monkeypatch.setattr(oracles, "_ask", record)
    oracles.judge(line, {}, names=["xpu-flush-keeps-graphs.patch", "dflash-selector-triton.patch", "unknown.patch"])
    assert asked == [{"test_flush_cache", "test_selector_kernel", "test_dflash_models"}]


def test_what_the_container_gets() -> None:
    given = tree_tests.entries(DEFAULT_LINE, {"sglang/a.py": b"a"}, None, ["test_gdn_beta"], "-m", "patch")
    paths = {entry.path: entry for entry in given}
    assert [path for path in paths if path.startswith("tests/test_")] == ["tests/test_gdn_beta.py"]
    assert {"run.py", "tests/conftest.py", "tests/drivers/gdn_beta.py", "tree/sglang/a.py"} <= paths.keys()
    assert {"lib/pytest/__init__.py", "lib/hypothesis/__init__.py"} <= paths.keys()
    assert not any(path.startswith("upstream/") for path in paths)
    settings = paths["settings.json"].content
    assert isinstance(settings, bytes)
    environment = {"SGX_LINE": DEFAULT_LINE, "SGX_TREE": "/checks/tree", "SGX_UPSTREAM": "/checks/tree"}
    assert json.loads(settings) == {"environment": environment, "options": ["-m", "patch"]}


# --- from a mark to a verdict: pytest itself, on small trees ---

DRIVER = """
from .answer import answer
import sglang

def measure(case):
    return getattr(sglang, case["call"])()

if __name__ == "__main__":
    answer(measure)
"""
TEST = """
import pytest

CASES = [{"name": name, "call": name} for name in ("double", "triple")]
double, triple = pytest.mark.patch("double.patch"), pytest.mark.patch("triple.patch")

@pytest.fixture(scope="module")
def ours(composed):
    return composed.measure("small", CASES)

@pytest.fixture(scope="module")
def theirs(upstream):
    return upstream.measure("small", CASES[:1])

@double
def test_double(ours):
    assert ours["double"] == 2

@double
def test_upstream_does_not(theirs):
    assert theirs["double"] == 1

@triple
def test_triple(ours):
    assert ours["triple"] == 3

def test_nobodys(composed):
    pass
"""
PLAIN = "def double():\n    return 1\n"
FIXED = "def double():\n    return 2\n"
GATED = "def double():\n    if False:\n        return 2\n    return 1\n"
TRIPLE = "def triple():\n    return 3\n"
KILLED = "import os, signal\n\nos.kill(os.getpid(), signal.SIGKILL)\n"
ENDLESS = "import time\n\ntime.sleep(99)\n"


def ask(folder: Path, source: str) -> tuple[Case, ...]:
    """Run the small tests, with the real hooks of ``tests/tree``, on a tree of one file."""
    tests = write_files(folder / "tests", {"test_small.py": TEST, "drivers/small.py": DRIVER})
    for path in ("conftest.py", "drivers/__init__.py", "drivers/answer.py"):
        shutil.copy(tree_tests.TESTS / path, tests / path)
    if source == ENDLESS:
        hooks = (tests / "conftest.py").read_text()
        assert "DRIVER_TIMEOUT_SECONDS = 600\n" in hooks
        (tests / "conftest.py").write_text(hooks.replace("SECONDS = 600\n", "SECONDS = 1\n"))
    write_files(folder, {"checks/fake_xpu.py": "", "tree/sglang/__init__.py": source})
    tree = str(folder / "tree")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "patch", "-c", os.devnull]
    command += ["--rootdir", str(tests), "--confcutdir", str(tests), f"--junitxml={folder / 'junit.xml'}", str(tests)]
    done = subprocess.run(
        command, env={**os.environ, "SGX_TREE": tree, "SGX_UPSTREAM": tree}, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return tree_tests.parse((folder / "junit.xml").read_bytes())


@pytest.mark.parametrize(
    ("source", "double", "triple"),
    [
        (PLAIN, NEEDED, NO_ANSWER),
        (PLAIN + TRIPLE, NEEDED, DROPPABLE),
        (FIXED, DROPPABLE, NO_ANSWER),
        (FIXED + TRIPLE, DROPPABLE, DROPPABLE),
        (GATED + TRIPLE, NEEDED, DROPPABLE),
        ("import of_our_overlay\n", NO_ANSWER, NO_ANSWER),
        (KILLED, NO_ANSWER, NO_ANSWER),
        (ENDLESS, NO_ANSWER, NO_ANSWER),
    ],
    ids=["plain", "one of two", "the other", "both", "gated off", "import fails", "killed", "too long"],
)
def test_a_tree_is_asked(tmp_path: Path, source: str, double: OracleStatus, triple: OracleStatus) -> None:
    cases = ask(tmp_path, source)
    assert {each.name for each in cases} == {"test_double", "test_upstream_does_not", "test_triple"}
    found = {name: oracles.verdict(f"{name}.patch", cases) for name in ("double", "triple")}
    assert {name: verdict.status for name, verdict in found.items()} == {"double": double, "triple": triple}
    reasons = {
        "import of_our_overlay\n": "ModuleNotFoundError: No module named",
        KILLED: "small on SGX_TREE=",
        ENDLESS: "subprocess.TimeoutExpired: Command",
    }
    if "def triple" not in source:
        assert reasons.get(source, "AttributeError: module 'sglang'") in found["triple"].detail


# --- marks ---


@cache
def marks(module: Path) -> dict[str, frozenset[str]]:
    """By patch, the tests of a module that are marked with it and ask the tree under test."""
    return dict(_marks(ast.parse(module.read_text(encoding="utf-8"))))


def _marks(module: ast.Module) -> Iterator[tuple[str, frozenset[str]]]:
    functions = {each.name: each for each in module.body if isinstance(each, ast.FunctionDef)}
    named = {ast.unparse(each.targets[0]): _names(each.value) for each in module.body if isinstance(each, ast.Assign)}
    found: dict[str, set[str]] = {}
    for name, function in functions.items():
        if name.startswith("test_"):
            of_test = {
                patch for each in function.decorator_list for patch in named.get(ast.unparse(each), _names(each))
            }
            for patch in of_test | named.get("pytestmark", set()):
                found.setdefault(patch, set()).update([name] if _asks(function, functions) else [])
    yield from ((patch, frozenset(tests)) for patch, tests in found.items())


def _names(node: ast.expr) -> set[str]:
    """The names in ``pytest.mark.patch("a.patch", …)``, wherever it stands: alone, in a list, or on one parameter."""
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    marked = [each for each in calls if ast.unparse(each.func) == "pytest.mark.patch"]
    return {str(each.value) for call in marked for each in call.args if isinstance(each, ast.Constant)}


def _asks(function: ast.FunctionDef, functions: dict[str, ast.FunctionDef]) -> bool:
    """Whether a test or fixture uses ``composed``, itself or by way of fixtures of its module."""
    arguments = [argument.arg for argument in function.args.args]
    return "composed" in arguments or any(_asks(functions[each], functions) for each in arguments if each in functions)


MODULES = sorted(tree_tests.TESTS.glob("test_*.py"))


def test_every_marked_name_is_in_a_series() -> None:
    known = {patch.name for name in LINES for patch in read_series(PROJECT / "patches" / name)}
    marked = {name: path.name for path in MODULES for name in marks(path)}
    assert {name: path for name, path in marked.items() if name not in known} == {}


@pytest.mark.parametrize(("line", "name"), PATCHES)
def test_every_patch_has_an_oracle(line: Line, name: str) -> None:
    """A test that is marked with it and asks the tree, in a module that its features name; or another tier's."""
    proofs = oracles.proofs_of(line).get(name, ())
    in_tree = [path for path in proofs if oracles.in_tree(path)]
    assert proofs, f"no row of {line.name}'s features.yaml has `origin: patch {name}` and `run:`"
    assert not in_tree or any(marks(PROJECT / path).get(name) for path in in_tree), f"not marked in {in_tree}"


def test_marks_are_read() -> None:
    source = """
pytestmark = [pytest.mark.patch("a"), pytest.mark.slow]
both = pytest.mark.patch("b", "c")
def ours(composed): ...
def theirs(upstream): ...
@both
@pytest.mark.parametrize("x", [1])
def test_one(ours, x): ...
@pytest.mark.patch("d")
def test_two(theirs): ...
def test_three(composed): ...
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.patch("e")), 2])
def test_four(ours, x): ...
"""
    one, asking = frozenset({"test_one"}), frozenset({"test_one", "test_three", "test_four"})
    four = frozenset({"test_four"})
    assert dict(_marks(ast.parse(source))) == {"a": asking, "b": one, "c": one, "d": frozenset(), "e": four}
