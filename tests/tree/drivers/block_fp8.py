"""Load block-FP8 linear layers with the real classes and loaders on a CPU, the XPU faked, and look at what they keep.

A case: ``name``; ``xpu`` (whether the device counts as one); ``switch`` (value of SGLANG_XPU_BLOCK_FP8_TO_BF16, null
for unset); ``config`` (what is added to the FP8 quantisation config); ``layer`` ("replicated", "row", "merged" or
"qkv") with ``outputs`` (rows of each shard), ``inputs`` and ``tp`` ([rank, size]); ``dtype`` of the model. Answer: the
method's class, what the layer holds after loading, how many weights differ from a loop over the codes and their
scales, the largest error of a forward in units of the output's last place, and what a weight update answers.
"""

from __future__ import annotations

import hashlib
import os
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch  # type: ignore[import-not-found]  # in the base image only
from sglang.srt.layers import linear  # type: ignore[import-not-found]
from sglang.srt.layers.quantization import fp8, fp8_utils  # type: ignore[import-not-found]
from sglang.srt.model_executor.model_runner_components.weight_updater import (  # type: ignore[import-not-found]
    WeightUpdater,
)
from sglang.srt.runtime_context import get_parallel  # type: ignore[import-not-found]

from .answer import Case, answer

SWITCH = "SGLANG_XPU_BLOCK_FP8_TO_BF16"
TOKENS = 5


def build(case: Case, config: Any) -> Any:
    """The layer as a model builds it. Of qkv, ``outputs`` are rows of q, k and v with heads of one block each."""
    outputs, inputs = case["outputs"], case["inputs"]
    options = {"bias": False, "params_dtype": getattr(torch, case["dtype"]), "quant_config": config, "prefix": "x"}
    if case["layer"] == "replicated":
        return linear.ReplicatedLinear(inputs, sum(outputs), **options)
    if case["layer"] == "row":
        return linear.RowParallelLinear(inputs, sum(outputs), reduce_results=False, **options)
    if case["layer"] == "merged":
        return linear.MergedColumnParallelLinear(inputs, outputs, **options)
    head = config.weight_block_size[0]
    return linear.QKVParallelLinear(inputs, head, outputs[0] // head, outputs[1] // head, **options)


def checkpoint(case: Case, block: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """FP8 codes [rows, inputs] and FP32 scales [blocks, blocks] of each shard, of the whole layer."""
    random = torch.Generator().manual_seed(3)
    made = []
    for rows in case["outputs"]:
        codes = (torch.randn(rows, case["inputs"], generator=random) * 60).clamp(-448, 448).to(torch.float8_e4m3fn)
        blocks = (-(-rows // block[0]), -(-case["inputs"] // block[1]))
        made.append((codes, torch.rand(blocks, generator=random) * 0.01 + 1e-4))
    return made


def load(layer: Any, kind: str, shards: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    ids = {"merged": range(len(shards)), "qkv": "qkv"}.get(kind)
    for index, tensors in enumerate(shards):
        where = () if ids is None else (ids[index],)
        for parameter, tensor in zip((layer.weight, layer.weight_scale_inv), tensors, strict=True):
            parameter.weight_loader(parameter, tensor, *where)


def reference(case: Case, shards: list[tuple[torch.Tensor, torch.Tensor]], block: list[int]) -> torch.Tensor:
    """code * scale of its block, one by one, of this rank's part; FP64 holds each product exactly."""
    rank, size = case["tp"]
    rows: list[list[float]] = []
    for codes, scales in shards:
        code, scale = codes.float().tolist(), scales.tolist()
        height, width = len(code), case["inputs"]
        by_row = case["layer"] == "row"
        mine = range(height) if by_row else range(height * rank // size, height * (rank + 1) // size)
        columns = range(width * rank // size, width * (rank + 1) // size) if by_row else range(width)
        rows += [[code[n][k] * scale[n // block[0]][k // block[1]] for k in columns] for n in mine]
    product = torch.tensor(rows, dtype=torch.float64)
    return product.float().to(getattr(torch, case["dtype"]))


def forward_error(layer: Any, weight: torch.Tensor) -> float:
    """Largest error of a forward against FP64, in units of the type's relative precision and the output's scale."""
    x = torch.randn(TOKENS, weight.shape[1], generator=torch.Generator().manual_seed(5)).to(weight.dtype)
    exact = x.double() @ weight.double().T
    found = layer.quant_method.apply(layer, x, None)
    scale = x.double().abs() @ weight.double().abs().T
    return float(((found.double() - exact).abs() / scale).max() / torch.finfo(weight.dtype).eps)


def update_answer(layer: Any) -> str | None:
    """What an online weight update says before it writes anything; null when it goes on to the loader."""
    reached: list[object] = []
    model = SimpleNamespace(modules=lambda: [layer], load_weights=reached.append)
    updater = SimpleNamespace(get_model=lambda: model, _assert_weight_cache_inactive=lambda _: None)
    success, message = WeightUpdater.load_weights_from_distributed(updater, [])
    assert success == bool(reached)
    return None if success else str(message)


def digest(layer: Any) -> list[Any]:
    """Every parameter: name, type, shape, strides and a digest of its bytes in logical order."""
    return [
        [name, str(value.dtype), list(value.shape), list(value.stride()), sha256(value)]
        for name, value in sorted(layer.named_parameters())
    ]


def sha256(value: torch.Tensor) -> str:
    return hashlib.sha256(value.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def measure(case: Case) -> dict[str, Any]:
    rank, size = case["tp"]
    with (
        patch.dict(os.environ, {} if case["switch"] is None else {SWITCH: case["switch"]}),
        patch.object(fp8, "_is_xpu", case["xpu"]),
        patch.object(fp8_utils, "_is_xpu", case["xpu"]),
        get_parallel().override(tp_rank=rank, tp_size=size),
        torch.no_grad(),
    ):
        config = fp8.Fp8Config.from_config(
            {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], **case["config"]}
        )
        layer = build(case, config)
        method = layer.quant_method
        made = {"method": type(method).__name__, "product": getattr(method.w8a8_block_fp8_linear, "__name__", None)}
        if config.use_mxfp8 or config.weight_block_size is None:
            return made
        shards = checkpoint(case, config.weight_block_size)
        load(layer, case["layer"], shards)
        method.process_weights_after_loading(layer)
        made |= {"parameters": digest(layer), "update": update_answer(layer)}
        if layer.weight.dtype == torch.float8_e4m3fn:
            return made
        weight = reference(case, shards, config.weight_block_size)
        differ = int((layer.weight != weight).sum()) if layer.weight.shape == weight.shape else -1
        return made | {"differ": differ, "error": forward_error(layer, weight)}


if __name__ == "__main__":
    answer(measure)
