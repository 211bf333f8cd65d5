"""The history line on its real wheels: any file of DFlash2 from the base release, or missing, ends in ``compose``."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from pipeline import compose as composing
from pipeline import imports, stages
from pipeline.compose import OVERLAYS, PATCHES
from pipeline.errors import ComposeError
from pipeline.files import BUILD
from pipeline.manifest import MANIFESTS, Line, load_line

NAME = "qwen3.8-27b-20260819"
FILES = (
    "sglang/srt/models/dflash.py",
    "sglang/srt/speculative/dflash_worker_v2.py",
    "sglang/srt/speculative/dflash_utils.py",
    "sglang/kernels/ops/speculative/dflash.py",
    "sglang/srt/speculative/spec_tp_sync.py",
)
NEW = FILES[-1]
"""The base release has no such file."""
BASE, NEXT = "source:sglang (sglang==0.5.18)", "source:dflash2 (sglang==0.5.19)"


@pytest.fixture
def without(tmp_path: Path) -> Callable[[str], Line]:
    """The line with one of the five left out, so that the base release's own file stays, or none."""

    def make(path: str) -> Line:
        folder = Path(shutil.copytree(MANIFESTS / NAME, tmp_path / NAME))
        document = yaml.safe_load((folder / "release.yaml").read_text(encoding="utf-8"))
        [layer] = [layer for layer in document["layers"] if layer.get("source") == "dflash2"]
        layer["files"].remove(path)
        (folder / "release.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        return load_line(NAME, tmp_path)

    return make


def test_sound_line_composes() -> None:
    composed = composing.compose(load_line(NAME))
    assert {composed.record.files[path].origin for path in FILES} == {"source:dflash2"}


def broken_imports(patches: list[str], folder: Path) -> set[str]:
    """What imports of the line's tree do not find, with these of its patches alone."""
    (folder / "series").write_text("".join(f"{name}\n" for name in patches))
    for name in patches:
        shutil.copy(PATCHES / NAME / name, folder)
    draft = composing.Draft()
    for _ in composing.grow(draft, load_line(NAME), BUILD, OVERLAYS, folder):
        pass
    changed = [path for path, origin in draft.origins.items() if origin != "source:sglang" or path in draft.patched]
    return {problem.symbol for problem in imports.check(draft.files, changed, draft.origins, draft.extensions)}


def test_imports_of_dflash2_are_answered_by_the_port_alone(tmp_path: Path) -> None:
    assert broken_imports([], tmp_path) == {
        "sglang.srt.lora.layers.unwrap_lora_layer",
        "sglang.srt.runtime_context.mamba_track_grid",
    }
    assert broken_imports(["dflash2-port-lora.patch", "dflash2-port-track-interval.patch"], tmp_path) == set()


@pytest.mark.parametrize("path", FILES)
def test_what_the_base_release_has_there_is_not_the_locked_file(without: Callable[[str], Line], path: str) -> None:
    with pytest.raises(ComposeError) as caught:
        composing.compose(without(path), BUILD)
    line = caught.value.line()
    assert line.startswith(f"{path}: expected sha256:")
    found = line[line.index(NEXT) :]
    assert "found no such file" in found if path == NEW else "found sha256:" in found and BASE in found


@pytest.mark.parametrize("path", FILES)
def test_nor_does_it_compose_where_the_lock_is_written_anew(
    without: Callable[[str], Line], path: str, tmp_path: Path
) -> None:
    """A patch does not fit, or an import breaks; whichever comes first names both revisions."""
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "cache").symlink_to(BUILD / "cache")
    with pytest.raises(ComposeError) as caught:
        stages.compose_tree(without(path), write_lock=True, build=tmp_path / "build")
    text = caught.value.line()
    assert BASE in text
    assert NEXT in text
