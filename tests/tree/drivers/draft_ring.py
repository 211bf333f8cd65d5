"""Measure the private draft ring and what surrounds it.

A case: ``name``; ``kind``; what its kind needs (see each function). One driver, since importing the tree costs more
than all cases. The unpatched tree can run every kind but ``history`` and ``fill``.
"""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec  # type: ignore[import-not-found]  # in the base image only
import sglang.srt.arg_groups.speculative_hook as hook  # type: ignore[import-not-found]
import sglang.srt.model_executor.pool_configurator as pools  # type: ignore[import-not-found]
import sglang.srt.speculative.dflash_worker_v2 as worker_module  # type: ignore[import-not-found]
import torch  # type: ignore[import-not-found]
from sglang.srt.managers import schedule_batch  # type: ignore[import-not-found]
from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator  # type: ignore[import-not-found]
from sglang.srt.model_executor.cuda_graph_config import Backend  # type: ignore[import-not-found]
from sglang.srt.runtime_context import get_context, get_parallel  # type: ignore[import-not-found]
from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found]
from sglang.srt.speculative.dflash_utils import (  # type: ignore[import-not-found]
    dflash_draft_cell_size_per_token,
)
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # type: ignore[import-not-found]

from .answer import Case, answer
from .dflash_worker import Harness, Request, surroundings


def history(case: Case) -> dict[str, Any]:
    """``examples``, ``steps``, ``fault``: random histories against the model."""
    from .draft_history import play

    return play(case["examples"], case["steps"], case["fault"])


def shared(case: Case) -> list[Any]:
    """``page``, ``window``, ``block``: what a fixed history does to draft KV that shares the target's slots."""
    page, window, block = case["page"], case["window"], case["block"]
    with surroundings(page, window, block):
        harness = Harness(3, page, window, block)
        long, short = Request(1, 37), Request(2, 5)
        harness.prefill([long, short], [20, 5])
        harness.decode([short], [block - 1])
        harness.prefill([long], [17])
        for accepted in range(2 * block):
            harness.decode([short, long], [accepted % block, (accepted + 1) % block])
        late = Request(3, 9)
        harness.mixed([late], [9], [long, short])
        harness.decode([long, late, short], [1, 0, 2 % block])
        harness.pool.free(short)
        harness.worker.clear_cache_pool()
        return harness.log


def fill(case: Case) -> str | None:
    """``steps`` of decode, then a chunk that begins ``shift`` positions past what is committed: the refusal's line.

    The worker's check is what is asked, so the next step must pass with no shift, and be refused with any.
    """
    page, window, block = 4, 12, 4
    with (
        surroundings(page, window, block),
        mock.patch.object(schedule_batch, "private_ring_enabled", return_value=True),
    ):
        harness = Harness(
            2, page, window, block, lambda pool: worker_module.DraftRing(worker_module.current_layout(), pool)
        )
        running, late = Request(1, 30), Request(2, 20)
        harness.prefill([running], [30])
        for _ in range(case["steps"]):
            harness.decode([running], [1])
        running.length = running.done = running.length + case["shift"]
        harness.mixed([late], [10], [running])
        try:
            harness.decode([running], [1])
        except RuntimeError as error:
            return str(error)
    return None


def model(kv_heads: int, head_dim: int, **fields: Any) -> SimpleNamespace:
    return SimpleNamespace(
        get_num_kv_heads=lambda tp_size, dcp_size=1: max(1, kv_heads // tp_size // dcp_size),
        head_dim=head_dim,
        v_head_dim=head_dim,
        hf_config=SimpleNamespace(architectures=["Stand-in"]),
        **fields,
    )


def configurator(ranks: int, draft_cell_known: bool) -> Any:
    """KVCacheConfigurator for the 27B target (64 layers, each fourth with full attention) and its DFlash2 draft."""
    kvc = KVCacheConfigurator.__new__(KVCacheConfigurator)
    cell = dflash_draft_cell_size_per_token(
        draft_model_config=model(8, 128),
        draft_num_layers=5,
        draft_kv_cache_dtype=torch.bfloat16,
        tp_size=ranks,
    )
    fields = {
        "kv_cache_dtype": torch.bfloat16,
        "kv_cache_dtype_str": "auto",
        "model_config": model(4, 256, context_len=1_048_576),
        "layer_info": SimpleNamespace(start_layer=0, end_layer=64, num_effective_layers=64),
        "spec_algorithm": SpeculativeAlgorithm.DFLASH,
        "spec_aux_config": SimpleNamespace(dflash_draft_num_layers=5),
        "dflash_draft_cell_size_per_token": cell if draft_cell_known else None,
        "is_draft_worker": False,
        "is_hybrid_swa": False,
        "use_mla_backend": False,
        "server_args": SimpleNamespace(enable_hisparse=False),
        "mambaish_config": SimpleNamespace(),
        "pp_size": 1,
        "attn_dp_size": 1,
    }
    for name, value in fields.items():
        setattr(kvc, name, value)
    return kvc


def pool(case: Case) -> Any:
    """``environment``, ``budget`` (bytes for both pools, per rank), ``algorithm``, ``draft_cell_known``.

    Answers the target's tokens, and the tokens and requests of the draft's pool; or the error's line.
    """
    arguments = {
        "page_size": 64,
        "speculative_algorithm": case["algorithm"],
        "speculative_draft_window_size": 2048,
        "speculative_num_draft_tokens": 8,
        "max_running_requests": 64,
        "max_mamba_cache_size": 40,
        "mamba_radix_cache_strategy": "extra_buffer",
    }
    given: dict[str, Any] = {}
    worker = worker_module.DFlashWorkerV2.__new__(worker_module.DFlashWorkerV2)
    worker.draft_parallel_layout = None
    worker.use_compact_draft_cache = True
    worker._draft_ring = None
    worker._draft_worker = SimpleNamespace(alloc_memory_pool=lambda **names: given.update(names))
    with (
        mock.patch.dict(os.environ, case["environment"]),
        get_context().override_server_args(**arguments),
        get_parallel().override(tp_size=4, attn_tp_size=4, moe_tp_size=4, attn_dcp_size=1, pp_size=1),
        mock.patch.object(
            pools, "mambaish_config", return_value=SimpleNamespace(full_attention_layer_ids=list(range(3, 64, 4)))
        ),
        mock.patch.object(worker_module, "draft_tp_context", return_value=contextlib.nullcontext()),
    ):
        kvc = configurator(4, case["draft_cell_known"])
        try:
            config = kvc.config_from_budget(case["budget"])
            config.max_running_requests = kvc.resolve_max_num_reqs(config.max_total_num_tokens)
            worker.alloc_memory_pool(config, SimpleNamespace(size=config.max_running_requests), SimpleNamespace())
        except (RuntimeError, ValueError) as error:
            return str(error)
    draft = given["memory_pool_config"]
    return {
        "target tokens": config.max_total_num_tokens,
        "draft tokens": draft.max_total_num_tokens,
        "requests": draft.max_running_requests,
        "draft bytes per token": kvc.dflash_draft_cell_size_per_token,
    }


def arguments(case: Case) -> str | None:
    """``environment``, ``set``: the line with which resolving DFLASH's arguments ends, or null when they pass."""
    known = {field.encode_name for field in msgspec.structs.fields(ServerArgs)}
    chosen = {
        "device": "xpu",
        "pp_size": 1,
        "speculative_draft_model_path": "draft",
        "speculative_num_steps": 1,
        "speculative_eagle_topk": 1,
        "speculative_dflash_block_size": None,
        "speculative_num_draft_tokens": 8,
        "speculative_draft_window_size": 2048,
        "max_running_requests": 8,
        "disaggregation_mode": "null",
        "dcp_size": 1,
        **case["set"],
    }
    assert known.issuperset(chosen), f"no server argument: {sorted(set(chosen) - known)}"
    view = SimpleNamespace(**{**dict.fromkeys(known, False), **chosen})
    with (
        mock.patch.dict(os.environ, case["environment"]),
        mock.patch.object(hook, "resolving_view", return_value=view),
        mock.patch.object(hook, "attn_dp_enabled_of", return_value=False),
        mock.patch.object(hook, "_resolve_dflash_draft_attention_backend"),
        # Of dflash2-launch-guard.patch: it reads the draft's config, and there is no draft.
        mock.patch.object(hook, "check_launch", create=True),
    ):
        try:
            hook._handle_dflash(None)
        except ValueError as error:
            return str(error)
    return None


def prefix(case: Case) -> int:
    """``environment``, ``algorithm``, ``length``: the longest cached prefix that a request may reuse."""
    arguments = {
        "page_size": 64,
        "speculative_algorithm": case["algorithm"],
        "speculative_draft_window_size": 2048,
        "speculative_num_draft_tokens": 8,
    }
    with mock.patch.dict(os.environ, case["environment"]), get_context().override_server_args(**arguments):
        return Request(1, case["length"]).prefix_limit()


def graph(case: Case) -> bool:
    """``environment``, ``target_graph``: whether the draft's runner is asked to capture a graph."""
    asked: list[bool] = []
    worker = worker_module.DFlashWorkerV2.__new__(worker_module.DFlashWorkerV2)
    worker.draft_parallel_layout = None
    worker._target_tp_rank = 0
    worker.selector = None
    worker._maybe_build_draft_sampler = lambda: None
    worker._draft_worker = SimpleNamespace(
        init_cuda_graphs=lambda *, capture_decode_cuda_graph: asked.append(capture_decode_cuda_graph)
    )
    backend = Backend.FULL if case["target_graph"] else Backend.DISABLED
    config = SimpleNamespace(
        graph=SimpleNamespace(cuda_graph_config=SimpleNamespace(decode=SimpleNamespace(backend=backend)))
    )
    with (
        mock.patch.dict(os.environ, case["environment"]),
        get_parallel().override(attn_dp_enabled=False),
        mock.patch.object(worker_module, "get_exec", return_value=config),
        mock.patch.object(worker_module, "draft_pp_context", contextlib.nullcontext),
        mock.patch.object(worker_module, "draft_tp_context", return_value=contextlib.nullcontext()),
    ):
        worker.init_cuda_graphs()
    (capture,) = asked
    return capture


KINDS = {
    "history": history,
    "shared": shared,
    "fill": fill,
    "pool": pool,
    "arguments": arguments,
    "prefix": prefix,
    "graph": graph,
}

if __name__ == "__main__":
    answer(lambda case: KINDS[case["kind"]](case))
