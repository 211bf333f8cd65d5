"""The cost that is promised, on sparse checkpoints of the real shapes: bytes read, counted; no seconds."""

import math
from pathlib import Path

import pytest

from benchmarks.checkpoint import PIN, SHAPE, target_shards, write_draft, write_target
from pipeline import model_weights
from pipeline.checkpoint import gate
from pipeline.checkpoint.checkpoint import FIRST_READ
from pipeline.checkpoint.report import Report
from pipeline.checkpoint.rule import Role
from pipeline.manifest import DEFAULT_LINE, load_line

LINE = load_line(DEFAULT_LINE)
MIB = 1 << 20


def judge(folder: Path, role: Role) -> tuple[Report, int]:
    """The report, and the bytes that the checkpoint has."""
    return gate.check(str(folder), role, PIN), sum(path.stat().st_size for path in folder.iterdir())


def test_draft_of_five_layers_is_judged_from_less_than_8_mib(tmp_path: Path) -> None:
    write_draft(tmp_path)
    report, size = judge(tmp_path, "draft")
    assert report.publishable_and_servable
    assert len(SHAPE.tensors()) == 23
    assert size == pytest.approx(model_weights.draft(LINE.config("Qwen3.8-27B-DFlash2"), 1).total, rel=1e-4)
    assert report.bytes_read < 8 * MIB


def test_target_of_64_layers_is_judged_from_its_headers(tmp_path: Path) -> None:
    write_target(tmp_path)
    report, size = judge(tmp_path, "target")
    assert report.publishable_and_servable
    config = LINE.config("Qwen3.8-27B-AWQ-INT4")
    loaded = (model_weights.target(config, 1) + model_weights.mtp_head(config, 1)).total
    # On a card there is a zero point of one byte beside each scale.
    tensors = {name: shape for _, shard in target_shards() for name, (_, shape) in shard.items()}
    scales = sum(math.prod(shape) for name, shape in tensors.items() if name.endswith(".weight_scale"))
    assert size == pytest.approx(loaded - scales, rel=1e-3)
    documents = sum(path.stat().st_size for path in tmp_path.iterdir() if path.suffix != ".safetensors")
    shards = len(list(tmp_path.glob("*.safetensors")))
    assert shards == 17
    assert report.bytes_read <= documents + shards * FIRST_READ
