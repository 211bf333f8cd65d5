"""Engines of one SGLang tree, from the tests' side."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
"""The folder that holds ``tests``."""
SERVE = (sys.executable, "-m", "tests.e2e.support.serve")
TIMEOUT_SECONDS = 600
AT_ONCE = 2
"""Engines that run at the same time."""
ENVIRONMENT = {
    "TRITON_INTERPRET": "1",
    # Graphs are compiled for a GPU; torch would look for a C++ compiler, and the image has none.
    "TORCHDYNAMO_DISABLE": "1",
    # Convolution states default to BF16, which the interpreter computes wrongly.
    "SGLANG_MAMBA_CONV_DTYPE": "float32",
    # Kernels run one row after the other in Python; a thread pool only costs, and does not survive a fork.
    "OMP_NUM_THREADS": "1",
}
ON_A_CPU = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "disable_cuda_graph": True,
    "disable_overlap_schedule": True,
    "skip_server_warmup": True,
    "skip_tokenizer_init": True,
    "mem_fraction_static": 0.5,
    # Splits of a decode's keys run in turn here.
    "triton_attention_num_kv_splits": 1,
    # Pools are sized by hand: by the machine's memory they would have GiB.
    "max_total_tokens": 2048,
    "max_mamba_cache_size": 24,
    "max_running_requests": 4,
    "context_length": 512,
    "log_level": "info",
}
"""Arguments of every engine here, beside those of its case."""

MTP = {
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 7,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 8,
}
"""The target's own MTP head drafts seven tokens, one after the other."""


def dflash(draft: Path, **more: Any) -> dict[str, Any]:
    """Arguments for DFLASH with a draft checkpoint that drafts blocks of eight."""
    return {
        "speculative_algorithm": "DFLASH",
        "speculative_draft_model_path": str(draft),
        "speculative_num_draft_tokens": 8,
        **more,
    }


Step = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One engine: its arguments beside ``ON_A_CPU``, and its steps (see ``serve.Session``)."""

    server_args: Mapping[str, Any]
    steps: Sequence[Step]


@dataclass(frozen=True)
class Answer:
    """Of an engine that took all its steps: one answer a step, some of the server's state, and its log."""

    steps: list[Any]
    server: dict[str, Any]
    log: str


class EngineDied(Exception):
    """The engine ended without an answer; ``log`` says why."""

    def __init__(self, log: str) -> None:
        super().__init__(f"the engine ended without an answer; the end of its log:\n{log[-4000:]}")
        self.log = log

    @property
    def error(self) -> str:
        """The last error that the log names, as ``Type: message``."""
        found: list[str] = re.findall(r"^(\w*(?:Error|Exception): .*)$", self.log, re.MULTILINE)
        return found[-1] if found else ""


class Engines(AbstractContextManager["Engines"]):
    """A process that has imported a tree, and forks an engine for each case.

    Args:
        tree: the folder that holds ``sglang``.
        folder: for the socket and the logs.
        environment: beside ``ENVIRONMENT``. SGLang reads much of it while it is imported, so another
            environment needs another of these.
        patched: whether the tree has our patches.
    """

    def __init__(
        self, tree: Path, folder: Path, environment: Mapping[str, str] | None = None, *, patched: bool = True
    ) -> None:
        self._tree, self._folder = tree, folder
        self._numbers = itertools.count()
        self._starting, self._ready = threading.Lock(), False
        # A socket's path may have 107 bytes only.
        self._socket = Path(tempfile.mkdtemp(prefix="e2e-"), "socket")
        path = os.pathsep.join([str(tree), str(ROOT)])
        self._log = (folder / "serve.log").open("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            [*SERVE, str(self._socket), str(tree), "patched" if patched else "unpatched"],
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()
        self._socket.unlink(missing_ok=True)
        self._socket.parent.rmdir()

    def run(self, case: Case) -> Answer:
        """Start an engine, take its steps, stop it.

        Raises:
            EngineDied: it did not start, or died.
        """
        log = self._folder / f"engine-{next(self._numbers)}.log"
        request = {"server_args": {**ON_A_CPU, **case.server_args}, "steps": list(case.steps), "log": str(log)}
        line = self._ask(json.dumps(request))
        text = log.read_text(encoding="utf-8", errors="replace")
        if not line:
            raise EngineDied(text)
        answer = json.loads(line)
        imported = Path(answer["sglang"])
        assert imported.is_relative_to(self._tree), f"ran {imported}, expected a file below {self._tree}"
        return Answer(answer["steps"], answer["server"], text)

    def run_all(self, cases: Mapping[str, Case]) -> dict[str, Answer]:
        """Several cases, :data:`AT_ONCE` at a time; answers by the cases' names."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return dict(zip(cases, pool.map(self.run, cases.values()), strict=True))

    def refusal(self, case: Case) -> str:
        """The error with which an engine ends that must not start, as ``Type: message``."""
        try:
            self.run(case)
        except EngineDied as died:
            return died.error
        raise AssertionError(f"the engine started; expected a refusal of {dict(case.server_args)}")

    def _ask(self, request: str) -> str:
        self._wait_until_ready()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT_SECONDS)
            connection.connect(str(self._socket))
            with connection.makefile("rw", encoding="utf-8") as stream:
                stream.write(request + "\n")
                stream.flush()
                return stream.readline()

    def _wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        with self._starting:
            self._ready = self._ready or self._process.stdout.readline() == "ready\n"
            if not self._ready:
                self._log.seek(0)
                raise RuntimeError(f"{self._tree} could not be imported:\n{self._log.read()[-4000:]}")
