"""Draft keys and values of five layers: the tree's fused helper, and each layer by itself in torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch  # type: ignore[import-not-found]  # on the machine with the device

from tests.gpu.machine import DEVICE, HALF, sized
from tests.tree.drivers.standalone import kernel_module

FUSED = "sglang/kernels/ops/speculative/fused_kv_materialize.py"

# The Qwen3.8 draft on one of four ranks: 32 query and 8 key heads of 128 in all, five layers.
LAYERS, HIDDEN, QUERY_HEADS, KEY_HEADS, DIM = 5, sized(5120, 64), sized(8, 2), 2, sized(128, 16)
EPS, THETA, POSITIONS = 1e-6, 1e7, sized(65_536, 512)


@dataclass(frozen=True)
class Draft:
    """Layers as the helper reads them, the rotary cache, and caches [layer][rows, heads, dim] to write into."""

    layers: list[Any]
    rotary: Any
    keys: list[torch.Tensor]
    values: list[torch.Tensor]


def draft(rows: int, dtype: torch.dtype) -> Draft:
    """Random weights of five layers."""
    random = torch.Generator().manual_seed(3)

    def values(*shape: int, scale: float) -> torch.Tensor:
        return (torch.randn(*shape, generator=random) * scale).to(dtype).to(DEVICE)

    frequencies = THETA ** (-torch.arange(0, DIM, 2).double() / DIM)
    angles = torch.arange(POSITIONS).double()[:, None] * frequencies
    # SGLang keeps the rotary cache in FP32: half of a row is the cosines, half the sines.
    rotary = SimpleNamespace(
        rotary_dim=DIM, is_neox_style=True, cos_sin_cache=torch.cat([angles.cos(), angles.sin()], -1).float().to(DEVICE)
    )
    width = (QUERY_HEADS + 2 * KEY_HEADS) * DIM
    layers = [
        SimpleNamespace(
            self_attn=SimpleNamespace(
                num_kv_heads=KEY_HEADS,
                head_dim=DIM,
                q_size=QUERY_HEADS * DIM,
                kv_size=KEY_HEADS * DIM,
                rotary_emb=rotary,
                qkv_proj=SimpleNamespace(weight=values(width, HIDDEN, scale=HIDDEN**-0.5)),
                k_norm=SimpleNamespace(weight=1 + values(DIM, scale=0.1), variance_epsilon=EPS),
            )
        )
        for _ in range(LAYERS)
    ]
    caches = [[torch.zeros(rows, KEY_HEADS, DIM, dtype=dtype, device=DEVICE) for _ in layers] for _ in range(2)]
    return Draft(layers, rotary, caches[0], caches[1])


def fused(root: Path, model: Draft) -> Any:
    """``write(hidden, positions, rows)`` through the tree's helper: one product, one kernel, then the writes."""
    helper = kernel_module(root, FUSED).FusedKVMaterializeHelper(
        model.layers, model.rotary, KEY_HEADS, DIM, torch.device(DEVICE), max_position_hint=POSITIONS
    )

    def write(hidden: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> None:
        def store(layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
            model.keys[layer][rows] = keys
            model.values[layer][rows] = values

        helper.materialize(hidden, positions, store)

    return write


def separate(model: Draft, precise: bool = False) -> Any:
    """``write(hidden, positions, rows)`` layer by layer: projection, RMS norm, rotary embedding, write.

    With ``precise`` all arithmetic is FP64, and only what is written is rounded.
    """

    def widened(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.double() if precise else tensor.float()

    def write(hidden: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> None:
        cos, sin = widened(model.rotary.cos_sin_cache[positions])[:, None].chunk(2, dim=-1)
        for layer, each in enumerate(model.layers):
            attention = each.self_attn
            weight = attention.qkv_proj.weight[attention.q_size :]
            projected = (hidden.double() @ weight.double().T) if precise else hidden @ weight.T
            keys, values = projected.unflatten(-1, (2 * KEY_HEADS, DIM)).chunk(2, dim=1)
            keys = widened(keys)
            norm = torch.rsqrt(keys.square().mean(-1, keepdim=True) + attention.k_norm.variance_epsilon)
            first, second = (keys * norm * widened(attention.k_norm.weight)).chunk(2, dim=-1)
            turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
            model.keys[layer][rows] = turned.to(model.keys[layer].dtype)
            model.values[layer][rows] = values.to(model.values[layer].dtype)

    return write


def inputs(tokens: int, rows: int, dtype: torch.dtype = HALF) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(hidden [tokens, hidden size], positions, physical rows), rows scattered."""
    random = torch.Generator().manual_seed(4)
    hidden = torch.randn(tokens, HIDDEN, generator=random).to(dtype)
    positions = torch.randint(0, POSITIONS, (tokens,), generator=random)
    return hidden.to(DEVICE), positions.to(DEVICE), torch.randperm(rows, generator=random)[:tokens].to(DEVICE)
