"""Whether the checkpoint filled a draft model, judged at the end of its first full load.

A draft only proposes and the target decides, so a draft that was built but never filled does not
fail: the text stays right, and proposals from uninitialised memory are merely rejected. Neither the
loaders nor ``load_weights`` compare what a model allocated with what arrived.

``load_weights`` is called with a whole checkpoint once, by the loader at start-up; later, weight
updates call it with any part of one; with ``load_format=dummy`` (and the other formats that copy
state into a model directly) it is not called at all. Only the caller knows which call this is, so the
start-up path wraps the loader in :func:`full_load`, and models pass a verdict only inside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from sglang.srt.layers.linear import MergedColumnParallelLinear, QKVParallelLinear
from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
from torch import nn

Shard = str | int | tuple[int, str] | None
"""What a weight loader is told: nothing, ``"q"``, the index of a merged part, or (expert, ``"w1"``)."""

_FULL_LOAD: ContextVar[bool] = ContextVar("sglang_full_load", default=False)

_UNREAD_SUFFIXES = ("weight_shape", "g_idx", "g_idx_sort_indices")
"""Parameters that methods register whether or not a checkpoint has them: a shape that nothing reads, and
the order of activations."""

_QUANTIZED_SUFFIXES = (
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "qweight",
    "qzeros",
    "scales",
)
"""What a quantised module has in a checkpoint beside, or instead of, ``weight``."""

_EXCLUSIONS = ("ignore", "ignored_layers", "modules_to_not_convert")
"""Where the quantisation configs of compressed-tensors, FP8 and AWQ keep the entries of their lists."""

_SHOWN = 8
"""Parameters that a message writes out."""


@contextmanager
def full_load() -> Iterator[None]:
    """Within it, ``load_weights`` gets everything that a checkpoint has, in one call."""
    token = _FULL_LOAD.set(True)
    try:
        yield
    finally:
        _FULL_LOAD.reset(token)


def in_full_load() -> bool:
    """Whether this ``load_weights`` call may be judged."""
    return _FULL_LOAD.get()


class LoadCoverage:
    """What one ``load_weights`` call was offered, and what it filled.

    A name in a set of loaded names is no proof: ``qkv_proj.weight`` is in it after its q part alone,
    and a name is often added when nothing was copied. So fills are recorded where the weight loader is
    called, with the shard that it was given.
    """

    def __init__(self) -> None:
        self.arrived: dict[str, torch.dtype] = {}
        self._last = ""
        self._placed: set[str] = set()
        self._fills: dict[str, set[Shard]] = {}

    def arrive(self, name: str, dtype: torch.dtype) -> None:
        """Note a name of the checkpoint, whatever becomes of it."""
        self.arrived[name] = dtype
        self._last = name

    def fill(self, name: str, shard: Shard = None) -> None:
        """Note that a parameter's weight loader got what arrived last; without a shard it filled them all."""
        self._placed.add(self._last)
        self._fills.setdefault(name, set()).add(shard)

    def missing(self, expected: Mapping[str, Sequence[Shard]]) -> dict[str, list[Shard]]:
        """By parameter, the expected shards that were not filled."""
        found: dict[str, list[Shard]] = {}
        for name, shards in expected.items():
            filled = self._fills.get(name, set())
            absent = [shard for shard in shards if shard not in filled]
            if absent and None not in filled:
                found[name] = absent
        return found

    def undecoded(self) -> list[str]:
        """Modules of the checkpoint that are quantised there, and of which only ``weight`` had a place, if that."""
        placed: dict[str, bool] = {}
        for name in self.arrived:
            module, _, last = name.rpartition(".")
            if last in _QUANTIZED_SUFFIXES:
                placed[module] = placed.get(module, False) or name in self._placed
        return [module for module, anything in placed.items() if not anything]


def expected_fills(model: nn.Module, *, shared: Sequence[str], num_experts: int | None) -> dict[str, Sequence[Shard]]:
    """The shards that a complete checkpoint fills, by parameter.

    Args:
        shared: prefixes of parameters that the target lends to the draft.
        num_experts: experts of a checkpoint's MoE layer. Every rank is offered all of them, whichever
            it keeps.
    """
    quant_config = getattr(model, "quant_config", None)
    computed = _computes_scales(quant_config)
    expected: dict[str, Sequence[Shard]] = {}
    for prefix, module in model.named_modules():
        for last, param in module.named_parameters(recurse=False):
            name = f"{prefix}.{last}" if prefix else last
            optional = (
                name.startswith(tuple(shared))
                or getattr(param, "_skip_weight_check", False)
                or last.endswith(_UNREAD_SUFFIXES)
                or (last.endswith("input_scale") and not _reads_input_scale(module, quant_config))
                or (computed and "scale" in last)
            )
            if not optional:
                expected[name] = _shards(module, last, num_experts)
    return expected


def _computes_scales(quant_config: Any) -> bool:
    """Whether plain weights are quantised while loading, so that no scale is in the checkpoint."""
    flags = vars(quant_config) if quant_config is not None else {}
    return any(re.fullmatch(r"is_checkpoint_\w+_serialized", flag) and not value for flag, value in flags.items())


def _reads_input_scale(module: nn.Module, quant_config: Any) -> bool:
    """Whether activations are quantised by a scale of the checkpoint; some methods register one and never read it."""
    scheme = getattr(module, "scheme", None)  # compressed-tensors decides by module
    return getattr(quant_config, "activation_scheme", None) == "static" or any(
        getattr(scheme, flag, False) for flag in ("is_static_input_scheme", "static_input_scales")
    )


def _shards(module: nn.Module, param: str, num_experts: int | None) -> Sequence[Shard]:
    if isinstance(module, QKVParallelLinear):
        return ("q", "k", "v")
    if isinstance(module, MergedColumnParallelLinear):
        return range(len(module.output_sizes))
    if isinstance(module, FusedMoE) and num_experts is not None:
        parts = ("w1", "w3") if param.startswith("w13_") else ("w2",)
        return [(expert, part) for expert in range(num_experts) for part in parts]
    return (None,)


def check_mtp_coverage(model: nn.Module, coverage: LoadCoverage, num_experts: int | None) -> None:
    """Refuse an MTP head (``mtp.*`` of a Qwen3.5 checkpoint) that was not filled, or with codes but no scales.

    Raises:
        ValueError: names the missing parameters and shards, and, where the quantisation config made
            packed modules of plain ones or plain ones of packed, the entries that its ``ignore`` lacks
            or has too many.
    """
    if not in_full_load():
        return
    expected = expected_fills(model, shared=("lm_head.", "model.embed_tokens."), num_experts=num_experts)
    missing = coverage.missing(expected)
    undecoded = coverage.undecoded()
    if not missing and not undecoded:
        return
    count = (
        f"{type(model).__name__}: the checkpoint filled {len(expected) - len(missing)} of {len(expected)} parameters"
    )
    if missing:
        lines = [f"{name}{_shard_text(shards, expected[name])}" for name, shards in missing.items()]
        message = f"{count}; missing: {_some(lines)}. Such a head drafts from uninitialised memory"
    else:
        message = f"{count}; without a place for their scales: {_some(undecoded)}. Such a head drafts from mere codes"
    message += ", and nothing else would tell."
    for advice in _advice(model, missing, undecoded, coverage.arrived):
        message += f" {advice}"
    raise ValueError(message)


def _some(names: Sequence[str]) -> str:
    hidden = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{hidden}"


def _advice(
    model: nn.Module, missing: Iterable[str], undecoded: Sequence[str], arrived: Mapping[str, torch.dtype]
) -> Iterator[str]:
    """What to change, by cause."""
    fused = model.packed_modules_mapping
    entries = ignore_entries(missing, arrived, fused)
    if entries:
        yield (
            "The checkpoint has these modules unquantised, and its quantization_config does not say so: "
            f"add to its ignore list (modules_to_not_convert for FP8 and AWQ): {', '.join(entries)}."
        )
    excluding = _excluding(getattr(model, "quant_config", None), undecoded, fused)
    if excluding:
        yield (
            "The checkpoint has these modules quantised, and its quantization_config excludes them: "
            f"take off its ignore list (modules_to_not_convert for FP8 and AWQ): {', '.join(excluding)}."
        )
    elif undecoded:
        yield f"The checkpoint has these modules quantised, and the model builds them plain: {_some(undecoded)}."
    if not entries and not undecoded:
        yield "Use a checkpoint that has them, under the names that it was exported with."


def _excluding(quant_config: Any, modules: Sequence[str], fused: Mapping[str, Sequence[str]]) -> list[str]:
    """Entries of the config's exclusions that name or fit one of these modules, or what is built from it."""
    names = {name for module in modules for name in (module, *(entry for entry, _ in _built_from(module, fused)))}
    listed = [entry for key in _EXCLUSIONS for entry in getattr(quant_config, key, None) or ()]
    return sorted({entry for entry in listed if any(_fits(entry, name) for name in names)})


def _fits(entry: str, name: str) -> bool:
    if entry.startswith("re:"):
        return re.match(entry[3:], name) is not None
    return f".{entry.strip('.')}." in f".{name}."


def _shard_text(missing: Sequence[Shard], expected: Sequence[Shard]) -> str:
    """Which shards, unless it is all of them."""
    if len(missing) == len(expected):
        return ""
    shown = [f"expert {shard[0]} {shard[1]}" if isinstance(shard, tuple) else str(shard) for shard in missing[:_SHOWN]]
    hidden = [f"{len(missing) - _SHOWN} more"] if len(missing) > _SHOWN else []
    return f" ({', '.join(shown + hidden)})"


def ignore_entries(
    missing: Iterable[str], arrived: Mapping[str, torch.dtype], fused: Mapping[str, Sequence[str]]
) -> list[str]:
    """Entries that make a quantisation config leave plain modules plain.

    A quantised parameter that is missing, while the checkpoint has the plain ``weight`` of every part of
    the module and nothing packed, means that the config did not exclude the module. Matchers know a fused
    module by its own name, by those of its parts, or by both, so both kinds are named.

    Args:
        missing: parameters of the model that were not filled.
        arrived: names of the checkpoint, below ``mtp.``, with their dtypes: FP8 codes too are called
            ``weight``, and have one byte.
        fused: name of a fused projection to the names of its parts.
    """
    quantized = {name.rpartition(".")[0] for name in missing if name.endswith(_QUANTIZED_SUFFIXES)}
    packed: set[str] = set()
    entries: dict[str, str] = {}
    for name, dtype in arrived.items():
        module, _, last = name.rpartition(".")
        for entry, built in _built_from(module, fused):
            path = _parameter_path(built)
            if last in _QUANTIZED_SUFFIXES or (last == "weight" and dtype.itemsize == 1):
                packed.add(path)
            elif last == "weight" and path in quantized:
                entries[entry] = path
    return sorted(entry for entry, path in entries.items() if path not in packed)


def _built_from(module: str, fused: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """(Ignore entry, name of the module that the model builds) for a module of the checkpoint."""
    head, experts, _ = module.partition(".experts.")
    if experts:
        # compressed-tensors asks about single experts, FP8 about the module that holds them.
        yield f"re:^{re.escape(head)}[.]experts[.].*", f"{head}.experts"
        yield f"{head}.experts", f"{head}.experts"
        return
    yield module, module
    head, _, last = module.rpartition(".")
    for whole, parts in fused.items():
        if last in parts:
            yield module, f"{head}.{whole}"
            yield f"{head}.{whole}", f"{head}.{whole}"


def _parameter_path(module: str) -> str:
    """Where ``Qwen3_5ForCausalLMMTP.load_weights`` puts a module of the checkpoint."""
    return module.replace("mtp.", "model.", 1).replace(".self_attn", "")
