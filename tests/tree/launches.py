"""Launches with a DFLASH draft that fits and ones that do not, as cases of ``drivers/draft_start.py``."""

from __future__ import annotations

from typing import Any

from conftest import MAIN  # type: ignore[import-not-found]  # these three lie beside this file
from dflash_checkpoints import (  # type: ignore[import-not-found]
    CLASSIC,
    HIDDEN,
    LAYERS,
    VOCABULARY,
    config,
)
from mtp_checkpoints import CONFIG as MTP_CONFIG  # type: ignore[import-not-found]

DFLASH2 = "DFlash2DraftModel"
WINDOW = 2048
TARGET = {**MTP_CONFIG, "hidden_size": HIDDEN, "vocab_size": VOCABULARY}
DEVICE = "xpu" if MAIN else "cuda"
"""One that the line's unpatched tree accepts for DFLASH: the guard asks no device."""
FLAGS = {"speculative_num_draft_tokens": 8, "speculative_draft_window_size": WINDOW}


def draft(architecture: str = DFLASH2, **more: Any) -> Any:
    layers = {"layer_types": ["sliding_attention"] * LAYERS, "use_sliding_window": True, "sliding_window": WINDOW}
    return config(architecture, **{**layers, **more})


def launch(name: str, draft_config: dict[str, Any], expected: str | None = DFLASH2, **flags: Any) -> dict[str, Any]:
    """Arguments are resolved for this draft and target; ``expected`` is the environment variable."""
    return {
        "name": f"launch {name}",
        "device": DEVICE,
        "launch": {**FLAGS, **flags},
        "draft": draft_config,
        "target": TARGET,
        "expected": expected,
    }


def worker(
    name: str, built: str, expected: str | None = DFLASH2, *, selector: bool = True, **numbers: int
) -> dict[str, Any]:
    """The worker gets a draft of a class; its config and the target's agree but for ``numbers``."""
    own = {"hidden_size": HIDDEN, "vocab_size": VOCABULARY}
    return {
        "name": f"worker {name}",
        "built": built,
        "selector": selector,
        "draft": {**own, **numbers},
        "target": own,
        "expected": expected,
    }


CLASSIC_NAME = "DFlashDraftModel"
FITS = [
    launch("as trained", draft()),
    launch("without a window", draft(), speculative_draft_window_size=None),
    launch("a window for a draft that declares none", config()),
    launch("block size from the draft", draft(), speculative_num_draft_tokens=None),
    launch("alias", draft("DFlash2BeamDraftModel")),
    launch("other alias", draft("MiniMaxDFlash2DraftModel")),
    launch("classic where it is expected", CLASSIC, CLASSIC_NAME),
    worker("as built", DFLASH2),
    worker("alias", "DFlash2BeamDraftModel"),
    worker("more rows than tokens", DFLASH2, vocab_size=VOCABULARY + 32),
    worker("classic where it is expected", CLASSIC_NAME, CLASSIC_NAME, selector=False),
]
UNEXPECTED = [
    (
        launch("classic", CLASSIC),
        ("its architecture is DFlashDraftModel", "SGLANG_DFLASH_EXPECTED_ARCHITECTURE is DFlash2DraftModel"),
    ),
    (launch("no architecture", config(architectures=None)), ("its architecture is none",)),
    (
        launch("another block", draft(), speculative_num_draft_tokens=16),
        ("its block_size is 8", "--speculative-num-draft-tokens is 16"),
    ),
    (
        launch("another window", draft(), speculative_draft_window_size=1024),
        ("its sliding_window is 2048", "--speculative-draft-window-size is 1024"),
    ),
    (
        launch("another width", draft(hidden_size=2 * HIDDEN)),
        (f"its hidden_size is {2 * HIDDEN}", f"the target's is {HIDDEN}"),
    ),
    (
        launch("another vocabulary", draft(vocab_size=VOCABULARY + 1)),
        (f"its vocab_size is {VOCABULARY + 1}", f"the target's is {VOCABULARY}"),
    ),
    (
        launch("a deeper target", draft(num_target_layers=64)),
        ("its num_target_layers is 64", "the target has 4 layers"),
    ),
    (
        launch("a layer that the target lacks", draft(num_target_layers=None, target_layers=[0, 4])),
        ("its target_layer_ids hold [4]", "the target has 4 layers"),
    ),
    (worker("classic", CLASSIC_NAME, selector=False), ("its architecture is DFlashDraftModel",)),
    (worker("fallback", "TransformersForCausalLM", selector=False), ("its architecture is TransformersForCausalLM",)),
]
IMPOSSIBLE = [
    (
        worker("a selector of another width", DFLASH2, None, hidden_size=2 * HIDDEN),
        (f"its hidden_size is {2 * HIDDEN}", f"the target's is {HIDDEN}"),
    ),
    (
        worker("too few codebook rows", DFLASH2, None, vocab_size=VOCABULARY - 1),
        (f"its codebooks have {VOCABULARY - 1} rows", f"the target has {VOCABULARY} tokens"),
    ),
]
FREE = [{**case, "name": f"{case['name']}, nothing expected", "expected": None} for case, _ in UNEXPECTED]
CASES = [*FITS, *FREE, *(case for case, _ in (*UNEXPECTED, *IMPOSSIBLE))]
