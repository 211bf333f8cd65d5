"""``--fix-ignore``: the quantisation config with the MTP exclusions that the tensors call for."""

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.checkpoint import ignore, mtp_head
from pipeline.checkpoint.checkpoint import CONFIG, Checkpoint, config_text, dump, load
from pipeline.checkpoint.mtp_head import Head
from pipeline.checkpoint.naming import MTP_BUILT, MTP_EXCLUSIONS, MTP_FC, Built
from pipeline.checkpoint.releases import Release
from pipeline.checkpoint.rule import Undecided
from pipeline.checkpoint.source import LocalSource, Source
from pipeline.errors import CheckpointError
from pipeline.files import write_atomic

KEYS = ("quantization_config", "compression_config")


def corrected(quantisation: Mapping[str, Any], checkpoint: Checkpoint, pin: Release) -> dict[str, Any]:
    """The same config with right MTP exclusions; everything else, and the order of what is kept, as it was.

    Entries that speak of MTP and match nothing, or that match a packed module, go; what is missing for the plain ones
    is added in the order of :data:`MTP_EXCLUSIONS`.

    Raises:
        CheckpointError: the exclusions cannot be read, or no list does what the tensors need.
    """
    head = Head(checkpoint.dtypes, quantisation, pin.mtp_fused)
    try:
        with ignore.time_limit():
            fixed = _corrected(head, quantisation)
            _require_fit(Head(checkpoint.dtypes, fixed, pin.mtp_fused))
    except Undecided as reason:
        raise CheckpointError(f"{checkpoint.source}/{CONFIG}: {reason}", do="correct the exclusions by hand") from None
    except ignore.Refused as reason:
        raise CheckpointError(f"{checkpoint.source}/{CONFIG}: {reason}", do="correct that entry first") from None
    return fixed


def _corrected(head: Head, quantisation: Mapping[str, Any]) -> dict[str, Any]:
    problems = list(mtp_head.malformed(quantisation))
    if problems:
        raise ignore.Refused(problems[0])
    if not head.tensors:
        raise Undecided("there is no MTP tensor")
    if head.has_experts:
        raise Undecided(mtp_head.NOT_EXPERTS)
    packed = {name for built in MTP_BUILT if head.disk(built) == "packed" for name in (built.name, *built.parts)}
    key = mtp_head.list_key(quantisation)
    keep = [entry for entry in mtp_head.entries(quantisation) if _is_kept(head, entry, packed)]
    missing = _missing(head, quantisation, keep)
    if key == "extra_config":
        extra = quantisation.get(key) or {}
        gone = set(mtp_head.entries(quantisation)) - set(keep)
        kept = {name: setting for name, setting in extra.items() if name not in gone}
        return {**quantisation, key: {**kept, **{name: {**kept.get(name, {}), "bits": 16} for name in missing}}}
    return {**quantisation, key: [*keep, *missing]}


def _is_kept(head: Head, entry: str, packed: set[str]) -> bool:
    if not mtp_head.speaks_of_mtp(entry):
        return True
    matched = head.matches(entry)
    return bool(matched) and not packed & set(matched)


def _missing(head: Head, quantisation: Mapping[str, Any], keep: list[str]) -> list[str]:
    """Names to add, so that each plain module and its parts are excluded."""
    key = mtp_head.list_key(quantisation)
    value: Any = keep
    if key == "extra_config":
        value = {name: (quantisation.get(key) or {})[name] for name in keep}
    now = Head(head.dtypes, {**quantisation, key: value}, {})
    plain = [built for built in MTP_BUILT if head.disk(built) == "plain"]
    wanted = {name for built in plain for name in _names(built, mtp_head.method(quantisation))}
    wanted |= {MTP_FC} if plain else set()
    return [name for name in MTP_EXCLUSIONS if name in wanted and not now.excluded(name, alone=True)]


def _names(built: Built, kind: str) -> tuple[str, ...]:
    """What excludes a module in every release; FP8 and AutoRound look at the parts, never at the fused name."""
    fused = (built.name,) if built.fused and kind in ("compressed-tensors", "awq", "auto-round") else ()
    return (*built.parts, *fused)


def _require_fit(head: Head) -> None:
    for built in MTP_BUILT:
        form = head.disk(built)
        if form in ("plain", "packed") and head.built_plain(built) != (form == "plain"):
            raise Undecided(f"no entry that speaks of MTP decides over {built.name}")


def correction(source: Source, pin: Release) -> tuple[str, str]:
    """The config's text as it is, and as it should be.

    Raises:
        CheckpointError: it cannot be read or corrected.
    """
    checkpoint = load(source)
    for rule in ("CFG-01", "INT-01", "INT-02"):
        if rule in checkpoint.problems:
            raise CheckpointError(f"{source}: {rule}: {checkpoint.problems[rule][0]}", do="repair that first")
    before = config_text(source)
    holder, key = _place(checkpoint.config, source)
    fixed = corrected(holder[key], checkpoint, pin)
    if fixed == holder[key]:
        return before, before
    return before, dump(_replaced(checkpoint.config, holder, key, fixed), like=before)


def _place(config: Mapping[str, Any], source: Source) -> tuple[Mapping[str, Any], str]:
    """The object that holds the quantisation config, and its key there; in SGLang's order."""
    nested = config.get("text_config")
    places = [(config, KEYS[0]), (nested, KEYS[0]), (config, KEYS[1])]
    for holder, key in places:
        if isinstance(holder, dict) and isinstance(holder.get(key), dict):
            return holder, key
    raise CheckpointError(
        f"{source}/{CONFIG}: no quantization_config", do="nothing is quantised; there is no list to fix"
    )


def _replaced(config: Mapping[str, Any], holder: Mapping[str, Any], key: str, fixed: dict[str, Any]) -> dict[str, Any]:
    changed = {**holder, key: fixed}
    return changed if holder is config else {**config, "text_config": changed}


def diff(before: str, after: str, name: str) -> str:
    """The change of the quantisation config, as a unified diff; empty when there is none."""
    old, new = (_shown(text) for text in (before, after))
    return "".join(difflib.unified_diff(old, new, f"{name}/{CONFIG}", f"{name}/{CONFIG} (corrected)"))


def _shown(text: str) -> list[str]:
    config = json.loads(text)
    nested = config.get("text_config")
    parts = {key: config[key] for key in KEYS if key in config}
    if isinstance(nested, dict) and KEYS[0] in nested:
        parts[f"text_config.{KEYS[0]}"] = nested[KEYS[0]]
    return (json.dumps(parts, indent=2, ensure_ascii=False) + "\n").splitlines(keepends=True)


def write(source: Source, text: str) -> Path:
    """Put the corrected config in the place of the old one; nothing else is touched.

    Raises:
        CheckpointError: the source is no folder on this machine.
    """
    if not isinstance(source, LocalSource):
        raise CheckpointError(f"{source}: --write needs a folder", do="download the repository, or publish the config")
    path = source.folder / CONFIG
    write_atomic(path, text.encode())
    return path
