"""Oracles of the real line on a planted release: it has all that the patches do, one of them behind a gate."""

import pytest

from pipeline import oracles, rebase
from pipeline.onto import Onto
from pipeline.pins import SourceTree
from pipeline.rebase_report import HunkStatus, OracleStatus, PatchVerdict
from tests.image.conftest import Real

WINDOW, FLUSH = "xpu-noncausal-window.patch", "xpu-flush-keeps-graphs.patch"
BACKEND, LEGACY = "sglang/srt/layers/attention/xpu_backend.py", "sglang/srt/layers/attention/xpu_backend_legacy.py"
CHANGE = b"""        if not causal:
            # (left, right): without causality the window reaches both ways.
            window_size = (window_size[0], window_size[0])
"""
GATE = b"""

if not torch.cuda.is_available():
    from sglang.srt.layers.attention import xpu_backend_legacy

    for _name in ("forward_extend", "forward_decode"):
        setattr(XPUAttentionBackend, _name, getattr(xpu_backend_legacy.XPUAttentionBackend, _name))
"""


def gated(files: dict[str, bytes]) -> dict[str, bytes]:
    """The tree with the window patch's text in its place, and both methods taken from elsewhere on this device."""
    backend = files[BACKEND]
    assert backend.count(CHANGE) == 2
    return {**files, BACKEND: backend + GATE, LEGACY: backend.replace(CHANGE, b"")}


@pytest.fixture(scope="module")
def found(real: Real) -> dict[str, PatchVerdict]:
    """What a rebase says about each patch, with the oracles of two."""
    files = gated(real.composed.files)
    verdicts = oracles.judge(real.line, files, names=[WINDOW, FLUSH])
    report = rebase.of_line(real.line, Onto("planted", SourceTree(files)), rebase.made(real.line))
    return {patch.name: patch for patch in rebase.with_answers(report, verdicts).patches}


def test_a_patch_that_upstream_has_may_be_dropped(found: dict[str, PatchVerdict]) -> None:
    patch = found[FLUSH]
    assert patch.status is HunkStatus.UPSTREAM
    assert patch.oracle is not None
    assert patch.oracle.status is OracleStatus.DROPPABLE, patch.oracle.detail


def test_a_patch_that_upstream_has_behind_a_gate_may_not(found: dict[str, PatchVerdict]) -> None:
    patch = found[WINDOW]
    assert patch.status is HunkStatus.UPSTREAM
    assert patch.oracle is not None
    assert patch.oracle.status is OracleStatus.NEEDED
    assert "test_xpu_window: test_every_layer_sees_what_it_has_to" in patch.oracle.detail
    assert "AssertionError: assert [[[" in patch.oracle.detail
