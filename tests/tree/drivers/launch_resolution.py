"""Resolve whole command lines with a faked torch.xpu, and ask the rules behind them what they say elsewhere.

A case: ``name`` and ``ask``, the function below that answers it, with that function's arguments.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fake_xpu  # type: ignore[import-not-found]  # in checks/, see conftest.py

from .answer import Case, answer

fake_xpu.install()

import torch  # type: ignore[import-not-found]  # noqa: E402  # in the base image only
from sglang.kernels.ops.mamba.mamba_state_scatter_triton import (  # type: ignore[import-not-found]  # noqa: E402
    fused_commit_track_indices,
    track_mamba_states_all_layers,
)
from sglang.srt.arg_groups import overrides  # type: ignore[import-not-found]  # noqa: E402
from sglang.srt.layers.attention.linear.kernels import gdn_triton  # type: ignore[import-not-found]  # noqa: E402
from sglang.srt.layers.attention.linear.kernels.gdn_triton import (  # type: ignore[import-not-found]  # noqa: E402
    TritonGDNKernel,
)
from sglang.srt.mem_cache import kv_cache_configurator  # type: ignore[import-not-found]  # noqa: E402
from sglang.srt.runtime_context import get_context, get_parallel  # type: ignore[import-not-found]  # noqa: E402
from sglang.srt.server_args import prepare_server_args  # type: ignore[import-not-found]  # noqa: E402
from sglang.srt.speculative import spec_utils  # type: ignore[import-not-found]  # noqa: E402
from sglang.srt.utils.hf_transformers_utils import get_config  # type: ignore[import-not-found]  # noqa: E402
from support import model_configs  # type: ignore[import-not-found]  # noqa: E402  # beside the drivers
from torch.nn.functional import softplus  # type: ignore[import-not-found]  # noqa: E402

SETTINGS = (
    "mamba_radix_cache_strategy",
    "mamba_track_interval",
    "page_size",
    "disable_overlap_schedule",
    "disable_radix_cache",
    "context_length",
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "linear_attn_backend",
    "sampling_backend",
    "max_mamba_cache_size",
    "chunked_prefill_size",
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_draft_window_size",
    "speculative_draft_attention_backend",
    "cuda_graph_config",
)


def models(folder: Path) -> dict[str, str]:
    """Config folders by what a command line calls them."""
    configs = {
        "{target}": model_configs.target(yarn=False),
        "{target-1m}": model_configs.target(yarn=True),
        "{draft}": model_configs.draft(yarn=False),
        "{draft-1m}": model_configs.draft(yarn=True),
        "{mamba2}": model_configs.mamba2(),
    }
    return {name: str(model_configs.write(folder / name.strip("{}"), config)) for name, config in configs.items()}


def resolve(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse, resolve and check as the server does; raises whatever SGLang raises when settings do not go together.

    Up to 0.5.18 the arguments resolve themselves when they are built.
    """
    server_args = prepare_server_args(list(arguments))
    if hasattr(server_args, "resolve_once"):
        server_args.resolve_once()
    server_args.check_server_args()
    decided = overrides.resolving_view(server_args) if hasattr(overrides, "resolving_view") else server_args
    settings = {name: getattr(decided, name) for name in SETTINGS}
    return settings | {"cuda_graph_config": dataclasses.asdict(settings["cuda_graph_config"])}


def launch(arguments: Sequence[str]) -> dict[str, Any]:
    """The settings that a command line ends with, or the error that it stops with."""
    with tempfile.TemporaryDirectory() as folder:
        known = models(Path(folder))
        try:
            return {"settings": resolve([known.get(word, word) for word in arguments])}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}


def late_fake() -> str:
    """What the device fake says once SGLang has decided on its platform."""
    try:
        fake_xpu.install()
    except RuntimeError as error:
        return str(error)
    return ""


def platform_rules(platform: str, backends: Sequence[str]) -> dict[str, Any]:
    """What the rules say about each architecture and backend where only ``is_<platform>`` holds."""
    from sglang.srt.arg_groups import mamba_hook  # 0.5.18 has none

    facts = SimpleNamespace(**{f"is_{name}": name == platform for name in ("cuda", "musa", "npu", "hip", "xpu", "cpu")})
    answers = {}
    with (
        mock.patch.object(overrides, "get_platform", return_value=facts),
        mock.patch.object(mamba_hook, "get_platform", return_value=facts),
    ):
        for architecture in (*sorted(overrides._MAMBA_EXTRA_BUFFER_ARCHS), "LlamaForCausalLM"):
            for backend in backends:
                config = SimpleNamespace(architectures=[architecture])
                view = SimpleNamespace(
                    linear_attn_backend=backend,
                    page_size=64,
                    mamba_radix_cache_strategy="extra_buffer",
                    disaggregation_mode="null",
                    speculative_num_draft_tokens=None,
                    mamba_track_interval=256,
                    chunked_prefill_size=4096,
                    disable_overlap_schedule=True,
                    attention_backend="triton",
                )
                answers[f"{architecture} {backend}"] = [
                    overrides.supports_mamba_cache_extra_buffer(view, config),
                    refusal(mamba_hook.validate_mamba_extra_buffer, view, config, mamba_cache_chunk_size_of=lambda: 64),
                    refusal(mamba_hook.validate_mamba_no_buffer, view, architecture),
                ]
    return answers


def refusal(validate: Any, *arguments: Any, **options: Any) -> str | None:
    """The message of an AssertionError, None when there is none."""
    try:
        validate(*arguments, **options)
    except AssertionError as error:
        return str(error)
    return None


def slots_per_request(strategy: str) -> int:
    """State slots that the pool reckons with for one running request, with overlap scheduling."""
    with get_context().override_server_args(mamba_radix_cache_strategy=strategy):
        slots: int = kv_cache_configurator.KVCacheConfigurator._calculate_mamba_ratio(SimpleNamespace())
        return slots


def state_bytes(tp_size: int) -> int:
    """Bytes of one state slot of the 27B target on one rank: all layers, convolution and recurrence."""
    with (
        tempfile.TemporaryDirectory() as folder,
        get_context().override_server_args(tp_size=tp_size),
        get_parallel().override(tp_size=tp_size, attn_tp_size=tp_size),
    ):
        path = model_configs.write(Path(folder, "target"), model_configs.target(yarn=False))
        config = get_config(str(path), trust_remote_code=True).get_text_config()
        size: int = config.mamba2_cache_params.mamba_cache_per_req
        return size


def commit_steps(track: bool) -> dict[str, Any]:
    """Step indices of a state commit: the fallback that an XPU tensor takes, and the fused kernel."""
    random = torch.Generator().manual_seed(4)
    requests, drafts, interval = 64, 8, 256
    accept_lens = torch.randint(1, drafts + 1, (requests,), generator=random)
    # Ahead of a boundary, on it, and past it.
    seq_lens = interval * torch.randint(1, 4, (requests,), generator=random)
    seq_lens = seq_lens + torch.randint(-drafts, 2, (requests,), generator=random)
    accept_index = torch.arange(requests * drafts).view(requests, drafts)
    accept_index = accept_index.where(torch.arange(drafts) < accept_lens[:, None], -1)
    batch = SimpleNamespace(
        mamba_track_indices=accept_lens if track else None,
        seq_lens=seq_lens,
        tree_cache=SimpleNamespace(page_size=64),
    )
    with mock.patch.object(spec_utils, "mamba_track_grid", return_value=interval):
        fallback = spec_utils._verify_commit_step_indices(
            batch=batch, accept_index=accept_index, accept_lens=accept_lens, draft_token_num=drafts
        )
    fused = fused_commit_track_indices(accept_index, accept_lens, seq_lens if track else None, drafts, interval)
    return {
        "accept_lens": accept_lens.tolist(),
        "seq_lens": seq_lens.tolist(),
        "fallback": [None if steps is None else steps.tolist() for steps in fallback],
        "fused": [None if steps is None else steps.tolist() for steps in fused],
    }


def tracked_slots() -> dict[str, Any]:
    """Which slot each slot's state came from after a decode step's snapshot, by pool and layer.

    The kernel sizes its grid by the card's cores. Request i runs in slot i + 1; the first and the last of three
    are at a checkpoint, and their track slots are 5 and 4.
    """
    layers, slots = 2, 6
    convolution = torch.arange(slots).view(1, slots, 1, 1).expand(layers, slots, 5, 3).float().contiguous()
    recurrence = torch.arange(slots).view(1, slots, 1, 1, 1).expand(layers, slots, 2, 4, 4).float().contiguous()
    track_mamba_states_all_layers(
        convolution,
        recurrence,
        torch.tensor([1, 2, 3], dtype=torch.int32),
        torch.tensor([True, False, True]),
        torch.tensor([5, 0, 4]),
        3,
    )
    return {name: pool.flatten(2).tolist() for name, pool in (("conv", convolution), ("ssm", recurrence))}


def verified_states() -> dict[str, Any]:
    """The states that a verification leaves per draft token, by what XPU calls and by the recurrence in FP64.

    q, k and v are views of one packed tensor, as the backend hands them over.
    """
    random = torch.Generator().manual_seed(5)
    requests, drafts, heads, value_heads, width = 2, 8, 1, 2, 16
    tokens = requests * drafts
    packed = torch.randn(1, tokens, (2 * heads + value_heads) * width, generator=random)
    q, k, v = packed.split([heads * width, heads * width, value_heads * width], dim=-1)
    q, k, v = q.unflatten(-1, (heads, width)), k.unflatten(-1, (heads, width)), v.unflatten(-1, (value_heads, width))
    a, b = torch.randn(2, tokens, value_heads, generator=random)
    decay, bias = torch.randn(2, value_heads, generator=random)
    pool = torch.randn(4, value_heads, width, width, generator=random)
    slots, rows = torch.tensor([3, 1], dtype=torch.int32), torch.arange(requests, dtype=torch.int32)
    states = torch.full((requests, drafts, value_heads, width, width), float("nan"))
    before = pool.clone()
    TritonGDNKernel().target_verify(
        A_log=decay,
        dt_bias=bias,
        q=q,
        k=k,
        v=v,
        a=a,
        b=b,
        ssm_states=pool,
        cache_indices=slots,
        query_start_loc=torch.arange(0, tokens + 1, drafts, dtype=torch.int32),
        intermediate_states_buffer=states,
        intermediate_state_indices=rows,
        cache_steps=drafts,
        retrieve_parent_token=None,
    )
    expected = torch.empty_like(states, dtype=torch.float64)
    for request in range(requests):
        for head in range(value_heads):
            state = before[slots[request], head].double()  # [value, key]
            for step in range(drafts):
                token = request * drafts + step
                key = k[0, token, 0].double()
                key = key / (key.square().sum() + 1e-6).sqrt()
                gate = -decay[head].double().exp() * softplus((a[token, head] + bias[head]).double())
                state = state * gate.exp()
                delta = (v[0, token, head].double() - state @ key) * b[token, head].double().sigmoid()
                state = state + delta[:, None] * key[None, :]
                expected[request, step, head] = state
    return {
        "wrapper": gdn_triton.fused_sigmoid_gating_delta_rule_update.__module__,
        "difference": float((states - expected).abs().max()),
        "pool_untouched": bool((pool == before).all()),
    }


ASKED: dict[str, Callable[..., Any]] = {
    "launch": launch,
    "late_fake": late_fake,
    "platform_rules": platform_rules,
    "slots_per_request": slots_per_request,
    "state_bytes": state_bytes,
    "commit_steps": commit_steps,
    "tracked_slots": tracked_slots,
    "verified_states": verified_states,
}


def measure(case: Case) -> Any:
    """The answer to one case."""
    return ASKED[case["ask"]](**{key: value for key, value in case.items() if key not in ("name", "ask")})


if __name__ == "__main__":
    answer(measure)
