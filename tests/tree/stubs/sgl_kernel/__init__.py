"""Stand-in for Intel's kernel package, with the names that SGLang's XPU attention backend imports.

Attention is a plain-torch reference that also records its calls (flash_attn.py). The other kernels belong to
paths that no test takes; each refuses to run, and needs no workspace.
"""

from __future__ import annotations

from typing import NoReturn


def _unused(name: str) -> NoReturn:
    raise NotImplementedError(f"sgl_kernel.{name}: the test stand-in has no such kernel; expected no call")


def flash_mla_decode(*_args: object, **_options: object) -> NoReturn:
    _unused("flash_mla_decode")


def flash_mla_decode_get_workspace_size(*_args: object, **_options: object) -> int:
    return 0


def flash_mla_prefill(*_args: object, **_options: object) -> NoReturn:
    _unused("flash_mla_prefill")


def flash_mla_prefill_get_workspace_size(*_args: object, **_options: object) -> int:
    return 0


def merge_state_v2(*_args: object, **_options: object) -> NoReturn:
    _unused("merge_state_v2")
