"""What every driver shares: cases come in as JSON on stdin, one JSON document leaves on stdout.

A case that raises is answered by its traceback, so that it fails the tests that ask for it and no others.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

Case = dict[str, Any]


def answer(measure: Callable[[Case], Any]) -> None:
    """Measure each case and print one document: ``results`` and ``raised`` by case name, and the file of ``sglang``.

    ``raised`` holds a traceback for each case without a result. Anything that imported code prints goes to stderr, so
    that stdout holds the document and nothing else.
    """
    document = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    results: dict[str, Any] = {}
    raised: dict[str, str] = {}
    for case in json.load(sys.stdin):
        try:
            results[case["name"]] = measure(case)
        except Exception:
            raised[case["name"]] = traceback.format_exc()
    with document:
        json.dump({"sglang": sys.modules["sglang"].__file__, "results": results, "raised": raised}, document)
