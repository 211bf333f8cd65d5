"""The cost that is promised, on sparse checkpoints of the real shapes: bytes read, counted; no seconds."""

from pathlib import Path

from benchmarks.checkpoint import PIN, SHAPE, write_draft, write_target
from pipeline.checkpoint import gate
from pipeline.checkpoint.checkpoint import FIRST_READ
from pipeline.checkpoint.report import Report
from pipeline.checkpoint.rule import Role

MIB = 1 << 20


def judge(folder: Path, role: Role) -> tuple[Report, int]:
    """The report, and the bytes that the checkpoint has."""
    return gate.check(str(folder), role, PIN), sum(path.stat().st_size for path in folder.iterdir())


def test_draft_of_five_layers_is_judged_from_less_than_8_mib(tmp_path: Path) -> None:
    write_draft(tmp_path)
    report, size = judge(tmp_path, "draft")
    assert report.publishable_and_servable
    assert len(SHAPE.tensors()) == 23
    assert size > 3 << 30
    assert report.bytes_read < 8 * MIB


def test_target_of_64_layers_is_judged_from_its_headers(tmp_path: Path) -> None:
    write_target(tmp_path)
    report, size = judge(tmp_path, "target")
    assert report.publishable_and_servable
    assert size > 15 << 30
    documents = sum(path.stat().st_size for path in tmp_path.iterdir() if path.suffix != ".safetensors")
    shards = len(list(tmp_path.glob("*.safetensors")))
    assert shards == 17
    assert report.bytes_read <= documents + shards * FIRST_READ
