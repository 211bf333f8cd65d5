"""Test modules that run in a container: what the container gets, and what came out, test by test."""

import xml.etree.ElementTree as ET
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

from pipeline import check, console, container
from pipeline.container import MOUNT
from pipeline.documents import canonical_json
from pipeline.errors import EngineError
from pipeline.files import PROJECT
from pipeline.manifest import DEFAULT_LINE, MANIFESTS
from pipeline.oci import LayerEntry
from pipeline.store import Engine

TESTS = PROJECT / "tests" / "tree"
CONFIGS = MANIFESTS / DEFAULT_LINE / "configs"
SHARED = [
    *(f"checks/{name}" for name in ("fake_xpu.py", "ast_match.py", "given.py", "verdict.py", "test_features.py")),
    *(
        f"pipeline/{name}.py"
        for name in ("pool_sizes", "model_weights", "launch_flags", "source_values", "imports", "errors")
    ),
    *(f"pipeline/checkpoint/{name}" for name in ("ignore.py", "naming.py", "architectures.txt")),
    *(path.relative_to(PROJECT).as_posix() for path in sorted(CONFIGS.rglob("*.json"))),
]
"""The device and the models that are not there; the check ``features``, capacity arithmetic, the reader of launch
flags, and rules of the checkpoint gate, which tests there hold against the trees."""
LIMITS = container.Limits(memory=8 << 30, seconds=1800)
"""Two drivers at a time import most of SGLang, 1 GiB each; their bytecode in the tmpfs counts too."""
TREE, UPSTREAM = "tree", "upstream"
"""Folders of the volume that can hold a tree."""


class Outcome(StrEnum):
    """How a test ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Case:
    """One test that ran."""

    module: str
    name: str
    outcome: Outcome
    message: str = ""
    """Why it did not pass, in pytest's words; may have several lines."""
    text: str = ""
    """All that pytest has to say about it."""
    patches: frozenset[str] = frozenset()
    """Patches that it speaks for: its marks of the name ``patch``."""
    trees: frozenset[str] = frozenset()
    """Which of the fixtures ``composed`` and ``upstream`` it uses."""


def modules(folder: Path = TESTS) -> list[str]:
    """Names of a folder's test modules."""
    return sorted(path.stem for path in folder.glob("test_*.py"))


def python_files(folder: Path, below: str) -> Iterator[LayerEntry]:
    """A folder's Python files, ``below`` that path of the container's ``/checks``."""
    for path in folder.rglob("*.py"):
        yield LayerEntry(f"{below}/{path.relative_to(folder).as_posix()}", path)


def libraries(*names: str) -> Iterator[LayerEntry]:
    """The pipeline's pytest, and these beside it, as ``/checks/lib``."""
    for name, file in check.pytest_files(*names).items():
        yield LayerEntry(f"lib/{name}", file)


def tree(folder: str, files: Mapping[str, bytes]) -> Iterator[LayerEntry]:
    """A tree of SGLang as ``/checks/<folder>``."""
    for name, data in files.items():
        yield LayerEntry(str(PurePosixPath(folder, name)), data)


def entries(
    line: str,
    composed: Mapping[str, bytes],
    upstream: Mapping[str, bytes] | None,
    chosen: Collection[str],
    *options: str,
) -> list[LayerEntry]:
    """What the container gets to run modules of ``tests/tree``.

    Args:
        line: name of the line that the tests are asked for.
        composed: files of the tree under test.
        upstream: files of the tree without patches; None where that is the same tree.
        chosen: names of the modules.
        options: of pytest.
    """
    environment = {
        "SGX_LINE": line,
        "SGX_TREE": f"{MOUNT}/{TREE}",
        "SGX_UPSTREAM": f"{MOUNT}/{TREE if upstream is None else UPSTREAM}",
    }
    left_out = {f"tests/{name}.py" for name in modules() if name not in chosen}
    features = (MANIFESTS / line / "features.yaml").relative_to(PROJECT).as_posix()
    return [
        LayerEntry("run.py", TESTS / "run.py"),
        LayerEntry("settings.json", canonical_json({"environment": environment, "options": list(options)})),
        *(entry for entry in python_files(TESTS, "tests") if entry.path not in left_out),
        *python_files(check.CHECKS / "stubs", "checks/stubs"),
        *(LayerEntry(shared, PROJECT / shared) for shared in (*SHARED, features)),
        *libraries("hypothesis"),
        *tree(TREE, composed),
        *tree(UPSTREAM, upstream or {}),
    ]


def run(
    engine: Engine, tag: str, given: Sequence[LayerEntry], limits: container.Limits, log: Path, title: str = ""
) -> tuple[Case, ...]:
    """Run the tests in a container of the image ``tag``.

    Raises:
        EngineError: there is no result; it names the log.
    """
    with console.step(title or f"tests in {tag}") as step:
        ended = container.run_confined(engine, tag, given, limits, log, step)
        if ended.output is None:
            raise EngineError(f"tests in {tag}: {ended.reason}", do=f"read {log}")
        cases = parse(ended.output)
        failed = sum(case.outcome is Outcome.FAILED for case in cases)
        step.detail = f"{len(cases)} tests, {failed} failed; output in {log}"
    return cases


def parse(output: bytes) -> tuple[Case, ...]:
    """The tests of a JUnit XML."""
    return tuple(_case(case) for case in ET.fromstring(output).iter("testcase"))


def _case(case: ET.Element) -> Case:
    problems = [child for child in case if child.tag in ("failure", "error")]
    skips = [child for child in case if child.tag == "skipped"]
    outcome = Outcome.FAILED if problems else Outcome.SKIPPED if skips else Outcome.PASSED
    properties = [(each.get("name"), each.get("value", "")) for each in case.iter("property")]
    told = (problems or skips)[:1]
    return Case(
        module=case.attrib["classname"].rpartition(".")[2],
        name=case.attrib["name"],
        outcome=outcome,
        message=told[0].get("message", "") if told else "",
        text=(told[0].text or "") if told else "",
        patches=frozenset(value for name, value in properties if name == "patch"),
        trees=frozenset(value for name, value in properties if name == "tree"),
    )
