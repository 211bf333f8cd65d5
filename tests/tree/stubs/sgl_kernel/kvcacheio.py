"""Kernels that move the KV cache between device and host: importable, never called."""

from __future__ import annotations

from . import __getattr__ as __getattr__
