"""The tests of the patched tree (``tests/tree``) that speak for the main line, run inside its image."""

import pytest

from pipeline import tree_tests
from pipeline.manifest import DEFAULT_LINE
from tests.image import inside


@pytest.mark.parametrize("module", inside.tree_modules(DEFAULT_LINE))
def test_module_is_sound_in_the_image(main_cases: tuple[tree_tests.Case, ...], module: str) -> None:
    inside.assert_sound(main_cases, module)
