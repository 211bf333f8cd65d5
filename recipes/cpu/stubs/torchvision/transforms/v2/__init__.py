"""Names of torchvision.transforms.v2; see the package's docstring."""

from __future__ import annotations

from ..._absent import absent_names
from . import functional

__all__ = ["functional"]

__getattr__ = absent_names(__name__)
