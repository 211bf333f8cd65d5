"""Config folders of the models that the line serves, as ``manifests/<line>/configs`` keeps them; no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
CONFIGS = "manifests/qwen3.8-27b/configs"
ROOT = next(folder for folder in (HERE.parents[2], HERE.parents[3]) if (folder / CONFIGS).is_dir())
"""The volume of the container, or the project."""

Config = dict[str, Any]


def target(yarn: bool) -> Config:
    """``Qwen3_5ForConditionalGeneration``, with native positions or stretched ones."""
    return _config("Qwen3.8-27B-AWQ-INT4", yarn)


def draft(yarn: bool) -> Config:
    """``DFlash2DraftModel``, with the target's positions."""
    return _config("Qwen3.8-27B-DFlash2", yarn)


def mamba2() -> Config:
    """``FalconH1ForCausalLM`` with the defaults of its class: a hybrid without Gated DeltaNet."""
    return {"architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1", "max_position_embeddings": 8192}


def write(folder: Path, config: Config) -> Path:
    """Make a folder that holds this ``config.json`` and nothing else; returns it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder


def _config(model: str, yarn: bool) -> Config:
    text = (ROOT / CONFIGS / f"{model}{'-1m' if yarn else ''}" / "config.json").read_text(encoding="utf-8")
    config: Config = json.loads(text)
    return config
