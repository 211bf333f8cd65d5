"""What every driver shares: cases come in as JSON on stdin, one JSON document leaves on stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Case = dict[str, Any]


def answer(measure: Callable[[Case], Any]) -> None:
    """Measure each case and print ``{"sglang": <imported file>, "results": {<case name>: <measured>}}``.

    Anything that imported code prints goes to stderr, so that stdout holds the document and nothing else.
    """
    document = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    results = {case["name"]: measure(case) for case in json.load(sys.stdin)}
    with document:
        json.dump({"sglang": sys.modules["sglang"].__file__, "results": results}, document)
