"""pipeline/pool_sizes.py against the tree's own configurator: the same pools, to the byte, for every profile.

The configurator runs with configs of the real shapes and builds its pools on torch's device "meta", four ranks, one
card of 32 GiB. The profiles' numbers stand here again, since neither YAML nor the project is there in the image.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import HISTORY, LINE  # type: ignore[import-not-found]  # beside this file

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

HERE = Path(__file__).resolve().parent
BESIDE = [folder / "pipeline" / "pool_sizes.py" for folder in (HERE.parent, HERE.parents[1])]
"""In the container and in the project."""
GIB = 1 << 30
TOTAL, FREE = 32 * GIB, 28 * GIB
"""Enough for the largest pool that a case asks for."""
NATIVE, EXTENDED = 262_144, 1_048_576


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("pool_sizes", next(path for path in BESIDE if path.is_file()))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


sizes = _load()
TARGET = sizes.Target(
    layers=64,
    full_attention_every=4,
    kv_heads=4,
    head_dim=256,
    linear_key_heads=16,
    linear_value_heads=48,
    linear_key_dim=128,
    linear_value_dim=128,
    conv_taps=4,
)
DRAFT = sizes.Draft(layers=5, kv_heads=8, head_dim=128)


def serving(
    tokens: int,
    slots: int,
    *,
    dflash2: bool,
    strategy: str = "extra_buffer",
    ring: bool = False,
    verify_rows: bool = True,
) -> Any:
    return sizes.Serving(
        tp=4,
        page=64,
        context=tokens,
        tokens=tokens,
        slots=slots,
        max_running=8 if tokens == NATIVE else 64,
        strategy=strategy,
        draft_tokens=8,
        steps=1 if dflash2 else 7,
        window=2048 if dflash2 else None,
        ring=ring,
        graph_batch=8,
        verify_rows=verify_rows,
    )


CASES = {
    "native-256k-mtp": serving(NATIVE, 48, dflash2=False),
    "native-256k-dflash2": serving(NATIVE, 48, dflash2=True),
    "1m-mtp": serving(EXTENDED, 8, dflash2=False),
    "1m-dflash2": serving(EXTENDED, 8, dflash2=True, ring=True),
    "1m-dflash2, 40 slots": serving(EXTENDED, 40, dflash2=True, ring=True),
    "1m shared indices": serving(EXTENDED, 8, dflash2=True),
    "upstream's verification": serving(NATIVE, 48, dflash2=False, verify_rows=False),
    "lazy": serving(NATIVE, 48, dflash2=True, strategy="extra_buffer_lazy"),
}
CARRIED = {name: wanted for name, wanted in CASES.items() if not (wanted.ring and HISTORY)}
EACH = [
    pytest.param(name, marks=pytest.mark.skipif(name not in CARRIED, reason=f"{LINE} has no ring for the draft's KV"))
    for name in CASES
]


def case(name: str, wanted: Any, *, tokens: int | None) -> dict[str, Any]:
    """A case of the driver; ``tokens`` None asks for as many as fit."""
    dflash2 = wanted.window is not None
    flags = {
        "speculative_algorithm": "DFLASH" if dflash2 else "EAGLE",
        "speculative_num_steps": wanted.steps,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": wanted.draft_tokens,
        "speculative_draft_window_size": wanted.window,
        "page_size": wanted.page,
        "context_length": wanted.context,
        "max_total_tokens": tokens,
        "max_mamba_cache_size": wanted.slots,
        "max_running_requests": wanted.max_running,
        "mem_fraction_static": wanted.memory_fraction,
        "mamba_radix_cache_strategy": wanted.strategy,
        "disable_radix_cache": False,
        "disable_overlap_schedule": False,
    }
    ring = sizes.draft_rows(wanted) if wanted.ring else None
    yarn = wanted.context > NATIVE
    return {
        **{"name": name, "flags": flags, "yarn": yarn, "dflash2": dflash2, "ring_rows": ring},
        **{"verify_rows": wanted.verify_rows, "graph_batch": wanted.graph_batch},
        **{"tp": wanted.tp, "free": FREE, "total": TOTAL},
    }


@pytest.fixture(scope="module")
def measured(composed: Tree) -> dict[str, Any]:
    cases = [case(name, wanted, tokens=wanted.tokens) for name, wanted in CARRIED.items()]
    cases += [case(f"most, {name}", wanted, tokens=None) for name, wanted in CARRIED.items()]
    return composed.measure("capacity", cases)


def draft_of(wanted: Any) -> Any:
    return DRAFT if wanted.window is not None else None


@pytest.mark.parametrize("name", EACH)
def test_pools_have_the_bytes_of_the_formulas(measured: dict[str, Any], name: str) -> None:
    wanted, found = CASES[name], measured[name]
    row = sizes.draft_row(TARGET, draft_of(wanted), wanted.tp)
    assert found["bytes"] == {
        "target KV": sizes.pool(wanted.tokens, wanted.page, sizes.target_row(TARGET, wanted.tp)),
        "draft KV": sizes.pool(sizes.draft_rows(wanted), wanted.page, row),
        "recurrent states": sizes.slot_pool(TARGET, wanted),
        "states of a verification": sizes.verify_pool(TARGET, wanted),
        "request tables": sizes.request_tables(wanted),
        "page tables of graphs": sizes.graph_tables(wanted),
    }
    assert found["tokens"] == wanted.tokens


@pytest.mark.parametrize("name", EACH)
def test_requests_at_a_time_are_those_that_the_state_slots_allow(measured: dict[str, Any], name: str) -> None:
    assert measured[name]["requests"] == CASES[name].running


@pytest.mark.parametrize("name", EACH)
def test_as_many_tokens_fit_as_the_configurator_finds(measured: dict[str, Any], name: str) -> None:
    wanted = CASES[name]
    fitting = sizes.tokens_that_fit(TARGET, draft_of(wanted), wanted, TOTAL, FREE)
    found = measured[f"most, {name}"]["tokens"]
    assert abs(found - fitting) <= wanted.page, "the tree's budget is a float in GiB: a page may go either way"
    assert found > NATIVE
