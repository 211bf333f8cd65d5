"""Drafts in miniature: what each consists of, in which states it comes, and what start-up has to say to each."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

HIDDEN, VOCABULARY, HEADS, KEY_HEADS, HEAD_DIM, RANK, TAPS, GROUP, LAYERS = 64, 96, 4, 2, 16, 8, 2, 16, 2
BLOCK, WINDOW = 8, 32
"""What a trial launch asks for."""
SHARED = {
    "hidden_size": HIDDEN,
    "intermediate_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
TARGET: dict[str, Any] = {
    **SHARED,
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "partial_rotary_factor": 0.25,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    "mtp_num_hidden_layers": 1,
}
"""A target of one dense block of four layers, whose MTP head is a draft."""
DFLASH2: dict[str, Any] = {
    **SHARED,
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "num_hidden_layers": LAYERS,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "block_size": BLOCK,
    "num_target_layers": 4,
    "dflash_config": {
        "mask_token_id": 1,
        "target_layer_ids": [0, 2],
        "selector_rank": RANK,
        "selector_top_k": 4,
        "conv_kernel_size": TAPS,
        "conv_group_size": GROUP,
    },
}
CLASSIC = {**DFLASH2, "architectures": ["DFlashDraftModel"]}
WINDOWED: dict[str, Any] = {
    **DFLASH2,
    "layer_types": ["sliding_attention"] * LAYERS,
    "use_sliding_window": True,
    "sliding_window": WINDOW,
}


@dataclass(frozen=True)
class Trial:
    """A draft that start-up meets."""

    name: str
    config: dict[str, Any]
    tensors: dict[str, tuple[int, ...]]
    """Name to shape; every element is one."""
    zero: str = ""
    """The tensor that is zero instead."""
    refused: str = ""
    """Part of the reason for which it must not start; empty: it must start."""

    def without(self, tensor: str, refused: str) -> "Trial":
        kept = {name: shape for name, shape in self.tensors.items() if name != tensor}
        return replace(self, name=f"{self.name} without {tensor}", tensors=kept, refused=refused)


def _block(prefix: str, query_rows: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """One decoder layer."""
    for norm, width in (("input_layernorm", HIDDEN), ("post_attention_layernorm", HIDDEN)):
        yield f"{prefix}.{norm}.weight", (width,)
    attention = {"q_norm": (HEAD_DIM,), "k_norm": (HEAD_DIM,), "q_proj": (query_rows, HIDDEN)}
    attention |= dict.fromkeys(("k_proj", "v_proj"), (KEY_HEADS * HEAD_DIM, HIDDEN))
    attention["o_proj"] = (HIDDEN, HEADS * HEAD_DIM)
    for name, shape in attention.items():
        yield f"{prefix}.self_attn.{name}.weight", shape
    for name in ("gate_proj", "up_proj", "down_proj"):
        yield f"{prefix}.mlp.{name}.weight", (HIDDEN, HIDDEN)


def _mtp() -> Trial:
    tensors: dict[str, tuple[int, ...]] = {
        f"mtp.{name}.weight": (HIDDEN,) for name in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding")
    }
    tensors["mtp.fc.weight"] = (HIDDEN, 2 * HIDDEN)
    tensors |= _block("mtp.layers.0", 2 * HEADS * HEAD_DIM)  # queries and their output gates
    return Trial("MTP head", TARGET, tensors)


def _dflash2() -> Trial:
    tensors: dict[str, tuple[int, ...]] = {f"{name}.weight": (HIDDEN,) for name in ("norm", "hidden_norm")}
    tensors["fc.weight"] = (HIDDEN, 2 * HIDDEN)
    tensors["candidate_selector.hidden_projection.weight"] = (RANK, HIDDEN)
    for side in ("predecessor", "successor"):
        tensors[f"candidate_selector.{side}_codebook"] = (VOCABULARY, RANK)
    for layer in range(LAYERS):
        tensors |= _block(f"layers.{layer}", HEADS * HEAD_DIM)
        for conv in ("attention_conv", "mlp_conv"):
            tensors[f"layers.{layer}.{conv}.base_kernel"] = (2, TAPS, HIDDEN)
            tensors[f"layers.{layer}.{conv}.kernel_projection.weight"] = (2 * TAPS * HIDDEN // GROUP, HIDDEN)
    return Trial("DFlash2 draft", DFLASH2, tensors)


MTP_HEAD, DFLASH2_DRAFT = _mtp(), _dflash2()
CODEBOOK, PROJECTION = "candidate_selector.successor_codebook", "layers.1.mlp_conv.kernel_projection.weight"
LOADS = {
    "Qwen3_5ForCausalLMMTP": (
        MTP_HEAD,
        MTP_HEAD.without("mtp.fc.weight", "missing: fc.weight"),
        MTP_HEAD.without("mtp.layers.0.self_attn.v_proj.weight", "missing: model.layers.0.qkv_proj.weight (v)"),
    ),
    "DFlash2DraftModel": (
        DFLASH2_DRAFT,
        DFLASH2_DRAFT.without(CODEBOOK, f"missing ({CODEBOOK})"),
        DFLASH2_DRAFT.without(PROJECTION, f"missing ({PROJECTION})"),
        replace(DFLASH2_DRAFT, name="DFlash2 draft of zeros", zero=PROJECTION, refused=f"{PROJECTION} is all zero"),
    ),
}
"""By the class of the draft, checkpoints to load."""
LAUNCHES = {
    "DFlash2DraftModel": (
        Trial("launch with a DFlash2 draft", WINDOWED, {}),
        Trial("launch with a classic draft", CLASSIC, {}, refused="its architecture is DFlashDraftModel"),
        Trial("launch with another block", {**WINDOWED, "block_size": 16}, {}, refused="its block_size is 16"),
        Trial("launch with another window", {**WINDOWED, "sliding_window": 16}, {}, refused="its sliding_window is 16"),
        Trial(
            "launch with a draft of a deeper target",
            {**WINDOWED, "num_target_layers": 8},
            {},
            refused="its num_target_layers is 8",
        ),
    )
}
"""By the class that the image expects, drafts to resolve a launch for, with ``BLOCK`` draft tokens and ``WINDOW``."""
