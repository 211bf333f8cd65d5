"""``docs/checkpoint-rules.md``, rendered from the rules themselves."""

from collections.abc import Iterator

from pipeline.checkpoint.releases import KNOWN, Release
from pipeline.checkpoint.rule import MODES, ROLES, Rule
from pipeline.checkpoint.rules import RULES
from pipeline.files import PROJECT

PAGE = PROJECT / "docs" / "checkpoint-rules.md"
_HEAD = """\
# Rules of the checkpoint gate

Written by `./build.py checkpoint-rules --write` from `pipeline/checkpoint/rules/`; how to use the gate is in
[check-a-checkpoint.md](check-a-checkpoint.md). An `error` that fails, or that cannot be decided, refuses the
checkpoint; `warning` and `note` are shown.

| rule | severity | asked of | what holds of a good checkpoint | what to do otherwise |
|---|---|---|---|---|
"""
_RELEASES = """
## What the releases do differently

| release | fused table of MTP | packed 4-bit on XPU | AWQ, GPTQ on XPU | block FP8 on XPU | DFlash2 classes |
|---|---|---|---|---|---|
"""


def render() -> str:
    """The page's text."""
    return _HEAD + "".join(_rule(rule) for rule in RULES) + _RELEASES + "".join(_releases())


def _rule(rule: Rule) -> str:
    roles = "/".join(rule.roles) if rule.roles != ROLES else "both"
    modes = f" for {', '.join(rule.modes)}" if rule.modes != MODES else ""
    return f"| {rule.id} | {rule.severity} | {roles}{modes} | {rule.title} | {rule.remedy} |\n"


def _releases() -> Iterator[str]:
    for version in KNOWN:
        known = Release(version)
        flags = (bool(known.mtp_fused), known.xpu_packed_int4, known.xpu_awq, known.xpu_block_fp8)
        classes = [name for name in ("DFlash2DraftModel", *known.dflash2_aliases) if name in known.architectures]
        shown = " | ".join("yes" if flag else "no" for flag in flags)
        yield f"| {version} | {shown} | {', '.join(classes) or 'none'} |\n"
