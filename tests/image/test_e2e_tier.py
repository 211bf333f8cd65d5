"""The end-to-end tests (``tests/e2e``), run inside the real image, on the SGLang that is installed there."""

import pytest

from pipeline import container
from pipeline.files import PROJECT
from pipeline.oci import LayerEntry
from tests.image import inside
from tests.image.conftest import Real

TESTS = PROJECT / "tests" / "e2e"
LIMITS = container.Limits(memory=8 << 30, seconds=1800)
"""Two engines at a time, beside the processes that they were forked from: 0.7 GiB each, mostly shared."""


@pytest.fixture(scope="module")
def cases(real: Real, tmp_path_factory: pytest.TempPathFactory) -> inside.Cases:
    entries = [
        LayerEntry("run.py", TESTS / "run.py"),
        *inside.python_files(TESTS, "tests/e2e"),
        *inside.libraries(),
        *inside.tree("upstream", inside.unpatched(real)),
    ]
    return inside.run(real, "End-to-end tests, in the image", entries, LIMITS, tmp_path_factory.mktemp("e2e") / "log")


@pytest.mark.parametrize("module", inside.modules(TESTS))
def test_module_passes_in_the_image(cases: inside.Cases, module: str) -> None:
    inside.assert_passed(cases, module)
