"""The tests of the patched tree (``tests/tree``), run inside the real image: one environment, one lock."""

import pytest

from pipeline import container
from pipeline.files import PROJECT
from pipeline.oci import LayerEntry
from tests.image import inside
from tests.image.conftest import Real

TESTS = PROJECT / "tests" / "tree"
SHARED = [
    "pipeline/pool_sizes.py",
    *(f"pipeline/checkpoint/{name}" for name in ("ignore.py", "naming.py", "architectures.txt")),
]
"""Capacity arithmetic and rules of the checkpoint gate, which tests there hold against the tree's own."""
LIMITS = container.Limits(memory=8 << 30, seconds=900)
"""Two drivers at a time import most of SGLang, 1 GiB each; their bytecode in the tmpfs counts too."""


@pytest.fixture(scope="module")
def cases(real: Real, tmp_path_factory: pytest.TempPathFactory) -> inside.Cases:
    entries = [
        *inside.python_files(TESTS, "tests"),
        *(LayerEntry(shared, PROJECT / shared) for shared in SHARED),
        *inside.libraries("hypothesis"),
        *inside.tree("tree", real.composed.files),
        *inside.tree("upstream", inside.unpatched(real)),
    ]
    return inside.run(real, "Tests of the tree, in the image", entries, LIMITS, tmp_path_factory.mktemp("tree") / "log")


@pytest.mark.parametrize("module", inside.modules(TESTS))
def test_module_passes_in_the_image(cases: inside.Cases, module: str) -> None:
    inside.assert_passed(cases, module)
