"""The draft classes of a tree, and the target's."""

from __future__ import annotations

from sglang.srt.models import dflash, qwen3_5, qwen3_5_mtp  # type: ignore[import-not-found]

EntryClass = [qwen3_5.Qwen3_5ForConditionalGeneration, qwen3_5_mtp.Qwen3_5ForCausalLMMTP, *dflash.EntryClass]
