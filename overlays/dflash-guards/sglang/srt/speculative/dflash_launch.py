"""Whether a DFLASH draft is the one that a launch means.

The class of a draft comes from its config's ``architectures``. A classic DFlash checkpoint therefore
starts where a DFlash2 one was meant, and a draft starts with another block size or window than it was
trained with; all of that is legal, slower, and invisible in the text. Which draft is meant cannot be
guessed, so ``SGLANG_DFLASH_EXPECTED_ARCHITECTURE`` states it. With it, the numbers of the config are
requirements too; without it, only what cannot work is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sglang.srt.environ import envs

DFLASH2_ARCHITECTURES = (
    "DFlash2DraftModel",
    "DFlash2BeamDraftModel",
    "MiniMaxDFlash2DraftModel",
)
"""DFlash2 and the names that are kept for older exports of it."""


def check_launch(server_args: Any, cfg: Any) -> None:
    """Compare the draft's config with the expectation, the launch flags and the target's config.

    Args:
        server_args: the record, for the target's ``ModelConfig``.
        cfg: the record's resolving view; ``speculative_num_draft_tokens`` is resolved.

    Raises:
        ValueError: they differ; names both values of each difference. Only with an expectation.
    """
    expected = envs.SGLANG_DFLASH_EXPECTED_ARCHITECTURE.get()
    if not expected:
        return
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.utils.hf_transformers_utils import get_config

    draft = get_config(
        cfg.speculative_draft_model_path,
        trust_remote_code=cfg.trust_remote_code,
        revision=cfg.speculative_draft_model_revision,
        model_override_args=json.loads(cfg.json_model_override_args),
    )
    declared = (getattr(draft, "architectures", None) or ["none"])[0]
    problems = [*_architecture_problems(declared, expected)]
    if not problems:
        target = ModelConfig.from_server_args(server_args)
        problems = [*_flag_problems(draft, cfg), *_target_problems(draft, target.hf_text_config)]
    _refuse(cfg.speculative_draft_model_path, problems, expected)


def check_draft_model(model: Any, target_config: Any) -> None:
    """Compare the draft that was built with the expectation, and a selector with the target it serves.

    Args:
        model: the loaded draft.
        target_config: text config of the target.

    Raises:
        ValueError: the class is another one, or the selector cannot serve this target.
    """
    problems = []
    expected = envs.SGLANG_DFLASH_EXPECTED_ARCHITECTURE.get()
    if expected:
        problems += _architecture_problems(type(model).__name__, expected)
    if model.candidate_selector is not None:
        # Its input is the target's embedding, and its codebooks are indexed with the target's tokens.
        problems += _width_problems(model.config, target_config)
        rows, tokens = int(model.config.vocab_size), int(target_config.vocab_size)
        if rows < tokens:
            problems.append(f"its codebooks have {rows} rows, and the target has {tokens} tokens")
    _refuse(type(model).__name__, problems, expected)


def _architecture_problems(declared: str, expected: str) -> Iterator[str]:
    meant = DFLASH2_ARCHITECTURES if expected == DFLASH2_ARCHITECTURES[0] else (expected,)
    if declared not in meant:
        yield f"its architecture is {declared}, and SGLANG_DFLASH_EXPECTED_ARCHITECTURE is {expected}"


def _flag_problems(draft: Any, cfg: Any) -> Iterator[str]:
    from sglang.srt.speculative.dflash_utils import (
        get_dflash_attention_sliding_window_size,
        parse_dflash_draft_config,
    )

    block = parse_dflash_draft_config(draft_hf_config=draft).block_size
    if block is not None and block != int(cfg.speculative_num_draft_tokens):
        yield f"its block_size is {block}, and --speculative-num-draft-tokens is {cfg.speculative_num_draft_tokens}"
    left, flag = get_dflash_attention_sliding_window_size(draft), cfg.speculative_draft_window_size
    # That is the part left of the token itself; a draft without such layers declares no window.
    if None not in (left, flag) and left + 1 != flag:
        yield f"its sliding_window is {left + 1}, and --speculative-draft-window-size is {flag}"


def _target_problems(draft: Any, target: Any) -> Iterator[str]:
    from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config

    yield from _width_problems(draft, target)
    parsed = parse_dflash_draft_config(draft_hf_config=draft)
    layers = int(target.num_hidden_layers) * int(getattr(target, "num_loops", 1))
    if parsed.num_target_layers not in (None, layers):
        yield f"its num_target_layers is {parsed.num_target_layers}, and the target has {layers} layers"
    outside = [layer for layer in parsed.target_layer_ids or () if not 0 <= layer < layers]
    if outside:
        yield f"its target_layer_ids hold {outside}, and the target has {layers} layers"
    vocabulary = _text(draft, "vocab_size")
    if vocabulary not in (None, target.vocab_size):
        yield f"its vocab_size is {vocabulary}, and the target's is {target.vocab_size}"


def _width_problems(draft: Any, target: Any) -> Iterator[str]:
    width = _text(draft, "hidden_size")
    if width != target.hidden_size:
        yield f"its hidden_size is {width}, and the target's is {target.hidden_size}"


def _text(config: Any, key: str) -> Any:
    return getattr(getattr(config, "text_config", config), key, None)


def _refuse(draft: str, problems: list[str], expected: str) -> None:
    if problems:
        otherwise = ", or empty SGLANG_DFLASH_EXPECTED_ARCHITECTURE to serve what can run" if expected else ""
        raise ValueError(
            f"DFLASH draft {draft}: {'; '.join(problems)}. Use the draft that was trained for this target and launch "
            f"it as it was trained{otherwise}."
        )
