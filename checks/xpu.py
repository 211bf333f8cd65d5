"""What the checks ask of SGLang as on an XPU, and the one process that answers (``xpu_probe.py``)."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.given import Given, Quantization

HERE = Path(__file__).resolve().parent
STUBS = HERE / "stubs"
"""Holds a stand-in for Intel's kernel package, which comes before a real one: that may need its device."""
SECONDS = 300


@dataclass(frozen=True)
class Layer:
    """A linear layer to build."""

    why: str
    """Which expectation it belongs to."""
    module: str
    config: dict[str, Any]
    expected: str
    """A scheme, the error that stops the start, ``plain``, or the word of the error where it is refused."""
    refused: bool = False


@dataclass(frozen=True)
class Answer:
    """What SGLang says."""

    modules: dict[str, str | None]
    """Module to the error of its import."""
    layers: tuple[str, ...]
    """For each of :func:`layers` the scheme, ``plain``, or an error."""
    problem: str | None = None
    """Why there is no answer at all."""


def changed_modules(given: Given) -> dict[str, str]:
    """Module to file, for each Python file that we added or changed."""
    files = [path for path in sorted(given.files) if given.ours(path) and path.endswith(".py")]
    return {file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): file for file in files}


def layers(expected: Quantization) -> Iterator[Layer]:
    """All layers to build."""
    published = {**expected.config, "ignore": list(expected.ignore)}
    for module in expected.quantised:
        yield Layer("the target's config", module, published, expected.outcome)
        for change, says in expected.refused:
            yield Layer(f"the target's config with {change}", module, changed(published, change), says, refused=True)
    for module in expected.mtp_modules:
        yield Layer("the published ignore list", module, published, "plain")
        for faulty in expected.faulty:
            config = {**expected.config, "ignore": list(faulty.ignore)}
            wanted = expected.outcome if module in faulty.quantised else "plain"
            yield Layer(f"an ignore list with {faulty.why}", module, config, wanted)


def changed(config: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """The config with other weights in every group."""
    groups = {
        name: {**group, "weights": {**group["weights"], **change}} for name, group in config["config_groups"].items()
    }
    return {**config, "config_groups": groups}


def ask(given: Given, seconds: float = SECONDS) -> Answer:
    """Start the process and wait for its answer; its output goes to standard error."""
    asked = [
        {"model": given.quantization.mtp_model, "module": layer.module, "config": layer.config}
        for layer in layers(given.quantization)
    ]
    questions = {"root": str(given.package_root), "modules": list(changed_modules(given)), "layers": asked}
    try:
        ended = subprocess.run(
            [sys.executable, "-s", "-B", str(HERE / "xpu_probe.py")],
            input=json.dumps(questions),
            env={**given.environment, "PYTHONPATH": str(STUBS)},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return no_answer(f"none within {seconds:g} s")
    sys.stderr.write(ended.stderr)
    if ended.returncode != 0:
        last = (ended.stderr.strip().splitlines() or ["no output"])[-1]
        return no_answer(f"status {ended.returncode}: {last}")
    answer = json.loads(ended.stdout)
    if not Path(answer["sglang"]).is_relative_to(given.package_root):
        return no_answer(f"one of {answer['sglang']}")
    return Answer(answer["modules"], tuple(answer["layers"]))


def no_answer(found: str) -> Answer:
    """Nothing can be said about any module or layer."""
    return Answer({}, (), f"expected an answer of the image's SGLang as on an XPU, found {found}")
