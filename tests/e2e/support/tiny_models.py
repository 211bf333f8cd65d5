"""Tiny checkpoints in the real layout: a hybrid Qwen3.5 target with its MTP head, and a DFlash2 draft for it.

Nothing is trained; the weights are written down so that drafts are right often, not always, and on many distinct
tokens. The hidden state has three parts: the code of the own token, one constant channel, and an answer.

* Attention looks ``Shape.lag`` tokens back: query and key come from the constant channel, so that rotary position
  alone decides, and the key is turned by lag times each frequency (score: sum of cos(f (distance - lag))). It copies
  the code of the token there into the answer.
* The head gives token t the score ``answer . code[before[t]] + bigram own . code[partner[t]]``: the order ``before`` is
  one cycle through the vocabulary, so a continued text repeats nothing, and the own token has a say.
* Everything else (Gated DeltaNet, MLPs, a second attention head) is random and disturbs the answer.

The MTP head carries the same attention, so it drafts by its own cache. The DFlash2 draft copies a fifth of the answer
in each of its five layers, from its own cache of the target's hidden states; its selector's codebooks hold the bigram
part, which no parallel slot could know. Neither sees what disturbs the target's last layers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]  # in the base image only
from safetensors.torch import load_file, save_file  # type: ignore[import-not-found]

Tensors = dict[str, torch.Tensor]
WEIGHTS, CONFIG = "model.safetensors", "config.json"


@dataclass(frozen=True)
class Shape:
    """Sizes and strengths of both models; distances are in tokens."""

    code: int = 31
    """Length of a token's code; the hidden size is 2 * code + 2."""
    intermediate: int = 64
    vocabulary: int = 256
    head_dim: int = 32
    linear_value_heads: int = 2
    linear_dim: int = 16
    convolution: int = 4
    layer_types: tuple[str, ...] = ("linear_attention", "full_attention", "linear_attention")
    draft_layers: int = 5
    block: int = 8
    sliding_window: int | None = None
    """Of the draft's layers, the current token included; ``None``: they see everything."""
    lag: int = 11
    bigram: float = 0.8
    sharpness: float = 3.0
    """Factor of queries and of keys; the score at the lag exceeds its neighbours' by about this squared."""
    copied: float = 1.5
    disturbance: float = 0.6
    draft_disturbance: float = 0.05
    seed: int = 20261129

    @property
    def hidden(self) -> int:
        return 2 * self.code + 2

    @property
    def constant(self) -> int:
        """Index of the constant channel."""
        return self.code

    @property
    def answer(self) -> slice:
        """Channels of the answer."""
        return slice(self.code + 1, 2 * self.code + 1)

    @property
    def rank(self) -> int:
        return self.code + 1

    @property
    def mask_token(self) -> int:
        return self.vocabulary - 1

    @property
    def stop_token(self) -> int:
        return self.vocabulary - 2


SHAPE = Shape()
"""Of the models that all tests share."""
HEADS = 2
ROPE_BASE = 100.0
TARGET_ROTARY = 0.5
"""Part of a head that the target turns; the draft turns all of it."""
GROUP, TAPS, CANDIDATES = 16, 2, 16


class Draws:
    """Random tensors in a fixed order."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator)

    def matrix(self, rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        """Entries of variance scale² / columns: keeps a vector's size, times scale."""
        return self.normal(rows, columns) * (scale / math.sqrt(columns))

    def cycle(self, count: int) -> torch.Tensor:
        """``before``: before[t] is the one that t follows, on one cycle through all."""
        order = torch.randperm(count, generator=self._generator)
        before = torch.empty_like(order)
        before[order.roll(-1)] = order
        return before


@dataclass(frozen=True)
class Language:
    """What target and draft have in common: codes [vocabulary, code], ``before`` and ``partner`` [vocabulary]."""

    codes: torch.Tensor
    before: torch.Tensor
    partner: torch.Tensor


def language(s: Shape) -> Language:
    draws = Draws(s.seed)
    codes = torch.nn.functional.normalize(draws.normal(s.vocabulary, s.code), dim=1)
    return Language(codes, draws.cycle(s.vocabulary), draws.cycle(s.vocabulary))


def _disturbing(s: Shape, draws: Draws, columns: int, scale: float) -> torch.Tensor:
    """Random output projection [hidden, columns] that leaves the constant channel alone."""
    matrix = draws.matrix(s.hidden, columns, scale)
    matrix[s.constant] = 0
    return matrix


def _frequencies(rotary: int, count: int) -> list[float]:
    return [ROPE_BASE ** (-2 * i / rotary) for i in range(count)]


def _attention(s: Shape, draws: Draws, rotary: int, lag: int, copied: float, disturbance: float) -> Tensors:
    """Head 0 copies what stands ``lag`` tokens back, head 1 disturbs; one key and value head serves both."""
    query, key = torch.zeros(s.head_dim, s.hidden), torch.zeros(s.head_dim, s.hidden)
    for pair, frequency in enumerate(_frequencies(rotary, 4)):
        query[pair, s.constant] = 1.0
        key[pair, s.constant] = math.cos(frequency * lag)
        key[pair + rotary // 2, s.constant] = math.sin(frequency * lag)
    value = torch.zeros(s.head_dim, s.hidden)
    value[: s.code, : s.code] = torch.eye(s.code)
    out = torch.zeros(s.hidden, HEADS, s.head_dim)
    out[s.answer, 0, : s.code] = copied * torch.eye(s.code)
    out[:, 1] = _disturbing(s, draws, s.head_dim, disturbance)
    return {
        "self_attn.q_proj.weight": torch.cat([query, draws.matrix(s.head_dim, s.hidden)]),
        "self_attn.k_proj.weight": key,
        "self_attn.v_proj.weight": value,
        "self_attn.o_proj.weight": out.flatten(1),
    }


def _gated(s: Shape, draws: Draws, attention: Tensors) -> Tensors:
    """The target's layout: each head's query rows are followed by those of its output gate (open for head 0)."""
    gate = draws.matrix(s.head_dim, s.hidden)
    opened = torch.zeros(s.head_dim, s.hidden)
    opened[:, s.constant] = 4.0
    queries = attention["self_attn.q_proj.weight"].view(HEADS, s.head_dim, s.hidden)
    rows = torch.stack([queries, torch.stack([opened, gate])], dim=1)
    return attention | {"self_attn.q_proj.weight": rows.reshape(-1, s.hidden)}


def _mlp(s: Shape, draws: Draws, disturbance: float) -> Tensors:
    return {
        "mlp.gate_proj.weight": draws.matrix(s.intermediate, s.hidden),
        "mlp.up_proj.weight": draws.matrix(s.intermediate, s.hidden),
        "mlp.down_proj.weight": _disturbing(s, draws, s.intermediate, disturbance),
    }


def _norms(s: Shape, one: float, sharpness: float | None) -> Tensors:
    """Weights of a layer's norms; ``one`` is what leaves a value as it is."""
    found = {f"{name}.weight": torch.full((s.hidden,), one) for name in ("input_layernorm", "post_attention_layernorm")}
    if sharpness is not None:
        found |= {f"self_attn.{x}_norm.weight": torch.full((s.head_dim,), one - 1 + sharpness) for x in "qk"}
    return found


def _delta_net(s: Shape, draws: Draws) -> Tensors:
    keys, values = s.linear_dim, s.linear_value_heads * s.linear_dim
    return {
        "linear_attn.in_proj_qkv.weight": draws.matrix(2 * keys + values, s.hidden),
        "linear_attn.in_proj_z.weight": draws.matrix(values, s.hidden),
        "linear_attn.in_proj_b.weight": draws.matrix(s.linear_value_heads, s.hidden),
        "linear_attn.in_proj_a.weight": draws.matrix(s.linear_value_heads, s.hidden),
        "linear_attn.conv1d.weight": draws.matrix(2 * keys + values, s.convolution).unsqueeze(1),
        "linear_attn.A_log": draws.normal(s.linear_value_heads) - 2,
        "linear_attn.dt_bias": draws.normal(s.linear_value_heads),
        "linear_attn.norm.weight": torch.ones(s.linear_dim),
        "linear_attn.out_proj.weight": _disturbing(s, draws, values, s.disturbance),
    }


def _attention_layer(s: Shape, draws: Draws, disturbance: float) -> Tensors:
    rotary = int(TARGET_ROTARY * s.head_dim)
    # The next token's counterpart stands one closer than the own token's.
    attention = _attention(s, draws, rotary, s.lag - 1, s.copied, disturbance)
    return _gated(s, draws, attention) | _mlp(s, draws, disturbance) | _norms(s, 0.0, s.sharpness)


def target_tensors(s: Shape, words: Language) -> Tensors:
    """The target and its MTP head, 15 ``mtp.*`` tensors."""
    draws = Draws(s.seed + 1)
    embedding = torch.zeros(s.vocabulary, s.hidden)
    size = math.sqrt(s.hidden / 2)
    embedding[:, : s.code] = size * words.codes
    embedding[s.mask_token, : s.code] = 0
    embedding[:, s.constant] = size
    head = torch.zeros(s.vocabulary, s.hidden)
    head[:, : s.code] = s.bigram * words.codes[words.partner]
    head[:, s.answer] = words.codes[words.before]
    head[[s.mask_token, s.stop_token]] = 0
    tensors = {
        "model.language_model.embed_tokens.weight": embedding,
        "model.language_model.norm.weight": torch.zeros(s.hidden),
        "lm_head.weight": head,
    }
    for number, kind in enumerate(s.layer_types):
        if kind == "full_attention":
            layer = _attention_layer(s, draws, s.disturbance)
        else:
            layer = _delta_net(s, draws) | _mlp(s, draws, s.disturbance) | _norms(s, 0.0, None)
        tensors |= {f"model.language_model.layers.{number}.{name}": value for name, value in layer.items()}
    return tensors | _mtp(s, draws)


def _mtp(s: Shape, draws: Draws) -> Tensors:
    """A layer like the target's, fed with the next token's embedding and a little of the target's hidden state."""
    layer = _attention_layer(s, draws, s.draft_disturbance)
    zero = {
        f"mtp.{name}.weight": torch.zeros(s.hidden) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    }
    hidden = _disturbing(s, draws, s.hidden, s.draft_disturbance)
    fused = {"mtp.fc.weight": torch.cat([torch.eye(s.hidden), hidden], dim=1)}
    return {f"mtp.layers.0.{name}": value for name, value in layer.items()} | zero | fused


def draft_tensors(s: Shape, words: Language) -> Tensors:
    """The DFlash2 draft; with five layers, 23 tensors of selector and convolutions."""
    draws = Draws(s.seed + 2)
    later = _disturbing(s, draws, s.hidden, s.draft_disturbance)
    projection = torch.zeros(s.rank, s.hidden)
    projection[: s.code, s.constant] = 1.0
    padding = torch.zeros(s.vocabulary, 1)
    tensors: Tensors = {
        "fc.weight": torch.cat([torch.eye(s.hidden), later], dim=1),
        "hidden_norm.weight": torch.ones(s.hidden),
        "norm.weight": torch.ones(s.hidden),
        "candidate_selector.predecessor_codebook": torch.cat([words.codes, padding], dim=1),
        "candidate_selector.successor_codebook": torch.cat([s.bigram * words.codes[words.partner], padding], dim=1),
        "candidate_selector.hidden_projection.weight": projection,
    }
    for number in range(s.draft_layers):
        layer = _attention(s, draws, s.head_dim, s.lag, s.copied / s.draft_layers, s.draft_disturbance)
        layer |= _mlp(s, draws, s.draft_disturbance) | _norms(s, 1.0, s.sharpness)
        for name in ("attention_conv", "mlp_conv"):
            kernel = torch.zeros(2, TAPS, s.hidden)
            kernel[:, 0] = 1.0
            layer[f"{name}.base_kernel"] = kernel
            rows = 2 * TAPS * (s.hidden // GROUP)
            layer[f"{name}.kernel_projection.weight"] = draws.matrix(rows, s.hidden, s.draft_disturbance / 4)
        tensors |= {f"layers.{number}.{name}": value for name, value in layer.items()}
    return tensors


def target_config(s: Shape) -> dict[str, Any]:
    text = {
        "model_type": "qwen3_5_text",
        "dtype": "float32",
        "vocab_size": s.vocabulary,
        "hidden_size": s.hidden,
        "intermediate_size": s.intermediate,
        "num_hidden_layers": len(s.layer_types),
        "layer_types": list(s.layer_types),
        "full_attention_interval": s.layer_types.index("full_attention") + 1,
        "mtp_num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": s.head_dim,
        "attn_output_gate": True,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": s.linear_value_heads,
        "linear_key_head_dim": s.linear_dim,
        "linear_value_head_dim": s.linear_dim,
        "linear_conv_kernel_dim": s.convolution,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": ROPE_BASE,
            "partial_rotary_factor": TARGET_ROTARY,
        },
        "partial_rotary_factor": TARGET_ROTARY,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "eos_token_id": s.stop_token,
        "tie_word_embeddings": False,
    }
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "language_model_only": True,
        "dtype": "float32",
        "eos_token_id": s.stop_token,
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": {"model_type": "qwen3_5", "depth": 1, "hidden_size": 16, "num_heads": 1},
    }


def draft_config(s: Shape) -> dict[str, Any]:
    kind = "full_attention" if s.sliding_window is None else "sliding_attention"
    config = {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "dtype": "float32",
        "vocab_size": s.vocabulary,
        "hidden_size": s.hidden,
        "intermediate_size": s.intermediate,
        "num_hidden_layers": s.draft_layers,
        "layer_types": [kind] * s.draft_layers,
        "is_causal": False,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": s.head_dim,
        "rope_theta": ROPE_BASE,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "eos_token_id": s.stop_token,
        "tie_word_embeddings": False,
        "num_target_layers": len(s.layer_types),
        "block_size": s.block,
        "dflash_config": {
            "mask_token_id": s.mask_token,
            # A layer's output is captured where the next one begins, so the last one cannot be among them.
            "target_layer_ids": [0, 1],
            "conv_kernel_size": TAPS,
            "conv_group_size": GROUP,
            "selector_rank": s.rank,
            "selector_top_k": CANDIDATES,
        },
    }
    return config if s.sliding_window is None else config | {"sliding_window": s.sliding_window}


@dataclass(frozen=True)
class Models:
    """Folders of checkpoints that belong together."""

    target: Path
    draft: Path


def make(folder: Path, s: Shape = SHAPE) -> Models:
    """Write ``folder/target`` and ``folder/draft``; the same bytes for the same shape."""
    words = language(s)
    models = Models(folder / "target", folder / "draft")
    save(models.target, target_tensors(s, words), target_config(s))
    save(models.draft, draft_tensors(s, words), draft_config(s))
    return models


def save(folder: Path, tensors: Tensors, config: Mapping[str, Any]) -> None:
    """Write a checkpoint as a new folder."""
    folder.mkdir(parents=True)
    dense = {name: value.contiguous() for name, value in tensors.items()}
    save_file(dense, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


Change = Callable[[Tensors, dict[str, Any]], None]
"""Changes a checkpoint's tensors and config in place."""


def drop(name: str) -> Change:
    """Leave a tensor out."""

    def change(tensors: Tensors, _config: dict[str, Any]) -> None:
        del tensors[name]

    return change


def zero(name: str) -> Change:
    """Fill a tensor with zeros."""

    def change(tensors: Tensors, _config: dict[str, Any]) -> None:
        tensors[name] = torch.zeros_like(tensors[name])

    return change


def declare(architecture: str) -> Change:
    """Name another class in the config."""

    def change(_tensors: Tensors, config: dict[str, Any]) -> None:
        config["architectures"] = [architecture]

    return change


def changed(source: Path, folder: Path, change: Change) -> Path:
    """Write a changed copy of a checkpoint as a new folder; returns that."""
    tensors = load_file(source / WEIGHTS)
    config = json.loads((source / CONFIG).read_text(encoding="utf-8"))
    change(tensors, config)
    save(folder, tensors, config)
    return folder
