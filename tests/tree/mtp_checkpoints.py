"""Small checkpoints with an MTP head, complete or not, as cases of ``drivers/draft_start.py``."""

from __future__ import annotations

import random
from typing import Any

from gate import gate_module  # type: ignore[import-not-found]  # beside this file

naming = gate_module("naming")

HIDDEN, VOCABULARY, HEAD_DIM, HEADS, KEY_HEADS, EXPERTS, EXPERT_WIDTH = 128, 64, 64, 4, 2, 3, 128
GROUP = BLOCK = 128
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": 4,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": HEAD_DIM,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "full_attention_interval": 4,
    "partial_rotary_factor": 0.25,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    "mtp_num_hidden_layers": 1,
}
MOE = {
    **CONFIG,
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": EXPERT_WIDTH,
    "shared_expert_intermediate_size": HIDDEN,
}
LAYER = "mtp.layers.0"
ATTENTION = {
    "q_proj": (2 * HEADS * HEAD_DIM, HIDDEN),  # queries and their output gates
    "k_proj": (KEY_HEADS * HEAD_DIM, HIDDEN),
    "v_proj": (KEY_HEADS * HEAD_DIM, HIDDEN),
    "o_proj": (HIDDEN, HEADS * HEAD_DIM),
}
MLP = ("gate_proj", "up_proj", "down_proj")
Tensors = dict[str, tuple[str, list[int]]]


def plain(module: str, *shape: int) -> Tensors:
    return {f"{module}.weight": ("bfloat16", list(shape))}


def packed(module: str, out: int, into: int) -> Tensors:
    """A linear module as compressed-tensors stores it with 4 bits in groups."""
    return {
        f"{module}.weight_packed": ("int32", [out, into // 8]),
        f"{module}.weight_scale": ("bfloat16", [out, into // GROUP]),
        f"{module}.weight_shape": ("int64", [2]),
    }


def block_fp8(module: str, out: int, into: int) -> Tensors:
    """A linear module as FP8 checkpoints store it, with a scale per block."""
    return {
        f"{module}.weight": ("float8_e4m3fn", [out, into]),
        f"{module}.weight_scale_inv": ("float32", [-(-out // BLOCK), -(-into // BLOCK)]),
    }


def static_fp8(module: str, *shape: int) -> Tensors:
    """One scale for the weight and one, known beforehand, for its input."""
    scales: Tensors = {f"{module}.{name}": ("float32", [1]) for name in ("weight_scale", "input_scale")}
    return {f"{module}.weight": ("float8_e4m3fn", list(shape)), **scales}


def surroundings() -> Tensors:
    """What every head has plain, and tensors of the target that the head has to pass over."""
    widths = {"q_norm": HEAD_DIM, "k_norm": HEAD_DIM}
    names = [name for name in naming.MTP_PLAIN if name != naming.MTP_FC]
    tensors: Tensors = {}
    for name in names:
        tensors |= plain(name, widths.get(name.rpartition(".")[2], HIDDEN))
    return {
        **tensors,
        **plain(naming.MTP_FC, HIDDEN, 2 * HIDDEN),
        **plain("model.layers.0.mlp.down_proj", HIDDEN, HIDDEN),
        **plain("lm_head", VOCABULARY, HIDDEN),
    }


def dense(linear: Any = plain) -> Tensors:
    tensors = surroundings()
    for name, shape in ATTENTION.items():
        tensors |= linear(f"{LAYER}.self_attn.{name}", *shape)
    for name in MLP:
        tensors |= linear(f"{LAYER}.mlp.{name}", HIDDEN, HIDDEN)
    return tensors


def moe(linear: Any = plain, *, fused: bool = False) -> Tensors:
    """A head with experts, one tensor per expert and projection or one for all experts."""
    block = f"{LAYER}.mlp"
    tensors = surroundings() | plain(f"{block}.gate", EXPERTS, HIDDEN) | plain(f"{block}.shared_expert_gate", 1, HIDDEN)
    for name, shape in ATTENTION.items():
        tensors |= linear(f"{LAYER}.self_attn.{name}", *shape)
    for name in MLP:
        tensors |= linear(f"{block}.shared_expert.{name}", HIDDEN, HIDDEN)
    if fused:
        tensors[f"{block}.experts.gate_up_proj"] = ("bfloat16", [EXPERTS, 2 * EXPERT_WIDTH, HIDDEN])
        tensors[f"{block}.experts.down_proj"] = ("bfloat16", [EXPERTS, HIDDEN, EXPERT_WIDTH])
        return tensors
    for expert in range(EXPERTS):
        for name in MLP:
            tensors |= linear(f"{block}.experts.{expert}.{name}", EXPERT_WIDTH, HIDDEN)
    return tensors


def without(tensors: Tensors, *names: str) -> Tensors:
    assert set(names) <= set(tensors)
    return {name: entry for name, entry in tensors.items() if name not in names}


def int4(*ignore: str) -> dict[str, Any]:
    """The quantisation config of the published target, with an ignore list."""
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*visual.*", *ignore],
    }


def llm_compressor_fp8() -> dict[str, Any]:
    """Static FP8 as compressed-tensors says it."""
    numbers = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
    group = {"targets": ["Linear"], "weights": numbers, "input_activations": numbers, "output_activations": None}
    return {**int4(), "format": "float-quantized", "config_groups": {"group_0": group}}


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
"""Its exclusions are empty."""
STATIC = {"quant_method": "fp8", "activation_scheme": "static"}


def fp8(*excluded: str) -> dict[str, Any]:
    return {**FP8, "modules_to_not_convert": list(excluded)}


def case(name: str, tensors: Tensors, quantisation: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    config = {**more.pop("config", CONFIG), **({"quantization_config": quantisation} if quantisation else {})}
    return {"name": f"MTP {name}", "config": config, "tensors": tensors, **more}


def own(tensors: Tensors) -> list[str]:
    return [name for name in tensors if name.startswith("mtp.")]


def inputs(tensors: Tensors) -> list[str]:
    """Static scales of activations."""
    return [name for name in tensors if name.endswith(".input_scale")]


def subsets() -> list[dict[str, Any]]:
    draw = random.Random(20261129)
    names = own(dense())
    return [
        case(f"subset {number}", without(dense(), *draw.sample(names, draw.randint(2, len(names) - 1))))
        for number in range(10)
    ]


QKV = [f"{LAYER}.self_attn.{name}.weight" for name in ("q_proj", "k_proj", "v_proj")]
SPLIT = list(naming.MTP_PARTS)
FUSED = [built.name for built in naming.MTP_BUILT if built.fused]
EXPERT = f"{LAYER}.mlp.experts"

K_PROJ = f"{LAYER}.self_attn.k_proj"
HALF_PLAIN = {**without(dense(packed), *packed(K_PROJ, *ATTENTION["k_proj"])), **plain(K_PROJ, *ATTENTION["k_proj"])}

BY_PARTS = case("excluded by split names", dense(), int4(*SPLIT))
COMPLETE = [
    case("complete", dense(), update=QKV[:1]),
    BY_PARTS,
    case("excluded by all names", dense(), int4(*naming.MTP_EXCLUSIONS)),
    case("excluded by expression", dense(), int4("re:^mtp.*")),
    case("packed and complete", dense(packed), int4()),
    case("block FP8 and complete", dense(block_fp8), fp8(naming.MTP_FC)),
    case("static FP8 and complete", dense(static_fp8), STATIC),
    case("static FP8 by compressed-tensors", dense(static_fp8), llm_compressor_fp8()),
    case("experts in block FP8", moe(block_fp8), FP8, config=MOE),
    case("experts in static FP8", moe(static_fp8), STATIC, config=MOE),
    case("experts packed", moe(packed), int4(), config=MOE),
    case("experts", moe(), config=MOE, update=[f"{EXPERT}.1.up_proj.weight"]),
    case("experts in one tensor", moe(fused=True), config=MOE),
    case("scales are computed while loading", dense(), quantization="fp8"),
    case("experts' scales are computed while loading", moe(), config=MOE, quantization="fp8"),
]
INCOMPLETE = [
    *(case(f"without {name}", without(dense(), name)) for name in own(dense())),
    case("q alone", without(dense(), *QKV[1:])),
    case("nothing of the head", without(dense(), *own(dense()))),
    case("plain, and not excluded", dense(), int4()),
    case("plain, and excluded by fused names alone", dense(), int4(*FUSED)),
    case("plain, under block FP8", dense(), FP8),
    case("packed, without one scale", without(dense(packed), f"{LAYER}.self_attn.k_proj.weight_scale"), int4()),
    case("block FP8, without one scale", without(dense(block_fp8), f"{LAYER}.self_attn.k_proj.weight_scale_inv"), FP8),
    case(
        "block FP8, without a scale of one part",
        without(dense(block_fp8), f"{LAYER}.mlp.down_proj.weight_scale_inv"),
        FP8,
    ),
    case("packed, and excluded", dense(packed), int4(*naming.MTP_EXCLUSIONS)),
    case("packed, and k plain", HALF_PLAIN, int4()),
    case(
        "experts in block FP8, without one scale",
        without(moe(block_fp8), f"{EXPERT}.1.up_proj.weight_scale_inv"),
        FP8,
        config=MOE,
    ),
    case(
        "experts packed, without one scale",
        without(moe(packed), f"{EXPERT}.1.up_proj.weight_scale"),
        int4(),
        config=MOE,
    ),
    case("static FP8, without scales of inputs", without(dense(static_fp8), *inputs(dense(static_fp8))), STATIC),
    case(
        "static FP8 by compressed-tensors, without one of them",
        without(dense(static_fp8), f"{LAYER}.self_attn.k_proj.input_scale"),
        llm_compressor_fp8(),
    ),
    case(
        "experts in static FP8, without one of them",
        without(moe(static_fp8), *(f"{EXPERT}.1.{name}.input_scale" for name in MLP[:2])),
        STATIC,
        config=MOE,
    ),
    case("one part of one expert", without(moe(), f"{EXPERT}.1.up_proj.weight"), config=MOE),
    case("one expert", without(moe(), *(f"{EXPERT}.2.{name}.weight" for name in MLP)), config=MOE),
    case("half a shared expert", without(moe(), f"{LAYER}.mlp.shared_expert.up_proj.weight"), config=MOE),
    case("plain experts, under block FP8", moe(), FP8, config=MOE),
    *subsets(),
]
EXPERTS_EXCLUDED = f"{EXPERT}.1.up_proj"
UNDECODED = [
    case("block FP8, and excluded", dense(block_fp8), fp8(*naming.MTP_EXCLUSIONS)),
    case("block FP8, and excluded by a parent", dense(block_fp8), fp8("lm_head", "mtp")),
    case("static FP8, and excluded", dense(static_fp8), {**STATIC, "ignored_layers": list(naming.MTP_EXCLUSIONS)}),
    case("block FP8, and down_proj is excluded", dense(block_fp8), fp8(naming.MTP_FC, f"{LAYER}.mlp.down_proj")),
    case("experts in block FP8, and excluded", moe(block_fp8), fp8(EXPERTS_EXCLUDED), config=MOE),
    case(
        "FP8 by compressed-tensors, and excluded", dense(static_fp8), {**llm_compressor_fp8(), "ignore": ["re:^mtp.*"]}
    ),
    case("block FP8, without a config", dense(block_fp8)),
    case("fc in block FP8", {**dense(block_fp8), **block_fp8(naming.MTP_FC, HIDDEN, 2 * HIDDEN)}, FP8),
]
"""Quantised, and built plain: every parameter is filled, with codes."""
INHERITED = case("inherited", without(dense(), *QKV[1:]), inherits=True)
"""Loaded by a class that inherits ``load_weights``."""
DUMMY = case("dummy", dense(), load_format="dummy", update=QKV[:1])
CASES = [*COMPLETE, *INCOMPLETE, *UNDECODED, INHERITED, DUMMY]
