"""What holds for all tiers of the host."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)  # a slow machine is no defect
settings.load_profile("no deadline")
ONE_PROCESS = "image"
"""The tier that needs the lock of the build folder, so that one worker has all of it; it takes longest."""
E2E_TIER = "test_e2e_tier.py"
"""Its tests wait for a container that runs beside all others of their tier, so they come last there."""


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give that tier to one worker, from the start; all other tests go wherever a worker is free."""
    here = Path(__file__).parent
    ours = [item for item in items if item.path.relative_to(here).parts[0] == ONE_PROCESS]
    for item in ours:
        item.add_marker(pytest.mark.xdist_group(ONE_PROCESS))
    items.sort(key=lambda item: (item not in ours, item.path.name == E2E_TIER))
