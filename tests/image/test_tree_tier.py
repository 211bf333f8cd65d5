"""The tests of the patched tree (``tests/tree``) that speak for the main line, run inside its image."""

import pytest

from pipeline.manifest import DEFAULT_LINE
from tests.image import inside
from tests.image.conftest import Begun, found


@pytest.mark.parametrize("module", inside.tree_modules(DEFAULT_LINE))
def test_module_is_sound_in_the_image(begun: Begun, module: str) -> None:
    inside.assert_sound(found(begun.tree), module)
