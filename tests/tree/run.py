"""Run this folder's tests inside the cpu image; the JUnit XML goes to standard output, all else to standard error.

The folder is mounted as ``/checks/tests``, beside the two trees, what it shares with ``checks/``
(``/checks/checks``) and the pipeline's pytest (``/checks/lib``).
"""

import os
import sys
from pathlib import Path

MOUNT = Path("/checks")
REPORT = Path("/tmp/junit.xml")


def main() -> int:
    """Exit status: 0 all passed, 1 some failed; anything else is no result."""
    answer = os.dup(1)
    os.dup2(2, 1)
    os.environ.update(
        SGX_TREE=str(MOUNT / "tree"),
        SGX_UPSTREAM=str(MOUNT / "upstream"),
        PYTHONPYCACHEPREFIX="/tmp/bytecode",  # the trees are read-only, and each driver imports most of SGLang
    )
    sys.path += [str(MOUNT / "lib"), str(MOUNT)]
    import pytest

    options = ["-v", "-ra", "-p", "no:cacheprovider", f"--junitxml={REPORT}", f"--rootdir={MOUNT / 'tests'}"]
    status = int(pytest.main([*options, str(MOUNT / "tests")]))
    os.write(answer, REPORT.read_bytes())
    return status


if __name__ == "__main__":
    sys.exit(main())
