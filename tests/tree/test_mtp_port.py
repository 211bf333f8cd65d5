"""Oracle of what 0.5.18 lacks for MTP with a hybrid target on XPU, and later releases have.

Patches mtp-platform-calls, mamba-pool-device, xpu-gdn-verify-conv, xpu-gdn-state-stride and xpu-mamba-state-scatter.
The real classes run with a faked torch.xpu and, in the place of the kernel that 0.5.18 takes from sgl_kernel, a
function with that kernel's signature.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

handover = pytest.mark.patch("mtp-platform-calls.patch")
pool = pytest.mark.patch("mamba-pool-device.patch")
convolution = pytest.mark.patch("xpu-gdn-verify-conv.patch")
stride = pytest.mark.patch("xpu-gdn-state-stride.patch")
scatter = pytest.mark.patch("xpu-mamba-state-scatter.patch")

WITHOUT_CUDA = "AssertionError: Torch not compiled with CUDA enabled"
NO_WINDOWS = "TypeError: no_rollback() got an unexpected keyword argument 'intermediate_conv_window'"
NO_STRIDE = (
    "TypeError: fused_sigmoid_gating_delta_rule_update_kernel() missing 1 required positional argument: "
    "'stride_h0_source'"
)
CUDA_ONLY = "ValueError: fused_mamba_state_scatter_with_mask only supports CUDA tensors."
CHAIN, BRANCHES = 1, 4
"""Draft tokens that a drafting step proposes: windows of a chain overlap in memory, those of a tree do not."""

CASES: list[dict[str, Any]] = [
    {"name": "handover", "ask": "handover"},
    *({"name": f"pool {topk}", "ask": "pool", "topk": topk} for topk in (CHAIN, BRANCHES)),
    {"name": "verify", "ask": "verify", "own_convolution": True},
    {"name": "recurrence", "ask": "verify", "own_convolution": False},
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


@handover
def test_the_head_takes_the_targets_embedding(ours: dict[str, Any]) -> None:
    found = ours["handover"]
    assert found["error"] is None
    assert found["weights"] == ["target's", "target's"]
    assert found["calls"] == ["empty_cache", "synchronize"]


@pool
@pytest.mark.parametrize("topk", [CHAIN, BRANCHES])
def test_what_a_verification_leaves_lies_on_the_pools_device(ours: dict[str, Any], topk: int) -> None:
    found = ours[f"pool {topk}"]
    assert found["error"] is None
    assert found["value"] == {"devices": ["cpu"], "states": [2, 4, 8, 2, 16, 16], "windows": [2, 4, 8, 64, 3]}


@convolution
def test_a_verification_is_that_of_the_model(ours: dict[str, Any]) -> None:
    check_verification(ours["verify"])


@stride
def test_so_is_its_recurrence(ours: dict[str, Any]) -> None:
    check_verification(ours["recurrence"])


def check_verification(found: dict[str, Any]) -> None:
    assert found["error"] is None
    # FP32 arithmetic on values of order one; windows are copies.
    assert found["output"] < 1e-5
    assert found["states"] < 1e-5
    assert found["windows"] == 0


@convolution
@pytest.mark.parametrize("name", ["short prefill", "prefill"])
def test_a_prefill_takes_the_same_convolution(ours: dict[str, Any], name: str) -> None:
    found = ours[name]
    assert found["error"] is None
    assert found["mixed"] < 1e-5
    assert found["windows"] == 0


@scatter
def test_a_commit_leaves_the_last_accepted_states(ours: dict[str, Any]) -> None:
    # Requests 0, 1 and 2 run in slots 4, 1 and 5, and their last accepted steps are 0, 7 and 3.
    slots: dict[str, list[int]] = {"4": [0, 0], "1": [1, 7], "5": [2, 3]}
    assert ours["commit"] == {"error": None, "conv": [slots] * 2, "ssm": [slots] * 2}
    # Request 1 crosses a checkpoint at step 5, and its track slot is 3; the others cross none.
    slots = {**slots, "3": [1, 5]}
    assert ours["commit with a checkpoint"] == {"error": None, "conv": [slots] * 2, "ssm": [slots] * 2}


@pytest.mark.parametrize(
    ("name", "error"),
    [
        pytest.param("handover", WITHOUT_CUDA, marks=handover),
        pytest.param(f"pool {CHAIN}", WITHOUT_CUDA, marks=pool),
        pytest.param(f"pool {BRANCHES}", WITHOUT_CUDA, marks=pool),
        pytest.param("verify", NO_WINDOWS, marks=convolution),
        pytest.param("recurrence", NO_STRIDE, marks=stride),
        pytest.param("commit", CUDA_ONLY, marks=scatter),
        pytest.param("commit with a checkpoint", CUDA_ONLY, marks=scatter),
    ],
)
def test_upstream_stops(theirs: dict[str, Any], name: str, error: str) -> None:
    assert theirs[name]["error"] == error
