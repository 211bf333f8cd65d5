"""The tests of the patched tree (``tests/tree``), all of them, run inside the main line's image."""

import pytest

from pipeline import tree_tests
from tests.image import inside


@pytest.mark.parametrize("module", tree_tests.modules())
def test_module_is_sound_in_the_image(main_cases: tuple[tree_tests.Case, ...], module: str) -> None:
    inside.assert_sound(main_cases, module)
