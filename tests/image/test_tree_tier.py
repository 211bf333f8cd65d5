"""The tests of the patched tree (``tests/tree``), all of them, run inside the main line's image."""

import pytest

from pipeline import tree_tests
from tests.image import inside
from tests.image.conftest import Real


@pytest.fixture(scope="module")
def cases(real: Real, tmp_path_factory: pytest.TempPathFactory) -> tuple[tree_tests.Case, ...]:
    entries = tree_tests.entries(real.line.name, real.composed.files, inside.unpatched(real), tree_tests.modules())
    log = tmp_path_factory.mktemp("tree") / "log"
    return inside.run(real.engine, real.tag, entries, tree_tests.LIMITS, log)


@pytest.mark.parametrize("module", tree_tests.modules())
def test_module_passes_in_the_image(cases: tuple[tree_tests.Case, ...], module: str) -> None:
    inside.assert_passed(cases, module)
