"""The static import check on real wheels: DFlash2's files over the release before them."""

from pathlib import Path

import pytest

from pipeline import imports, pins
from pipeline.files import BUILD
from pipeline.manifest import PypiPin

BEFORE = PypiPin(
    kind="pypi",
    name="sglang",
    version="0.5.18",
    sha256={"cp311": "e97b585dd2d5db2802599feba47c84cce972f5e1231a6816fef996200207b5cf"},
)
AFTER = PypiPin(
    kind="pypi",
    name="sglang",
    version="0.5.19",
    sha256={"cp311": "425e87377e725d03db8262382008f3fd9561a6cf5d82f485f8b9929f02ffe12b"},
)
WORKER = "sglang/srt/speculative/dflash_worker_v2.py"
DFLASH2_FILES = (
    WORKER,
    "sglang/srt/models/dflash.py",
    "sglang/srt/speculative/dflash_utils.py",
    "sglang/kernels/ops/speculative/dflash.py",
)


@pytest.fixture(scope="module")
def cache() -> Path:
    """The cache that a build uses: the wheels are fetched once."""
    return BUILD / "cache"


def test_newer_dflash2_files_break_exactly_three_imports(cache: Path) -> None:
    before, after = pins.read(BEFORE, "cp311", cache), pins.read(AFTER, "cp311", cache)
    tree = before.files | {path: after.files[path] for path in DFLASH2_FILES}
    origins = dict.fromkeys(tree, "source:sglang") | dict.fromkeys(DFLASH2_FILES, "source:dflash2")
    problems = imports.check(tree, DFLASH2_FILES, origins, before.extensions)
    assert [(problem.file, problem.symbol, problem.provider_origin) for problem in problems] == [
        (WORKER, "sglang.srt.lora.layers.unwrap_lora_layer", "source:sglang"),
        (WORKER, "sglang.srt.runtime_context.mamba_track_grid", "source:sglang"),
        (WORKER, "sglang.srt.speculative.spec_tp_sync", "source:sglang"),
    ]
    assert problems[1].text == (
        f"{WORKER}:40 imports mamba_track_grid from sglang.srt.runtime_context; "
        "file from source:dflash2, module from source:sglang"
    )


def test_dflash2_files_in_their_own_release_break_none(cache: Path) -> None:
    after = pins.read(AFTER, "cp311", cache)
    origins = dict.fromkeys(after.files, "source:sglang")
    assert imports.check(after.files, DFLASH2_FILES, origins, after.extensions) == []
