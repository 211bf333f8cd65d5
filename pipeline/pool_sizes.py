"""Memory that SGLang's pools take on one rank: each formula with the place of the tree that it restates.

Standard library only: a test of the composed tree loads this file beside SGLang and holds it against the pools that
the tree's own configurator builds from the same numbers. Places are of SGLang 0.5.23 below ``sglang/srt/``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KV_BYTES = STATE_INPUT_BYTES = 2
"""BF16: keys, values, and the inputs that a convolution still needs."""
STATE_BYTES = 4
"""FP32: the recurrent state (``mamba2_state_dtype`` in ``configs/mamba_utils.py``)."""
INDEX_BYTES = 4
MULTIMODAL_RESERVE = 100 << 20
"""``mm_runtime_reservation_gb``: taken for a target with a vision tower, used or not (``SGLANG_VLM_CACHE_SIZE_MB``)."""
TRACKING = {"extra_buffer": 2, "extra_buffer_lazy": 1}
"""Slots in which a running request tracks checkpoints, with the overlap scheduler (``get_mamba_tracking_slots``)."""
OWN_SLOTS = 3
"""Further slots of a running request (``MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO``)."""


@dataclass(frozen=True)
class Target:
    """The target's language model, unsharded."""

    layers: int
    full_attention_every: int
    kv_heads: int
    head_dim: int
    linear_key_heads: int
    linear_value_heads: int
    linear_key_dim: int
    linear_value_dim: int
    conv_taps: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Target":
        """Read from the ``config.json`` of a ``Qwen3_5ForConditionalGeneration``."""
        text = config["text_config"]
        return cls(
            layers=text["num_hidden_layers"],
            full_attention_every=text["full_attention_interval"],
            kv_heads=text["num_key_value_heads"],
            head_dim=text["head_dim"],
            linear_key_heads=text["linear_num_key_heads"],
            linear_value_heads=text["linear_num_value_heads"],
            linear_key_dim=text["linear_key_head_dim"],
            linear_value_dim=text["linear_value_head_dim"],
            conv_taps=text["linear_conv_kernel_dim"],
        )

    @property
    def full_layers(self) -> int:
        """Layers with a KV cache."""
        return self.layers // self.full_attention_every

    @property
    def linear_layers(self) -> int:
        """Layers with a recurrent state."""
        return self.layers - self.full_layers


@dataclass(frozen=True)
class Draft:
    """A DFlash2 draft, unsharded."""

    layers: int
    kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Draft":
        """Read from the ``config.json`` of a ``DFlash2DraftModel``."""
        return cls(config["num_hidden_layers"], config["num_key_value_heads"], config["head_dim"])


@dataclass(frozen=True)
class Serving:
    """The launch flags that decide about memory."""

    tp: int
    page: int
    context: int
    tokens: int
    """``--max-total-tokens``."""
    slots: int
    """``--max-mamba-cache-size``."""
    max_running: int
    strategy: str
    """``--mamba-radix-cache-strategy``."""
    draft_tokens: int
    """``--speculative-num-draft-tokens``; a DFlash2 block has as many positions."""
    steps: int
    """``--speculative-num-steps``: passes of the MTP head; 1 for DFlash2."""
    window: int | None = None
    """``--speculative-draft-window-size`` of DFlash2."""
    ring: bool = False
    """``SGLANG_DFLASH_PRIVATE_RING``: the draft has rows of its own instead of one for each of the target's."""
    graph_batch: int = 0
    """Largest batch size of the decode graphs; 0 without graphs."""
    verify_rows: bool = False
    """``SGLANG_XPU_VERIFY_SINGLE_QUERY_ROWS``."""
    memory_fraction: float = 0.85

    @property
    def running(self) -> int:
        """Requests at a time: what the state slots allow (``KVCacheConfigurator.resolve_max_num_reqs``)."""
        return min(self.max_running, self.slots // slots_per_request(self.strategy))


def slots_per_request(strategy: str) -> int:
    """State slots that one running request takes with the radix cache on (``_calculate_mamba_ratio``).

    5 for ``extra_buffer`` with the overlap scheduler, 4 for ``extra_buffer_lazy``.

    Raises:
        KeyError: a strategy that pages of more than one token do not allow.
    """
    return OWN_SLOTS + TRACKING[strategy]


def kv_row(layers: int, kv_heads: int, head_dim: int, tp: int) -> int:
    """Bytes of one token: key and value of each KV head of this rank (``DefaultPoolConfigurator._compute_cell_size``).

    2 * layers * max(1, kv_heads / tp) * head_dim * 2
    """
    return 2 * layers * max(1, kv_heads // tp) * head_dim * KV_BYTES


def target_row(target: Target, tp: int) -> int:
    """Bytes of one token in the target's pool: its full-attention layers only."""
    return kv_row(target.full_layers, target.kv_heads, target.head_dim, tp)


def draft_row(target: Target, draft: Draft | None, tp: int) -> int:
    """Bytes of one token in the draft's pool; an MTP head is one full-attention layer of the target's shape."""
    if draft is None:
        return kv_row(1, target.kv_heads, target.head_dim, tp)
    return kv_row(draft.layers, draft.kv_heads, draft.head_dim, tp)


def pool(rows: int, page: int, row: int) -> int:
    """Bytes of a KV pool: its rows and one page of padding (``MHATokenToKVPool``)."""
    return (rows + page) * row


def ring_stride(window: int, page: int, block: int) -> int:
    """Rows of one request's ring: the window may begin up to a page early, and a block is written ahead of it.

    ceil((window + page - 1 + block) / page) * page (``RingLayout.stride`` in ``speculative/dflash_ring.py``)
    """
    return -(-(window + page - 1 + block) // page) * page


def draft_rows(serving: Serving) -> int:
    """Rows of the draft's pool: one for each of the target's, or the rings of the requests that run at a time."""
    if not serving.ring or serving.window is None:
        return serving.tokens
    return serving.running * ring_stride(serving.window, serving.page, serving.draft_tokens)


def recurrent(target: Target, tp: int) -> tuple[int, int]:
    """Bytes of one state slot: recurrent states, and inputs of the convolutions (``Mamba2StateShape.create``).

    layers * value_heads / tp * value_dim * key_dim * 4
    layers * channels / tp * (taps - 1) * 2, with channels = value_heads * value_dim + 2 * key_heads * key_dim
    """
    states = target.linear_value_heads // tp * target.linear_value_dim * target.linear_key_dim * STATE_BYTES
    inputs = _channels(target, tp) * (target.conv_taps - 1) * STATE_INPUT_BYTES
    return target.linear_layers * states, target.linear_layers * inputs


def _channels(target: Target, tp: int) -> int:
    values = target.linear_value_heads * target.linear_value_dim
    return (values + 2 * target.linear_key_heads * target.linear_key_dim) // tp


def slot_pool(target: Target, serving: Serving) -> int:
    """Bytes of the state slots and one slot of padding (``MambaPool``)."""
    return (serving.slots + 1) * sum(recurrent(target, serving.tp))


def verify_pool(target: Target, serving: Serving) -> int:
    """Bytes in which a verification keeps the state after each draft token (``MambaPool``, ``SpeculativeState``).

    (running + 1) * (draft_tokens * states + layers * channels / tp * (draft_tokens + taps - 2) * 2); the inputs of
    neighbouring tokens overlap and are stored once (``conv_window_dedup_enabled``).
    """
    states, _ = recurrent(target, serving.tp)
    columns = serving.draft_tokens + target.conv_taps - 2
    inputs = target.linear_layers * _channels(target, serving.tp) * columns * STATE_INPUT_BYTES
    return (serving.running + 1) * (serving.draft_tokens * states + inputs)


def row_length(serving: Serving) -> int:
    """Slots in a request's row: the context and what two steps may allocate beyond it, up to a page's end.

    context + max(4 + draft_tokens, 2 * step + page - 1) (``get_req_to_token_extra_context_len``), where a step
    allocates as many slots as it has draft tokens.
    """
    return serving.context + max(4 + serving.draft_tokens, 2 * serving.draft_tokens + serving.page - 1)


def request_tables(serving: Serving) -> int:
    """Bytes of ``req_to_token``; a draft with a window has one of its own over the same positions."""
    tables = 2 if serving.window is not None else 1
    return tables * (serving.running + 1) * row_length(serving) * INDEX_BYTES


def graph_tables(serving: Serving) -> int:
    """Bytes of the page tables that graphs read, one for each attention backend (``init_cuda_graph_state``).

    The target's has a row for each request, or for each token to verify; MTP has a backend for each step but the last
    and one to extend the head's cache, DFlash2 has one. What the graphs' kernels use is not in it.
    """
    batch = min(serving.graph_batch, serving.running)
    target = batch * serving.draft_tokens if serving.verify_rows else batch
    drafts = 1 if serving.window is not None else serving.steps
    return (target + drafts * batch) * -(-row_length(serving) // serving.page) * INDEX_BYTES


def tokens_that_fit(target: Target, draft: Draft | None, serving: Serving, total: int, free: int) -> int:
    """Tokens that the configurator would give the pool if ``--max-total-tokens`` asked for none.

    (free - (1 - fraction) * total - multimodal - slots - states of a verification - rings) / (target row + draft row),
    in whole pages (``KVCacheConfigurator._profile_available_bytes``, ``_handle_max_mamba_cache``,
    ``config_from_budget``). For a verification it sets aside a whole slot for each draft token, more than is used.

    Args:
        total: bytes free before the weights are loaded.
        free: bytes free after that.
    """
    slot = sum(recurrent(target, serving.tp))
    states = (serving.slots + 1 + (serving.running + 1) * serving.draft_tokens) * slot
    budget = free - int((1 - serving.memory_fraction) * total) - MULTIMODAL_RESERVE - states
    row = draft_row(target, draft, serving.tp)
    if serving.ring:
        budget -= pool(draft_rows(serving), serving.page, row)
        row = 0
    tokens = budget // (target_row(target, serving.tp) + row)
    return max(0, tokens // serving.page * serving.page)
