"""What changed between the pinned releases, on their real wheels: facts that were looked up in them by hand."""

from functools import cache

import pytest

from pipeline import launch_flags, pins, upstream_changes
from pipeline.files import BUILD
from pipeline.manifest import DEFAULT_LINE, load_line
from pipeline.upstream_changes import UpstreamChanges

HISTORY = load_line("qwen3.8-27b-20260819")
TREES = {"0.5.18": (HISTORY, "sglang"), "0.5.19": (HISTORY, "dflash2"), "0.5.23": (load_line(DEFAULT_LINE), "sglang")}
DFLASH2 = (
    "sglang/srt/models/dflash.py",
    "sglang/srt/speculative/dflash_worker_v2.py",
    "sglang/srt/speculative/dflash_utils.py",
    "sglang/kernels/ops/speculative/dflash.py",
)
DROPPED_ALIAS = "--speculative-dflash-draft-window-size"


@cache
def tree(version: str) -> dict[str, bytes]:
    line, name = TREES[version]
    pin = line.release.pins[name]
    assert pins.describe(pin) == f"sglang=={version}"
    return pins.read(pin, line.release.base.python_tag, BUILD / "cache").files


@pytest.fixture(scope="module")
def onto_23() -> UpstreamChanges:
    """The history line's two sources against 0.5.23."""
    files = upstream_changes.second_source(HISTORY)
    old = tree("0.5.18") | {path: tree("0.5.19")[path] for path in files}
    return upstream_changes.compare(old, tree("0.5.23"), files, {"someone": DROPPED_ALIAS})


@pytest.mark.parametrize(("version", "count"), [("0.5.18", 506), ("0.5.19", 521), ("0.5.23", 559)])
def test_flags_of_each_release_are_read(version: str, count: int) -> None:
    found = launch_flags.read(tree(version))
    assert len(found) == count
    assert (DROPPED_ALIAS in found) == (version != "0.5.23")
    assert found["--speculative-draft-window-size"].default == "None"
    assert {"--model", "--model-path", "--tp-size", "--tensor-parallel-size"} <= found.keys()
    assert [name for name, flag in found.items() if flag.computed] == ["--kv-canary-real-data"]


def test_flags_that_0_5_23_dropped_are_found_and_marked(onto_23: UpstreamChanges) -> None:
    found = onto_23.flags
    assert (found.before, found.after) == (506, 559)
    assert [(change.name, change.what, change.used_by) for change in found.ours] == [
        (DROPPED_ALIAS, "vanished", ("someone",))
    ]
    assert "--mamba-scheduler-strategy" in {change.name for change in found.changes if change.what == "vanished"}
    moved = {change.name: (change.old, change.new) for change in found.changes if change.what == "default"}
    assert moved["--mamba-full-memory-ratio"] == ("0.9", "None")
    choices = {change.name: (change.old, change.new) for change in found.changes if change.what == "choices"}
    assert choices["--linear-attn-backend"] == ("", "intel_xpu")


def test_dflash2_files_of_0_5_23_are_other_ones(onto_23: UpstreamChanges) -> None:
    found = {change.path: change for change in onto_23.files}
    assert {found[path].status for path in DFLASH2} == {"changed"}
    assert found["sglang/kernels/ops/speculative/fused_kv_materialize.py"].status == "same"
    assert found["sglang/srt/speculative/draft_parallel.py"].status == "new"


def test_variable_of_the_tp_sync_came_with_0_5_19() -> None:
    found = upstream_changes.compare(tree("0.5.18"), tree("0.5.19"), {}, {}).variables
    gone = {change.name for change in found.changes if change.what == "vanished"}
    assert "SGLANG_USE_SGL_XPU" in gone
    back = upstream_changes.compare(tree("0.5.19"), tree("0.5.18"), {}, {}).variables
    assert "SGLANG_SPEC_TP_SYNC" in {change.name for change in back.changes if change.what == "vanished"}
    assert found.new > 0
