"""A ``torch.xpu`` that answers questions about cards that are not there.

SGLang decides at import which platform it runs on, so ``install`` comes before the first import of it. With an XPU
it also imports ``sgl_kernel``: where that is not installed, the stand-in of ``stubs/`` has to be on the path. Only
questions are answered; whoever tries to compute on a card gets torch's own error.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """One Arc Pro B70, as far as argument resolution asks. Sizes in bytes."""

    name: str = "Intel(R) Arc(TM) Pro B70 Graphics"
    total_memory: int = 32 << 30
    gpu_eu_count: int = 256
    has_fp64: bool = True
    """SGLang takes FP64 as the sign of matrix engines; without it intel_xpu attention falls back to Triton."""
    version: str = "20.1.0"


B70 = Card()


def install(cards: int = 4, card: Card = B70) -> None:
    """Let ``torch.xpu`` report this many idle cards of one kind.

    Raises:
        RuntimeError: SGLang was imported before, so it has decided already.
    """
    if "sglang" in sys.modules:
        raise RuntimeError("sglang is imported already; expected the fake before it: call install() first")
    import torch  # type: ignore[import-not-found]  # in the base image only

    # `_arguments`: the device, which is the same for all of them.
    answers = {
        "is_available": True,
        "device_count": cards,
        "current_device": 0,
        "mem_get_info": (card.total_memory, card.total_memory),
        "memory_allocated": 0,
        "get_device_properties": card,
        "get_device_name": card.name,
        "get_device_capability": {"version": card.version, "has_fp64": card.has_fp64},
    }
    for question, answer in answers.items():
        setattr(torch.xpu, question, lambda *_arguments, _answer=answer: _answer)
