# SPDX-License-Identifier: Apache-2.0
"""Block-FP8 linear layers served from weights that were dequantized at load.

XPU's native path (``torch_w8a8_block_fp8_linear``) quantizes every activation to
FP8 and takes blocks of [1, 128] and [128, 128] only. This method needs no FP8
product at all: it keeps ``weight * scale`` in the type of the model, which is BF16
in service, at twice the memory of FP8.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sglang.srt.layers.quantization.fp8 import Fp8LinearMethod
from sglang.srt.layers.quantization.fp8_utils import block_quant_dequant

_UPDATE_ERROR = (
    "Online weight updates are not supported with block-FP8 weights that were "
    "dequantized at load: their scales are gone. Restart with "
    "SGLANG_XPU_BLOCK_FP8_TO_BF16=0 to allow online updates."
)


class XPUBlockFp8ToBf16LinearMethod(Fp8LinearMethod):
    """Loads as ``Fp8LinearMethod`` does and applies as an unquantized layer.

    For serialized checkpoints with a ``weight_block_size``; the weight of a layer
    is [output_size, input_size] and needs no multiple of the block in either.
    """

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Replace ``weight`` by its product with ``weight_scale_inv``, which goes."""
        weight = block_quant_dequant(
            layer.weight.data,
            layer.weight_scale_inv.data,
            self.weight_block_size,
            layer.orig_dtype,
        )
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)
        del layer.weight_scale_inv
        # A loader would copy FP8 codes into the new weight without their scales.
        layer._derived_weight_cache_error = _UPDATE_ERROR

    def apply(
        self,
        layer: torch.nn.Module,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return F.linear(x, layer.weight, bias)
