"""The files of a tree that kernel tests import alone, without the rest of SGLang; needs no torch."""

from __future__ import annotations

# Imported as modules of their own; what these import from kernel files is imported with them.
MODULES = (
    "sglang/kernels/ops/attention/decode_attention.py",
    "sglang/kernels/ops/attention/extend_attention.py",
    "sglang/kernels/ops/attention/fla/fused_recurrent.py",
    "sglang/kernels/ops/attention/linear/fused_recurrent_linear_replayssm.py",
    "sglang/kernels/ops/attention/linear/fused_sigmoid_gating_recurrent.py",
    "sglang/kernels/ops/kvcache/cache_move.py",
    "sglang/kernels/ops/speculative/dflash.py",
    "sglang/kernels/ops/speculative/dflash_selector.py",
    "sglang/kernels/ops/speculative/fused_kv_materialize.py",
    "sglang/srt/speculative/dflash_ring.py",
)
# Of these, single functions are taken, so what the files import is not needed.
FUNCTIONS = (
    "sglang/srt/layers/attention/xpu_verify_rows.py",
    "sglang/srt/mem_cache/memory_pool.py",
    "sglang/srt/models/dflash.py",
    "sglang/srt/speculative/dflash_worker_v2.py",
)
# Modules of upstream's tree beside ours: Gated DeltaNet, decode and verify.
UPSTREAM_MODULES = MODULES[2:5]
# Parts of SGLang that are no kernels, which the tests stand in for (standalone.py).
STAND_INS = frozenset(
    {"sglang.kernels.jit.utils", "sglang.srt.runtime_context", "sglang.srt.utils", "sglang.srt.utils.common"}
)
