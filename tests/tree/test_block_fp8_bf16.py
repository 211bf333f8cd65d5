"""Oracle of xpu-block-fp8-to-bf16.patch: code * scale for every weight, and upstream's path wherever it is off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.tree.conftest import Tree

    Together = Callable[[Tree, str], dict[str, Any]]

pytestmark = pytest.mark.patch("xpu-block-fp8-to-bf16.patch")

TOGETHER = "block_fp8"

OURS, UPSTREAM = "XPUBlockFp8ToBf16LinearMethod", "Fp8LinearMethod"
SHAPES: dict[str, dict[str, Any]] = {
    "whole blocks": {"outputs": [256], "inputs": 384},
    "edge in both dimensions": {"outputs": [200], "inputs": 300},
    "one over and one under": {"outputs": [129], "inputs": 127},
    "smaller than a block": {"outputs": [3], "inputs": 5},
    "rows of 1x128": {"outputs": [130], "inputs": 260, "config": {"weight_block_size": [1, 128]}},
    "blocks of 64x128": {"outputs": [90], "inputs": 170, "config": {"weight_block_size": [64, 128]}},
    "float16": {"outputs": [130], "inputs": 130, "dtype": "float16"},
    "gate and up": {"layer": "merged", "outputs": [256, 256], "inputs": 200},
    "gate and up, second of two ranks": {"layer": "merged", "outputs": [256, 256], "inputs": 200, "tp": [1, 2]},
    "q, k and v": {"layer": "qkv", "outputs": [256, 128, 128], "inputs": 200},
    "down, second of two ranks": {"layer": "row", "outputs": [200], "inputs": 256, "tp": [1, 2]},
}
# (device is XPU, switch, config): the last two are FP8 without blocks of this kind.
OFF: dict[str, tuple[bool, str | None, dict[str, Any]]] = {
    "XPU, unset": (True, None, {}),
    "XPU, 0": (True, "0", {}),
    "another device": (False, "1", {}),
    "XPU, per tensor": (True, "1", {"weight_block_size": None}),
    "XPU, MXFP8": (True, "1", {"quant_method": "mxfp8", "weight_block_size": [1, 32]}),
}
# Relative to sum |x w|: one rounding of the output and FP32 accumulation.
ONE_ROUNDING = 0.51


def case(name: str, **changes: Any) -> dict[str, Any]:
    plain = {"layer": "replicated", "tp": [0, 1], "dtype": "bfloat16", "config": {}, "xpu": True, "switch": "1"}
    return {"name": name, **plain, **changes}


CASES = [
    *(case(name, **shape) for name, shape in SHAPES.items()),
    *(
        case(name, **SHAPES["edge in both dimensions"], xpu=xpu, switch=switch, config=config)
        for name, (xpu, switch, config) in OFF.items()
    ),
]


@pytest.fixture(scope="module")
def ours(together: Together, composed: Tree) -> dict[str, Any]:
    return together(composed, TOGETHER)


@pytest.fixture(scope="module")
def theirs(together: Together, upstream: Tree) -> dict[str, Any]:
    return together(upstream, TOGETHER)


@pytest.mark.parametrize("name", SHAPES)
def test_each_weight_is_its_code_times_the_scale_of_its_block(ours: dict[str, Any], name: str) -> None:
    measured = ours[name]
    assert measured["method"] == OURS
    assert measured["differ"] == 0
    assert measured["error"] < ONE_ROUNDING
    dtype = SHAPES[name].get("dtype", "bfloat16")
    assert [parameter[:2] for parameter in measured["parameters"]] == [["weight", f"torch.{dtype}"]]


@pytest.mark.parametrize("name", SHAPES)
def test_upstream_keeps_fp8_and_quantises_activations(theirs: dict[str, Any], name: str) -> None:
    measured = theirs[name]
    assert (measured["method"], measured["product"]) == (UPSTREAM, "torch_w8a8_block_fp8_linear")
    kept = {parameter[0]: parameter[1] for parameter in measured["parameters"]}
    assert kept == {"weight": "torch.float8_e4m3fn", "weight_scale_inv": "torch.float32"}


@pytest.mark.parametrize("name", OFF)
def test_off_is_upstream_to_the_byte(ours: dict[str, Any], theirs: dict[str, Any], name: str) -> None:
    assert ours[name] == theirs[name]
    assert ours[name]["method"] == UPSTREAM


@pytest.mark.parametrize("name", SHAPES)
def test_an_update_without_scales_is_refused_before_it_writes(ours: dict[str, Any], name: str) -> None:
    assert "Restart with SGLANG_XPU_BLOCK_FP8_TO_BF16=0" in ours[name]["update"]


def test_updates_go_on_where_the_codes_are_kept(ours: dict[str, Any]) -> None:
    assert ours["XPU, unset"]["update"] is None
