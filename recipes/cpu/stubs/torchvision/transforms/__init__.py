"""Names of torchvision.transforms; see the package's docstring."""

from __future__ import annotations

from .._absent import absent_names

# Imported here because a module-level __getattr__ would answer `from torchvision.transforms import v2` first.
from . import functional, v2

__all__ = ["functional", "v2"]

__getattr__ = absent_names(__name__)
