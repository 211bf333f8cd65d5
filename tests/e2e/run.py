"""Run this folder's tests inside the cpu image; the JUnit XML goes to standard output, all else to standard error.

The folder is mounted as ``/checks/tests/e2e``, beside the unpatched tree and the pipeline's pytest (``/checks/lib``).
The tree under test is the image's own.
"""

import importlib.util
import os
import sys
from pathlib import Path

MOUNT = Path("/checks")
REPORT = Path("/tmp/junit.xml")


def installed() -> Path:
    """The folder that the image's ``sglang`` lies in."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.origin is None:
        sys.exit("the image holds no sglang; expected the composed tree on Python's path")
    return Path(spec.origin).parents[1]


def main() -> int:
    """Exit status: 0 all passed, 1 some failed; anything else is no result."""
    answer = os.dup(1)
    os.dup2(2, 1)
    os.environ.update(SGX_TREE=str(installed()), SGX_UPSTREAM=str(MOUNT / "upstream"))
    sys.path += [str(MOUNT / "lib"), str(MOUNT)]
    import pytest

    folder = MOUNT / "tests" / "e2e"
    options = ["-v", "-ra", "-p", "no:cacheprovider", f"--junitxml={REPORT}", f"--rootdir={folder}"]
    status = int(pytest.main([*options, "--basetemp=/tmp/e2e", str(folder)]))
    os.write(answer, REPORT.read_bytes())
    return status


if __name__ == "__main__":
    sys.exit(main())
