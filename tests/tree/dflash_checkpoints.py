"""Small DFLASH drafts, whole or not, as cases of ``drivers/draft_start.py``.

Which tensors DFlash2 adds, and of what shape, comes from the checkpoint gate's rules.
"""

from __future__ import annotations

from typing import Any

from conftest import MAIN  # type: ignore[import-not-found]  # these two lie beside this file
from gate import gate_module  # type: ignore[import-not-found]

naming = gate_module("naming")

HIDDEN, VOCABULARY, RANK, TAPS, GROUP, LAYERS, HEADS, KEY_HEADS, HEAD_DIM = 64, 96, 8, 2, 16, 5, 4, 2, 16
TARGET_LAYERS = 2
SELECTOR = {"selector_rank": RANK, "selector_top_k": 4}
CONVOLUTION = {"conv_kernel_size": TAPS, "conv_group_size": GROUP}
CONFIG: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": HEAD_DIM,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "attention_bias": False,
    "num_target_layers": 4,
    "block_size": 8,
    "dflash_config": {"mask_token_id": 95, "target_layer_ids": [0, 2], **SELECTOR, **CONVOLUTION},
}
Tensors = dict[str, tuple[Any, ...]]

TRAINED = naming.DFlash2Shape(LAYERS, HIDDEN, VOCABULARY, RANK, TAPS, GROUP).tensors()
"""Name to shape, by the gate."""


def backbone() -> Tensors:
    """What classic DFlash has."""
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, TARGET_LAYERS * HIDDEN),
        "hidden_norm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        block = f"layers.{layer}"
        shapes |= {
            f"{block}.input_layernorm.weight": (HIDDEN,),
            f"{block}.post_attention_layernorm.weight": (HIDDEN,),
            f"{block}.self_attn.q_norm.weight": (HEAD_DIM,),
            f"{block}.self_attn.k_norm.weight": (HEAD_DIM,),
            f"{block}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"{block}.self_attn.k_proj.weight": (KEY_HEADS * HEAD_DIM, HIDDEN),
            f"{block}.self_attn.v_proj.weight": (KEY_HEADS * HEAD_DIM, HIDDEN),
            f"{block}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"{block}.mlp.gate_proj.weight": (2 * HIDDEN, HIDDEN),
            f"{block}.mlp.up_proj.weight": (2 * HIDDEN, HIDDEN),
            f"{block}.mlp.down_proj.weight": (HIDDEN, 2 * HIDDEN),
        }
    return {name: ("bfloat16", list(shape)) for name, shape in shapes.items()}


def trained(value: float | None = None, only: str | None = None) -> Tensors:
    """DFlash2's additions; one of them, or each, with a single value."""
    return {name: ("bfloat16", list(shape), value if only in (None, name) else None) for name, shape in TRAINED.items()}


def config(
    architecture: str = "DFlash2DraftModel",
    *,
    drop: tuple[str, ...] = (),
    target_layers: list[int] | None = None,
    **more: Any,
) -> dict[str, Any]:
    settings = {key: value for key, value in CONFIG["dflash_config"].items() if key not in drop}
    if target_layers is not None:
        settings["target_layer_ids"] = target_layers
    return {**CONFIG, "architectures": [architecture], "dflash_config": settings, **more}


def case(name: str, tensors: Tensors, configuration: dict[str, Any] = CONFIG, **more: Any) -> dict[str, Any]:
    return {"name": f"DFLASH {name}", "config": configuration, "tensors": tensors, **more}


def without(*names: str) -> Tensors:
    return {name: entry for name, entry in (backbone() | trained()).items() if name not in names}


WHOLE = backbone() | trained()
CODEBOOK, PROJECTION = "candidate_selector.predecessor_codebook", "layers.3.mlp_conv.kernel_projection.weight"
CLASSIC = config("DFlashDraftModel", drop=(*SELECTOR, *CONVOLUTION))
SELECTOR_ONLY = {name: entry for name, entry in WHOLE.items() if "_conv." not in name}

ACCEPTED = [
    case("complete", WHOLE, update=[CODEBOOK]),
    case("complete, under model.", {f"model.{name}": entry for name, entry in WHOLE.items()}),
    case("alias DFlash2BeamDraftModel", WHOLE, config("DFlash2BeamDraftModel")),
    case("alias MiniMaxDFlash2DraftModel", WHOLE, config("MiniMaxDFlash2DraftModel")),
    case("without convolutions, as config and weights agree", SELECTOR_ONLY, config(drop=tuple(CONVOLUTION))),
    case("classic", backbone(), CLASSIC, update=["norm.weight"]),
    case("classic, with a fixed convolution", backbone() | {
        name: entry for name, entry in trained(0.0, PROJECTION).items() if "_conv." in name
    }, config("DFlashDraftModel", drop=tuple(SELECTOR))),
]  # fmt: skip
DUMMY = case("dummy", WHOLE, load_format="dummy", update=[CODEBOOK])

Refused = tuple[dict[str, Any], str]
MISSING: list[Refused] = [
    (case(f"without {name}", without(name)), f"1 of {len(TRAINED)} are missing ({name})") for name in TRAINED
]
ZERO: list[Refused] = [
    (case(f"zero {name}", backbone() | trained(0.0, name)), f"whole: {name} is all zero.") for name in TRAINED
]
OTHERS: list[Refused] = [
    (case("weights of a classic draft", backbone()), f"{len(TRAINED)} of {len(TRAINED)} are missing"),
    (case("NaN", backbone() | trained(float("nan"), PROJECTION)), f"{PROJECTION} is not finite"),
    (case("infinite", backbone() | trained(float("inf"), CODEBOOK)), f"{CODEBOOK} is not finite"),
    (case("twice", WHOLE | {f"model.{CODEBOOK}": WHOLE[CODEBOOK]}), f"{CODEBOOK} is there twice"),
    (case("a DFlash2 checkpoint under the classic class", WHOLE, CLASSIC), f"{len(TRAINED)} have no place"),
    (case("both convolution keys lost", WHOLE, config(drop=tuple(CONVOLUTION))), f"{4 * LAYERS} have no place"),
    (case("a layer too many", WHOLE, config(num_hidden_layers=LAYERS - 1)), "4 have no place (layers.4."),
    (case("convolutions missing in a classic draft", backbone(), config("DFlashDraftModel", drop=tuple(SELECTOR))),
     f"{4 * LAYERS} of {4 * LAYERS} are missing"),
    (case("an alias without a codebook", without(CODEBOOK), config("DFlash2BeamDraftModel")), "1 of 23 are missing"),
]  # fmt: skip
REFUSED = [*MISSING, *ZERO, *OTHERS]
SHAPE = case("misshapen", WHOLE | {CODEBOOK: ("bfloat16", [VOCABULARY - 1, RANK])})


def rotated(name: str, **rope: Any) -> dict[str, Any]:
    """A whole draft whose config says how much of the head is rotated, as newer configs do."""
    return case(name, WHOLE, config(rope_parameters={"rope_theta": 10000.0, "rope_type": "default"} | rope))


HALF_HEAD = HEAD_DIM // 2
OF_TARGET = {"partial_rotary_factor": 0.25, "mrope_section": [1, 1, 0], "mrope_interleaved": True}
ROTATED = [
    (rotated("rotates all"), HEAD_DIM),
    (rotated("says rope_dim", rope_dim=HALF_HEAD), HALF_HEAD),
    (rotated("says rope_dim beside its target's fields", rope_dim=HALF_HEAD, **OF_TARGET), HALF_HEAD),
    (case("says partial_rotary_factor", WHOLE, config(partial_rotary_factor=0.5)), HALF_HEAD),
]
"""Drafts, and how many of the head's dimensions they rotate."""


def registered(each: dict[str, Any]) -> bool:
    """Whether the line's release knows the class. DFlash2's aliases came after 0.5.19."""
    return MAIN or each["config"]["architectures"][0] in {"DFlash2DraftModel", "DFlashDraftModel"}


ALL = [*ACCEPTED, DUMMY, SHAPE, *(each for each, _ in (*REFUSED, *ROTATED))]
CASES = [each for each in ALL if registered(each)]
