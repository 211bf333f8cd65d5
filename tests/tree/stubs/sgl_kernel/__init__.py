"""Stand-in for Intel's kernel package: any kernel can be imported.

Attention is a plain-torch reference that also records its calls (flash_attn.py). The other kernels belong to
paths that no test takes; each refuses to run, and needs no workspace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """A kernel that refuses to run, for every name but those of the import system (PEP 562)."""
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*_args: object, **_options: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name}: the test stand-in has no such kernel; expected no call")

    return kernel


def flash_mla_decode_get_workspace_size(*_args: object, **_options: object) -> int:
    return 0


def flash_mla_prefill_get_workspace_size(*_args: object, **_options: object) -> int:
    return 0
