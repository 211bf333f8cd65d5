"""Memory that the weights of a served model take on one rank, from its ``config.json``.

Standard library only: a test of the composed tree loads this file beside SGLang and holds it against the classes that
the tree itself builds from the same files. Places are of SGLang 0.5.23 below ``sglang/srt/``. Left out are the copies
that some modules keep of their norms (``layers/layernorm.py``) and of the draft's key and value projections
(``fused_kv_materialize.py``), 30 MiB at most.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BF16 = 2
FP32 = 4
GROUP_BYTES = 3
"""A BF16 scale and an INT8 zero point, which the XPU's kernel adds (``compressed_tensors_wna16_kernels.py``)."""
SHAPE_BYTES = 16
"""``weight_shape``: two INT64."""
VISION_POSITIONS = 8192
"""Rows of the vision tower's rotary table (``Qwen3VLMoeVisionModel``)."""
LANGUAGE_MODULE = "model.language_model.layers.0.mlp.down_proj"
MTP_MODULE = "mtp.layers.0.mlp.down_proj"
"""Modules that speak for all of their kind: if ``ignore`` names one, language model or MTP head are taken as BF16."""

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Weights:
    """Bytes on one rank."""

    split: int
    """This rank's share of what the ranks divide."""
    whole: int
    """What every rank holds all of."""

    @property
    def total(self) -> int:
        return self.split + self.whole

    def __add__(self, other: "Weights") -> "Weights":
        return Weights(self.split + other.split, self.whole + other.whole)

    def __mul__(self, times: int) -> "Weights":
        return Weights(self.split * times, self.whole * times)


@dataclass(frozen=True)
class Linears:
    """Linear layers of one kind, on one of ``tp`` ranks."""

    tp: int
    group: int | None = None
    """Four-bit values that share a scale; None: BF16."""

    def bytes(self, outputs: int, inputs: int) -> int:
        """One matrix: BF16, or half a byte for each value and three for each group (``CompressedTensorsWNA16``)."""
        if self.group is None:
            return outputs * inputs * BF16
        return outputs * inputs // 2 + outputs * (inputs // self.group) * GROUP_BYTES + SHAPE_BYTES

    def by_outputs(self, outputs: int, inputs: int) -> int:
        """This rank's part of a ``ColumnParallelLinear``."""
        return self.bytes(outputs // self.tp, inputs)

    def by_inputs(self, outputs: int, inputs: int) -> int:
        """This rank's part of a ``RowParallelLinear``."""
        return self.bytes(outputs, inputs // self.tp)


def target(config: Config, tp: int) -> Weights:
    """The target without its MTP head: language model, embedding, ``lm_head`` and vision tower.

    The tower is there with ``--language-only`` too: only a config of the encoder's half or one that says
    ``language_model_only`` leaves a part out (``Qwen3VLForConditionalGeneration.__init__``).
    """
    text, vision = config["text_config"], config["vision_config"]
    linears = Linears(tp, _group(config, LANGUAGE_MODULE))
    layers: int = text["num_hidden_layers"]
    full: int = layers // text["full_attention_interval"]
    mixers = _attention(text, linears) * full + _delta_net(text, linears) * (layers - full)
    tables = Weights(2 * Linears(tp).by_outputs(text["vocab_size"], text["hidden_size"]), text["hidden_size"] * BF16)
    return mixers + _mlp(text, linears) * layers + tables + _vision(vision, Linears(tp))


def mtp_head(config: Config, tp: int) -> Weights:
    """The MTP head: one layer and ``fc``, a plain linear layer, whole on each rank (``Qwen3_5ForCausalLMMTP``).

    Embedding and ``lm_head`` are the target's (``set_embed_and_head``).
    """
    text = config["text_config"]
    linears, hidden = Linears(tp, _group(config, MTP_MODULE)), text["hidden_size"]
    fc, norms = hidden * 2 * hidden * BF16, 3 * hidden * BF16
    return _attention(text, linears) + _mlp(text, linears) + Weights(0, fc + norms)


def draft(config: Config, tp: int) -> Weights:
    """A DFlash2 draft (``models/dflash.py``); embedding and ``lm_head`` are the target's.

    ``fc``, the kernel projections of the two convolutions of each layer and the selector's codebooks are plain linear
    layers and parameters, whole on each rank.
    """
    hidden, own = config["hidden_size"], config["dflash_config"]
    layers: int = config["num_hidden_layers"]
    base_kernel = 2 * own["conv_kernel_size"] * hidden
    projection = 2 * own["conv_kernel_size"] * (hidden // own["conv_group_size"]) * hidden
    selector = (2 * config["vocab_size"] + hidden) * own["selector_rank"]
    fc, norms = len(own["target_layer_ids"]) * hidden * hidden, 2 * hidden
    convolutions = Weights(0, 2 * (base_kernel + projection) * BF16)
    layer = _attention(config, Linears(tp)) + _mlp(config, Linears(tp)) + convolutions
    return layer * layers + Weights(0, (selector + fc + norms) * BF16)


def rotary_table(config: Config) -> int:
    """Sine and cosine of each position, FP32 on an XPU, one table for all layers (``layers/rotary_embedding``).

    positions * head_dim * partial_rotary_factor * 4; YaRN has factor * original positions.
    """
    model, vision = config.get("text_config", config), config.get("vision_config")
    rope = model["rope_parameters"]
    stretched = int(rope.get("factor", 1) * rope.get("original_max_position_embeddings", 0))
    positions = stretched or model["max_position_embeddings"]
    table = positions * int(model["head_dim"] * rope.get("partial_rotary_factor", 1)) * FP32
    return table + (VISION_POSITIONS * (vision["hidden_size"] // vision["num_heads"] // 2) * FP32 if vision else 0)


def _group(config: Config, module: str) -> int | None:
    """How many of a module's values share a scale; None where it stays in BF16.

    Both ways in which ``ignore`` names modules count: the whole name, and ``re:`` with the beginning of one.
    """
    if (quantised := config.get("quantization_config")) is None:
        return None
    for rule in quantised["ignore"]:
        if re.match(rule[3:], module) if rule.startswith("re:") else rule == module:
            return None
    (settings,) = quantised["config_groups"].values()
    return int(settings["weights"]["group_size"])


def _attention(model: Config, linears: Linears) -> Weights:
    """Full attention (``QKVParallelLinear``): key heads are repeated where there are more ranks than heads.

    The output gate is as wide as the query. Norms are of query and key heads, and the one before the layer.
    """
    heads, width, hidden = model["num_attention_heads"], model["head_dim"], model["hidden_size"]
    queries = heads // linears.tp * width * (2 if model.get("attn_output_gate") else 1)
    keys = max(1, model["num_key_value_heads"] // linears.tp) * width
    split = linears.bytes(queries + 2 * keys, hidden) + linears.by_inputs(hidden, heads * width)
    return Weights(split, (2 * width + hidden) * BF16)


def _mlp(model: Config, linears: Linears) -> Weights:
    """Gate, up and down projection, and the norm before them."""
    hidden, wide = model["hidden_size"], model["intermediate_size"]
    return Weights(linears.by_outputs(2 * wide, hidden) + linears.by_inputs(hidden, wide), hidden * BF16)


def _delta_net(text: Config, linears: Linears) -> Weights:
    """Gated DeltaNet (``Qwen3_5GatedDeltaNet``): query, key, value and gate; two numbers a head; taps; the output."""
    hidden, heads = text["hidden_size"], text["linear_num_value_heads"]
    keys = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    values = heads * text["linear_value_head_dim"]
    projections = linears.by_outputs(2 * keys + 2 * values, hidden) + linears.by_outputs(2 * heads, hidden)
    taps = (2 * keys + values) // linears.tp * text["linear_conv_kernel_dim"] * BF16
    decay = heads // linears.tp * (FP32 + BF16)
    split = projections + linears.by_inputs(hidden, values) + taps + decay
    return Weights(split, (text["linear_value_head_dim"] + hidden) * BF16)


def _vision(vision: Config, linears: Linears) -> Weights:
    """The vision tower, in BF16 (``Qwen3VLMoeVisionModel``); biases of outputs are split, those of sums are whole."""
    hidden, wide = vision["hidden_size"], vision["intermediate_size"]
    depth: int = vision["depth"]
    patch = vision["in_channels"] * vision["temporal_patch_size"] * vision["patch_size"] ** 2
    weights = linears.by_outputs(3 * hidden, hidden + 1) + linears.by_inputs(hidden, hidden)
    weights += linears.by_outputs(wide, hidden + 1) + linears.by_inputs(hidden, wide)
    block = Weights(weights, 6 * hidden * BF16)
    embeddings = Weights(linears.by_outputs(vision["num_position_embeddings"], hidden), (patch + 1) * hidden * BF16)
    deep = _merger(vision, linears, norm=hidden * vision["spatial_merge_size"] ** 2)
    merged = _merger(vision, linears, norm=hidden) + deep * len(vision["deepstack_visual_indexes"])
    return block * depth + embeddings + merged


def _merger(vision: Config, linears: Linears, norm: int) -> Weights:
    patches, outputs = vision["hidden_size"] * vision["spatial_merge_size"] ** 2, vision["out_hidden_size"]
    split = linears.by_outputs(patches, patches + 1) + linears.by_inputs(outputs, patches)
    return Weights(split, (2 * norm + outputs) * BF16)
