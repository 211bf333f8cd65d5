"""The real image of the main line, built (or taken from the cache) and loaded into an engine once per run."""

import contextlib
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline import check, check_data, engine, stages
from pipeline import image as images
from pipeline.base import BaseImage
from pipeline.check import Outcome
from pipeline.compose import Composed
from pipeline.documents import CheckReport
from pipeline.files import BUILD, build_lock
from pipeline.manifest import DEFAULT_LINE, Line, load_line
from pipeline.oci import Image
from pipeline.store import Engine


@dataclass(frozen=True)
class Real:
    """Everything that the stages made of the line."""

    line: Line
    composed: Composed
    base: BaseImage
    image: Image
    engine: Engine

    def check(self, image: Image, log: Path, checks: Path = check.CHECKS) -> CheckReport:
        """The report of :meth:`outcome`."""
        return self.outcome(image, log, checks).report

    def outcome(self, image: Image, log: Path, checks: Path) -> Outcome:
        """Run checks in ``image``, which may differ from the sound one, against what the sound one must be."""
        self.engine.ensure_image(image, "planted", self.base.image)
        given = images.facts(self.line, self.composed.record, self.base, image) | check_data.input_parts()
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


@pytest.fixture(scope="session")
def real() -> Iterator[Real]:
    """The line's image in an engine; an engine that this fixture started is stopped at the end."""
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
