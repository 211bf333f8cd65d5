"""Two tiers hold something that only one process may have: a private engine, and the lock of the build folder."""

from pathlib import Path

import pytest

ONE_PROCESS = {"engine", "image"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep all tests of such a tier in one worker; the other tests go wherever a worker is free."""
    for item in items:
        tier = item.path.relative_to(Path(__file__).parent).parts[0]
        if tier in ONE_PROCESS:
            item.add_marker(pytest.mark.xdist_group(tier))
