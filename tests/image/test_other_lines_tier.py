"""The tests of each line beside the main one (``tests/tree``, ``tests/e2e``), run inside its image."""

from collections.abc import Callable

import pytest

from pipeline import tree_tests
from pipeline.manifest import lines, load_line
from tests.image import inside
from tests.image.conftest import Begun, Other, found

OTHERS = [name for name in lines() if not load_line(name).is_main]


@pytest.mark.parametrize(
    ("name", "module"), [(name, module) for name in OTHERS for module in inside.tree_modules(name)]
)
def test_module_is_sound_in_the_image(others: Callable[[str], Other], name: str, module: str) -> None:
    inside.assert_sound(found(others(name).begun.tree), module)


@pytest.mark.parametrize(
    ("name", "module"), [(name, module) for name in OTHERS for module in sorted(inside.named(name, "e2e"))]
)
def test_end_to_end_module_is_sound_in_the_image(others: Callable[[str], Other], name: str, module: str) -> None:
    inside.assert_sound(found(others(name).begun.end_to_end), module)


def test_what_one_line_skips_another_runs(begun: Begun, others: Callable[[str], Other]) -> None:
    """A test that is skipped everywhere proves nothing and would not be missed."""
    cases = [*found(begun.tree), *(case for name in OTHERS for case in found(others(name).begun.tree))]
    passed, skipped = (
        {(case.module, case.name) for case in cases if case.outcome is outcome}
        for outcome in (tree_tests.Outcome.PASSED, tree_tests.Outcome.SKIPPED)
    )
    assert skipped - passed == set()
