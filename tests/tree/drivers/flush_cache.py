"""Run Scheduler.flush_cache on a CPU with every collaborator recorded, under the platform class of each device.

A case: ``name``; ``device`` ("cuda", "rocm", "npu", "musa", "xpu" or "cpu"); ``graphs`` (whether one was captured),
``empty_cache`` (the argument, or null for none), ``idle`` (the scheduler's verdict) and ``draft`` (whether there is a
draft worker). Answer: what flush_cache returned; every call on a collaborator or the device, in order; and how many
graphs the XPU backend holds afterwards, which are captured and kept as in service, only without a device.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock, patch

import torch  # type: ignore[import-not-found]  # in the base image only
from sglang.srt.hardware_backend.xpu.graph_runner.xpu_full_graph_backend import (  # type: ignore[import-not-found]
    FullXPUGraphBackend,
)
from sglang.srt.managers import scheduler  # type: ignore[import-not-found]
from sglang.srt.model_executor.runner_utils import pool  # type: ignore[import-not-found]
from sglang.srt.platforms.cpu import CpuSRTPlatform  # type: ignore[import-not-found]
from sglang.srt.platforms.cuda import CudaSRTPlatform  # type: ignore[import-not-found]
from sglang.srt.platforms.musa import MusaSRTPlatform  # type: ignore[import-not-found]
from sglang.srt.platforms.npu import NPUSRTPlatform  # type: ignore[import-not-found]
from sglang.srt.platforms.rocm import RocmSRTPlatform  # type: ignore[import-not-found]
from sglang.srt.platforms.xpu import XpuSRTPlatform  # type: ignore[import-not-found]
from sglang.srt.runtime_context import get_parallel  # type: ignore[import-not-found]

from .answer import Case, answer

if TYPE_CHECKING:
    from collections.abc import Iterator

PLATFORMS = {
    "cuda": CudaSRTPlatform,
    "rocm": RocmSRTPlatform,
    "npu": NPUSRTPlatform,
    "musa": MusaSRTPlatform,
    "xpu": XpuSRTPlatform,
    "cpu": CpuSRTPlatform,
}


class Device:
    """What a graph backend needs of torch.xpu."""

    synchronize = staticmethod(lambda: None)
    graph_pool_handle = staticmethod(lambda: (0, 1))

    @staticmethod
    @contextmanager
    def graph(**_: Any) -> Iterator[None]:
        yield


def captured() -> Any:
    """The XPU graph backend after it captured one shape."""
    runner = SimpleNamespace(device_module=Device)
    with get_parallel().override(tp_group=SimpleNamespace(barrier=lambda: None)):
        backend = FullXPUGraphBackend(runner)
    with patch.object(torch.xpu, "XPUGraph", Mock), backend.capture_session(stream=None):
        backend.capture_one("bs 1", lambda: "output")
    return backend


def measure(case: Case) -> dict[str, Any]:
    backend = captured() if case["graphs"] else None
    platform = PLATFORMS[case["device"]]()
    calls = Mock()
    platform.synchronize, platform.empty_cache = calls.device.synchronize, calls.device.empty_cache
    calls.scheduler.is_fully_idle.return_value = case["idle"]
    calls.scheduler.waiting_queue = calls.scheduler.running_batch.reqs = []
    if not case["draft"]:
        calls.scheduler.draft_worker = None
    arguments = [] if case["empty_cache"] is None else [case["empty_cache"]]
    with patch.object(scheduler, "current_platform", platform):
        success = scheduler.Scheduler.flush_cache(calls.scheduler, *arguments)
    pool.set_global_graph_memory_pool(None)
    return {
        "success": success,
        "calls": [call[0] for call in calls.method_calls],
        "graphs": len(backend._graphs) if backend else 0,
    }


if __name__ == "__main__":
    answer(measure)
