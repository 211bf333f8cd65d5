"""The rebase report on real releases: what was found in their sources by hand must come out, and no more than that."""

from functools import cache

import pytest

from pipeline import hunk_match, pins, rebase
from pipeline.compose import PATCHES
from pipeline.files import BUILD
from pipeline.manifest import DEFAULT_LINE, PypiPin, lines, load_line
from pipeline.onto import Onto
from pipeline.patches import read_series, split_lines
from pipeline.pins import SourceTree
from pipeline.rebase_report import HunkStatus, HunkVerdict, OverlayStatus, RebaseReport

HISTORY = "qwen3.8-27b-20260819"
HASHES = {
    "0.5.20": "1573527042f4f6b4ead838302818595fc77fdc611dbcc2e40cd150fbc8f8513c",
    "0.5.22": "cc9a0f15bd8f877a0584fdb7a1702240177a1f1cc8d17c978715161717b9037b",
    "0.5.23": "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937",
}
"""Of the wheels for cp311."""
SINCE_20 = {
    "dflash2-port-lora.patch",
    "dflash-track-after-verify.patch",
    "mtp-platform-calls.patch",
    "xpu-gdn-verify-conv.patch",
    "mamba-pool-device.patch",
    "xpu-noncausal-layers.patch",
}
"""Fixes that 0.5.20 and all later releases have."""
SINCE_22_OR_23 = {
    "dflash2-conv-nan.patch",
    "mtp-packed-modules.patch",
    "xpu-mamba-state-scatter.patch",
    "xpu-gdn-state-stride.patch",
}
IN_OTHER_WORDS = "abandoned-requests.patch"
"""0.5.20 has the fix, and other code around two of its hunks."""
OURS = {
    "gdn-beta-fp32.patch",
    "xpu-noncausal-window.patch",
    "xpu-linear-drafts.patch",
    "xpu-graph-page-room.patch",
    "xpu-graph-modes.patch",
    "xpu-verify-rows.patch",
    "mtp-load-coverage.patch",
    "dflash2-load-coverage.patch",
    "dflash2-launch-guard.patch",
}
"""In no release so far."""


@cache
def release(version: str) -> Onto:
    pin = PypiPin(kind="pypi", name="sglang", version=version, sha256={"cp311": HASHES[version]})
    wheel = pins.fetch(pin, "cp311", BUILD / "cache")
    return Onto(f"sglang=={version}", pins.read_wheel(wheel), HASHES[version])


@cache
def made(line: str) -> rebase.Made:
    return rebase.made(load_line(line))


@cache
def report(line: str, version: str) -> RebaseReport:
    return rebase.of_line(load_line(line), release(version), made(line))


def hunks(found: RebaseReport, patch: str) -> list[HunkVerdict]:
    return [hunk for entry in found.patches if entry.name == patch for hunk in entry.hunks]


def upstream(found: RebaseReport) -> set[str]:
    """Patches all of whose hunks are upstream."""
    return {patch.name for patch in found.patches if patch.status is HunkStatus.UPSTREAM}


@pytest.mark.parametrize("line", lines())
def test_every_line_is_exact_on_what_it_is_made_of(line: str) -> None:
    found = rebase.of_line(load_line(line), Onto("its own", SourceTree(made(line).upstream)), made(line))
    assert {patch.status for patch in found.patches} <= {HunkStatus.EXACT}


def test_the_main_line_is_exact_on_its_own_release() -> None:
    found = report(DEFAULT_LINE, "0.5.23")
    assert found.exact
    assert {overlay.status for overlay in found.overlays} == {OverlayStatus.FITS}


def test_what_0_5_20_has_of_the_history_line() -> None:
    found = report(HISTORY, "0.5.20")
    assert upstream(found) >= SINCE_20 | {"dflash2-port-tp-sync.patch", "xpu-draft-steps.patch"}
    assert not upstream(found) & (SINCE_22_OR_23 | OURS)
    statuses = [hunk.status for hunk in hunks(found, IN_OTHER_WORDS)]
    assert statuses.count(HunkStatus.UPSTREAM) == 10
    assert statuses.count(HunkStatus.PARTLY) == 2


def test_what_0_5_23_has_of_the_history_line() -> None:
    found = report(HISTORY, "0.5.23")
    assert upstream(found) >= SINCE_20 | SINCE_22_OR_23
    assert not upstream(found) & OURS
    assert {hunk.status for hunk in hunks(found, "xpu-draft-steps.patch")} == {HunkStatus.UPSTREAM, HunkStatus.PARTLY}


@pytest.mark.parametrize("version", ["0.5.20", "0.5.23"])
def test_gates_of_dflash_on_xpu_are_upstream(version: str) -> None:
    found = hunks(report(HISTORY, version), "xpu-dflash.patch")
    there = {(hunk.file, hunk.header) for hunk in found if hunk.status is HunkStatus.UPSTREAM}
    worker, utils = ("sglang/srt/speculative/dflash_worker_v2.py", "sglang/srt/speculative/dflash_utils.py")
    assert sum(file == worker and header.endswith("def __init__(") for file, header in there) == 2
    assert sum(file == utils for file, _ in there) == 1


@pytest.mark.parametrize("version", ["0.5.20", "0.5.23"])
def test_every_line_of_an_upstream_hunk_is_in_the_release(version: str) -> None:
    """A second look by other means."""
    patches = {patch.name: patch for patch in read_series(PATCHES / HISTORY)}
    for verdict in report(HISTORY, version).patches:
        pairs = [(file.path, hunk) for file in patches[verdict.name].files for hunk in file.hunks]
        for (path, hunk), found in zip(pairs, verdict.hunks, strict=True):
            if found.status is not HunkStatus.UPSTREAM:
                continue
            added = set(filter(hunk_match.is_telling, hunk.new)) - set(hunk.old)
            assert added <= set(split_lines(release(version).tree.files[path]))


def test_the_main_line_on_0_5_22() -> None:
    found = report(DEFAULT_LINE, "0.5.22")
    assert not upstream(found)
    assert not found.exact
    (moved_file,) = [hunk for hunk in hunks(found, "gdn-beta-fp32.patch") if hunk.status is HunkStatus.CONFLICT]
    assert moved_file.file == "sglang/kernels/ops/attention/linear/fused_recurrent_linear_replayssm.py"
    assert "it is sglang/kernels/ops/attention/fla/fused_recurrent_linear_replayssm.py now" in moved_file.note
    (own,) = [hunk for hunk in hunks(found, "xpu-verify-rows.patch") if hunk.status is HunkStatus.CONFLICT]
    assert (own.file, own.cascading) == ("sglang/srt/environ.py", False)
    (follows,) = [hunk for hunk in hunks(found, "xpu-block-fp8-to-bf16.patch") if hunk.status is HunkStatus.CONFLICT]
    assert (follows.cascading, follows.note) == (True, "may follow from xpu-verify-rows.patch hunk 1")
    assert {hunk.status for hunk in hunks(found, "dflash-ring-pool.patch")} == {HunkStatus.MOVED, HunkStatus.FUZZ}
    assert {hunk.status for hunk in hunks(found, "mtp-load-coverage.patch")} == {HunkStatus.EXACT}
