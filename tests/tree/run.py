"""Run this folder's tests in a container; the JUnit XML goes to standard output, all else to standard error.

The folder is mounted as ``/checks/tests``, beside the trees, what it shares with ``checks/`` (``/checks/checks``), the
pipeline's pytest (``/checks/lib``) and ``settings.json``: variables of the environment, and options of pytest.
"""

import json
import os
import sys
from pathlib import Path

MOUNT = Path("/checks")
REPORT = Path("/tmp/junit.xml")


def main() -> int:
    """Exit status: 0 all passed, 1 some failed; anything else is no result."""
    answer = os.dup(1)
    os.dup2(2, 1)
    settings = json.loads((MOUNT / "settings.json").read_bytes())
    # The trees are read-only, and each driver imports most of SGLang. Threads of torch that wait would hold a core.
    os.environ.update(settings["environment"], PYTHONPYCACHEPREFIX="/tmp/bytecode", OMP_NUM_THREADS="1")
    sys.path += [str(MOUNT / "lib"), str(MOUNT)]
    import pytest

    options = ["-v", "-ra", "-p", "no:cacheprovider", f"--junitxml={REPORT}", f"--rootdir={MOUNT / 'tests'}"]
    status = int(pytest.main([*options, *settings["options"], str(MOUNT / "tests")]))
    os.write(answer, REPORT.read_bytes())
    return status


if __name__ == "__main__":
    sys.exit(main())
