"""Fixtures of the checks."""

from pathlib import Path

import pytest

from checks.given import Given, load
from checks.verdict import Verdict
from checks.xpu import Answer, ask


@pytest.fixture(scope="session")
def given() -> Given:
    """The parsed ``input.json`` and the environment of the container."""
    return load(Path(__file__).resolve().parent)


@pytest.fixture(scope="session")
def on_xpu(given: Given) -> Answer:
    """What the image's SGLang says where torch sees an XPU; asked once, for all checks."""
    return ask(given)


@pytest.fixture
def verdict(request: pytest.FixtureRequest) -> Verdict:
    """Where the check notes its problems and its conclusion."""
    return Verdict(request.node.user_properties)
