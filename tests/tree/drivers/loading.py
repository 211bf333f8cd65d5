"""Load a draft model from a folder the way a model runner does, on a CPU, as if it were an XPU.

Of the runner only ``load_model_with_memory_saver`` is called: it picks the loader, reads the config's class, opens the
safetensors files and calls the real ``load_weights``. One process is rank 0 of groups of one, without process groups.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

os.environ["SGLANG_EXTERNAL_MODEL_PACKAGE"] = "drivers.drafts"  # read when the registry is imported

import torch  # type: ignore[import-not-found]  # in the base image only
from safetensors.torch import save_file  # type: ignore[import-not-found]
from sglang.srt.configs.load_config import LoadConfig  # type: ignore[import-not-found]
from sglang.srt.configs.model_config import ModelConfig  # type: ignore[import-not-found]
from sglang.srt.distributed import parallel_state  # type: ignore[import-not-found]
from sglang.srt.layers.quantization.compressed_tensors import (  # type: ignore[import-not-found]
    compressed_tensors,
)
from sglang.srt.layers.rotary_embedding import base as rotary  # type: ignore[import-not-found]
from sglang.srt.model_executor.model_runner_components import load_model_utils  # type: ignore[import-not-found]
from sglang.srt.model_loader import loader  # type: ignore[import-not-found]
from sglang.srt.runtime_context import get_context, get_parallel  # type: ignore[import-not-found]

GROUPS = ("tp", "pp", "attn_tp", "attn_cp", "attn_dp", "moe_tp", "moe_ep", "moe_dp")
ALONE = {f"{group}_{what}": number for group in GROUPS for what, number in (("rank", 0), ("size", 1))}
SENTINEL = -77
"""What an integer parameter holds until something is loaded into it; a floating-point one holds NaN."""


@dataclass
class Loaded:
    """What came of a load: the model as ``load_weights`` left it, and the error that ended it."""

    error: str | None = None
    models: list[Any] = field(default_factory=list)

    @property
    def model(self) -> Any:
        return self.models[-1]

    def unfilled(self) -> list[str]:
        """Parameters of which at least one element was never written."""
        return [name for name, param in self.model.named_parameters() if bool(_untouched(param).any())]

    def digest(self) -> str:
        """SHA-256 of names and bytes of all parameters."""
        digest = hashlib.sha256()
        for name, param in self.model.named_parameters():
            digest.update(name.encode() + param.detach().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def _untouched(param: torch.Tensor) -> torch.Tensor:
    return param.float().isnan() if param.is_floating_point() else param == SENTINEL


def checkpoint(folder: str, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    """Write ``config.json`` and one safetensors file."""
    Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, Path(folder, "model.safetensors"))


@contextlib.contextmanager
def one_rank() -> Iterator[None]:
    """Published configuration and ranks of a single process, with the branches that an XPU takes at construction."""
    group = SimpleNamespace(is_first_rank=True, is_last_rank=True, world_size=1, rank_in_group=0)
    with (
        get_context().override_server_args(device="cpu"),
        get_parallel().override(pp_group=group, **ALONE),
        mock.patch.multiple(parallel_state, _PP=group, _MOE_DP=group),  # where models up to 0.5.19 look for them
        mock.patch.object(rotary, "_is_xpu", True),  # another device would import its rotary kernel
        four_bits(),
    ):
        yield


def four_bits() -> Any:
    """XPU's branch of compressed-tensors; before 0.5.21 none has four bits, and the scheme is built as for CUDA."""
    if hasattr(compressed_tensors, "XPUCompressedTensorsWNA16"):
        return mock.patch.object(compressed_tensors, "_is_xpu", True)
    return mock.patch.object(compressed_tensors.CompressedTensorsConfig, "_check_scheme_supported")


def load(
    config: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    load_format: str = "auto",
    quantization: str | None = None,
) -> Loaded:
    """Load a draft from a fresh folder; packing for a device's kernels, which comes after, is left out."""
    result = Loaded()
    build = loader._initialize_model

    def build_untouched(*args: Any) -> Any:
        model = build(*args)
        for param in model.parameters():
            param.data.fill_(float("nan") if param.is_floating_point() else SENTINEL)
        for module in model.modules():
            if method := getattr(module, "quant_method", None):
                method.process_weights_after_loading = lambda _layer: None
        result.models.append(model)
        return model

    adapter = SimpleNamespace(region=lambda *_args, **_options: contextlib.nullcontext())
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(loader, "_initialize_model", build_untouched),
    ):
        checkpoint(folder, config, tensors)
        start = load_model_utils.load_model_with_memory_saver
        takes = inspect.signature(start).parameters
        more = {"server_args": get_context().server_args} if "server_args" in takes else {}
        try:
            start(
                **more,
                model_config=ModelConfig(folder, is_draft_model=True, dtype="bfloat16", quantization=quantization),
                load_config=LoadConfig(load_format=load_format),
                device="cpu",
                gpu_id=0,
                memory_saver_adapter=adapter,
                is_draft_worker=True,
            )
        except (ValueError, AssertionError) as error:
            if not result.models:
                raise
            result.error = str(error)
    return result
