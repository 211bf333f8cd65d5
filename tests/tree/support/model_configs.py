"""Config folders of the models that this project serves: enough for SGLang's ``ModelConfig``, without weights.

Shapes of the 27B target: full attention in every fourth of 64 layers, 24 query heads and 4 key heads of width
256; Gated DeltaNet in the others, 48 value heads and 16 key heads of width 128. The draft is the DFlash2
checkpoint that ``profiles.yaml`` pins.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NATIVE_POSITIONS = 262_144
YARN_FACTOR = 4
LAYERS, FULL_ATTENTION_EVERY = 64, 4
TARGET_ROPE = frozenset({"partial_rotary_factor", "mrope_interleaved", "mrope_section"})
"""Settings that a draft's text-only attention does not have."""

Config = dict[str, Any]


def rope(yarn: bool) -> Config:
    """RoPE settings of the target: native, or stretched by YaRN's factor four."""
    native: Config = {
        "rope_type": "default",
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
    }
    stretched = {
        "rope_type": "yarn",
        "factor": float(YARN_FACTOR),
        "original_max_position_embeddings": NATIVE_POSITIONS,
    }
    return {**native, **stretched} if yarn else native


def target(yarn: bool) -> Config:
    """``Qwen3_5ForConditionalGeneration`` with packed 4-bit weights and its MTP head in BF16."""
    text = {
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "vocab_size": 248_320,
        "hidden_size": 5120,
        "intermediate_size": 17_408,
        "num_hidden_layers": LAYERS,
        "full_attention_interval": FULL_ATTENTION_EVERY,
        "layer_types": [
            "linear_attention" if layer % FULL_ATTENTION_EVERY else "full_attention" for layer in range(1, LAYERS + 1)
        ],
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "attn_output_gate": True,
        "linear_num_value_heads": 48,
        "linear_num_key_heads": 16,
        "linear_value_head_dim": 128,
        "linear_key_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "mtp_num_hidden_layers": 1,
        "max_position_embeddings": NATIVE_POSITIONS * (YARN_FACTOR if yarn else 1),
        "rope_parameters": rope(yarn),
    }
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "group_size": 128, "strategy": "group"}
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": {"model_type": "qwen3_5", "depth": 27, "hidden_size": 1152, "out_hidden_size": 5120},
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": ["lm_head", "re:.*visual.*", "re:^mtp.*"],
        },
    }


def draft(yarn: bool) -> Config:
    """``DFlash2DraftModel``: five non-causal sliding layers that read five layers of the target."""
    return {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": 248_320,
        "hidden_size": 5120,
        "intermediate_size": 17_408,
        "num_hidden_layers": 5,
        "layer_types": ["sliding_attention"] * 5,
        "sliding_window": 2048,
        "use_sliding_window": True,
        "is_causal": False,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_bias": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "max_position_embeddings": NATIVE_POSITIONS * (YARN_FACTOR if yarn else 1),
        "rope_parameters": {
            key: value for key, value in rope(yarn).items() if not key.startswith(("mrope", "partial"))
        },
        "num_target_layers": LAYERS,
        "block_size": 8,
        "dflash_config": {
            "target_layer_ids": [5, 19, 33, 47, 61],
            "mask_token_id": 248_070,
            "selector_rank": 256,
            "selector_top_k": 16,
            "conv_kernel_size": 2,
            "conv_group_size": 16,
        },
    }


def mamba2() -> Config:
    """``FalconH1ForCausalLM`` with the defaults of its class: a hybrid without Gated DeltaNet."""
    return {"architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1", "max_position_embeddings": 8192}


def write(folder: Path, config: Config) -> Path:
    """Make a folder that holds this ``config.json`` and nothing else; returns it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder
