"""The device under test, and what it costs to run something on it."""

from __future__ import annotations

import math
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch  # type: ignore[import-not-found]  # on the machine with the device
import triton  # type: ignore[import-not-found]

from tests.tree.drivers.standalone import interpreted

DEVICE = "cpu" if interpreted() else "cuda"
HALF = torch.float16 if interpreted() else torch.bfloat16  # the interpreter computes BF16 wrongly


def sized(production: int, small: int) -> int:
    """The production size on a device, a small one in the interpreter."""
    return small if interpreted() else production


def relative_error(measured: torch.Tensor, expected: torch.Tensor) -> float:
    """Frobenius norm of the difference over that of the expected value."""
    error = float((measured.double() - expected.double()).norm() / expected.double().norm())
    return error if math.isfinite(error) else math.inf


def described() -> dict[str, str]:
    """Names and versions that a figure belongs to."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return {
        "device": torch.cuda.get_device_name(),
        "driver": subprocess.run(query, check=True, capture_output=True, text=True).stdout.split()[0],
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


@dataclass(frozen=True)
class Time:
    """Microseconds of one call: median, and the first and third quartile of the rounds."""

    median: float
    low: float
    high: float

    def as_json(self) -> dict[str, float]:
        """Rounded to ten nanoseconds."""
        return {"us": round(self.median, 2), "low": round(self.low, 2), "high": round(self.high, 2)}


def captured(calls: Sequence[Callable[[], Any]]) -> Any:
    """A CUDA graph of these calls, in order, each run before on a side stream as capture wants it.

    Raises RuntimeError when a call waits for the device: capture forbids that.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        calls[0]()
        calls[-1]()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def replayed(calls: Sequence[Callable[[], Any]], rounds: int = 30) -> Time:
    """Time of one of these calls, which differ in their data only: CUDA events around replays of one graph of all."""
    graph = captured(calls)
    return _timed(graph.replay, len(calls), rounds)


def launched(call: Callable[[], Any], rounds: int = 30, calls: int = 20) -> Time:
    """Time of a call that is launched from the host each time, which a graph cannot hold or is not to hide."""

    def several() -> None:
        for _ in range(calls):
            call()

    return _timed(several, calls, rounds)


def _timed(run: Callable[[], Any], calls: int, rounds: int) -> Time:
    for _ in range(3):
        run()
    times = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / calls)
    low, median, high = statistics.quantiles(times, n=4)
    return Time(median=median, low=low, high=high)
