"""Run the kernel tests or the benchmark of this archive: ``python3 run.py test`` or ``python3 run.py bench``.

Needs torch, Triton and pytest, and a CUDA device; without one it says so and runs nothing. With TRITON_INTERPRET=1
the tests run on a CPU, small.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPORT = "gpu-results.json"


def main(arguments: list[str]) -> int:
    """Exit status: 0 when all that could run has passed."""
    commands = {
        # No configuration of a folder above this one.
        "test": ["-m", "pytest", "-q", "-rs", "-c", os.devnull, "--rootdir=.", "--import-mode=importlib", "tests/gpu"],
        "bench": ["-m", "benchmarks.gpu", "--out", REPORT],
    }
    if not arguments or arguments[0] not in commands:
        print("usage: python3 run.py test|bench [options]", file=sys.stderr)
        return 2
    missing = [name for name in ("torch", "triton", "pytest") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"not run: {', '.join(missing)} cannot be imported by {sys.executable}")
        return 0
    if arguments[0] == "bench":
        import torch  # type: ignore[import-not-found]  # on the machine with the device

        if not torch.cuda.is_available():
            print("not run: torch sees no CUDA device")
            return 0
    environment = {
        **os.environ,
        "SGX_TREE": str(HERE / "trees/ours"),
        "SGX_UPSTREAM": str(HERE / "trees/upstream"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, *commands[arguments[0]], *arguments[1:]]
    return subprocess.run(command, cwd=HERE, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
