"""The tiny checkpoints have the names of real ones, and are the same every time."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open  # type: ignore[import-not-found]  # in the base image only

from tests.e2e.support import tiny_models

if TYPE_CHECKING:
    from tests.e2e.support.tiny_models import Models

SELECTOR = {"predecessor_codebook", "successor_codebook", "hidden_projection.weight"}
CONVOLUTIONS = {
    f"layers.{layer}.{place}_conv.{part}"
    for layer in range(5)
    for place in ("attention", "mlp")
    for part in ("base_kernel", "kernel_projection.weight")
}
MTP = {
    *("fc", "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"),
    *(f"layers.0.{norm}" for norm in ("input_layernorm", "post_attention_layernorm")),
    *(f"layers.0.self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
    *(f"layers.0.mlp.{part}" for part in ("gate_proj", "up_proj", "down_proj")),
}


def names(folder: Path) -> set[str]:
    with safe_open(folder / tiny_models.WEIGHTS, "pt") as tensors:
        return set(tensors.keys())


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_mtp_head_has_its_fifteen_tensors(models: Models) -> None:
    assert {name for name in names(models.target) if "mtp" in name} == {f"mtp.{name}.weight" for name in MTP}
    assert len(MTP) == 15


def test_selector_and_convolutions_have_their_23_tensors(models: Models) -> None:
    own = {f"candidate_selector.{name}" for name in SELECTOR} | CONVOLUTIONS
    assert {name for name in names(models.draft) if "_conv." in name or "selector" in name} == own
    assert len(own) == 23


def test_they_are_made_of_a_seed_and_nothing_else(models: Models, tmp_path: Path) -> None:
    tiny_models.make(tmp_path)
    assert digests(tmp_path) == digests(models.target.parent)
    tiny_models.make(tmp_path / "other", tiny_models.Shape(seed=1))
    assert digests(tmp_path / "other")["target/model.safetensors"] != digests(tmp_path)["target/model.safetensors"]
