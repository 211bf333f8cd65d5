"""Names of the trained tensors that a draft is made of: the MTP head of Qwen3.5 and the additions of DFlash2.

Free of torch and of files: the loader guards in the image use the same names, each from its own side.
"""

from collections.abc import Mapping
from dataclasses import dataclass

MTP_PREFIX = "mtp."
MTP_LAYER = "mtp.layers.0"
"""The class builds one layer, whatever the config declares."""
MTP_FC = "mtp.fc"
"""A plain linear layer in SGLang; other engines quantise it unless it is listed."""
MTP_PLAIN = (
    "mtp.norm",
    "mtp.pre_fc_norm_embedding",
    "mtp.pre_fc_norm_hidden",
    MTP_FC,
    f"{MTP_LAYER}.input_layernorm",
    f"{MTP_LAYER}.post_attention_layernorm",
    f"{MTP_LAYER}.self_attn.q_norm",
    f"{MTP_LAYER}.self_attn.k_norm",
)
"""Modules that are never quantised."""

PLAIN_SUFFIX = ".weight"
SCALE_SUFFIXES = (".weight_packed", ".weight_scale", ".weight_scale_inv", ".qweight", ".qzeros", ".scales")
"""What a quantised module has on disk: compressed-tensors, FP8, AWQ and GPTQ."""
FILLING = ((PLAIN_SUFFIX, ".weight_packed", ".qweight"), (".weight_scale", ".weight_scale_inv", ".scales"))
"""Of these a module has one weight and, if it is quantised, one scale."""
ONE_BYTE = frozenset({"BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})
"""Dtypes of codes: FP8 stores them under the name of a plain weight."""


@dataclass(frozen=True)
class Built:
    """A linear module that SGLang constructs with a quantisation config."""

    name: str
    """The prefix it is constructed under, which is what the exclusion rules see."""
    class_name: str
    parts: tuple[str, ...]
    """Modules of the checkpoint that it is filled from."""

    @property
    def fused(self) -> bool:
        return self.parts != (self.name,)


def _built(block: str, name: str, class_name: str, parts: tuple[str, ...] = ()) -> Built:
    prefix = f"{MTP_LAYER}.{block}."
    return Built(prefix + name, class_name, tuple(prefix + part for part in parts or (name,)))


MTP_BUILT = (
    _built("self_attn", "qkv_proj", "QKVParallelLinear", ("q_proj", "k_proj", "v_proj")),
    _built("self_attn", "o_proj", "RowParallelLinear"),
    _built("mlp", "gate_up_proj", "MergedColumnParallelLinear", ("gate_proj", "up_proj")),
    _built("mlp", "down_proj", "RowParallelLinear"),
)
"""The quantisable modules of a dense MTP head."""
MTP_PARTS = tuple(part for built in MTP_BUILT for part in built.parts)
MTP_EXCLUSIONS = (MTP_FC, *MTP_PARTS, *(built.name for built in MTP_BUILT if built.fused))
"""The ten names that keep a plain MTP head plain in every release, and in other engines too."""


def module_of(tensor: str) -> str:
    """``a.b.weight`` belongs to the module ``a.b``."""
    return tensor.rpartition(".")[0]


def on_disk(module: str, dtypes: Mapping[str, str]) -> str:
    """``plain``, ``packed`` or ``absent``; a scale beside it makes a weight packed, and so do elements of one byte.

    Args:
        dtypes: by tensor; empty where it is not known.
    """
    if any(module + suffix in dtypes for suffix in SCALE_SUFFIXES) or dtypes.get(module + PLAIN_SUFFIX) in ONE_BYTE:
        return "packed"
    return "plain" if module + PLAIN_SUFFIX in dtypes else "absent"


def lacks(module: str, dtypes: Mapping[str, str]) -> str:
    """``weight`` or ``scale``, whichever a module is without; else nothing."""
    weight, scale = (any(module + suffix in dtypes for suffix in suffixes) for suffixes in FILLING)
    if not weight:
        return "weight"
    return "scale" if not scale and on_disk(module, dtypes) == "packed" else ""


@dataclass(frozen=True)
class DFlash2Shape:
    """The numbers of a config that decide which DFlash2 tensors exist, and their shapes."""

    layers: int
    hidden: int
    vocabulary: int
    rank: int
    taps: int
    group: int
    """Channels that share one coefficient; divides ``hidden``."""

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name without ``model.`` to shape: three of the selector, four per layer."""
        found: dict[str, tuple[int, ...]] = {
            "candidate_selector.predecessor_codebook": (self.vocabulary, self.rank),
            "candidate_selector.successor_codebook": (self.vocabulary, self.rank),
            "candidate_selector.hidden_projection.weight": (self.rank, self.hidden),
        }
        rows = 2 * self.taps * (self.hidden // self.group)
        for layer in range(self.layers):
            for conv in ("attention_conv", "mlp_conv"):
                found[f"layers.{layer}.{conv}.base_kernel"] = (2, self.taps, self.hidden)
                found[f"layers.{layer}.{conv}.kernel_projection.weight"] = (rows, self.hidden)
        return found


def is_dflash2(tensor: str) -> bool:
    """Whether a tensor is one that classic DFlash has not."""
    name = tensor.removeprefix("model.")
    return name.startswith("candidate_selector.") or "attention_conv." in name or "mlp_conv." in name
