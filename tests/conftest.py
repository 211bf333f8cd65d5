"""What holds for all tiers of the host."""

from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

settings.register_profile("no deadline", deadline=None)  # a slow machine is no defect
settings.load_profile("no deadline")
IMAGE_TIER = "tests/image/"
E2E_TIER, TREE_TIER, OTHER_LINES_TIER = "test_e2e_tier.py", "test_tree_tier.py", "test_other_lines_tier.py"
"""Their tests wait for containers that run beside all others of the image tier, one after the other in this order."""
LAST = (E2E_TIER, TREE_TIER, OTHER_LINES_TIER)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the tests that wait to the end."""
    items.sort(key=lambda item: LAST.index(item.path.name) if item.path.name in LAST else -1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """With several workers, keep the image tier in one: it needs the lock of the build folder.

    The scheduler hands out the largest scope first, so that this tier, which takes longest, begins at once.
    """
    return ImageTierInOne(config, log)


class ImageTierInOne(LoadScopeScheduling):  # type: ignore[misc]
    """Every other test goes to whichever worker is free."""

    def _split_scope(self, nodeid: str) -> str:
        return IMAGE_TIER if nodeid.startswith(IMAGE_TIER) else nodeid
