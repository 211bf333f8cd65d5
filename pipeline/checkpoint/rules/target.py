"""Target: the release has a class for it, and the XPU path can run its quantisation and its positions."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from pipeline.checkpoint import payload, rope
from pipeline.checkpoint.releases import FP8_BLOCKS, GROUP_SIZES
from pipeline.checkpoint.rule import Case, Rules, Severity, Skip, Undecided
from pipeline.checkpoint.rules.integrity import READABLE
from pipeline.checkpoint.safetensors_header import FLOATS

RULES = Rules()
NEEDS = ("CFG-01",)
SCALES = (".weight_scale", ".weight_scale_inv", ".scales")


@RULES.add(
    "TGT-01",
    Severity.ERROR,
    "the architecture is a class of the release",
    "use a release that has the class, or a checkpoint for one that it has",
    roles=("target",),
    needs=NEEDS,
)
def architecture_is_registered(case: Case) -> Iterator[str]:
    names = case.checkpoint.architectures
    if not names:
        yield "the config names no architecture"
    elif not set(names) & case.release.architectures:
        yield f"{case.release} has no class {', '.join(names)[:200]}"


@RULES.add(
    "TGT-02",
    Severity.ERROR,
    "the quantisation is one that the XPU path runs",
    f"quantise symmetrically to 4 bits, in groups of one of {GROUP_SIZES}, without act-order",
    roles=("target",),
    needs=NEEDS,
)
def quantisation_runs_on_xpu(case: Case) -> Iterator[str]:
    config = case.quantisation
    if config is None:
        return
    kind = str(config.get("quant_method", "none")).replace("_", "-")
    if kind == "compressed-tensors":
        yield from _compressed_tensors(case, config)
    elif kind in ("awq", "gptq"):
        yield from _awq_or_gptq(case, config, kind)
    elif kind == "fp8":
        yield from _fp8(case, config)
    elif kind == "auto-round":
        yield "quant_method auto-round builds kernels that XPU lacks; export as auto_awq or auto_gptq"
    else:
        raise Undecided(f"not decided: quant_method {kind[:40]!r}")


def _compressed_tensors(case: Case, config: Mapping[str, Any]) -> Iterator[str]:
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise Undecided("not decided: compressed-tensors without config_groups")
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            raise Undecided(f"not decided: group {name[:40]} quantises no weights")
        yield from (f"{name[:40]}: {problem}" for problem in _group(case, weights, group, config))


def _group(
    case: Case, weights: Mapping[str, Any], group: Mapping[str, Any], config: Mapping[str, Any]
) -> Iterator[str]:
    layout = group.get("format") or config.get("format")
    if weights.get("type") == "float":
        raise Undecided(f"not decided: {weights.get('num_bits')}-bit floating-point weights")
    if group.get("input_activations"):
        yield "activations are quantised; weights only is what runs"
    if layout != "pack-quantized":
        yield f"format {str(layout)[:40]}, expected pack-quantized"
    if not case.release.xpu_packed_int4:
        yield f"{case.release} refuses packed weights on XPU; 0.5.21 is the first that runs them"
    if weights.get("num_bits") != 4:
        yield f"{weights.get('num_bits')} bits, expected 4"
    if weights.get("group_size") not in GROUP_SIZES:
        yield f"group size {weights.get('group_size')}, expected one of {GROUP_SIZES}"
    if weights.get("symmetric", True) is not True:
        yield "asymmetric weights, expected symmetric ones"
    if weights.get("actorder") == "group":
        yield "act-order by group"


def _awq_or_gptq(case: Case, config: Mapping[str, Any], kind: str) -> Iterator[str]:
    if not case.release.xpu_awq:
        if kind == "awq":
            raise Undecided(f"not decided: {case.release} dequantises AWQ with a kernel that is not looked at here")
        yield f"{case.release} has no GPTQ on XPU; 0.5.19 is the first"
    bits = config.get("bits", config.get("w_bit"))
    size = config.get("group_size", config.get("q_group_size"))
    if bits != 4:
        yield f"{bits} bits, expected 4"
    if size not in GROUP_SIZES:
        yield f"group size {size}, expected one of {GROUP_SIZES}"
    if kind == "gptq" and config.get("desc_act"):
        yield "act-order (desc_act)"


def _fp8(case: Case, config: Mapping[str, Any]) -> Iterator[str]:
    block = config.get("weight_block_size")
    if block is None or not case.release.xpu_block_fp8:
        raise Undecided("not decided: FP8 is known here in blocks, and from 0.5.21 on")
    if not isinstance(block, list) or tuple(block) not in FP8_BLOCKS:
        yield f"weight_block_size {str(block)[:40]}, expected one of {[list(known) for known in FP8_BLOCKS]}"


@RULES.add(
    "TGT-03",
    Severity.ERROR,
    "RoPE reaches as far as the config says",
    "make max_position_embeddings the product of factor and original_max_position_embeddings",
    roles=("target",),
    needs=NEEDS,
)
def rope_is_consistent(case: Case) -> Iterator[str]:
    found = rope.read(case.checkpoint.text_config)
    if found is None:
        yield "the config has no usable max_position_embeddings and RoPE factor"
    elif found.factor != 1 and found.reach < found.positions:
        yield f"{found} reaches {found.reach:g} positions, and max_position_embeddings is {found.positions}"


@RULES.add(
    "TGT-04",
    Severity.ERROR,
    "context length and RoPE are those of the profile",
    "serve the revision that the profile names, or use the profile of this revision",
    roles=("target",),
    needs=(*NEEDS, "TGT-03"),
)
def rope_is_that_of_the_profile(case: Case) -> Iterator[str]:
    if case.profile is None:
        raise Skip("no --profile")
    found = rope.read(case.checkpoint.text_config)
    assert found is not None
    yield from rope.profile_problems(found, case.profile.context_length)


@RULES.add(
    "TGT-05",
    Severity.ERROR,
    "no scale is zero, NaN or infinite",
    "quantise the module again; a dead scale makes its rows zero",
    roles=("target",),
    needs=(*READABLE, "INT-03", "INT-04", "INT-05"),
)
def scales_are_alive(case: Case) -> Iterator[str]:
    if not case.full:
        raise Skip("reads every scale; asked for with --full")
    for name, (_, tensor) in case.checkpoint.tensors.items():
        if not name.endswith(SCALES) or tensor.dtype not in FLOATS:
            continue
        zeros, special = 0, 0
        for data in payload.blocks(tensor, partial(case.checkpoint.read, name)):
            zeros += payload.zeros(data, tensor.dtype)
            special += payload.not_finite(data, tensor.dtype)
        if zeros or special:
            count = tensor.span // payload.element_bytes(tensor.dtype)
            yield f"{name}: {zeros} zero, {special} NaN or infinite, of {count}"
