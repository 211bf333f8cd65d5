"""The end-to-end tests (``tests/e2e``), run inside the real image, on the SGLang that is installed there."""

from concurrent.futures import Future

import pytest

from pipeline import tree_tests
from tests.image import inside
from tests.image.conftest import E2E


@pytest.mark.parametrize("module", tree_tests.modules(E2E))
def test_module_passes_in_the_image(e2e: Future[tuple[tree_tests.Case, ...]], module: str) -> None:
    inside.assert_passed(e2e.result(), module)
