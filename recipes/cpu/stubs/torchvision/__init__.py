"""Stand-in for torchvision in the CPU base image.

SGLang's configuration package imports torchvision while it is itself being imported. Where that import fails,
SGLang turns the error into a warning and its model registry comes up with zero models. The torchvision that
PyPI serves is linked against CUDA and does not import beside a CPU build of torch, and no check needs an
image operation. So this package offers the names and none of the operations: every name resolves, and calling
one raises NotImplementedError.
"""

from __future__ import annotations

from . import io, ops, transforms
from ._absent import absent_names

# Readers parse this as a version number, so it has to be one; 0.0.0 is below every real release.
__version__ = "0.0.0"
__all__ = ["io", "ops", "transforms"]

__getattr__ = absent_names(__name__)
