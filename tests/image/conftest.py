"""The real image of each line, built (or taken from the cache) and loaded into an engine once per run."""

import contextlib
import dataclasses
import functools
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
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
from tests.conftest import E2E_TIER, OTHER_LINES_TIER, TREE_TIER
from tests.image import inside


@dataclass(frozen=True)
class Real:
    """Everything that the stages made of the line."""

    line: Line
    composed: Composed
    base: BaseImage
    image: Image
    engine: Engine
    tag: str
    """The engine's name of the image."""

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
Cases = tuple[tree_tests.Case, ...]


@dataclass(frozen=True)
class Beside:
    """Tests in containers take long and change nothing that others see: one thread runs them beside all other tests."""

    pool: ThreadPoolExecutor
    logs: Path

    def tree(self, real: Real) -> Future[Cases]:
        """The modules of ``tests/tree`` that speak for a line, in its image."""
        modules = inside.tree_modules(real.line.name)
        entries = tree_tests.entries(real.line.name, real.composed.files, inside.unpatched(real), modules)
        return self._begin(real, entries, tree_tests.LIMITS, "tree")

    def end_to_end(self, real: Real, modules: Collection[str]) -> Future[Cases]:
        """Modules of ``tests/e2e`` in the image, beside the tree without patches."""
        left_out = {f"tests/e2e/{name}.py" for name in tree_tests.modules(E2E) if name not in modules}
        entries = [
            LayerEntry("run.py", E2E / "run.py"),
            *(entry for entry in tree_tests.python_files(E2E, "tests/e2e") if entry.path not in left_out),
            *tree_tests.libraries(),
            *tree_tests.tree("upstream", inside.unpatched(real)),
        ]
        return self._begin(real, entries, E2E_LIMITS, "e2e")

    def _begin(self, real: Real, entries: Sequence[LayerEntry], limits: container.Limits, tier: str) -> Future[Cases]:
        log = self.logs / f"{real.line.name}-{tier}"
        return self.pool.submit(inside.run, real.engine, real.tag, entries, limits, log)


@dataclass(frozen=True)
class Begun:
    """The tests of a line that run beside all others, where the session has tests that read them."""

    tree: Future[Cases] | None
    end_to_end: Future[Cases] | None


def found(cases: Future[Cases] | None) -> Cases:
    """What came out, when it has."""
    assert cases is not None, "this session was not asked for them"
    return cases.result()


@pytest.fixture(scope="session")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    """The thread; what it has not begun when the session ends is dropped."""
    with ThreadPoolExecutor(1) as pool:
        yield Beside(pool, tmp_path_factory.mktemp("beside"))
        pool.shutdown(cancel_futures=True)


def asked_for(request: pytest.FixtureRequest, *modules: str) -> bool:
    """Whether the session has a test of one of these modules."""
    return any(item.path.name in modules for item in request.session.items)


@contextlib.contextmanager
def connected(name: str) -> Iterator[Engine]:
    """The engine by a connection of its own, under an owner of its own: tests clean up what they own."""
    own = engine.find_or_start(BUILD)
    with contextlib.closing(own.client):
        yield dataclasses.replace(own, owner=f"{own.owner}-{name}")


@pytest.fixture(scope="session", autouse=True)
def begun(real: Real, beside: Beside, request: pytest.FixtureRequest) -> Iterator[Begun]:
    """The main line's tests that run beside all others; they begin with the first test of the image tier."""
    with connected("beside") as own:
        apart = dataclasses.replace(real, engine=own)
        modules = tree_tests.modules(E2E)
        end_to_end = beside.end_to_end(apart, modules) if asked_for(request, E2E_TIER) else None
        tree = beside.tree(apart) if asked_for(request, TREE_TIER, OTHER_LINES_TIER) else None
        yield Begun(tree, end_to_end)


@pytest.fixture(scope="session")
def real() -> Iterator[Real]:
    """The main line's image in an engine; an engine that this fixture started is stopped at the end."""
    with build_lock():
        line, composed, base, image = made(DEFAULT_LINE)
        before = engine.status(BUILD)
        running = engine.find_or_start(BUILD)
        with contextlib.closing(running.client):
            tag = stages.load(running, image, base)
            yield Real(line, composed, base, image, running, tag)
            running.remove_ours(keep=[tag for tag in (running.find(base.image), running.find(image)) if tag])
        if not before.running:
            engine.stop(BUILD)


def made(name: str) -> tuple[Line, Composed, BaseImage, Image]:
    """What the stages make of a line."""
    line = load_line(name)
    stages.require_space(line)
    composed = stages.compose_tree(line)
    base = stages.get_base(line)
    return line, composed, base, stages.build_image(line, composed, base)


@pytest.fixture(scope="session")
def report(real: Real, tmp_path_factory: pytest.TempPathFactory) -> CheckReport:
    """The verdict of all checks on the sound image."""
    return real.check(real.image, tmp_path_factory.mktemp("check") / "log")


@dataclass(frozen=True)
class Other:
    """A line beside the main one."""

    real: Real
    begun: Begun


@pytest.fixture(scope="session")
def others(
    begun: Begun,  # noqa: ARG001  the main line's tests come first
    beside: Beside,
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[str], Other]]:
    """The image of a line by its name, in the same engine beside the main line's, and gone at the end.

    Not loaded as a command would: that leaves one line's images in the engine, and tests wait for the main line's.
    """
    with contextlib.ExitStack() as stack:

        @functools.cache
        def other(name: str) -> Other:
            line, composed, base, image = made(name)
            own = stack.enter_context(connected(name))
            stack.callback(own.remove_ours)
            real = Real(line, composed, base, image, own, stages.load(own, image, base))
            wanted = asked_for(request, OTHER_LINES_TIER)
            tree = beside.tree(real) if wanted else None
            end_to_end = beside.end_to_end(real, inside.named(name, "e2e")) if wanted else None
            return Other(real, Begun(tree, end_to_end))

        yield other
