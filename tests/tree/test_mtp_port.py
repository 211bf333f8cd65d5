"""Oracle of what 0.5.18 lacks for MTP with a hybrid target on XPU, and later releases have.

Patches mtp-platform-calls, mamba-pool-device, xpu-gdn-verify-conv, xpu-gdn-state-stride and xpu-mamba-state-scatter.
The real classes run with a faked torch.xpu and, in the place of the kernel that 0.5.18 takes from sgl_kernel, a
function with that kernel's signature.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conftest import HISTORY, LINE  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

pytestmark = pytest.mark.skipif(not HISTORY, reason=f"{LINE}'s release has these fixes")

WITHOUT_CUDA = "AssertionError: Torch not compiled with CUDA enabled"
CHAIN, BRANCHES = 1, 4
"""Draft tokens that a drafting step proposes: windows of a chain overlap in memory, those of a tree do not."""

CASES: list[dict[str, Any]] = [
    {"name": "handover", "ask": "handover"},
    *({"name": f"pool {topk}", "ask": "pool", "topk": topk} for topk in (CHAIN, BRANCHES)),
    {"name": "verify", "ask": "verify"},
    {"name": "convolution", "ask": "verify", "recurrence": False},
    {"name": "recurrence", "ask": "verify", "convolution": False},
    {"name": "short prefill", "ask": "extend", "lengths": [1, 2, 3], "cached": [0, 0, 1]},
    {"name": "prefill", "ask": "extend", "lengths": [5, 70, 64], "cached": [0, 64, 128]},
    {"name": "commit", "ask": "commit", "track": False},
    {"name": "commit with a checkpoint", "ask": "commit", "track": True},
]


@pytest.fixture(scope="module")
def ours(composed: Tree) -> dict[str, Any]:
    return composed.measure("mtp_port", CASES)


@pytest.fixture(scope="module")
def theirs(upstream: Tree) -> dict[str, Any]:
    return upstream.measure("mtp_port", CASES)


@pytest.mark.patch("mtp-platform-calls.patch")
def test_the_head_takes_the_targets_embedding(ours: dict[str, Any]) -> None:
    found = ours["handover"]
    assert found["error"] is None
    assert found["weights"] == ["target's", "target's"]
    assert found["calls"] == ["empty_cache", "synchronize"]


@pytest.mark.patch("mamba-pool-device.patch")
@pytest.mark.parametrize("topk", [CHAIN, BRANCHES])
def test_what_a_verification_leaves_lies_on_the_pools_device(ours: dict[str, Any], topk: int) -> None:
    found = ours[f"pool {topk}"]
    assert found["error"] is None
    assert found["value"] == {"devices": ["cpu"], "states": [2, 4, 8, 2, 16, 16], "windows": [2, 4, 8, 64, 3]}


@pytest.mark.parametrize(
    "name",
    [
        "verify",
        pytest.param("recurrence", marks=pytest.mark.patch("xpu-gdn-state-stride.patch")),
    ],
)
def test_a_verification_is_that_of_the_model(ours: dict[str, Any], name: str) -> None:
    found = ours[name]
    assert found["error"] is None
    # FP32 arithmetic on values of order one; windows are copies.
    assert found["output"] < 1e-5
    assert found["states"] < 1e-5
    assert found["windows"] == 0


@pytest.mark.parametrize(
    "name",
    [pytest.param("convolution", marks=pytest.mark.patch("xpu-gdn-verify-conv.patch")), "short prefill", "prefill"],
)
def test_verification_and_prefill_take_the_same_convolution(ours: dict[str, Any], name: str) -> None:
    found = ours[name]
    assert found["error"] is None
    assert found["mixed"] < 1e-5
    assert found["windows"] == 0


@pytest.mark.patch("xpu-mamba-state-scatter.patch")
def test_a_commit_leaves_the_last_accepted_states(ours: dict[str, Any]) -> None:
    # Requests 0, 1 and 2 run in slots 4, 1 and 5, and their last accepted steps are 0, 7 and 3.
    slots: dict[str, list[int]] = {"4": [0, 0], "1": [1, 7], "5": [2, 3]}
    assert ours["commit"] == {"error": None, "conv": [slots] * 2, "ssm": [slots] * 2}
    # Request 1 crosses a checkpoint at step 5, and its track slot is 3; the others cross none.
    slots = {**slots, "3": [1, 5]}
    assert ours["commit with a checkpoint"] == {"error": None, "conv": [slots] * 2, "ssm": [slots] * 2}


SCATTER = "ValueError: fused_mamba_state_scatter_with_mask only supports CUDA tensors."
STOPS = {
    "handover": ("mtp-platform-calls.patch", WITHOUT_CUDA),
    f"pool {CHAIN}": ("mamba-pool-device.patch", WITHOUT_CUDA),
    f"pool {BRANCHES}": ("mamba-pool-device.patch", WITHOUT_CUDA),
    "convolution": (
        "xpu-gdn-verify-conv.patch",
        "TypeError: no_rollback() got an unexpected keyword argument 'intermediate_conv_window'",
    ),
    "recurrence": (
        "xpu-gdn-state-stride.patch",
        "TypeError: fused_sigmoid_gating_delta_rule_update_kernel() missing 1 required positional argument: "
        "'stride_h0_source'",
    ),
    "commit": ("xpu-mamba-state-scatter.patch", SCATTER),
    "commit with a checkpoint": ("xpu-mamba-state-scatter.patch", SCATTER),
}


@pytest.mark.parametrize(
    ("name", "error"),
    [pytest.param(name, error, marks=pytest.mark.patch(patch)) for name, (patch, error) in STOPS.items()],
)
def test_upstream_stops(theirs: dict[str, Any], name: str, error: str) -> None:
    assert theirs[name]["error"] == error
