"""What DFlash2's worker of 0.5.19 takes from its base, lent to a tree that lacks it.

Patches of a line add these names to an older base. Without them its worker does not import, and nothing behind that
could be measured on the unpatched tree. On a tree that has them nothing is lent.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any
from unittest import mock

from sglang.srt import runtime_context  # type: ignore[import-not-found]  # in the base image only
from sglang.srt.environ import Envs, EnvStr  # type: ignore[import-not-found]
from sglang.srt.lora import layers  # type: ignore[import-not-found]
from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found]


def lend() -> None:
    """Has to come before the worker's import."""
    if not hasattr(Envs, "SGLANG_SPEC_TP_SYNC"):
        entry = EnvStr("all")
        entry.name = "SGLANG_SPEC_TP_SYNC"
        Envs.SGLANG_SPEC_TP_SYNC = entry
    if not hasattr(layers, "unwrap_lora_layer"):
        layers.unwrap_lora_layer = lambda module: module
    if not hasattr(runtime_context, "mamba_track_grid"):
        runtime_context.mamba_track_grid = lambda _page: runtime_context.get_exec().mamba.mamba_track_interval


def for_worker(target_worker: Any) -> dict[str, Any]:
    """Arguments of ``DFlashWorkerV2``, which up to 0.5.19 takes its ranks too."""
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2  # type: ignore[import-not-found]

    given = {
        "server_args": mock.MagicMock(),
        "gpu_id": 0,
        "ps": mock.MagicMock(),
        "nccl_port": 0,
        "target_worker": target_worker,
    }
    return {name: given[name] for name in inspect.signature(DFlashWorkerV2).parameters}


def record(**flags: Any) -> Any:
    """Arguments as parsed. Up to 0.5.18 the class resolves them all when it is built, so its fields are set alone."""
    if hasattr(ServerArgs, "resolve_once"):
        return ServerArgs(**flags)
    bare = object.__new__(ServerArgs)
    for field in dataclasses.fields(ServerArgs):
        made = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        setattr(bare, field.name, flags.get(field.name, made))
    return bare
