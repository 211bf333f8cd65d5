"""The composed tree does not depend on the Python of the base: the real wheels of two Pythons hold the same files."""

import hashlib

import pytest

from pipeline import pins
from pipeline.compose import tree_digest
from pipeline.files import BUILD
from pipeline.manifest import PypiPin, lines, load_line


@pytest.mark.parametrize("name", lines())
def test_wheels_of_all_pinned_pythons_hold_the_same_tree(name: str) -> None:
    pin = load_line(name).release.pins["sglang"]
    assert isinstance(pin, PypiPin)
    assert len(pin.sha256) > 1
    digests = set[str]()
    for python_tag in pin.sha256:
        tree = pins.read_wheel(pins.fetch(pin, python_tag, BUILD / "cache"))
        assert tree.extensions
        digests.add(tree_digest({path: hashlib.sha256(data).hexdigest() for path, data in tree.files.items()}))
    assert len(digests) == 1
