"""What holds for all tiers of the host."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)  # a slow machine is no defect
settings.load_profile("no deadline")
ONE_PROCESS = {"engine", "image"}
"""Tiers that hold something of which there is one: a private engine, and the lock of the build folder."""
E2E_TIER = "test_e2e_tier.py"
"""Its tests wait for a container that runs beside all others of their tier, so they come last."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep all tests of such a tier in one worker; the other tests go wherever a worker is free."""
    items.sort(key=lambda item: item.path.name == E2E_TIER)
    for item in items:
        tier = item.path.relative_to(Path(__file__).parent).parts[0]
        if tier in ONE_PROCESS:
            item.add_marker(pytest.mark.xdist_group(tier))
