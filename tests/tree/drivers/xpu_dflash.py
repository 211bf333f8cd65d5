"""What DFLASH is given on an XPU: whether it may start, the draft's attention backend, the verification's mask, and
the paths of the worker.

A case: ``name`` and ``ask``, the function below that answers it, with that function's arguments.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fake_xpu  # type: ignore[import-not-found]  # in checks/, see conftest.py

from .answer import Case, answer

fake_xpu.install()
os.environ.pop("SGLANG_DFLASH_EXPECTED_ARCHITECTURE", None)  # the image's; the guard would look for the draft

from sglang.srt.arg_groups import overrides, speculative_hook  # type: ignore[import-not-found]  # noqa: E402
from sglang.srt.runtime_context import get_context, get_parallel  # type: ignore[import-not-found]  # noqa: E402
from sglang.srt.speculative import dflash_utils, draft_worker_common  # type: ignore[import-not-found]  # noqa: E402

from . import port  # noqa: E402

port.lend()

from sglang.srt.speculative import dflash_worker_v2 as worker  # noqa: E402


def resolved(device: str, target: str | None, draft: str | None) -> dict[str, Any]:
    """The draft's backend by _handle_dflash, given the target's and the flag; or its refusal."""
    server_args = port.record(
        model_path="target",
        device=device,
        attention_backend=target,
        speculative_algorithm="DFLASH",
        speculative_draft_model_path="draft",
        speculative_num_draft_tokens=8,
        speculative_draft_attention_backend=draft,
    )
    try:
        speculative_hook._handle_dflash(server_args)
    except ValueError as error:
        return {"error": str(error)}
    view = getattr(overrides, "resolving_view", overrides.resolved_view)(server_args)
    return {"backend": view.speculative_draft_attention_backend}


def built(target: str | None, draft: str | None) -> str:
    """The backend that the draft's runner is built with."""
    names = ("resolve_draft_worker_attention_backend", "_resolve_draft_attention_backend_fallback")  # new, and old
    function = next(getattr(draft_worker_common, name) for name in names if hasattr(draft_worker_common, name))
    with get_context().override_server_args(
        attention_backend=target, speculative_draft_attention_backend=draft
    ) as server_args:
        takes = {"server_args": server_args} if "server_args" in inspect.signature(function).parameters else {}
        backend: str = function(algo_label="DFLASH", **takes)
    return backend


def mask(backend: str) -> bool:
    """Whether a verification builds a custom mask for a backend of this class, on a hybrid target."""
    full = type(backend, (), {})()
    needed: bool = dflash_utils.resolve_dflash_verify_mask_policy(SimpleNamespace(full_attn_backend=full))[1]
    return needed


def paths() -> dict[str, bool]:
    """Which of the worker's kernels its real ``__init__`` chooses."""
    model = mock.MagicMock(candidate_selector=None, lilicorr=None)
    bundle = mock.MagicMock(draft_model=model)
    runner = mock.MagicMock()
    parsed = mock.MagicMock(block_size=8, is_domino=False)
    around = ("draft_pp_context", "draft_tp_context", "resolve_draft_parallel_layout", "model_draft_parallel_spec")
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            get_context().override_server_args(device="cpu", page_size=64, speculative_num_draft_tokens=8)
        )
        group = SimpleNamespace(is_first_rank=True, is_last_rank=True, world_size=1, rank_in_group=0)
        stack.enter_context(get_parallel().override(pp_group=group, tp_group=group, tp_size=1, tp_rank=0))
        for name in (*around, "SpecTpSync", "get_dp_tp_group", "get_tp_group", "replace", "make_draft_block_spec_info"):
            stack.enter_context(mock.patch.object(worker, name, mock.MagicMock(), create=True))
        stack.enter_context(mock.patch.object(worker, "build_draft_tp_worker", return_value=bundle))
        stack.enter_context(mock.patch.object(worker, "parse_dflash_draft_config", return_value=parsed))
        for method in ("_init_fused_kv_helper", "_resolve_mask_token_id"):
            stack.enter_context(mock.patch.object(worker.DFlashWorkerV2, method, return_value=0))
        if hasattr(worker, "check_draft_model"):
            stack.enter_context(mock.patch.object(worker, "check_draft_model"))
        made = worker.DFlashWorkerV2(**port.for_worker(mock.MagicMock(model_runner=runner, device="cpu")))
    return {name: made.__dict__[name] for name in sorted(made.__dict__) if name.startswith("_use_")}


ASKED: dict[str, Callable[..., Any]] = {"resolved": resolved, "built": built, "mask": mask, "paths": paths}


def measure(case: Case) -> Any:
    """The answer to one case."""
    return ASKED[case["ask"]](**{key: value for key, value in case.items() if key not in ("name", "ask")})


if __name__ == "__main__":
    answer(measure)
