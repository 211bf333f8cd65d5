"""The base image's stand-in for torchvision: every import form resolves, no operation works."""

from __future__ import annotations

import pytest
import torchvision  # type: ignore[import-not-found]  # in the base image only
from torchvision.transforms import InterpolationMode, v2  # type: ignore[import-not-found]
from torchvision.transforms.v2 import functional  # type: ignore[import-not-found]


def test_it_is_the_stand_in_with_a_version_that_parses() -> None:
    assert torchvision.__version__ == "0.0.0"


def test_submodules_are_modules_and_not_placeholders() -> None:
    assert (v2.__name__, functional.__name__) == ("torchvision.transforms.v2", "torchvision.transforms.v2.functional")


def test_members_are_stable_keys() -> None:
    table = {InterpolationMode.NEAREST: 0, InterpolationMode.BICUBIC: 3}
    assert table[InterpolationMode.BICUBIC] == 3


@pytest.mark.parametrize("operation", [functional.resize, torchvision.io.decode_jpeg, torchvision.ops.nms])
def test_an_operation_refuses_and_says_why(operation: type) -> None:
    with pytest.raises(NotImplementedError, match=r"^torchvision\.\S+: this image holds only the names"):
        operation("picture")
