"""Each line beside the main one: its image is made, made again, and checked.

Planted faults are the main line's business (test_planted_faults.py); here are those that only a mixed tree can have.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import compose as composing
from pipeline import image as images
from pipeline import oci, pins
from pipeline.documents import CheckStatus
from pipeline.files import BUILD
from pipeline.manifest import lines, load_line
from pipeline.oci import LayerEntry
from tests.image.conftest import Other, only

OTHERS = [name for name in lines() if not load_line(name).is_main]
HISTORY = "qwen3.8-27b-20260819"
ROOT = "usr/local/lib/python3.11/dist-packages"
WORKER, MODELS = "sglang/srt/speculative/dflash_worker_v2.py", "sglang/srt/models/dflash.py"


@pytest.mark.parametrize("name", OTHERS)
def test_the_sound_image_passes(others: Callable[[str], Other], name: str, tmp_path: Path) -> None:
    other = others(name).real
    report = other.check(other.image, tmp_path / "log")
    unusual = {row.name: (row.status, row.reason) for row in report.checks if row.status is not CheckStatus.PASSED}
    assert list(unusual) == ["kernels"], unusual
    assert unusual["kernels"][0] is CheckStatus.NOT_APPLICABLE
    assert report.passed


@pytest.mark.parametrize("name", OTHERS)
def test_image_that_is_made_again_has_the_same_digest(
    others: Callable[[str], Other], name: str, tmp_path: Path
) -> None:
    other = others(name).real
    composed = composing.compose(other.line)
    again = images.build(other.line, composed, other.base, tmp_path / "image")
    assert again.digest == other.image.digest


@pytest.mark.parametrize(
    ("path", "fails"),
    [(WORKER, {"features", "tree"}), (MODELS, {"features", "registry", "tree"})],
    ids=["worker", "models"],
)
def test_file_of_the_base_release_is_seen_in_the_image(
    others: Callable[[str], Other], path: str, fails: set[str], tmp_path: Path
) -> None:
    """A build elsewhere laid one of DFlash2's files from the wrong release: more than the digests of files say so."""
    other = others(HISTORY).real
    base = pins.read(other.line.release.pins["sglang"], other.line.release.base.python_tag, BUILD / "cache")
    layer = oci.write_layer(tmp_path / "layer.tar", [LayerEntry(f"{ROOT}/{path}", base.files[path])])
    image = oci.append_layer(
        other.image,
        tmp_path / "image",
        tmp_path / "layer.tar",
        layer,
        environment={},
        labels={},
        created=other.line.release.created,
        comment=f"fault: {path} of the base release",
    )
    report = other.check(image, tmp_path / "log", only(fails, tmp_path))
    bad = {row.name: row.reason for row in report.checks if not row.status.is_sound}
    assert set(bad) == fails
    assert path in bad["features"]
