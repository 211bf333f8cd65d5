"""Names that exist, so that imports succeed, and refuse to work, so that nothing passes by accident."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NoReturn


class Absent(type):
    """Type of the placeholders.

    A placeholder is a class, because importers use these names in annotations (``Name | None``), as base
    classes, and as enumerations whose members they store in tables (``Name.MEMBER``).
    """

    def __getattr__(cls, name: str) -> Absent:
        return _absent(f"{cls.__module__}.{cls.__qualname__}", name)

    def __call__(cls, *_args: object, **_options: object) -> NoReturn:
        raise NotImplementedError(
            f"{cls.__module__}.{cls.__qualname__}: this image holds only the names of torchvision; "
            "expected no image operation here; use an image with the real torchvision"
        )


@cache
def _absent(owner: str, name: str) -> Absent:
    """The one placeholder for a name; cached, so that repeated look-ups stay equal and usable as keys.

    Raises AttributeError for double-underscore names: Python asks for those to learn what an object can do.
    """
    if name.startswith("__"):
        raise AttributeError(f"{owner} has no attribute {name}")
    return Absent(name, (), {"__module__": owner})


def absent_names(module: str) -> Callable[[str], Absent]:
    """A module-level ``__getattr__`` that answers any public name of this module with a placeholder."""
    return lambda name: _absent(module, name)
