"""Copies between host and device: names only."""

from sgl_kernel import __getattr__ as __getattr__  # type: ignore[import-not-found]
