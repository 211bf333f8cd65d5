"""The real image of each line, built (or taken from the cache) and loaded into an engine once per run."""

import contextlib
import dataclasses
import shutil
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline import check, check_data, container, engine, stages, tree_tests
from pipeline import image as images
from pipeline.base import BaseImage
from pipeline.check import Outcome
from pipeline.compose import Composed
from pipeline.documents import CheckReport
from pipeline.files import BUILD, PROJECT, build_lock
from pipeline.manifest import DEFAULT_LINE, Line, load_line
from pipeline.oci import Image, LayerEntry
from pipeline.store import Engine
from tests.conftest import E2E_TIER
from tests.image import inside


@dataclass(frozen=True)
class Real:
    """Everything that the stages made of the line."""

    line: Line
    composed: Composed
    base: BaseImage
    image: Image
    engine: Engine

    @property
    def tag(self) -> str:
        """The engine's name of the image."""
        tag = self.engine.find(self.image)
        assert tag is not None
        return tag

    def check(self, image: Image, log: Path, checks: Path = check.CHECKS) -> CheckReport:
        """The report of :meth:`outcome`."""
        return self.outcome(image, log, checks).report

    def outcome(self, image: Image, log: Path, checks: Path) -> Outcome:
        """Run checks in ``image``, which may differ from the sound one, against what the sound one must be."""
        self.engine.ensure_image(image, "planted", self.base.image)
        given = images.facts(self.line, self.composed.record, self.base, image) | check_data.input_parts(self.line)
        return check.run_checks(
            self.engine,
            image,
            given,
            self.composed.upstream,
            checks,
            subject=check.Subject(
                self.base.kind,
                self.base.image.digest,
                self.composed.record.digest,
                stages.manifest_digest(self.line),
            ),
            log=log,
        )


def only(checks: Collection[str], folder: Path) -> Path:
    """A folder with the checks of these names and everything that they share."""

    def others(_: str, names: list[str]) -> list[str]:
        tests = [name for name in names if name.startswith("test_")]
        return [name for name in tests if Path(name).stem.removeprefix("test_") not in checks]

    return Path(shutil.copytree(check.CHECKS, folder / "checks", ignore=others))


E2E = PROJECT / "tests" / "e2e"
E2E_LIMITS = container.Limits(memory=8 << 30, seconds=2400)
"""Two engines at a time, beside the processes that they were forked from: 0.7 GiB each, mostly shared."""


@pytest.fixture(scope="session", autouse=True)
def e2e(request: pytest.FixtureRequest) -> Iterator[Future[tuple[tree_tests.Case, ...]] | None]:
    """The end-to-end tests, if they were asked for: in a container beside all other tests, as they take long."""
    if not any(item.path.name == E2E_TIER for item in request.session.items):
        yield None
        return
    real: Real = request.getfixturevalue("real")
    log = request.getfixturevalue("tmp_path_factory").mktemp("e2e") / "log"
    # With a connection and an owner of its own: other tests clean up what they own.
    own = engine.find_or_start(BUILD)
    own = dataclasses.replace(own, owner=f"{own.owner}-e2e")
    with contextlib.closing(own.client), ThreadPoolExecutor(1) as pool:
        yield pool.submit(end_to_end, own, real.tag, inside.unpatched(real), tree_tests.modules(E2E), log)


@pytest.fixture(scope="session")
def real() -> Iterator[Real]:
    """The main line's image in an engine; an engine that this fixture started is stopped at the end."""
    line = load_line(DEFAULT_LINE)
    with build_lock():
        stages.require_space(line)
        composed = stages.compose_tree(line)
        base = stages.get_base(line)
        image = stages.build_image(line, composed, base)
        before = engine.status(BUILD)
        running = engine.find_or_start(BUILD)
        with contextlib.closing(running.client):
            stages.load(running, image, base)
            yield Real(line, composed, base, image, running)
            running.remove_ours(keep=[tag for tag in (running.find(base.image), running.find(image)) if tag])
        if not before.running:
            engine.stop(BUILD)


@pytest.fixture(scope="session")
def report(real: Real, tmp_path_factory: pytest.TempPathFactory) -> CheckReport:
    """The verdict of all checks on the sound image."""
    return real.check(real.image, tmp_path_factory.mktemp("check") / "log")


@pytest.fixture(scope="session")
def main_cases(real: Real, tmp_path_factory: pytest.TempPathFactory) -> tuple[tree_tests.Case, ...]:
    """The tests of tests/tree that speak for the main line, in its image."""
    return in_the_image(real, inside.tree_modules(real.line.name), tmp_path_factory.mktemp("tree") / "log")


def in_the_image(real: Real, modules: Collection[str], log: Path) -> tuple[tree_tests.Case, ...]:
    """Modules of tests/tree, in an image."""
    entries = tree_tests.entries(real.line.name, real.composed.files, inside.unpatched(real), modules)
    return inside.run(real.engine, real.tag, entries, tree_tests.LIMITS, log)


def end_to_end(
    running: Engine, tag: str, upstream: Mapping[str, bytes], modules: Collection[str], log: Path
) -> tuple[tree_tests.Case, ...]:
    """Modules of tests/e2e, in the image ``tag``, beside the tree without patches."""
    left_out = {f"tests/e2e/{name}.py" for name in tree_tests.modules(E2E) if name not in modules}
    entries = [
        LayerEntry("run.py", E2E / "run.py"),
        *(entry for entry in tree_tests.python_files(E2E, "tests/e2e") if entry.path not in left_out),
        *tree_tests.libraries(),
        *tree_tests.tree("upstream", upstream),
    ]
    return inside.run(running, tag, entries, E2E_LIMITS, log)


@pytest.fixture(scope="session")
def other(real: Real, request: pytest.FixtureRequest) -> Iterator[Real]:
    """The image of the line that the test names, in the same engine beside the main line's, and gone at the end.

    Not loaded as a command would: that leaves one line's images in the engine, and tests wait for the main line's.
    """
    line = load_line(request.param)
    stages.require_space(line)
    composed = stages.compose_tree(line)
    base = stages.get_base(line)
    image = stages.build_image(line, composed, base)
    own = dataclasses.replace(real.engine, owner=f"{real.engine.owner}-{line.name}")
    stages.load(own, image, base)
    yield Real(line, composed, base, image, own)
    own.remove_ours()
