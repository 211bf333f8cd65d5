"""Whether the trained additions of DFlash2 (candidate selector, grouped convolutions) were loaded.

The loader of the DFlash classes passes over names that it cannot place, and compares nothing with what
a model built. The parameters cannot tell either: only the selector's two codebooks start at zero; base
kernels start as the identity and projections at random. So the verdict is on what was loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from sglang.srt.model_loader.load_coverage import in_full_load
from torch import nn

_SHOWN = 6
"""Tensors that a message writes out."""


def is_trained_addition(name: str) -> bool:
    """Whether a tensor, named with or without ``model.``, is one that classic DFlash has not."""
    name = name.removeprefix("model.")
    return name.startswith("candidate_selector.") or ".attention_conv." in name or ".mlp_conv." in name


class TrainedAdditions:
    """Selector and convolution tensors in one ``load_weights`` call of a DFlash model."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._expected = {
            name: tuple(param.shape) for name, param in model.named_parameters() if is_trained_addition(name)
        }
        self._seen: set[str] = set()
        self._unplaced: list[str] = []
        self._problems: list[str] = []

    def watch(
        self, weights: Iterable[tuple[str, torch.Tensor]], resolve: Callable[[str], str | None]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Pass the weights on, noting those that are trained additions.

        Args:
            resolve: from the checkpoint's name to the parameter's, or None.

        Raises:
            ValueError: a tensor has another shape than its parameter. ``default_weight_loader`` only
                asserts it, which ``python -O`` leaves out.
        """
        for name, weight in weights:
            if is_trained_addition(name):
                self._note(name, resolve(name), weight)
            yield name, weight

    def _note(self, name: str, param: str | None, weight: torch.Tensor) -> None:
        if param not in self._expected:
            self._unplaced.append(name)
            return
        if tuple(weight.shape) != self._expected[param]:
            raise ValueError(
                f"{type(self._model).__name__}: {name} has shape {tuple(weight.shape)}, and the config "
                f"makes it {self._expected[param]}; use the config.json of this checkpoint."
            )
        if param in self._seen:
            self._problems.append(f"{param} is there twice")
        self._seen.add(param)
        if in_full_load() and self._model.candidate_selector is not None:
            # Elsewhere an all-zero projection is odd but sound: the convolution is then a fixed one.
            self._problems += _payload_problems(name, weight)

    def check(self) -> None:
        """Pass the verdict on a full load; weight updates, which may bring any part, are not judged.

        A class that built neither selector nor convolution refuses only tensors that belong to one, and
        payloads are judged in DFlash2 drafts alone.

        Raises:
            ValueError: a tensor is missing, has no place, is there twice, or is zero or not finite.
        """
        if not in_full_load():
            return
        problems = list(self._problems)
        missing = [name for name in self._expected if name not in self._seen]
        if missing:
            problems.append(f"{len(missing)} of {len(self._expected)} are missing ({_some(missing)})")
        if self._unplaced:
            problems.append(
                f"{len(self._unplaced)} have no place ({_some(self._unplaced)}), as architectures or "
                "dflash_config (selector_rank, conv_kernel_size, conv_group_size), or num_hidden_layers, "
                "are not the checkpoint's own"
            )
        if problems:
            raise ValueError(
                f"{type(self._model).__name__}: the selector and convolution tensors of this draft are not "
                f"whole: {_some(problems, '; ')}. Use a complete DFlash2 checkpoint with its own "
                "config.json; without them the draft only costs, and the text would not show it."
            )


def _some(names: list[str], separator: str = ", ") -> str:
    more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return separator.join(names[:_SHOWN] + more)


def _payload_problems(name: str, weight: torch.Tensor) -> list[str]:
    """One pass over a tensor, NaN included, which ``aminmax`` hands on."""
    if weight.dtype.itemsize == 1:
        weight = weight.float()  # no reductions for the FP8 types
    low, high = (float(bound) for bound in torch.aminmax(weight))
    if not (math.isfinite(low) and math.isfinite(high)):
        return [f"{name} is not finite"]
    return [f"{name} is all zero"] if low == high == 0 else []
