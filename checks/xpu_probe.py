"""Ask SGLang, in a process of its own, what it would do where torch sees an XPU. No device is used, nothing computed.

A script: it reads ``{"root": "...", "modules": [...], "layers": [...]}`` from standard input and writes ``{"sglang",
"modules", "layers"}`` to standard output; everything that SGLang prints goes to standard error. ``root`` is the package
root; a layer is a ``quantization_config``, the model class whose fused names apply to it, and the name that it is built
under.
"""

import json
import os
import sys
import warnings
from importlib import import_module
from typing import Any

PLAIN = "plain"


def error_line(error: BaseException) -> str:
    """Type and first line of an error."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"


def imported(module: str) -> str | None:
    """Import a module; the error if that fails."""
    try:
        import_module(module)
    except (Exception, SystemExit) as error:
        return error_line(error)
    return None


def built(layer: dict[str, Any]) -> str:
    """Name of the scheme that a linear layer gets, ``plain`` for an unquantised one, or the error."""
    try:
        module, _, name = layer["model"].partition(":")
        registry = import_module("sglang.srt.layers.quantization")
        config = registry.get_quantization_config(layer["config"]["quant_method"]).from_config(layer["config"])
        config.packed_modules_mapping = getattr(import_module(module), name).packed_modules_mapping
        linear = import_module("sglang.srt.layers.linear").LinearBase(
            256, 256, quant_config=config, prefix=layer["module"]
        )
    except (Exception, SystemExit) as error:
        return error_line(error)
    plain = type(linear.quant_method).__name__ == "UnquantizedLinearMethod"
    return PLAIN if plain else type(linear.scheme).__name__


def main() -> None:
    """Answer once."""
    output = os.dup(1)
    os.dup2(2, 1)
    questions = json.load(sys.stdin)
    from fake_xpu import install  # type: ignore[import-not-found]  # beside this file

    sys.path[:] = [*sys.path[1:], questions["root"]]  # the first is the folder of this script
    warnings.simplefilter("ignore")
    install()
    answer = {
        "sglang": import_module("sglang").__file__,
        "modules": {module: imported(module) for module in questions["modules"]},
        "layers": [built(layer) for layer in questions["layers"]],
    }
    with os.fdopen(output, "w", encoding="utf-8") as stream:
        json.dump(answer, stream)


if __name__ == "__main__":
    main()
