"""Ask SGLang's own exclusion matchers, and read what it registers.

A case: ``name``; ``format`` and ``module``; what the format's matcher takes (``entries``, ``fused``, ``targets``,
``class_name``, ``config``). Answer: true (built plain), false (built quantised), the target that fits, or null where
SGLang raises. The case ``facts`` gets the fused table of the MTP class, the modules that it builds, and the classes.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

from sglang.srt.layers.quantization.auto_round import AutoRoundConfig  # type: ignore[import-not-found]
from sglang.srt.layers.quantization.awq.awq import is_layer_skipped_awq  # type: ignore[import-not-found]
from sglang.srt.layers.quantization.compressed_tensors.utils import (  # type: ignore[import-not-found]
    find_matched_target,
    should_ignore_layer,
)
from sglang.srt.layers.quantization.fp8 import Fp8Config  # type: ignore[import-not-found]
from sglang.srt.layers.quantization.utils import is_layer_skipped  # type: ignore[import-not-found]
from sglang.srt.models import dflash, qwen3_5, qwen3_5_mtp  # type: ignore[import-not-found]

from .answer import Case, answer

warnings.simplefilter("ignore")


def compressed_tensors(case: Case) -> bool:
    return bool(should_ignore_layer(case["module"], case["entries"], case["fused"]))


def target(case: Case) -> str:
    module = type(case["class_name"], (), {})()
    return str(find_matched_target(case["module"], module, case["targets"], case["fused"]))


def awq(case: Case) -> bool:
    return bool(is_layer_skipped_awq(case["module"], case["entries"]))


def fp8(case: Case) -> bool:
    config = Fp8Config.from_config(
        {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": case["entries"],
            "packed_modules_mapping": case["fused"],
        }
    )
    return bool(is_layer_skipped(case["module"], config.ignored_layers, config.packed_modules_mapping))


def auto_round(case: Case) -> bool:
    config = AutoRoundConfig.from_config(case["config"])
    config.packed_modules_mapping = case["fused"]
    bits, _, _ = config.get_layer_config(object(), case["module"])
    return not config.check_quantized(bits)


FORMATS = {
    "compressed-tensors": compressed_tensors,
    "target": target,
    "awq": awq,
    "fp8": fp8,
    "auto-round": auto_round,
}


def facts() -> dict[str, Any]:
    classes = [*qwen3_5.EntryClass, qwen3_5_mtp.Qwen3_5ForCausalLMMTP, *dflash.EntryClass]
    return {
        "fused": qwen3_5_mtp.Qwen3_5ForCausalLMMTP.packed_modules_mapping,
        "classes": [found.__name__ for found in classes],
    }


def measure(case: Case) -> Any:
    if case["format"] == "facts":
        return facts()
    try:
        return FORMATS[case["format"]](case)
    except (ValueError, re.error):
        return None


if __name__ == "__main__":
    answer(measure)
