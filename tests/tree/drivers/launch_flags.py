"""The option strings of the tree's real argument parser, each with its default and choices."""

from __future__ import annotations

import argparse
from typing import Any

from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found]  # in the image only

from .answer import Case, answer


def measure(_: Case) -> dict[str, Any]:
    parser = argparse.ArgumentParser(add_help=False)
    ServerArgs.add_cli_args(parser)
    return {
        name: {
            "default": repr(action.default),
            "choices": None if action.choices is None else sorted({str(choice) for choice in action.choices}),
        }
        for action in parser._actions
        for name in action.option_strings
    }


if __name__ == "__main__":
    answer(measure)
