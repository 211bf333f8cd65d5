"""Load drafts from small checkpoints that are complete or not.

A case: ``name``; ``config`` (config.json); ``tensors`` (name to [dtype, shape] or [dtype, shape, value]);
``load_format``; ``quantization`` (the flag); ``update`` (names that are loaded again afterwards, alone). Answer:
``error`` (text, or null); ``unfilled`` (parameters with an element that nothing wrote); ``shapes`` and ``digest`` of the
parameters; ``updated`` (whether the update took, or its error).
"""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found]  # in the base image only

from . import loading
from .answer import Case, answer


def tensor(dtype: str, shape: list[int], value: float | None = None) -> torch.Tensor:
    """One value, or small ones that repeat from run to run, none of them zero."""
    if value is not None:
        return torch.full(shape, value, dtype=getattr(torch, dtype))
    count = torch.tensor(shape).prod()
    return (torch.arange(count) % 7 + 1).reshape(shape).to(getattr(torch, dtype))


def update(model: Any, tensors: dict[str, torch.Tensor]) -> bool | str:
    """Load some tensors, doubled, as a weight update does; whether their parameters changed."""
    before = {name: param.clone() for name, param in model.named_parameters()}
    try:
        model.load_weights([(name, value * 2) for name, value in tensors.items()])
    except ValueError as error:
        return str(error)
    return any(not torch.equal(before[name], param) for name, param in model.named_parameters())


def measure(case: Case) -> dict[str, Any]:
    tensors = {name: tensor(*entry) for name, entry in case["tensors"].items()}
    with loading.one_rank():
        loaded = loading.load(case["config"], tensors, case.get("load_format", "auto"), case.get("quantization"))
        result: dict[str, Any] = {
            "error": loaded.error,
            "unfilled": loaded.unfilled(),
            "shapes": {name: list(param.shape) for name, param in loaded.model.named_parameters()},
            "digest": loaded.digest(),
        }
        if "update" in case:
            result["updated"] = update(loaded.model, {name: tensors[name] for name in case["update"]})
    return result


if __name__ == "__main__":
    answer(measure)
