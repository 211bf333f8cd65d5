"""Follow an MTP head and a hybrid target through what 0.5.18 leaves to CUDA alone: start, verification, commit.

A case: ``name`` and ``ask``, the function below that answers it, with that function's arguments. Kernels run in
Triton's interpreter, in float32. ``error`` is the text of what stopped a case, null where nothing did.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fake_xpu  # type: ignore[import-not-found]  # in checks/, see conftest.py

from .answer import Case, answer

fake_xpu.install()

import sgl_kernel  # type: ignore[import-not-found]  # noqa: E402  # the stand-in of checks/stubs
import torch  # type: ignore[import-not-found]  # noqa: E402  # in the base image only
from torch.nn.functional import silu, softplus  # type: ignore[import-not-found]  # noqa: E402


def no_rollback(
    x: Any, conv_state: Any, weight: Any, bias: Any = None, activation: Any = None, conv_state_indices: Any = None
) -> None:
    """The signature of sgl-kernel-xpu's update: none of the arguments by which a rejected token is rolled back."""
    del x, conv_state, weight, bias, activation, conv_state_indices


sgl_kernel.causal_conv1d_update_xpu = no_rollback

from sglang.kernels.ops.mamba.causal_conv1d_triton import (  # type: ignore[import-not-found]  # noqa: E402
    causal_conv1d_update,
)
from sglang.kernels.ops.mamba.mamba_state_scatter_triton import (  # type: ignore[import-not-found]  # noqa: E402
    scatter_mamba_states_after_mtp_verify,
)
from sglang.srt.configs.mamba_utils import (  # type: ignore[import-not-found]  # noqa: E402
    Mamba2CacheParams,
    Mamba2StateDType,
    Mamba2StateShape,
)
from sglang.srt.layers.attention.linear import gdn_backend  # type: ignore[import-not-found]  # noqa: E402
from sglang.srt.layers.attention.linear.gdn_backend import (  # type: ignore[import-not-found]  # noqa: E402
    GDNAttnBackend,
    GDNKernelDispatcher,
)
from sglang.srt.layers.attention.linear.utils import (  # type: ignore[import-not-found]  # noqa: E402
    LinearAttnKernelBackend,
)
from sglang.srt.mem_cache.memory_pool import MambaPool  # type: ignore[import-not-found]  # noqa: E402
from sglang.srt.model_executor.forward_batch_info import ForwardMode  # type: ignore[import-not-found]  # noqa: E402
from sglang.srt.models.qwen3_5_mtp import (  # type: ignore[import-not-found]  # noqa: E402
    Qwen3_5ForCausalLMMTP,
)

LAYERS, SLOTS, REQUESTS, DRAFTS, TAPS = 2, 6, 3, 8, 4
KEY_HEADS, VALUE_HEADS, WIDTH = 1, 2, 16
KEYS, VALUES = KEY_HEADS * WIDTH, VALUE_HEADS * WIDTH
CHANNELS = 2 * KEYS + VALUES
IN_SLOTS = torch.tensor([4, 1, 5], dtype=torch.int32)
"""Where the requests' states lie."""


def stopped(function: Callable[[], Any]) -> dict[str, Any]:
    """What it returns, or the error of one of the kinds that a device at fault raises."""
    try:
        return {"error": None, "value": function()}
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def handover() -> dict[str, Any]:
    """The head takes the target's embedding and lm_head; which calls reach the card."""
    holder = SimpleNamespace
    head = holder(
        model=holder(embed_tokens=holder(weight="own")),
        lm_head=holder(weight="own"),
        config=holder(tie_word_embeddings=False),
    )
    with mock.patch.multiple(torch.xpu, empty_cache=mock.DEFAULT, synchronize=mock.DEFAULT) as card:
        result = stopped(lambda: Qwen3_5ForCausalLMMTP.set_embed_and_head(head, "target's", "target's"))
    calls = [name for name, call in card.items() if call.called]
    return {**result, "weights": [head.model.embed_tokens.weight, head.lm_head.weight], "calls": calls}


def new_pool(topk: int) -> Any:
    """A pool for a device that is not CUDA, with room for what a verification leaves."""
    shape = Mamba2StateShape(
        conv=[(CHANNELS, TAPS - 1)],
        temporal=(VALUE_HEADS, WIDTH, WIDTH),
        intermediate_size=VALUES,
        conv_dim=CHANNELS,
        ssm_state_size=WIDTH,
        num_heads=VALUE_HEADS,
        head_dim=WIDTH,
        state_size=WIDTH,
        conv_kernel=TAPS,
        num_k_heads_per_tp=KEY_HEADS,
    )
    dtypes = Mamba2StateDType(conv=torch.float32, temporal=torch.float32)
    return MambaPool(
        size=SLOTS - 1,
        spec_state_size=REQUESTS,
        cache_params=Mamba2CacheParams(shape=shape, dtype=dtypes, layers=list(range(LAYERS))),
        mamba_layer_ids=list(range(LAYERS)),
        device="cpu",
        speculative_num_draft_tokens=DRAFTS,
        speculative_eagle_topk=topk,
    )


def pool(topk: int) -> dict[str, Any]:
    """Devices of a pool's tensors, and shapes of what a verification leaves."""

    def described() -> dict[str, Any]:
        state = new_pool(topk).mamba_cache
        tensors = [state.temporal, state.intermediate_ssm, *state.conv, *state.intermediate_conv_window]
        return {
            "devices": sorted({tensor.device.type for tensor in tensors}),
            "states": list(state.intermediate_ssm.shape),
            "windows": list(state.intermediate_conv_window[0].shape),
        }

    return stopped(described)


def filled_pool() -> Any:
    """A pool with random states, also where upstream would want it on another device."""
    zeros = torch.zeros

    def on_this_device(*size: Any, device: str, **options: Any) -> torch.Tensor:
        del device
        return zeros(*size, **options)

    with mock.patch.object(torch, "zeros", on_this_device):
        made = new_pool(topk=1)
    random = torch.Generator().manual_seed(6)
    for tensor in (*made.mamba_cache.conv, made.mamba_cache.temporal):
        tensor.copy_(torch.randn(tensor.shape, generator=random))
    return made


@dataclasses.dataclass
class Inputs:
    """What one layer of every request is given."""

    mixed: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    layer: SimpleNamespace

    @staticmethod
    def random(tokens: int) -> Inputs:
        draw = torch.Generator().manual_seed(7)
        layer = SimpleNamespace(
            layer_id=0,
            conv_weights=torch.randn(CHANNELS, TAPS, generator=draw),
            bias=torch.randn(CHANNELS, generator=draw),
            activation="silu",
            A_log=torch.randn(VALUE_HEADS, generator=draw),
            dt_bias=torch.randn(VALUE_HEADS, generator=draw),
            q_dim=KEYS,
            k_dim=KEYS,
            v_dim=VALUES,
            num_q_heads=KEY_HEADS,
            num_k_heads=KEY_HEADS,
            num_v_heads=VALUE_HEADS,
            head_q_dim=WIDTH,
            head_k_dim=WIDTH,
            head_v_dim=WIDTH,
        )
        a, b = torch.randn(2, tokens, VALUE_HEADS, generator=draw)
        return Inputs(torch.randn(tokens, CHANNELS, generator=draw), a, b, layer)


def layer_of(made: Any, lengths: Sequence[int]) -> GDNAttnBackend:
    """The real backend over a pool, planned for one run of tokens per request."""
    backend = GDNAttnBackend.__new__(GDNAttnBackend)
    backend.req_to_token_pool = SimpleNamespace(
        mamba_pool=made, mamba2_layer_cache=made.mamba2_layer_cache, size=REQUESTS
    )
    backend.kernel_dispatcher = GDNKernelDispatcher(*[LinearAttnKernelBackend.TRITON] * 3)
    backend.verify_intermediate_state_indices = torch.arange(REQUESTS, dtype=torch.int32)
    backend.mis_metadata = backend._use_strided_target_verify_qkv = None  # what later releases ask besides
    backend.forward_metadata = SimpleNamespace(
        query_start_loc=torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
        mamba_cache_indices=IN_SLOTS,
        retrieve_next_token=None,
        retrieve_next_sibling=None,
        retrieve_parent_token=None,
        has_mamba_track_mask=False,
        state_checkpoint_cu_starts=None,
        num_state_checkpoints=0,
        state_checkpoint_every_n_tokens=0,
        conv_block_table=None,  # a later release's
    )
    return backend


def verify(convolution: bool = True, recurrence: bool = True) -> dict[str, Any]:
    """One layer's verification, against a convolution and a recurrence in FP64.

    What is not the layer's own is left out of the question: the convolution is Triton's then, whatever the layer is
    bound to, and the recurrence only takes what it is given.
    """
    made, inputs = filled_pool(), Inputs.random(REQUESTS * DRAFTS)
    cache = made.mamba_cache
    wanted = expected(inputs, cache.conv[0][0], cache.temporal[0], [DRAFTS] * REQUESTS, [True] * REQUESTS)
    backend = layer_of(made, [DRAFTS] * REQUESTS)
    taken = None if recurrence else take(backend)
    batch = SimpleNamespace(
        forward_mode=ForwardMode.TARGET_VERIFY,
        spec_info=SimpleNamespace(draft_token_num=DRAFTS),
        req_pool_indices=torch.arange(REQUESTS),
    )
    update = gdn_backend.causal_conv1d_update if convolution else causal_conv1d_update
    with mock.patch.object(gdn_backend, "causal_conv1d_update", update):
        result = stopped(lambda: backend.forward_extend(inputs.layer, batch, inputs.mixed.clone(), inputs.a, inputs.b))
    if result["error"] is not None:
        return result
    windows = difference(cache.intermediate_conv_window[0][0, :REQUESTS].flatten(0, 1), wanted.windows)
    if taken is not None:
        return {"error": None, "mixed": difference(torch.cat(taken, dim=1), wanted.mixed), "windows": windows}
    return {
        "error": None,
        "output": difference(result["value"].flatten(0, 1), wanted.output),
        "windows": windows,
        "states": difference(cache.intermediate_ssm[0, :REQUESTS].flatten(0, 1), wanted.states),
    }


def take(backend: GDNAttnBackend) -> list[torch.Tensor]:
    """Let the recurrence only take queries, keys and values; where they will be."""
    taken: list[torch.Tensor] = []

    def taker(*, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_options: Any) -> tuple[None, None, None]:
        taken.extend(part.flatten(0, 1).flatten(1) for part in (q, k, v))
        return None, None, None

    backend.kernel_dispatcher = SimpleNamespace(extend=taker, target_verify=taker)
    return taken


def extend(lengths: list[int], cached: list[int]) -> dict[str, Any]:
    """What one layer's prefill makes of the convolution; ``cached`` tokens of a request left their state before.

    The recurrence's chunk kernels ask Triton for a device and are left out.
    """
    made, inputs = filled_pool(), Inputs.random(sum(lengths))
    cache = made.mamba_cache
    wanted = expected(inputs, cache.conv[0][0], cache.temporal[0], lengths, [bool(tokens) for tokens in cached])
    backend = layer_of(made, lengths)
    taken = take(backend)
    batch = SimpleNamespace(
        forward_mode=ForwardMode.EXTEND, extend_prefix_lens=torch.tensor(cached), extend_seq_lens_cpu=lengths
    )
    result = stopped(lambda: backend.forward_extend(inputs.layer, batch, inputs.mixed.clone(), inputs.a, inputs.b))
    if result["error"] is not None:
        return result
    last = torch.tensor(lengths).cumsum(0) - 1
    return {
        "error": None,
        "mixed": difference(torch.cat(taken, dim=1), wanted.mixed),
        "windows": difference(cache.conv[0][0][IN_SLOTS], wanted.windows[last]),
    }


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).abs().max())


@dataclasses.dataclass
class Expected:
    """By token: what the convolution makes of it, the output, and convolution window and recurrent state after it."""

    mixed: torch.Tensor
    output: torch.Tensor
    windows: torch.Tensor
    states: torch.Tensor


def expected(
    inputs: Inputs, conv: torch.Tensor, recurrence: torch.Tensor, lengths: Sequence[int], continued: Sequence[bool]
) -> Expected:
    """In FP64, from the pool's states where a request is continued, from zero where it is new."""
    layer, token = inputs.layer, 0
    mixes, output, windows, states = [], [], [], []
    for slot, length, goes_on in zip(IN_SLOTS, lengths, continued, strict=True):
        window, state = conv[slot].double() * goes_on, recurrence[slot].double() * goes_on
        for _ in range(length):
            taps = torch.cat([window, inputs.mixed[token].double()[:, None]], dim=1)
            window = taps[:, 1:]
            mixed = silu((taps * layer.conv_weights.double()).sum(1) + layer.bias.double())
            query, key, value = mixed.split([KEYS, KEYS, VALUES])
            query, key = (part / (part.square().sum() + 1e-6).sqrt() for part in (query, key))
            gate = -layer.A_log.double().exp() * softplus((inputs.a[token] + layer.dt_bias).double())
            state = state * gate.exp()[:, None, None]  # [head, value, key]
            delta = (value.view(VALUE_HEADS, WIDTH) - state @ key) * inputs.b[token].double().sigmoid()[:, None]
            state = state + delta[:, :, None] * key
            mixes.append(mixed)
            output.append(state @ query * WIDTH**-0.5)
            windows.append(window)
            states.append(state)
            token += 1
    return Expected(*(torch.stack(parts) for parts in (mixes, output, windows, states)))


def commit(track: bool) -> dict[str, Any]:
    """The pool after a commit, as (request, step) of the verification that each slot of each layer holds.

    Every entry of the per-token buffers holds its own number; tensors say that they are an XPU's.
    """
    made = filled_pool()
    cache = made.mamba_cache
    marks = torch.arange(LAYERS * REQUESTS * DRAFTS).view(LAYERS, REQUESTS, DRAFTS) + 1.0
    window = torch.zeros(LAYERS, REQUESTS + 1, DRAFTS, CHANNELS, TAPS - 1)
    window[:, :REQUESTS] = marks[..., None, None]
    cache.intermediate_ssm[:, :REQUESTS] = marks[..., None, None, None]
    cache = dataclasses.replace(cache, intermediate_conv_window=[window])
    for tensor in (*cache.conv, cache.temporal):
        tensor.zero_()
    tracked = (torch.tensor([2, 3, 3]), torch.tensor([-1, 5, -1])) if track else (None, None)
    with mock.patch.object(torch.Tensor, "is_xpu", True):
        result = stopped(
            lambda: scatter_mamba_states_after_mtp_verify(cache, IN_SLOTS, torch.tensor([0, 7, 3]), *tracked)
        )
    if result["error"] is not None:
        return result
    return {"error": None, "conv": held(cache.conv[0], marks), "ssm": held(cache.temporal, marks)}


def held(states: torch.Tensor, marks: torch.Tensor) -> list[dict[int, Any]]:
    """By layer: slot to the (request, step) that fills it."""
    found = []
    for layer, of_layer in enumerate(states.flatten(2)):
        slots: dict[int, Any] = {}
        for slot, values in enumerate(of_layer):
            (mark,) = values.unique()
            if mark:
                slots[slot] = (marks[layer] == mark).nonzero()[0].tolist()
        found.append(slots)
    return found


ASKED: dict[str, Callable[..., Any]] = {
    "handover": handover,
    "pool": pool,
    "verify": verify,
    "extend": extend,
    "commit": commit,
}


def measure(case: Case) -> Any:
    """The answer to one case."""
    return ASKED[case["ask"]](**{key: value for key, value in case.items() if key not in ("name", "ask")})


if __name__ == "__main__":
    answer(measure)
