"""Two unpacked SGLang trees to compare: ours, and upstream's as it was before the first patch.

The tests themselves import no SGLang. What has to run inside a tree is a driver
(``drivers/<name>.py``): a subprocess of its own, so that one test run can measure two trees that both call
themselves ``sglang``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import settings

settings.register_profile("image", derandomize=True, deadline=None, database=None)
settings.load_profile("image")
HERE = Path(__file__).resolve().parent
CHECKS = next(
    folder for folder in (HERE.parent / "checks", HERE.parents[1] / "checks") if (folder / "fake_xpu.py").is_file()
)
"""The folder of the image's checks: beside this one in the container, a level up in the project."""
LINE = os.environ.get("SGX_LINE", "qwen3.8-27b")
"""The line that the tree is of."""
MAIN = LINE == "qwen3.8-27b"
HISTORY = LINE == "qwen3.8-27b-20260819"
"""Whether it is that line, whose base is 0.5.18; a test then expects other things of upstream."""
MANIFEST = CHECKS.parent / "manifests" / LINE
"""Its manifest's folder, of which the container holds what tests here read."""
STUBS = CHECKS / "stubs"
"""Stand-ins for packages."""
DRIVER_TIMEOUT_SECONDS = 600

# Tests that import kernel files alone run them in this process, in Triton's interpreter. Triton reads this when it is
# itself imported, so it has to stand before any test module.
os.environ["TRITON_INTERPRET"] = "1"
# Where the test tools are: drivers look there last, so that these replace no package of the image.
os.environ["SGX_LIB"] = str(Path(hypothesis.__file__).parents[1])


class Answers(dict[str, Any]):
    """A driver's answers by case; asking for a case that raised fails the test that asks."""

    def __init__(self, results: Mapping[str, Any], raised: Mapping[str, str]) -> None:
        super().__init__(results)
        self.raised = raised

    def __missing__(self, name: str) -> Any:
        if name not in self.raised:
            raise KeyError(name)
        pytest.fail(f"{name}: {self.raised[name]}", pytrace=False)


_measured: dict[tuple[Path, str], dict[str, Any]] = {}
"""By root and driver, what was measured: by the case as JSON, a pair of result and traceback."""


@dataclass(frozen=True)
class Tree:
    """One tree root: the folder that holds ``sglang/``."""

    variable: str
    root: Path

    def source(self, path: str) -> str:
        """Text of a file, by its path below the root."""
        return (self.root / path).read_text(encoding="utf-8")

    def measure(self, driver: str, cases: Sequence[Mapping[str, Any]]) -> Answers:
        """What ``drivers/<driver>.py`` answers on this tree, by the case's name.

        A case that was measured on this root before is not measured again, whichever of the two trees asks.
        """
        known = _measured.setdefault((self.root, driver), {})
        keys = {str(case["name"]): json.dumps(case, sort_keys=True) for case in cases}
        todo = [case for case in cases if keys[case["name"]] not in known]
        if todo:
            answer = self._drive(driver, todo)
            for case in todo:
                name = case["name"]
                known[keys[name]] = (answer["results"].get(name), answer["raised"].get(name))
        found = {name: known[key] for name, key in keys.items()}
        return Answers(
            {name: result for name, (result, raised) in found.items() if raised is None},
            {name: raised for name, (_, raised) in found.items() if raised is not None},
        )

    def _drive(self, driver: str, cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Run the driver once.

        Fails the test when the driver fails, or when it imported SGLang from anywhere but this tree.
        """
        path = os.pathsep.join([str(self.root), str(STUBS), str(CHECKS)])
        outcome = subprocess.run(
            [sys.executable, "-m", f"drivers.{driver}"],
            cwd=HERE,
            input=json.dumps(cases),
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=DRIVER_TIMEOUT_SECONDS,
            check=False,
        )
        if outcome.returncode != 0:
            pytest.fail(f"{driver} on {self.variable}={self.root} failed:\n{outcome.stderr}", pytrace=False)
        answer: dict[str, Any] = json.loads(outcome.stdout)
        imported = Path(answer["sglang"])
        assert imported.is_relative_to(self.root), f"measured {imported}, expected a file below {self.root}"
        return answer


def _tree(variable: str, what: str) -> Tree:
    value = os.environ.get(variable)
    if not value:
        raise pytest.UsageError(f"{variable} is not set; expected the root of {what}; run `make test`")
    root = Path(value).resolve()
    if not (root / "sglang" / "__init__.py").is_file():
        raise pytest.UsageError(f"{variable}={value} holds no sglang/__init__.py; expected the root of {what}")
    return Tree(variable, root)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a run without both trees before it collects anything."""
    config.addinivalue_line(
        "markers",
        "patch(*names): the test is part of these patches' oracle: it holds on a tree that does what they do, whoever "
        "wrote it; if it asks for `upstream` alone, it asserts the defect",
    )
    _trees()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Say in the JUnit XML which patches a test speaks for, and whether it asks the tree under test."""
    names = {name for mark in item.iter_markers("patch") for name in mark.args}
    item.user_properties += [("patch", name) for name in sorted(names)]
    item.user_properties += [("tree", name) for name in ("composed", "upstream") if name in fixtures(item)]


def fixtures(item: pytest.Item) -> Sequence[str]:
    """Names of all fixtures that a test uses, also by way of others."""
    return item.fixturenames if isinstance(item, pytest.Function) else ()


def _trees() -> tuple[Tree, Tree]:
    return (
        _tree("SGX_TREE", "the composed tree (ours)"),
        _tree("SGX_UPSTREAM", "the pinned, unpatched tree"),
    )


@pytest.fixture(scope="session")
def composed() -> Tree:
    """The tree under test: every oracle has to hold on it."""
    return _trees()[0]


@pytest.fixture(scope="session")
def upstream() -> Tree:
    """The tree without our patches: every oracle has to fail on it.

    A test that expects a defect here fails on the day upstream has repaired it: then the patch can go.
    """
    return _trees()[1]


@pytest.fixture(scope="session")
def together(request: pytest.FixtureRequest) -> Callable[[Tree, str], dict[str, Any]]:
    """Answers of a tree to the ``CASES`` of a module that names its driver as ``TOGETHER``.

    All such modules share one process for each tree (``drivers/together.py``).
    """
    collected = {item.module for item in request.session.items if isinstance(item, pytest.Function)}
    modules = sorted((each for each in collected if hasattr(each, "TOGETHER")), key=lambda each: str(each.TOGETHER))
    cases = [
        {**case, "driver": each.TOGETHER, "name": f"{each.TOGETHER}/{case['name']}"}
        for each in modules
        for case in each.CASES
    ]

    def measured(tree: Tree, driver: str) -> dict[str, Any]:
        found = tree.measure("together", cases)
        return Answers(_below(driver, found), _below(driver, found.raised))

    return measured


def _below(driver: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """The part that belongs to one driver, by the names that it gave."""
    return {name.partition("/")[2]: value for name, value in named.items() if name.startswith(f"{driver}/")}
