"""The tests of the patched tree (``tests/tree``), run inside the real image: one environment, one lock."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest

from pipeline import check, console, container, pins
from pipeline.files import BUILD, PROJECT
from pipeline.manifest import DEFAULT_LINE, MANIFESTS, SourceLayer
from pipeline.oci import LayerEntry
from tests.image.conftest import Real

TESTS = PROJECT / "tests" / "tree"
STUBS = check.CHECKS / "stubs"
MODULES = sorted(path.stem for path in TESTS.glob("test_*.py"))
SHARED = [
    "checks/fake_xpu.py",
    *(path.relative_to(PROJECT).as_posix() for path in sorted((MANIFESTS / DEFAULT_LINE / "configs").rglob("*.json"))),
    "pipeline/pool_sizes.py",
    *(f"pipeline/checkpoint/{name}" for name in ("ignore.py", "naming.py", "architectures.txt")),
]
"""The device and the models that are not there; capacity arithmetic and rules of the checkpoint gate, held against the tree's own."""
LIMITS = container.Limits(memory=8 << 30, seconds=900)
"""Two drivers at a time import most of SGLang, 1 GiB each; their bytecode in the tmpfs counts too."""


def volume(real: Real) -> Iterator[LayerEntry]:
    """What the container finds below ``/checks``."""
    first = real.line.release.layers[0]
    assert isinstance(first, SourceLayer)
    pristine = pins.read(real.line.release.pins[first.source], real.line.release.base.python_tag, BUILD / "cache")
    yield LayerEntry("run.py", TESTS / "run.py")
    for path in TESTS.rglob("*.py"):
        yield LayerEntry(f"tests/{path.relative_to(TESTS).as_posix()}", path)
    for path in STUBS.rglob("*.py"):
        yield LayerEntry(f"checks/stubs/{path.relative_to(STUBS).as_posix()}", path)
    for shared in SHARED:
        yield LayerEntry(shared, PROJECT / shared)
    for name, file in check.pytest_files("hypothesis").items():
        yield LayerEntry(f"lib/{name}", file)
    for folder, files in (("tree", real.composed.files), ("upstream", pristine.files)):
        for name, data in files.items():
            yield LayerEntry(f"{folder}/{name}", data)


@pytest.fixture(scope="module")
def cases(real: Real, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[ET.Element]]:
    """Test cases of the run by module; the run's output is shown when there is no result at all."""
    log = tmp_path_factory.mktemp("tree") / "log"
    tag = real.engine.find(real.image)
    assert tag is not None
    with console.step("Tests of the tree, in the image") as step:
        ended = container.run_confined(real.engine, tag, list(volume(real)), LIMITS, log, step)
    assert ended.output is not None, f"{ended.reason}\n{log.read_text()[-5000:]}"
    found: dict[str, list[ET.Element]] = {}
    for case in ET.fromstring(ended.output).iter("testcase"):
        found.setdefault(case.attrib["classname"].rpartition(".")[2], []).append(case)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_module_passes_in_the_image(cases: dict[str, list[ET.Element]], module: str) -> None:
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
