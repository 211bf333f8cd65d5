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

from sglang.srt.layers.linear import MergedColumnParallelLinear, QKVParallelLinear
from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
from torch import nn

Shard = str | int | tuple[int, str] | None
"""What a weight loader is told: nothing, ``"q"``, the index of a merged part, or (expert, ``"w1"``)."""

_FULL_LOAD: ContextVar[bool] = ContextVar("sglang_full_load", default=False)

_UNREAD_SUFFIXES = ("input_scale", "weight_shape", "g_idx", "g_idx_sort_indices")
"""Parameters that methods register whether or not a checkpoint has them: scales of activations, which
weight-only methods never read, a shape that nothing reads, and the order of activations."""

_QUANTIZED_SUFFIXES = (
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "qweight",
    "qzeros",
    "scales",
)
"""What a quantised module has in a checkpoint beside, or instead of, ``weight``."""

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
        self.arrived: list[str] = []
        self._fills: dict[str, set[Shard]] = {}

    def arrive(self, name: str) -> None:
        """Note a name of the checkpoint, whatever becomes of it."""
        self.arrived.append(name)

    def fill(self, name: str, shard: Shard = None) -> None:
        """Note that the weight loader of a parameter was called; without a shard it filled them all."""
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


def expected_fills(model: nn.Module, *, shared: Sequence[str], num_experts: int | None) -> dict[str, Sequence[Shard]]:
    """The shards that a complete checkpoint fills, by parameter.

    Args:
        shared: prefixes of parameters that the target lends to the draft.
        num_experts: experts of a checkpoint's MoE layer. Every rank is offered all of them, whichever
            it keeps.
    """
    computed = _computes_scales(getattr(model, "quant_config", None))
    expected: dict[str, Sequence[Shard]] = {}
    for prefix, module in model.named_modules():
        for last, param in module.named_parameters(recurse=False):
            name = f"{prefix}.{last}" if prefix else last
            optional = (
                name.startswith(tuple(shared))
                or getattr(param, "_skip_weight_check", False)
                or last.endswith(_UNREAD_SUFFIXES)
                or (computed and "scale" in last)
            )
            if not optional:
                expected[name] = _shards(module, last, num_experts)
    return expected


def _computes_scales(quant_config: Any) -> bool:
    """Whether plain weights are quantised while loading, so that no scale is in the checkpoint."""
    flags = vars(quant_config) if quant_config is not None else {}
    return any(re.fullmatch(r"is_checkpoint_\w+_serialized", flag) and not value for flag, value in flags.items())


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
    """Refuse an MTP head (``mtp.*`` of a Qwen3.5 checkpoint) that was not filled.

    Raises:
        ValueError: names the missing parameters and shards, and, where the quantisation config made
            packed modules of plain ones, the entries that its ``ignore`` lacks.
    """
    if not in_full_load():
        return
    expected = expected_fills(model, shared=("lm_head.", "model.embed_tokens."), num_experts=num_experts)
    missing = coverage.missing(expected)
    if not missing:
        return
    lines = [f"{name}{_shard_text(shards, expected[name])}" for name, shards in missing.items()]
    hidden = f", and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    message = (
        f"{type(model).__name__}: the checkpoint filled {len(expected) - len(missing)} of "
        f"{len(expected)} parameters; missing: {', '.join(lines[:_SHOWN])}{hidden}. "
        "Such a head drafts from uninitialised memory, and nothing else would tell."
    )
    entries = ignore_entries(missing, coverage.arrived, model.packed_modules_mapping)
    if entries:
        message += (
            " The checkpoint has these modules unquantised, and its quantization_config does not say so: "
            f"add to its ignore list (modules_to_not_convert for FP8 and AWQ): {', '.join(entries)}."
        )
    else:
        message += " Use a checkpoint that has them, under the names that it was exported with."
    raise ValueError(message)


def _shard_text(missing: Sequence[Shard], expected: Sequence[Shard]) -> str:
    """Which shards, unless it is all of them."""
    if len(missing) == len(expected):
        return ""
    shown = [f"expert {shard[0]} {shard[1]}" if isinstance(shard, tuple) else str(shard) for shard in missing[:_SHOWN]]
    hidden = [f"{len(missing) - _SHOWN} more"] if len(missing) > _SHOWN else []
    return f" ({', '.join(shown + hidden)})"


def ignore_entries(missing: Iterable[str], arrived: Iterable[str], fused: Mapping[str, Sequence[str]]) -> list[str]:
    """Entries that make a quantisation config leave plain modules plain.

    A quantised parameter that is missing, while the checkpoint has the module's plain ``weight`` and
    nothing packed, means that the config did not exclude the module. Matchers know a fused module by
    its own name, by those of its parts, or by both, so both kinds are named.

    Args:
        missing: parameters of the model that were not filled.
        arrived: names of the checkpoint, below ``mtp.``.
        fused: name of a fused projection to the names of its parts.
    """
    quantized = {name.rpartition(".")[0] for name in missing if name.endswith(_QUANTIZED_SUFFIXES)}
    names = set(arrived)
    entries: dict[str, None] = {}
    for name in arrived:
        module, _, last = name.rpartition(".")
        packed = any(f"{module}.{suffix}" in names for suffix in _QUANTIZED_SUFFIXES)
        if last != "weight" or packed:
            continue
        for entry, built in _built_from(module, fused):
            if _parameter_path(built) in quantized:
                entries.setdefault(entry)
    return sorted(entries)


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
