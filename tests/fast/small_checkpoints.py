"""Small real checkpoints, made on the spot: a quantised target with a plain MTP head, and a DFlash2 draft."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.checkpoint.naming import MTP_EXCLUSIONS, MTP_PARTS, MTP_PLAIN, DFlash2Shape
from pipeline.checkpoint.safetensors_header import BITS
from tests.fast.builders import write_files

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 262144, "rope_theta": 10000000}
NATIVE = {"rope_type": "default", "rope_theta": 10000000}
SHAPE = DFlash2Shape(layers=1, hidden=32, vocabulary=64, rank=8, taps=2, group=16)
FRONT_MATTER = "---\nlicense: apache-2.0\nbase_model: somebody/base\n---\n\n# A model\n"
Shapes = Mapping[str, tuple[str, tuple[int, ...]]]


def header_of(tensors: Shapes) -> dict[str, Any]:
    """A header that lays the tensors one after the other."""
    header: dict[str, Any] = {}
    position = 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    return header


def shard(tensors: Shapes, fill: bytes = b"\x80\x3f", payload: Mapping[str, bytes] = MappingProxyType({})) -> bytes:
    """A safetensors file; each tensor repeats its ``payload``, else ``fill`` (1.0 in BF16)."""
    header = header_of(tensors)
    body = b""
    for name, row in header.items():
        start, stop = row["data_offsets"]
        value = payload.get(name, fill)
        body += (value * ((stop - start) // len(value) + 1))[: stop - start]
    return with_header(json.dumps(header).encode(), body)


def with_header(header: bytes, body: bytes = b"") -> bytes:
    """A safetensors file of these parts, sound or not."""
    return len(header).to_bytes(8, "little") + header + body


def target_config(**changes: Any) -> dict[str, Any]:
    """Config of the target, its MTP head excluded from quantisation by all ten names."""
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    quantisation = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"], "input_activations": None}},
        "ignore": ["lm_head", "re:.*visual.*", *MTP_EXCLUSIONS],
    }
    text: dict[str, Any] = {"hidden_size": 32, "vocab_size": 64, "num_hidden_layers": 64, "mtp_num_hidden_layers": 1}
    text |= {"max_position_embeddings": 1048576, "rope_parameters": {**YARN, "mrope_section": [11, 11, 10]}}
    config = {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text}
    return {**config, "quantization_config": quantisation, **changes}


def target_tensors() -> dict[str, tuple[str, tuple[int, ...]]]:
    """One packed layer, and the whole MTP head in BF16."""
    layer = "model.language_model.layers.0.mlp.down_proj."
    packed = {layer + "weight_packed": ("I32", (4, 4)), layer + "weight_scale": ("BF16", (4, 1))}
    return {**packed, **{f"{module}.weight": ("BF16", (4, 4)) for module in (*MTP_PLAIN, *MTP_PARTS)}}


def draft_config(**changes: Any) -> dict[str, Any]:
    """Config of the native draft."""
    settings = {"selector_rank": 8, "selector_top_k": 16, "conv_kernel_size": 2, "conv_group_size": 16}
    config: dict[str, Any] = {
        "architectures": ["DFlash2DraftModel"],
        "block_size": 8,
        "num_hidden_layers": 1,
        "hidden_size": 32,
    }
    config |= {"vocab_size": 64, "sliding_window": 2048, "max_position_embeddings": 262144}
    config |= {"rope_parameters": NATIVE, "dflash_config": {**settings, "target_layer_ids": [5, 19, 33, 47, 61]}}
    return {**config, "unknown_key": [1], **changes}


def draft_tensors() -> dict[str, tuple[str, tuple[int, ...]]]:
    """The selector's and the convolutions' tensors."""
    return {name: ("BF16", shape) for name, shape in SHAPE.tensors().items()}


def write_checkpoint(folder: Path, config: Mapping[str, Any], tensors: Shapes, card: str = FRONT_MATTER) -> Path:
    """A checkpoint of one shard."""
    write_files(folder, {"config.json": json.dumps(config, indent=2) + "\n", "README.md": card})
    return write_files(folder, {"model.safetensors": shard(tensors)})
