"""Ask the tests of a line's patches about a new upstream release that has none of them: is each still needed there?

A patch's oracle is what ``tests/tree`` marks with its name, in the modules that the line's ``features.yaml`` names. The
tests run the code, so a patch whose text is upstream but is never reached is still needed. No patch is dropped here.
"""

import contextlib
import re
import xml.etree.ElementTree as ET
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath

from pipeline import base as bases
from pipeline import check_data, console, container, engine, stages, tree_tests
from pipeline.compose import PATCHES
from pipeline.errors import EngineError, PipelineError
from pipeline.files import BUILD
from pipeline.manifest import Line
from pipeline.patches import read_series
from pipeline.rebase_report import OracleStatus, OracleVerdict, many
from pipeline.tree_tests import Case, Outcome

CAVEAT = "oracles run with the packages of the line's base, which the new release may not be made for"
LIMITS = container.Limits(memory=tree_tests.LIMITS.memory, seconds=1800)
"""Time for a busy machine: three minutes on two free cores."""
TITLE = "Ask the oracles about the new release"
REASON_LIMIT = 200
TRACEBACK = "Traceback (most recent call last)"
"""In pytest's report only where a driver raised: its own tracebacks look otherwise."""
ENDED = re.compile(r"^\w+ on SGX_\w+=.* failed:|^E +subprocess\.TimeoutExpired: ", re.MULTILINE)
"""What ``tests/tree/conftest.py`` says of a driver that was killed, and pytest of one that took too long."""
EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b")
"""At the start of the line that ends a traceback."""


def judge(
    line: Line, files: Mapping[str, bytes], build: Path = BUILD, *, names: Collection[str] | None = None
) -> dict[str, OracleVerdict]:
    """The verdict of each patch's oracle, in the order of the series.

    All oracles run in one container of the line's base. Where that fails, for want of an engine or a base or in any
    other way, none has run: the reason is said once, and is in each verdict.

    Args:
        files: the new release, unpatched.
        names: patches to ask about; all of the series when left out.
    """
    series = [patch.name for patch in read_series(PATCHES / line.name)]
    wanted = [name for name in series if names is None or name in names]
    proofs = proofs_of(line)
    chosen = {PurePosixPath(path).stem for name in wanted for path in proofs.get(name, ()) if in_tree(path)}
    try:
        cases = _ask(line, files, chosen, build) if chosen else ()
    except (PipelineError, ET.ParseError) as error:
        reason = error.line() if isinstance(error, PipelineError) else f"the tests' own report is no XML: {error}"
        console.warn(f"the patches' tests were not run: {reason}")
        return dict.fromkeys(wanted, OracleVerdict(status=OracleStatus.NOT_RUN, detail=reason))
    return {name: verdict(name, cases, proofs.get(name, ())) for name in wanted}


def proofs_of(line: Line) -> dict[str, tuple[str, ...]]:
    """By patch, the test modules that the line's features name for it, in any row of a title that it has a row of."""
    rows = check_data.features(line).carried
    titles: dict[str, list[str]] = {}
    for row in rows:
        titles.setdefault(row.title, []).extend(row.run)
    found: dict[str, list[str]] = {}
    for row in rows:
        kind, name = row.origin.split()
        if kind == "patch":
            found.setdefault(name, []).extend(titles[row.title])
    return {name: tuple(dict.fromkeys(paths)) for name, paths in found.items()}


def in_tree(path: str) -> bool:
    """Whether a test module asks a tree, and not a whole image or a device."""
    return path.startswith("tests/tree/")


def _ask(line: Line, files: Mapping[str, bytes], chosen: Collection[str], build: Path) -> tuple[Case, ...]:
    if not bases.cached(line, build):
        raise EngineError(
            f"{line.name}: oracles", expected="the line's base", found="none", do="run build.py base build first"
        )
    console.note(f"  {CAVEAT}")
    base = bases.get(line, build)
    with console.step("Container engine"):
        running = engine.find_or_start(build)
    with contextlib.closing(running.client):
        tag = stages.load_base(running, base)
        given = tree_tests.entries(line.name, files, None, chosen, "-m", "patch")
        return tree_tests.run(running, tag, given, LIMITS, build / line.name / "oracles.log", TITLE)


def verdict(name: str, cases: Sequence[Case], proofs: Collection[str] = ()) -> OracleVerdict:
    """What the tests of one patch say.

    Args:
        cases: all tests that ran on the new release.
        proofs: test modules that the features name for the patch.
    """
    mine = [case for case in cases if name in case.patches and case.outcome is not Outcome.SKIPPED]
    asking = [case for case in mine if "composed" in case.trees]
    if not asking:
        return OracleVerdict(status=OracleStatus.NONE, detail=_without(name, cases, proofs))
    failed = [case for case in asking if case.outcome is Outcome.FAILED]
    defect = [case for case in mine if case.trees == {"upstream"} and case.outcome is Outcome.PASSED]
    if failed:
        return _failing(failed, len(asking), defect)
    if defect:
        detail = f"contradiction: {many(len(asking), 'test')} passed without it, and so did one that finds the defect: "
        return OracleVerdict(status=OracleStatus.NEEDED, detail=detail + _shown(defect[0]))
    return OracleVerdict(
        status=OracleStatus.DROPPABLE, detail=f"{many(len(asking), 'test')} passed without it, none failed"
    )


def _without(name: str, cases: Sequence[Case], proofs: Collection[str]) -> str:
    """Why there is no verdict on a patch."""
    skipped = [case for case in cases if name in case.patches and case.outcome is Outcome.SKIPPED]
    if skipped:
        return f"{many(len(skipped), 'test')} skipped, none ran; the first: {_shown(skipped[0])}"
    elsewhere = [path for path in proofs if not in_tree(path)]
    return f"proven by {', '.join(elsewhere)} alone" if elsewhere else "no test in tests/tree is marked with it"


def _failing(failed: Sequence[Case], asked: int, defect: Sequence[Case]) -> OracleVerdict:
    """Needed, if a test found something wrong; tests that could not even ask on that code are no answer."""
    wrong = [case for case in failed if _could_ask(case)]
    detail = f"{len(failed)} of {many(asked, 'test')} failed; the first: {_shown((wrong or failed)[0])}"
    if wrong:
        return OracleVerdict(status=OracleStatus.NEEDED, detail=detail)
    if defect:
        found = f"one that finds the defect there passed: {_shown(defect[0])}"
        return OracleVerdict(status=OracleStatus.NEEDED, detail=f"{found}; {detail}")
    why = "none found anything wrong: code that they call is not there, or is another, or did not come to an end"
    return OracleVerdict(status=OracleStatus.NO_ANSWER, detail=f"{detail}; {why}")


def _could_ask(case: Case) -> bool:
    return TRACEBACK not in case.text and not ENDED.search(case.text)


def _shown(case: Case) -> str:
    reason = _reason(case)
    return f"{case.module}: {case.name}" + (f": {reason}" if reason else "")


def _reason(case: Case) -> str:
    """The line of pytest's report that says why: what was raised, here or in a driver, else the first.

    The message of the XML is no use: pytest cuts it after its first line.
    """
    lines = [line for line in (case.text or case.message).splitlines() if line.strip()]
    raised = [line.removeprefix("E ").strip() for line in lines if line.startswith("E ")]
    if TRACEBACK in case.text:
        raised = [line for line in lines if EXCEPTION.match(line)][-1:]
    reason = next(iter(raised or lines), "").strip()
    return reason if len(reason) <= REASON_LIMIT else f"{reason[: REASON_LIMIT - 1]}…"
