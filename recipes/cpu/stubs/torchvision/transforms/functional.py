"""Names of torchvision.transforms.functional; see the package's docstring."""

from __future__ import annotations

from .._absent import absent_names

__getattr__ = absent_names(__name__)
