"""Test modules that run inside the real image: what the container gets, and what came out by module."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pipeline import check, console, container, pins
from pipeline.files import BUILD
from pipeline.manifest import SourceLayer
from pipeline.oci import LayerEntry
from pipeline.store import Engine

if TYPE_CHECKING:
    from tests.image.conftest import Real

Cases = dict[str, list[ET.Element]]
"""Test cases of a run, by the module's name."""


def modules(folder: Path) -> list[str]:
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


def unpatched(real: "Real") -> Mapping[str, bytes]:
    """Files of the pinned SGLang before the first patch."""
    first = real.line.release.layers[0]
    assert isinstance(first, SourceLayer)
    python = real.line.release.base.python_tag
    return pins.read(real.line.release.pins[first.source], python, BUILD / "cache").files


def run(engine: Engine, tag: str, entries: Sequence[LayerEntry], limits: container.Limits, log: Path) -> Cases:
    """Run the tests in a container of the image ``tag``; their output is shown when there is no result at all."""
    with console.step(f"tests in {tag}") as step:
        ended = container.run_confined(engine, tag, entries, limits, log, step)
    assert ended.output is not None, f"{ended.reason}\n{log.read_text()[-5000:]}"
    found: Cases = {}
    for case in ET.fromstring(ended.output).iter("testcase"):
        found.setdefault(case.attrib["classname"].rpartition(".")[2], []).append(case)
    return found


def assert_passed(cases: Cases, module: str) -> None:
    """Every test of the module ran and passed; what was skipped is shown with its reason, and is a failure."""
    assert cases.get(module), f"no test of {module} ran"
    bad = [
        f"{case.attrib['name']}: {child.tag}: {child.attrib.get('message', '')}\n{child.text or ''}"
        for case in cases[module]
        for child in case
        if child.tag in ("failure", "error", "skipped")
    ]
    assert bad == []
    print(f"{module}: {len(cases[module])} tests passed in the image")
