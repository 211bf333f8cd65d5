"""Oracle of gdn-beta-fp32.patch: linear-attention decode keeps its gate beta in FP32.

The kernels run in Triton's interpreter, with FP16 and FP32 inputs only: the interpreter's own BF16 arithmetic
is wrong, so a BF16 run there would say nothing. FP16 shows the same cast with an eight times finer step.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import pytest
import torch  # type: ignore[import-not-found]  # in the base image only

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

pytestmark = pytest.mark.patch("gdn-beta-fp32.patch")

# (kernel, gate): ReplaySSM serves Gated DeltaNet and KDA with one kernel, packed decode is Gated DeltaNet's.
KERNELS = (("packed", "gdn"), ("replayssm", "gdn"), ("replayssm", "kda"))
# By the file's name: its folder is not the same in every release.
KERNEL_FILES = {
    "fused_recurrent.py": "fused_recurrent_gated_delta_rule_packed_decode_kernel",
    "fused_recurrent_linear_replayssm.py": "fused_recurrent_linear_replayssm_decode_kernel",
}

# Measured: 2e-7 in FP32, 2e-4 through FP16.
FP32_ERROR = 1e-6
LOST_BY_CAST = 100


def name(kernel: str, gate: str, dtype: str) -> str:
    return f"{kernel} {gate} {dtype}"


CASES = [
    {"name": name(*kernel, dtype), "kernel": kernel[0], "gate": kernel[1], "dtype": dtype, "steps": steps}
    for kernel in KERNELS
    for dtype, steps in (("float16", 64), ("float32", 16))
]


@pytest.fixture(scope="module")
def ours(composed: Tree) -> dict[str, Any]:
    return composed.measure("gdn_beta", CASES)


@pytest.fixture(scope="module")
def theirs(upstream: Tree) -> dict[str, Any]:
    return upstream.measure("gdn_beta", CASES)


@pytest.mark.parametrize("each", CASES, ids=lambda each: each["name"])
def test_state_and_output_follow_the_fp64_recurrence(ours: dict[str, Any], each: dict[str, Any]) -> None:
    measured = ours[each["name"]]
    assert measured["state_error"] < FP32_ERROR
    assert measured["output_error"] < FP32_ERROR


@pytest.mark.parametrize("kernel", KERNELS, ids=" ".join)
def test_upstream_loses_the_gate_precision(theirs: dict[str, Any], kernel: tuple[str, str]) -> None:
    measured = theirs[name(*kernel, "float16")]
    for error in ("state_error", "output_error"):
        assert measured[error] > LOST_BY_CAST * FP32_ERROR


@pytest.mark.parametrize("kernel", KERNELS, ids=" ".join)
def test_fp32_inputs_give_the_same_bits_as_upstream(
    ours: dict[str, Any], theirs: dict[str, Any], kernel: tuple[str, str]
) -> None:
    key = name(*kernel, "float32")
    assert ours[key]["sha256"] == theirs[key]["sha256"]


def narrowed_gates(tree: Tree) -> dict[str, list[str]]:
    """By file, the attention kernels that send a sigmoid straight through the type of an input's elements."""
    found: dict[str, list[str]] = {}
    for path in sorted((tree.root / "sglang/kernels/ops/attention").rglob("*.py")):
        file = path.relative_to(tree.root).as_posix()
        for kernel in ast.walk(ast.parse(tree.source(file))):
            if isinstance(kernel, ast.FunctionDef) and any(map(is_narrowed_sigmoid, ast.walk(kernel))):
                found.setdefault(file, []).append(kernel.name)
    return found


def is_narrowed_sigmoid(node: ast.AST) -> bool:
    """Whether this is ``<something with a sigmoid>.to(<name>.dtype.element_ty)``."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "to"
        and any(ast.unparse(argument).endswith(".dtype.element_ty") for argument in node.args)
        and any(isinstance(part, ast.Attribute) and part.attr == "sigmoid" for part in ast.walk(node.func.value))
    )


def test_no_kernel_narrows_its_gate(composed: Tree) -> None:
    assert narrowed_gates(composed) == {}


def test_upstream_narrows_the_gate_in_the_two_patched_kernels(upstream: Tree) -> None:
    narrowed = narrowed_gates(upstream)
    assert len(narrowed) == len(KERNEL_FILES)
    assert {file.rpartition("/")[2]: kernels for file, kernels in narrowed.items()} == {
        file: [kernel] for file, kernel in KERNEL_FILES.items()
    }


def test_a_bf16_gate_is_off_by_up_to_half_a_step_below_one() -> None:
    """Why it matters: BF16 has steps of 2^-8 in [0.5, 1), so rounding sigmoid(b) costs up to 2^-9 = 0.00195."""
    every_bf16 = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    gate = torch.sigmoid(every_bf16[every_bf16.abs() <= 8])
    assert len(gate) > 2**15
    worst = float((gate.to(torch.bfloat16).float() - gate).abs().max())
    assert 0.0019 < worst <= 2**-9
