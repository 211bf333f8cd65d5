"""Stand-in for Intel's kernel package, so that SGLang's modules for XPU can be imported where there is none.

Every name can be imported, and refuses to run when it is called: the real package alone says which names exist.
No kernel needs a workspace here, which is asked for where a backend is made.
Attention (flash_attn.py) is a plain-torch reference that also records its calls.
"""

from __future__ import annotations

from typing import NoReturn


def flash_mla_get_workspace_size(*_args: object, **_options: object) -> int:
    """Bytes. The name that 0.5.18 asks for."""
    return 0


def flash_mla_decode_get_workspace_size(*_args: object, **_options: object) -> int:
    """Bytes."""
    return 0


def flash_mla_prefill_get_workspace_size(*_args: object, **_options: object) -> int:
    """Bytes."""
    return 0


class _Kernel:
    """A kernel that nobody may call."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_args: object, **_options: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{self.__name__}: the stand-in has no such kernel; expected no call")


def __getattr__(name: str) -> _Kernel:
    if name.startswith("_"):
        raise AttributeError(name)
    return _Kernel(name)
