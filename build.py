#!/usr/bin/env python3
"""Build, check and release model-scoped SGLang images: ``./build.py --help``."""

import sys

from pipeline import bootstrap


def _run(arguments: list[str]) -> int:
    from pipeline import cli  # needs the virtual environment that bootstrap has entered by now

    return cli.run(arguments)


if __name__ == "__main__":
    bootstrap.main(sys.argv[1:], _run)
