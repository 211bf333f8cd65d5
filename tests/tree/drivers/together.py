"""Run cases of several drivers in one process: importing SGLang takes longer than all of these cases.

A case: what its driver takes, and ``driver``, the name of that driver's module.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .answer import Case, answer


def measure(case: Case) -> Any:
    return import_module(f"drivers.{case['driver']}").measure(case)


if __name__ == "__main__":
    answer(measure)
