"""Oracle of the dflash2-port patches: DFlash2's worker of 0.5.19 runs on this line's base, whole rounds of it.

The real worker prefills and decodes between stand-ins for target and draft (``drivers/dflash_worker.py``), which check
every row of the cache that the draft sees. The unpatched tree is lent what the worker does not import without, so that
the defects behind that are seen one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conftest import HISTORY, LINE  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

pytestmark = pytest.mark.skipif(not HISTORY, reason=f"{LINE} has its worker from its base's release")

lora = pytest.mark.patch("dflash2-port-lora.patch")
tp_sync = pytest.mark.patch("dflash2-port-tp-sync.patch")
lengths = pytest.mark.patch("dflash2-port-lengths.patch")
tracking = pytest.mark.patch("dflash-track-after-verify.patch", "dflash2-port-track-interval.patch")

BLOCK, WINDOW, INTERVAL = 4, 8, 8
ROUNDS: list[dict[str, Any]] = [
    {"name": f"window {window} host lengths {host}", "ask": "rounds", "window": window, "host_lengths": host}
    for window in (None, WINDOW)
    for host in (True, False)
]
WITHOUT_HOST_LENGTHS = "window None host lengths False"
BEFORE = [5, 7, 8, 12, 13, 15, 16, 23]
TRACKED: list[dict[str, Any]] = [
    {"name": f"tracked {accepted}", "ask": "tracked", "interval": INTERVAL, "before": BEFORE, "accepted": accepted}
    for accepted in ([3] * 8, [0] * 8, [3, 0, 2, 3, 1, 3, 3, 1])
]
SYNCHRONISED = {"name": "synchronised", "ask": "synchronised", "sites": None}
OFF = {"name": "off", "ask": "synchronised", "sites": "off"}
UNWRAPPED = {"name": "unwrapped", "ask": "unwrapped"}
CASES: list[dict[str, Any]] = [*ROUNDS, *TRACKED, SYNCHRONISED, OFF, UNWRAPPED]


def asked(lent: bool) -> list[dict[str, Any]]:
    return [{**case, "lent": lent} for case in CASES]


@pytest.fixture(scope="module")
def ours(composed: Tree) -> dict[str, Any]:
    return composed.measure("dflash2_port", asked(lent=False))


@pytest.fixture(scope="module")
def theirs(upstream: Tree) -> dict[str, Any]:
    return upstream.measure("dflash2_port", asked(lent=True))


@pytest.fixture(scope="module")
def bare(upstream: Tree) -> dict[str, Any]:
    return upstream.measure("dflash2_port", [{**case, "lent": False} for case in (UNWRAPPED, SYNCHRONISED)])


@lora
def test_the_worker_finds_the_module_behind_a_lora_wrapper(ours: dict[str, Any]) -> None:
    assert ours["unwrapped"] == [True, True]


@tp_sync
def test_decisions_are_sent_to_the_other_ranks_unless_switched_off(ours: dict[str, Any]) -> None:
    assert ours["synchronised"] == [[0], [1], [2]]
    assert ours["off"] == []


@lora
def test_the_unpatched_worker_does_not_import(bare: dict[str, Any]) -> None:
    for measured in bare.values():
        assert measured["error"].startswith("ImportError: cannot import name 'unwrap_lora_layer'")


@lengths
@pytest.mark.parametrize("name", [case["name"] for case in ROUNDS])
def test_rounds_of_the_real_worker(ours: dict[str, Any], name: str) -> None:
    assert ours[name]["lengths"] == [[13, 23], [15, 26], [16, 30], [20, 34]]


def test_a_reservation_is_an_upper_bound_for_the_draft(ours: dict[str, Any]) -> None:
    """0.5.18 reserves two blocks past what is committed."""
    assert ours[WITHOUT_HOST_LENGTHS]["over"] == [[2 * BLOCK, 2 * BLOCK]] * 4


@lengths
def test_upstream_reads_the_reservation_by_another_name(theirs: dict[str, Any]) -> None:
    assert "error" not in theirs["window None host lengths True"]
    for case in ROUNDS[1:]:
        assert theirs[case["name"]]["error"].endswith("has no attribute 'nxt_kv_lens_cpu'")


def last_boundary(before: int, accepted: int) -> int:
    """The step after which the length is the last multiple of the interval that this round reached; -1 for none."""
    steps = [step for step in range(accepted + 1) if (before + step + 1) % INTERVAL == 0]
    return steps[-1] if steps else -1


@tracking
@pytest.mark.parametrize("case", TRACKED, ids=lambda case: case["name"])
def test_a_state_is_kept_where_a_round_passes_the_interval(ours: dict[str, Any], case: dict[str, Any]) -> None:
    """Of dflash-track-after-verify.patch, and of dflash2-port-track-interval.patch: at the base's own interval."""
    measured = ours[case["name"]]
    assert measured["last"] == case["accepted"]
    assert measured["steps"] == [last_boundary(*each) for each in zip(BEFORE, case["accepted"], strict=True)]


def test_there_are_states_to_keep() -> None:
    kept = [last_boundary(*each) for case in TRACKED for each in zip(BEFORE, case["accepted"], strict=True)]
    assert 5 < sum(step >= 0 for step in kept) < len(kept) - 5


@tracking
@pytest.mark.parametrize("case", TRACKED, ids=lambda case: case["name"])
def test_upstream_keeps_none(theirs: dict[str, Any], case: dict[str, Any]) -> None:
    assert theirs[case["name"]]["steps"] == [-1] * len(BEFORE)
