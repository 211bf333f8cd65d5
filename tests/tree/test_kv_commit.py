"""Oracle of xpu-draft-kv-commit.patch: the accepted rows and no others, and no question to the device on XPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.tree.conftest import Tree

    Together = Callable[[Tree, str], dict[str, Any]]

pytestmark = pytest.mark.patch("xpu-draft-kv-commit.patch")

TOGETHER = "kv_commit"

BLOCK = 8
SHAPES: dict[str, dict[str, Any]] = {
    "draft of Qwen3.8 on one of four ranks": {"heads": 2, "dim": 128},
    "row of 30 bytes, a part of a tile": {"heads": 3, "dim": 5},
    "row of 4,096 bytes, tiles of 256": {"heads": 16, "dim": 128, "commit": [2, 0], "block": 2},
    "row of 8,320 bytes, tiles of 512": {"heads": 65, "dim": 64, "commit": [1, 2], "block": 2},
    "not contiguous": {"heads": 2, "dim": 16, "contiguous": False},
    "nothing accepted": {"heads": 2, "dim": 16, "commit": [0, 0]},
    "all accepted": {"heads": 2, "dim": 16, "commit": [BLOCK, BLOCK]},
    "one request": {"heads": 2, "dim": 16, "commit": [5]},
}
# What the tiled kernel is not given on XPU: it keeps the path it has upstream.
KEPT: dict[str, dict[str, Any]] = {
    "keys and values of two widths": {"heads": 2, "dim": 16, "v_dim": 8},
    "FP8 cache": {"heads": 2, "dim": 16, "cache": "float8_e4m3fn"},
    "cache of another type": {"heads": 2, "dim": 16, "cache": "float32"},
}
OTHERS = ("cuda", "hip", "npu", "other")


def case(name: str, device: str, **changes: Any) -> dict[str, Any]:
    plain = {"dtype": "float16", "cache": "float16", "commit": [3, 1, 0, 8], "block": BLOCK, "contiguous": True}
    made = {**plain, **changes, "device": device, "name": f"{device}: {name}"}
    return {"v_dim": made["dim"], **made}


SMALL = {name: SHAPES[name] for name in ("not contiguous", "nothing accepted", "one request")}
CASES = [case(name, "xpu", **shape) for name, shape in (SHAPES | KEPT).items()] + [
    case(name, device, **shape) for name, shape in (SMALL | KEPT).items() for device in OTHERS
]


@pytest.fixture(scope="module")
def ours(together: Together, composed: Tree) -> dict[str, Any]:
    return together(composed, TOGETHER)


@pytest.fixture(scope="module")
def theirs(together: Together, upstream: Tree) -> dict[str, Any]:
    return together(upstream, TOGETHER)


@pytest.mark.parametrize("name", SHAPES)
def test_xpu_writes_what_the_loop_writes_and_asks_nothing(ours: dict[str, Any], name: str) -> None:
    measured = ours[f"xpu: {name}"]
    assert (measured["differ"], measured["other_layer"]) == (0, 0)
    assert (measured["asked"], measured["tiled"], measured["single"]) == (0, 1, 0)


@pytest.mark.parametrize("name", SHAPES)
def test_upstream_asks_the_device_for_every_layer(theirs: dict[str, Any], name: str) -> None:
    measured = theirs[f"xpu: {name}"]
    assert (measured["asked"], measured["tiled"]) == (1, 0)


@pytest.mark.parametrize("name", SHAPES)
def test_the_rows_are_upstreams_to_the_byte(ours: dict[str, Any], theirs: dict[str, Any], name: str) -> None:
    assert ours[f"xpu: {name}"]["sha256"] == theirs[f"xpu: {name}"]["sha256"]


@pytest.mark.parametrize("name", KEPT)
def test_what_is_not_a_plain_copy_is_as_upstream(ours: dict[str, Any], theirs: dict[str, Any], name: str) -> None:
    measured = ours[f"xpu: {name}"]
    assert measured == theirs[f"xpu: {name}"]
    assert (measured["asked"], measured["single"], measured["differ"]) == (1, 1, 0)


@pytest.mark.parametrize("device", OTHERS)
def test_other_devices_are_as_upstream(ours: dict[str, Any], theirs: dict[str, Any], device: str) -> None:
    for name in SMALL | KEPT:
        assert ours[f"{device}: {name}"] == theirs[f"{device}: {name}"]
    measured = ours[f"{device}: one request"]
    assert (measured["asked"], measured["tiled"]) == ((0, 1) if device in ("cuda", "hip") else (1, 0))
