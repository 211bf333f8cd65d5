"""Size and build the pools of a served profile with SGLang's own KVCacheConfigurator, on the device "meta".

Tensors of that device have shapes and no memory, so a pool of a million tokens is made as on a card. A case: ``name``;
``flags`` (``ServerArgs`` attributes); ``yarn`` (which revision of the target); ``dflash2`` (false: the MTP head);
``ring_rows`` (rows of the draft's pool where rings give it a size of its own, else null); ``verify_rows`` (whether a
verification is sent as single-query rows); ``graph_batch``; ``tp``; ``free`` and ``total`` (bytes free after and before
the weights are loaded). Answer: the tokens and requests that the configurator settles on, and the bytes of each pool
that it then builds.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch  # type: ignore[import-not-found]  # in the base image only
from sglang.srt.configs.model_config import ModelConfig  # type: ignore[import-not-found]
from sglang.srt.distributed import parallel_state  # type: ignore[import-not-found]
from sglang.srt.environ import envs  # type: ignore[import-not-found]
from sglang.srt.layers.attention.xpu_backend import (  # type: ignore[import-not-found]
    XPUAttentionBackend,
    XPUMultiStepDraftBackend,
)
from sglang.srt.mem_cache import kv_cache_configurator, memory_pool  # type: ignore[import-not-found]
from sglang.srt.model_executor.cuda_graph_config import CudaGraphConfig  # type: ignore[import-not-found]
from sglang.srt.model_executor.model_runner_components.layer_setup import (  # type: ignore[import-not-found]
    ModelLayerInfo,
)
from sglang.srt.model_executor.model_runner_components.spec_aux_hidden_state import (  # type: ignore[import-not-found]
    SpecAuxHiddenStateConfig,
)
from sglang.srt.model_executor.pool_configurator import MemoryPoolConfig  # type: ignore[import-not-found]
from sglang.srt.runtime_context import get_context, get_parallel  # type: ignore[import-not-found]
from sglang.srt.speculative.dflash_utils import (  # type: ignore[import-not-found]
    dflash_draft_cell_size_per_token,
)
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # type: ignore[import-not-found]
from support import model_configs  # type: ignore[import-not-found]  # beside the drivers

from .answer import Case, answer

GIB = 1 << 30


def draft_pool(case: Case, target: MemoryPoolConfig) -> MemoryPoolConfig:
    """What DFlashWorkerV2.alloc_memory_pool hands to the draft's configurator."""
    if case["ring_rows"] is None:
        return target
    return MemoryPoolConfig(case["ring_rows"], max_running_requests=target.max_running_requests)


def arguments(case: Case) -> SimpleNamespace:
    """The parsed command line, where it is read as such; later releases ask the runtime's context."""
    off = dict.fromkeys(["enable_hisparse", "enable_page_major_kv_layout", "enable_dsa_cache_layer_split"], False)
    served = {"language_only": True, "disaggregation_mode": "null", "mm_feature_transport": "default"}
    return SimpleNamespace(**case["flags"], **off, **served)


def auxiliary(case: Case, draft: Any) -> Any:
    """What the configurator knows of the draft; 0.5.18 has a DFLASH draft's bytes, later releases have its config."""
    if draft is None:
        return SpecAuxHiddenStateConfig(eagle_draft_num_layers=1)
    layers = draft.num_hidden_layers
    if "draft_model_config" in SpecAuxHiddenStateConfig.__struct_fields__:
        return SpecAuxHiddenStateConfig(dflash_draft_num_layers=layers, draft_model_config=draft)
    size = dflash_draft_cell_size_per_token(
        draft_model_config=draft,
        draft_num_layers=layers,
        draft_kv_cache_dtype=torch.bfloat16,
        tp_size=case["tp"],
    )
    return SpecAuxHiddenStateConfig(dflash_draft_num_layers=layers, dflash_draft_cell_size_per_token=size)


def parallel_sizes(case: Case) -> dict[str, Any]:
    """The configurator's own; 0.5.18 hands it the whole parallel state."""
    if "ps" not in {field.name for field in dataclasses.fields(kv_cache_configurator.KVCacheConfigurator)}:
        return {"attn_dp_size": 1, "pp_size": 1}
    from sglang.srt.distributed.parallel_state_wrapper import ParallelState  # type: ignore[import-not-found]

    return {"ps": ParallelState.trivial(tp_size=case["tp"], attn_tp_size=case["tp"])}


def configurator(case: Case, config: Any, *, draft: Any, layers: int, taken_over: dict[str, Any] | None = None) -> Any:
    """A configurator of one worker; ``taken_over`` is what a draft's worker gets from the target's."""
    alone = {"req_to_token_pool": None, "token_to_kv_pool_allocator": None, "memory_pool_config": None}
    algorithm = SpeculativeAlgorithm.from_string(case["flags"]["speculative_algorithm"])
    return kv_cache_configurator.KVCacheConfigurator(
        device="meta",
        gpu_id=0,
        pp_group=None,
        model=None,
        model_config=config,
        server_args=arguments(case),
        kv_cache_dtype=torch.bfloat16,
        kv_cache_dtype_str="auto",
        model_dtype=torch.bfloat16,
        page_size=case["flags"]["page_size"],
        sliding_window_size=None,
        spec_algorithm=algorithm,
        is_draft_worker=taken_over is not None,
        post_capture_kv_active=False,
        spec_aux_config=auxiliary(case, draft),
        is_hybrid_swa=False,
        is_hybrid_swa_compress=False,
        use_mla_backend=False,
        layer_info=ModelLayerInfo(start_layer=0, end_layer=layers, num_effective_layers=layers),
        forward_stream=None,
        **parallel_sizes(case),
        **(taken_over or alone),
    )


def size_of(tensors: Any) -> int:
    """Bytes of tensors in whatever lists they lie."""
    if isinstance(tensors, torch.Tensor):
        return int(tensors.numel() * tensors.element_size())
    return sum(map(size_of, tensors)) if isinstance(tensors, list | tuple) else 0


def kv_bytes(pool: Any) -> int:
    inner = getattr(pool, "full_kv_pool", pool)
    return size_of(inner.k_buffer) + size_of(inner.v_buffer)


def stand_ins(case: Case) -> Iterator[Any]:
    """Contexts that give the answers which otherwise come from a device, a process group or a parsed command line."""
    yield get_context().override_server_args(**case["flags"], tp_size=case["tp"], cuda_graph_config=CudaGraphConfig())
    world = SimpleNamespace(cpu_group=None, world_size=case["tp"], rank_in_group=0)
    ranks = {"attn_dcp_size": 1, "attn_dcp_rank": 0}
    yield get_parallel().override(tp_size=case["tp"], attn_tp_size=case["tp"], world_group=world, **ranks)
    yield mock.patch.object(parallel_state, "_WORLD", world)
    answers = {"get_available_gpu_memory": case["free"] / GIB, "get_device_memory_capacity": case["total"] >> 20}
    for name, value in answers.items():
        yield mock.patch.object(kv_cache_configurator, name, return_value=value)
    # What the device "meta" lacks; nothing runs on it, so any module will do, and no kernel needs a warm-up.
    yield mock.patch.object(torch, "get_device_module", return_value=torch.cpu)
    yield mock.patch.object(memory_pool.MHATokenToKVPool, "_init_kv_copy_and_warmup")
    yield envs.SGLANG_XPU_VERIFY_SINGLE_QUERY_ROWS.override(case["verify_rows"])
    if case["ring_rows"] is not None:
        yield envs.SGLANG_DFLASH_PRIVATE_RING.override(True)


def read(folder: Path, *, is_draft_model: bool = False) -> Any:
    return ModelConfig(str(folder), dtype="bfloat16", is_draft_model=is_draft_model)


class Built(NamedTuple):
    """What the configurators made, and the configs they made it from."""

    config: Any
    target: Any
    draft_config: Any
    draft: Any


def build(case: Case, folder: Path) -> Built:
    """Let a target's and then a draft's configurator size and build their pools, as the two workers do."""
    before = case["total"] / GIB
    checkpoint = model_configs.write(folder / "target", model_configs.target(case["yarn"]))
    draft = None
    if case["dflash2"]:
        draft = read(model_configs.write(folder / "draft", model_configs.draft(case["yarn"])), is_draft_model=True)
    config = read(checkpoint)
    target = configurator(case, config, draft=draft, layers=config.num_hidden_layers).configure(
        pre_model_load_memory=before
    )
    taken_over = {
        # A window has a request table of its own, see DFlashWorkerV2.alloc_memory_pool.
        "req_to_token_pool": None if draft else target.req_to_token_pool,
        "token_to_kv_pool_allocator": target.token_to_kv_pool_allocator,
        "memory_pool_config": draft_pool(case, target.memory_pool_config),
    }
    head, layers = (draft, draft.num_hidden_layers) if draft else (read(checkpoint, is_draft_model=True), 1)
    made = configurator(case, head, draft=draft, layers=layers, taken_over=taken_over)
    return Built(config, target, head, made.configure(pre_model_load_memory=before))


def runner(case: Case, config: Any, pools: Any, *, is_draft_worker: bool) -> SimpleNamespace:
    """What XPUAttentionBackend reads of a model runner."""
    return SimpleNamespace(
        sliding_window_size=None,
        device="meta",
        ps=SimpleNamespace(tp_size=case["tp"]),
        server_args=arguments(case),
        req_to_token_pool=pools.req_to_token_pool,
        token_to_kv_pool=pools.token_to_kv_pool,
        kv_cache_dtype=torch.bfloat16,
        kv_cache_dtype_str="auto",
        page_size=case["flags"]["page_size"],
        is_hybrid_swa=False,
        is_draft_worker=is_draft_worker,
        attention_chunk_size=None,
        model_config=config,
    )


def graph_tables(case: Case, built: Built) -> int:
    """Bytes of the page tables that the backends allocate for graphs: target, MTP's steps and extension, or DFlash2."""
    batch = min(case["graph_batch"], built.target.max_running_requests)
    drafting = runner(case, built.draft_config, built.draft, is_draft_worker=True)
    steps = case["flags"]["speculative_num_steps"]
    backends = [
        XPUAttentionBackend(runner(case, built.config, built.target, is_draft_worker=False)),
        XPUAttentionBackend(drafting),
        *([] if case["dflash2"] else XPUMultiStepDraftBackend(drafting, 1, steps).attn_backends),
    ]
    for backend in backends:
        backend.init_cuda_graph_state(batch, batch * case["flags"]["speculative_num_draft_tokens"])
    return size_of([backend.decode_cuda_graph_metadata["page_table"] for backend in backends])


def measure(case: Case) -> dict[str, Any]:
    with ExitStack() as stack:
        for context in stand_ins(case):
            stack.enter_context(context)
        built = build(case, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        graphs = graph_tables(case, built)
    pool = built.target.req_to_token_pool.mamba_pool
    tables = {id(made.req_to_token_pool): made.req_to_token_pool.req_to_token for made in (built.target, built.draft)}
    return {
        "tokens": built.target.max_total_num_tokens,
        "requests": built.target.max_running_requests,
        "bytes": {
            "target KV": kv_bytes(built.target.token_to_kv_pool),
            "draft KV": kv_bytes(built.draft.token_to_kv_pool),
            "recurrent states": size_of(pool.mamba_cache.conv) + size_of(pool.mamba_cache.temporal),
            "states of a verification": size_of(pool.mamba_cache.intermediate_ssm)
            + size_of(pool._intermediate_conv_window_phys),
            "request tables": size_of(list(tables.values())),
            "page tables of graphs": graphs,
        },
    }


if __name__ == "__main__":
    answer(measure)
