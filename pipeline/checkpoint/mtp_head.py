"""How the MTP head of a target is stored, and how a release would build it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pipeline.checkpoint import ignore
from pipeline.checkpoint.ignore import Fused
from pipeline.checkpoint.naming import MTP_BUILT, MTP_FC, MTP_PARTS, MTP_PLAIN, MTP_PREFIX, Built, module_of, on_disk
from pipeline.checkpoint.rule import Undecided

LIST_KEYS: Mapping[str, tuple[str, ...]] = {
    "compressed-tensors": ("ignore",),
    "awq": ("modules_to_not_convert",),
    "fp8": ("ignored_layers", "modules_to_not_convert"),
    "auto-round": ("extra_config",),
}
"""Where each format that is decided here keeps its exclusions; the first key that is set counts, as in SGLang."""
NOT_EXPERTS = "the MTP layer has experts; only the dense head is known here"


def method(quantisation: Mapping[str, Any]) -> str:
    """``quant_method`` as SGLang's registry spells it.

    Raises:
        Undecided: a format whose exclusion rules are not known here.
    """
    name = str(quantisation.get("quant_method", "none")).replace("_", "-")
    if name not in LIST_KEYS:
        raise Undecided(f"not decided: the exclusions of quant_method {name[:40]!r} are not known here")
    if "linear_fp8_config" in quantisation:
        raise Undecided("not decided: linear_fp8_config mixes two formats")
    return name


def list_key(quantisation: Mapping[str, Any]) -> str:
    """The key that holds the exclusions, or that would hold them."""
    keys = LIST_KEYS[method(quantisation)]
    return next((key for key in keys if quantisation.get(key) is not None), keys[0])


def entries(quantisation: Mapping[str, Any]) -> list[str]:
    """The entries that exclude modules: of AutoRound the keys of ``extra_config`` with 16 bits or more."""
    found = quantisation.get(list_key(quantisation)) or []
    if isinstance(found, dict):
        return [key for key, setting in found.items() if setting.get("bits", quantisation["bits"]) >= 16]
    return list(found)


def speaks_of_mtp(entry: str) -> bool:
    """Whether an entry is meant for the MTP head."""
    return "mtp" in entry.lower()


def malformed(quantisation: Mapping[str, Any]) -> Iterator[str]:
    """What SGLang would stumble over while it reads the exclusions."""
    for key in LIST_KEYS[method(quantisation)]:
        value = quantisation.get(key)
        if method(quantisation) == "auto-round":
            yield from _malformed_auto_round(quantisation)
        elif value is not None and not (isinstance(value, list) and all(isinstance(entry, str) for entry in value)):
            yield f"{key} is no list of texts"
        elif method(quantisation) == "compressed-tensors":
            yield from _malformed_expressions(value or [])
    if method(quantisation) == "compressed-tensors" and targets(quantisation) is None:
        yield "config_groups are no groups with a list of targets each"


def _malformed_expressions(found: Sequence[str]) -> Iterator[str]:
    for entry in found:
        if entry.startswith("re:"):
            try:
                ignore.expression(entry[3:])
            except ignore.Refused as error:
                yield str(error)


def _malformed_auto_round(quantisation: Mapping[str, Any]) -> Iterator[str]:
    extra = quantisation.get("extra_config") or {}
    blocks = quantisation.get("block_name_to_quantize") or quantisation.get("to_quant_block_names") or []
    if not _setting_is_sane(quantisation) or not {"bits", "group_size", "sym"} <= set(quantisation):
        yield "bits, group_size and sym must be two whole numbers and true or false"
    rows = list(extra.values()) if isinstance(extra, dict) else [None]
    if not all(isinstance(row, dict) and _setting_is_sane(row) for row in rows):
        yield "extra_config is no object of settings by module"
    if not isinstance(blocks, str) and not (isinstance(blocks, list) and all(isinstance(row, str) for row in blocks)):
        yield "block_name_to_quantize is neither text nor a list of texts"


def _setting_is_sane(setting: Mapping[str, Any]) -> bool:
    numbers = (setting.get("bits", 4), setting.get("group_size", 128))
    return all(type(number) is int for number in numbers) and type(setting.get("sym", True)) is bool


def targets(quantisation: Mapping[str, Any]) -> list[str] | None:
    """Targets of every group of a compressed-tensors config; None when they are not to be found."""
    groups = quantisation.get("config_groups", {})
    if not isinstance(groups, dict):
        return None
    found: list[str] = []
    for group in groups.values():
        names = group.get("targets") if isinstance(group, dict) else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return None
        found += names
    return found


@dataclass(frozen=True)
class Head:
    """The MTP head of one checkpoint."""

    dtypes: Mapping[str, str]
    """Of every tensor of the checkpoint, by name."""
    quantisation: Mapping[str, Any] | None
    fused: Fused
    """The release's table for the MTP class."""

    @cached_property
    def tensors(self) -> list[str]:
        return sorted(name for name in self.dtypes if name.startswith(MTP_PREFIX))

    @cached_property
    def modules(self) -> list[str]:
        """Every module of the checkpoint, MTP or not."""
        return sorted({module_of(name) for name in self.dtypes})

    @property
    def has_experts(self) -> bool:
        return any(".mlp.experts." in name or ".mlp.gate." in name for name in self.tensors)

    def disk(self, built: Built) -> str:
        """``plain``, ``packed``, ``absent`` or, for parts of unequal form, ``mixed``."""
        forms = {on_disk(part, self.dtypes) for part in built.parts} - {"absent"}
        return forms.pop() if len(forms) == 1 else "mixed" if forms else "absent"

    def excluded(self, name: str, *, alone: bool = False) -> bool:
        """Whether the release builds a module of this name plain; ``alone``: as if it were no fused one.

        Raises:
            ignore.Refused: SGLang would stop.
            Undecided: the format is not known.
        """
        config = self.quantisation
        if config is None:
            return True
        kind, fused = method(config), {} if alone else self.fused
        if kind == "auto-round":
            return ignore.auto_round(name, config, fused)
        found = entries(config)
        if kind == "compressed-tensors":
            return ignore.compressed_tensors(name, found, fused)
        return ignore.awq(name, found) if kind == "awq" else ignore.fp8(name, found, fused)

    def built_plain(self, built: Built) -> bool:
        """As :meth:`excluded`; what is not excluded must fall under a target too, or SGLang stops."""
        if self.excluded(built.name):
            return True
        assert self.quantisation is not None
        if method(self.quantisation) == "compressed-tensors" and (found := targets(self.quantisation)):
            ignore.compressed_tensors_target(built.name, built.class_name, found, self.fused)
        return False

    def with_entry(self, entry: str) -> "Head":
        """The same head with this one exclusion only."""
        assert self.quantisation is not None
        key = list_key(self.quantisation)
        value: Any = [entry]
        if key == "extra_config":
            value = {entry: self.quantisation[key][entry]}
        others = dict.fromkeys(LIST_KEYS[method(self.quantisation)])
        return replace(self, quantisation={**self.quantisation, **others, key: value})

    def matches(self, entry: str) -> list[str]:
        """Modules of the checkpoint and of the MTP class that an entry names or fits by itself."""
        single = self.with_entry(entry)
        known = [*self.modules, *MTP_PLAIN, *MTP_PARTS, *(built.name for built in MTP_BUILT)]
        if entry in known:
            return [entry]
        if single.quantisation and method(single.quantisation) == "auto-round":
            names = [name for name in known if entry == name or _fits_auto_round(entry, name)]
        else:
            names = [name for name in known if single.excluded(name, alone=True)]
        return names

    def partly_named(self) -> Iterator[tuple[Built, list[str], list[str]]]:
        """Fused modules of which some parts are excluded by name and others are not: module, those, the others."""
        for built in MTP_BUILT:
            named = [part for part in built.parts if self.excluded(part, alone=True)]
            if named and len(named) < len(built.parts):
                yield built, named, [part for part in built.parts if part not in named]


def _fits_auto_round(entry: str, name: str) -> bool:
    return bool(ignore.AUTO_ROUND_REGEX & set(entry)) and ignore.expression(entry).fullmatch(name) is not None


def working_forms(kind: str) -> str:
    """What to write instead of an entry that matches nothing, by format."""
    if kind == "compressed-tensors":
        return f"full module names such as {MTP_FC} and {MTP_BUILT[1].name}, or re:^mtp.*"
    if kind == "awq":
        return "a piece of the module's name, such as mtp."
    return "full module names, or mtp" if kind == "fp8" else "full module names with 16 bits, or mtp\\..*"
