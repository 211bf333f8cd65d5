"""Oracle of xpu-dflash.patch, and reference for a base that has it: DFLASH starts on an XPU, on the XPU's paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conftest import MAIN  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

oracle = pytest.mark.patch("xpu-dflash.patch")
refused = pytest.mark.skipif(MAIN, reason="its base accepts DFLASH on XPU")

GENERAL = "wave"  # a backend of another platform, which no draft can use


def resolved(device: str, target: str | None, draft: str | None = None) -> dict[str, Any]:
    name = f"{device} {target} {draft}"
    return {"name": name, "ask": "resolved", "device": device, "target": target, "draft": draft}


RESOLVED = [
    (resolved("xpu", "intel_xpu"), "intel_xpu"),
    (resolved("xpu", "intel_xpu", "triton"), "triton"),
    (resolved("xpu", "triton", "intel_xpu"), "intel_xpu"),
    (resolved("xpu", "intel_xpu", GENERAL), "triton"),
]
ON_CUDA = [(resolved("cuda", "fa3"), "fa3"), (resolved("cuda", "flashinfer", "triton"), "triton")]
ON_CPU = resolved("cpu", "triton")
BUILT: list[tuple[dict[str, Any], str]] = [
    ({"name": "built", "ask": "built", "target": "intel_xpu", "draft": None}, "intel_xpu"),
    ({"name": "built by flag", "ask": "built", "target": "triton", "draft": "intel_xpu"}, "intel_xpu"),
    ({"name": "built otherwise", "ask": "built", "target": "intel_xpu", "draft": GENERAL}, "triton"),
]
MASK = {"name": "mask", "ask": "mask", "backend": "XPUAttentionBackend"}
MASK_ELSEWHERE = {"name": "mask elsewhere", "ask": "mask", "backend": "WaveAttnBackend"}
PATHS = {"name": "paths", "ask": "paths"}
CASES = [*(case for case, _ in [*RESOLVED, *ON_CUDA, *BUILT]), ON_CPU, MASK, MASK_ELSEWHERE, PATHS]


@pytest.fixture(scope="module")
def ours(composed: Tree) -> dict[str, Any]:
    return composed.measure("xpu_dflash", CASES)


@pytest.fixture(scope="module")
def theirs(upstream: Tree) -> dict[str, Any]:
    return upstream.measure("xpu_dflash", CASES)


def name(case: Any) -> str:
    return case["name"] if isinstance(case, dict) else ""


@oracle
@pytest.mark.parametrize(("case", "backend"), RESOLVED, ids=name)
def test_a_launch_resolves_the_drafts_backend(ours: dict[str, Any], case: dict[str, Any], backend: str) -> None:
    assert ours[case["name"]] == {"backend": backend}


@oracle
@refused
@pytest.mark.parametrize(("case", "backend"), RESOLVED, ids=name)
def test_upstream_refuses_the_device(theirs: dict[str, Any], case: dict[str, Any], backend: str) -> None:  # noqa: ARG001
    assert theirs[case["name"]] == {"error": "DFLASH speculative decoding only supports CUDA and NPU devices."}


@oracle
@pytest.mark.parametrize(("case", "backend"), ON_CUDA, ids=name)
def test_cuda_resolves_as_before(
    ours: dict[str, Any], theirs: dict[str, Any], case: dict[str, Any], backend: str
) -> None:
    assert ours[case["name"]] == theirs[case["name"]] == {"backend": backend}


def test_a_cpu_is_refused(ours: dict[str, Any]) -> None:
    assert ours[ON_CPU["name"]]["error"].startswith("DFLASH speculative decoding ")


@oracle
@pytest.mark.parametrize(("case", "backend"), BUILT, ids=name)
def test_the_draft_is_built_with_its_backend(ours: dict[str, Any], case: dict[str, Any], backend: str) -> None:
    assert ours[case["name"]] == backend


@oracle
@refused
@pytest.mark.parametrize(("case", "backend"), BUILT, ids=name)
def test_upstream_builds_it_for_cuda(theirs: dict[str, Any], case: dict[str, Any], backend: str) -> None:  # noqa: ARG001
    assert theirs[case["name"]] == "flashinfer"


@oracle
def test_a_verification_needs_no_mask_of_its_own(ours: dict[str, Any]) -> None:
    assert ours["mask"] is False
    assert ours["mask elsewhere"] is True


@oracle
@refused
def test_upstream_makes_one(theirs: dict[str, Any]) -> None:
    assert theirs["mask"] is True


@oracle
def test_the_worker_takes_its_kernels(ours: dict[str, Any]) -> None:
    assert set(ours["paths"].values()) == {True}
    assert len(ours["paths"]) >= 4


@oracle
@refused
def test_upstreams_worker_takes_none(theirs: dict[str, Any]) -> None:
    assert set(theirs["paths"].values()) == {False}
