"""Build the model classes that serve a profile, one rank of several, on the device "meta"; the bytes that each holds.

A case: ``name``; ``model`` (``target``, ``mtp_head``, ``draft``); ``yarn`` (which revision); ``quantised`` (whether the
target's config says how its weights are packed); ``tp``. Answer: bytes by the name of the parameter, as they are after
packing for the XPU's kernels, and of the rotary tables together. No process group is made: a rank asks nobody while it
is built.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

os.environ["SGLANG_EXTERNAL_MODEL_PACKAGE"] = "drivers.drafts"  # read when the registry is imported
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import fake_xpu  # type: ignore[import-not-found]  # in checks/, see conftest.py

from .answer import Case, answer

fake_xpu.install()

import torch  # type: ignore[import-not-found]  # noqa: E402  # in the base image only
from sglang.srt.configs.load_config import LoadConfig  # type: ignore[import-not-found]  # noqa: E402
from sglang.srt.configs.model_config import ModelConfig  # type: ignore[import-not-found]  # noqa: E402
from sglang.srt.distributed import parallel_state  # type: ignore[import-not-found]  # noqa: E402
from sglang.srt.model_loader import loader  # type: ignore[import-not-found]  # noqa: E402
from sglang.srt.runtime_context import get_context, get_parallel  # type: ignore[import-not-found]  # noqa: E402
from support import model_configs  # type: ignore[import-not-found]  # noqa: E402  # beside the drivers

ALONE = ("pp", "attn_cp", "attn_dp", "moe_ep", "moe_dp")
SHARED = ("tp", "attn_tp", "moe_tp")


def stand_ins(tp: int, folder: str) -> Iterator[Any]:
    """Contexts that say what a rank knows of itself: rank 0 of ``tp``, alone in every other group."""
    members = {"is_first_rank": True, "rank_in_group": 0, "cpu_group": None, "device_group": None}
    alone = SimpleNamespace(**members, world_size=1, is_last_rank=True)
    shared = SimpleNamespace(**members, world_size=tp, is_last_rank=tp == 1)
    sizes = {f"{name}_size": 1 for name in ALONE} | {f"{name}_size": tp for name in SHARED}
    ranks = {f"{name}_rank": 0 for name in (*ALONE, *SHARED)}
    groups = {"pp_group": alone, **{f"{name}_group": shared for name in SHARED}}
    yield get_context().override_server_args(device="xpu", tp_size=tp, model_path=folder)
    yield get_parallel().override(**sizes, **ranks, **groups)
    # Where models up to 0.5.19 look for them.
    yield mock.patch.multiple(parallel_state, _PP=alone, _MOE_DP=alone, _TP=shared, _ATTN_TP=shared, create=True)


def built(case: Case, folder: Path) -> Any:
    """A model as the loader makes it: initialised, nothing read, packed for the device's kernels."""
    config = model_configs.draft(case["yarn"]) if case["model"] == "draft" else model_configs.target(case["yarn"])
    if not case["quantised"]:
        config.pop("quantization_config", None)
    path = model_configs.write(folder / "model", config)
    read = ModelConfig(str(path), dtype="bfloat16", is_draft_model=case["model"] != "target")
    packing = loader._get_quantization_config(read, LoadConfig())  # imports classes, which is for no "meta"
    with loader.set_default_torch_dtype(torch.bfloat16), torch.device("meta"):
        model = loader._initialize_model(read, LoadConfig(), packing)
    for module in model.modules():
        if hasattr(module, "weight_packed"):
            module.quant_method.process_weights_after_loading(module)
    return model


def measure(case: Case) -> dict[str, Any]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for context in stand_ins(case["tp"], folder):
            stack.enter_context(context)
        model = built(case, Path(folder))
    tables = [table for name, table in model.named_buffers() if name.endswith("cos_sin_cache")]
    return {
        "class": type(model).__name__,
        "parameters": {name: param.numel() * param.element_size() for name, param in model.named_parameters()},
        "rotary tables": sum(table.numel() * table.element_size() for table in tables),
    }


if __name__ == "__main__":
    answer(measure)
