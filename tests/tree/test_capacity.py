"""pipeline/pool_sizes.py and model_weights.py against the tree itself: the same pools and weights, to the byte.

The tree's configurator and model classes run with the ``config.json`` files of the line and build on torch's device
"meta": pools of four ranks on cards of 32 GiB, weights of one rank of one, four and eight. The profiles' numbers stand
here again, since neither YAML nor the project is there in the image.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import HISTORY, LINE  # type: ignore[import-not-found]  # beside this file
from support import model_configs  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

HERE = Path(__file__).resolve().parent
PIPELINE = next(
    folder
    for folder in (HERE.parent / "pipeline", HERE.parents[1] / "pipeline")
    if (folder / "pool_sizes.py").is_file()
)
"""In the container, or in the project."""
GIB = 1 << 30
TOTAL, FREE = 32 * GIB, 28 * GIB
"""Enough for the largest pool that a case asks for."""
NATIVE, EXTENDED = 262_144, 1_048_576


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, PIPELINE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


sizes, weights = _load("pool_sizes"), _load("model_weights")
TARGET = sizes.Target.of(model_configs.target(yarn=False))
DRAFT = sizes.Draft.of(model_configs.draft(yarn=False))


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


RANKS = [1, 4, 8]
"""8: more ranks than the target has key heads."""
MODELS = {"target": weights.target, "mtp_head": weights.mtp_head, "draft": weights.draft}
OF_THE_TARGET = ("model.embed_tokens.", "lm_head.")
"""What an MTP head is built with and then takes from the target (``set_embed_and_head``)."""
WHOLE_IN_A_DRAFT = {"fc", "kernel_projection", "base_kernel", "predecessor_codebook", "successor_codebook"}


def is_packed(tp: int) -> bool:
    """Not on the line whose target has BF16 weights, nor in so small parts that torch packs them for no "meta"."""
    return not HISTORY and tp <= 4


def config_of(model: str, tp: int, *, yarn: bool = False) -> dict[str, Any]:
    config: dict[str, Any] = model_configs.draft(yarn) if model == "draft" else model_configs.target(yarn)
    if not is_packed(tp):
        config.pop("quantization_config", None)
    return config


@pytest.fixture(scope="module")
def held(composed: Tree) -> dict[str, Any]:
    """Bytes by parameter, of each model on one rank of several."""
    models = [(model, tp, False) for model in MODELS for tp in RANKS] + [("target", 4, True), ("draft", 4, True)]
    cases = [
        {"name": f"{model} {tp} {yarn}", "model": model, "tp": tp, "yarn": yarn, "quantised": is_packed(tp)}
        for model, tp, yarn in models
    ]
    return composed.measure("weights", cases)


def own(model: str, parameters: dict[str, int]) -> dict[str, int]:
    """Without what an MTP head does not keep."""
    left_out = OF_THE_TARGET if model == "mtp_head" else ()
    return {name: size for name, size in parameters.items() if not name.startswith(left_out)}


@pytest.mark.parametrize("tp", RANKS)
@pytest.mark.parametrize("model", MODELS)
def test_weights_on_a_rank_have_the_bytes_of_the_formula(held: dict[str, Any], model: str, tp: int) -> None:
    found = own(model, held[f"{model} {tp} False"]["parameters"])
    assert MODELS[model](config_of(model, tp), tp).total == sum(found.values())


@pytest.mark.parametrize("model", MODELS)
def test_whole_is_what_four_ranks_hold_as_one_does(held: dict[str, Any], model: str) -> None:
    alone, shared = (own(model, held[f"{model} {tp} False"]["parameters"]) for tp in (1, 4))
    assert alone.keys() == shared.keys()
    same = {name: size for name, size in alone.items() if shared[name] == size}
    packed = sum(size for name, size in same.items() if name.endswith("weight_shape"))
    assert MODELS[model](config_of(model, 4), 4).whole == sum(same.values()) - packed
    if model == "draft":
        assert {part for name in same for part in name.split(".")} >= WHOLE_IN_A_DRAFT


@pytest.mark.parametrize("yarn", [False, True])
@pytest.mark.parametrize("model", ["target", "draft"])
def test_rotary_tables_have_a_row_for_each_position(held: dict[str, Any], model: str, yarn: bool) -> None:
    assert held[f"{model} 4 {yarn}"]["rotary tables"] == weights.rotary_table(config_of(model, 4, yarn=yarn))


def test_vision_tower_is_built_for_text_too(held: dict[str, Any]) -> None:
    """So it counts; 0.5.19 and later know a target without one, which no profile of ours asks for."""
    tower = {name for name in held["target 4 False"]["parameters"] if name.startswith("visual.")}
    assert len(tower) > 300
