"""Start drafts: load small checkpoints, resolve launches, hand a draft to the DFLASH worker.

A case has a ``name`` and is one of

* a load: ``config`` (config.json); ``tensors`` (name to [dtype, shape] or [dtype, shape, value]); ``load_format``;
  ``quantization`` (the flag); ``inherits`` (the MTP class is one that inherits from it); ``update`` (names that are
  loaded again afterwards, alone). Answer: ``error`` (text, or null); ``unfilled`` (parameters with an element that
  nothing wrote); ``shapes`` and ``digest`` of the parameters; ``updated`` (whether the update took, or its error).
* a launch: ``device``; ``launch`` (flags); ``draft`` and ``target`` (config.json); ``expected`` (the environment
  variable). Answer:
  ``error``, and ``resolved``, the number of draft tokens.
* a worker: ``built`` (the draft's class); ``selector`` (whether it has one); ``draft`` and ``target`` (numbers of their
  configs); ``expected``. Answer: ``error``.
* the facts: which classes are DFlash2's.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch  # type: ignore[import-not-found]  # in the base image only

from . import loading, port
from .answer import Case, answer

port.lend()

from sglang.srt.arg_groups.speculative_hook import _handle_dflash  # type: ignore[import-not-found]  # noqa: E402  # isort: skip
from sglang.srt.models import dflash, registry  # type: ignore[import-not-found]  # noqa: E402  # isort: skip
from sglang.srt.speculative import dflash_worker_v2 as worker  # type: ignore[import-not-found]  # noqa: E402  # isort: skip

EXPECTED = "SGLANG_DFLASH_EXPECTED_ARCHITECTURE"


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


def rotary(model: Any) -> int | None:
    """How much of a DFLASH draft's head is rotated."""
    layers = getattr(model, "layers", None)
    return layers[0].self_attn.rotary_emb.rotary_dim if layers else None


def heirs(case: Case) -> Any:
    """A class of its own that inherits the MTP head's ``load_weights``, in that head's place."""
    name = "Qwen3_5ForCausalLMMTP"
    known = registry.ModelRegistry.models
    return mock.patch.dict(known, {name: type("Heir", (known[name],), {})} if case.get("inherits") else {})


def load(case: Case) -> dict[str, Any]:
    tensors = {name: tensor(*entry) for name, entry in case["tensors"].items()}
    with loading.one_rank(), heirs(case):
        loaded = loading.load(case["config"], tensors, case.get("load_format", "auto"), case.get("quantization"))
        result: dict[str, Any] = {
            "error": loaded.error,
            "unfilled": loaded.unfilled(),
            "shapes": {name: list(param.shape) for name, param in loaded.model.named_parameters()},
            "digest": loaded.digest(),
            "rotary": rotary(loaded.model),
        }
        if "update" in case:
            result["updated"] = update(loaded.model, {name: tensors[name] for name in case["update"]})
    return result


def launch(case: Case) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        for role in ("draft", "target"):
            Path(folder, role).mkdir()
            Path(folder, role, "config.json").write_text(json.dumps(case[role]), encoding="utf-8")
        server_args = port.record(
            model_path=f"{folder}/target",
            device=case["device"],
            speculative_algorithm="DFLASH",
            speculative_draft_model_path=f"{folder}/draft",
            **case["launch"],
        )
        try:
            _handle_dflash(server_args)
        except ValueError as error:
            return {"error": str(error)}
    return {"error": None}


class Used(Exception):
    """The worker has gone on to use the draft."""


class Draft:
    """A draft as far as the worker looks at it first."""

    lilicorr = set_block_size = property(mock.Mock(side_effect=Used))

    def __init__(self, config: dict[str, int], *, selector: bool) -> None:
        self.config = SimpleNamespace(**config)
        self.candidate_selector = object() if selector else None


def hand_over(case: Case) -> dict[str, Any]:
    draft = type(case["built"], (Draft,), {})(case["draft"], selector=case["selector"])
    runner = mock.MagicMock()
    runner.model_config.hf_text_config = SimpleNamespace(**case["target"])
    bundle = mock.MagicMock(draft_model=draft)
    around = ("draft_pp_context", "draft_tp_context", "resolve_draft_parallel_layout", "model_draft_parallel_spec")
    with contextlib.ExitStack() as stack:
        stack.enter_context(loading.one_rank())
        for name in (*around, "SpecTpSync", "get_dp_tp_group", "get_tp_group", "replace"):
            stack.enter_context(mock.patch.object(worker, name, mock.MagicMock(), create=True))
        stack.enter_context(mock.patch.object(worker, "parse_dflash_draft_config"))
        stack.enter_context(mock.patch.object(worker, "build_draft_tp_worker", return_value=bundle))
        try:
            worker.DFlashWorkerV2(**port.for_worker(mock.MagicMock(model_runner=runner, device="cpu")))
        except ValueError as error:
            return {"error": str(error)}
        except Used:
            return {"error": None}
    raise AssertionError("the worker never looked at its draft")


def facts() -> dict[str, Any]:
    classes = [each.__name__ for each in dflash.EntryClass if issubclass(each, dflash.DFlash2DraftModel)]
    return {"subclasses": classes}


def measure(case: Case) -> dict[str, Any]:
    if case["name"] == "facts":
        return facts()
    if "tensors" in case:
        return load(case)
    with mock.patch.dict(os.environ):
        os.environ.pop(EXPECTED, None)
        if case["expected"] is not None:
            os.environ[EXPECTED] = case["expected"]
        return launch(case) if "launch" in case else hand_over(case)


if __name__ == "__main__":
    answer(measure)
