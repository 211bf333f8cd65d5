"""The end-to-end tests (``tests/e2e``), run inside the real image, on the SGLang that is installed there."""

import pytest

from pipeline import tree_tests
from tests.image import inside
from tests.image.conftest import E2E, Begun, found


@pytest.mark.parametrize("module", tree_tests.modules(E2E))
def test_module_passes_in_the_image(begun: Begun, module: str) -> None:
    inside.assert_passed(found(begun.end_to_end), module)
