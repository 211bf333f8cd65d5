"""Run XPUAttentionBackend's speculative decoding on a CPU: its own metadata, a recorded attention kernel in FP64.

Cases by ``kind``. Batches are given as ``lens``, the committed tokens of each request, and ``tokens``, the tokens to
verify per request. Every case names the verification's ``spec`` (a key of SPEC) where it has one, and may set
``switch``, ``runner`` (attributes of the model runner) and ``chunk`` (local attention).

eager      verify with the switch off, unless ``only off`` also on; the kernel's arguments, and the differences between
           the two and to a reference
graph      ``steps`` of capture and replay on one backend, ``masked`` as the runner does with an idle batch; what each
           replay's captured tensors then hold and compute, or the error of the backend
metadata   verify without a forward; a digest of all metadata, or the error in a graph
noncausal  verify with a layer that looks both ways; the error, if any
width      size of the page table at ``context`` tokens
draft      make the multi-step draft backend with ``topk``; the error, if any, and how many step backends it made;
           without such a backend nothing
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import sgl_kernel.flash_attn as kernel  # type: ignore[import-not-found]  # the stand-in in checks/stubs
import torch  # type: ignore[import-not-found]  # in the base image only
from sglang.srt.configs.model_config import AttentionArch  # type: ignore[import-not-found]
from sglang.srt.layers.attention import xpu_backend  # type: ignore[import-not-found]
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention  # type: ignore[import-not-found]
from sglang.srt.mem_cache.allocation_sizing import (  # type: ignore[import-not-found]
    get_req_to_token_extra_context_len,
)
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool  # type: ignore[import-not-found]
from sglang.srt.model_executor.forward_batch_info import (  # type: ignore[import-not-found]
    CaptureHiddenMode,
    ForwardMode,
)
from sglang.srt.runtime_context import get_context, get_parallel  # type: ignore[import-not-found]
from sglang.srt.speculative.dflash_info import DFlashVerifyInput  # type: ignore[import-not-found]
from sglang.srt.speculative.draft_utils import DraftBackendFactory  # type: ignore[import-not-found]
from sglang.srt.speculative.draft_worker_common import (  # type: ignore[import-not-found]
    make_draft_block_spec_info,
)
from sglang.srt.speculative.eagle_info import EagleVerifyInput  # type: ignore[import-not-found]
from sglang.srt.speculative.frozen_kv_mtp_info import FrozenKVMTPVerifyInput  # type: ignore[import-not-found]
from sglang.srt.speculative.ngram_info import NgramVerifyInput  # type: ignore[import-not-found]

from .answer import Case, answer
from .xpu_fakes import HEAD_DIM, Pool, fingerprint, model_runner, scattered_slots

HEADS, KEY_HEADS, PAGE, REQUESTS, MAX_BS = 4, 2, 64, 9, 8
WINDOW = 100  # keys to the left of the query that a windowed layer sees
SWITCH = "SGLANG_XPU_VERIFY_SINGLE_QUERY_ROWS"
GRAPH_FIELDS = ("cache_seqlens_int32", "cu_seqlens_q", "cu_seqlens_k", "page_table", "swa_page_table")
MODES = {
    "verify": ForwardMode.TARGET_VERIFY,
    "decode": ForwardMode.DECODE,
    "idle": ForwardMode.IDLE,
    "draft extend": ForwardMode.DRAFT_EXTEND_V2,
}


class SwaPool(SWAKVPool):  # type: ignore[misc]  # its base is unknown here
    """Layer 0 keeps its keys and values in the full pool, layer 1 in the sliding-window pool, at other slots."""

    def __init__(self, slots: int) -> None:
        self.full, self.swa = (Pool(slots, KEY_HEADS, torch.float64) for _ in range(2))
        self.k = self.full.k
        self.swa_layer_nums = 1
        pages = torch.randperm(slots // PAGE, generator=torch.Generator().manual_seed(6)).unsqueeze(1)
        self.full_to_swa_index_mapping = (pages * PAGE + torch.arange(PAGE)).flatten()

    def get_kv_buffer(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (self.swa if layer_id == 1 else self.full).get_kv_buffer(layer_id)


def eagle(tokens: int, lens: list[int], topk: int = 1, cls: Any = EagleVerifyInput) -> Any:
    """EAGLE's input as its worker makes it: with a mask, also for a chain."""
    empty = dict.fromkeys(
        ("draft_token", "positions", "retrieve_index", "retrieve_next_token", "retrieve_next_sibling"), None
    )
    return cls(
        **empty,
        retrieve_cum_len=None,
        custom_mask=torch.ones(sum((length + tokens) * tokens for length in lens), dtype=torch.bool),
        spec_steps=tokens - 1,
        topk=topk,
        draft_token_num=tokens,
        capture_hidden_mode=CaptureHiddenMode.FULL,
        seq_lens_sum=None,
        seq_lens_cpu=None,
    )


def dflash(tokens: int, **fields: Any) -> Any:
    return DFlashVerifyInput(draft_token=None, positions=None, draft_token_num=tokens, **fields)


SPEC: dict[str, Any] = {
    "eagle": eagle,
    "frozen kv mtp": lambda tokens, lens: eagle(tokens, lens, cls=FrozenKVMTPVerifyInput),
    "tree": lambda tokens, lens: eagle(tokens, lens, topk=2),
    "dflash": lambda tokens, _lens: dflash(tokens),
    "dflash draft block": lambda tokens, _lens: make_draft_block_spec_info(
        draft_token_num=tokens, device=torch.device("cpu")
    ),
    "dflash with mask": lambda tokens, _lens: dflash(tokens, custom_mask=torch.ones(1, dtype=torch.bool)),
    "dflash ragged": lambda tokens, _lens: dflash(tokens, ragged_verify_layout=SimpleNamespace()),
    "ngram": lambda tokens, lens: NgramVerifyInput(custom_mask=eagle(tokens, lens).custom_mask, draft_token_num=tokens),
}


@contextlib.contextmanager
def server(case: Case, switch: bool) -> Iterator[None]:
    settings = {"speculative_eagle_topk": case.get("topk", 1), "speculative_num_draft_tokens": case.get("tokens")}
    environment = {SWITCH: "1"} if switch else {}
    with (
        mock.patch.dict(os.environ, environment),
        # What the backend asks for encoder-decoder models; no graph of these tests belongs to one.
        mock.patch("sglang.srt.model_executor.cuda_graph_config.cuda_graph_fully_disabled", return_value=True),
        get_context().override_server_args(**settings, **case.get("server", {})),
        get_parallel().override(tp_size=1, attn_dcp_size=1, attn_dcp_rank=0),
    ):
        if not switch:
            os.environ.pop(SWITCH, None)
        yield


class Bench:
    """A backend over a filled cache of REQUESTS rows, and attention as it has to be, token by token."""

    def __init__(self, case: Case) -> None:
        self.case = case
        row_len = case.get("context", 448) + case.get("extra", 64)
        self.slots = scattered_slots(REQUESTS, row_len, PAGE)
        cells = int(self.slots.max()) // PAGE * PAGE + PAGE
        self.pool: Any = SwaPool(cells) if case.get("swa_pool") else Pool(cells, KEY_HEADS, torch.float64)
        differences = dict(case.get("runner", {}))
        if differences.pop("mla", False):
            differences["attention_arch"] = AttentionArch.MLA
        self.runner = model_runner(
            self.pool,
            self.slots,
            heads=HEADS,
            context_len=case.get("context", 448),
            attention_chunk_size=case.get("chunk"),
            sliding_window_size=WINDOW if case.get("swa_pool") else None,
            is_hybrid_swa=bool(case.get("swa_pool")),
            **differences,
        )
        self.backend = xpu_backend.XPUAttentionBackend(self.runner)

    def batch(self, mode: str, lens: list[int]) -> SimpleNamespace:
        """Requests 1, 2, ... of the pool; the tokens of the step are behind lens, in draft extend within them."""
        tokens = self.case["tokens"] if mode in ("verify", "draft extend") else 1
        seq_lens = torch.tensor(lens)
        rows = torch.arange(1, len(lens) + 1)
        first = seq_lens if mode == "verify" else seq_lens - tokens
        positions = first.unsqueeze(1) + torch.arange(tokens)
        encoder = self.case.get("encoder")
        spec_info = None
        if mode == "verify":
            spec_info = SPEC[self.case.get("spec", "eagle")](tokens, lens)
        elif mode == "draft extend":
            spec_info = SimpleNamespace(num_tokens_per_req=tokens)
        return SimpleNamespace(
            forward_mode=MODES[mode],
            batch_size=len(lens),
            seq_lens=seq_lens,
            seq_lens_cpu=seq_lens,
            req_pool_indices=rows,
            spec_info=spec_info,
            out_cache_loc=self.slots[rows.unsqueeze(1), positions].flatten().long(),
            encoder_lens=None if encoder is None else torch.tensor(encoder),
            positions=positions,
            _attn_output=None,
        )

    def layer(self, layer_id: int, **attributes: Any) -> Any:
        """Layer 0 sees everything before it, layer 1 a window; with a chunk, both are local-attention layers."""
        layer = RadixAttention(
            num_heads=HEADS,
            head_dim=HEAD_DIM,
            scaling=HEAD_DIM**-0.5,
            num_kv_heads=KEY_HEADS,
            layer_id=layer_id,
            sliding_window_size=WINDOW if layer_id == 1 else -1,
            **attributes,
        )
        layer.use_irope = self.case.get("chunk") is not None
        if self.case.get("runner", {}).get("kv_cache_dtype_str"):
            layer.k_scale = layer.v_scale = torch.tensor(2.0)
        return layer

    def queries(self, batch: SimpleNamespace) -> torch.Tensor:
        """The same for every layer and switch, [tokens, heads * dim]."""
        random = torch.Generator().manual_seed(2)
        return torch.randn(batch.positions.numel(), HEADS * HEAD_DIM, generator=random, dtype=torch.float64)

    def attend(self, batch: SimpleNamespace, layer: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        """The backend's output, [tokens, heads, dim], and the one call of the kernel."""
        decodes = batch.forward_mode.is_decode_or_idle()
        forward = self.backend.forward_decode if decodes else self.backend.forward_extend
        kernel.calls.clear()
        output = forward(self.queries(batch), None, None, layer, batch)
        (call,) = kernel.calls
        return output.view(-1, HEADS, HEAD_DIM), call

    def reference(self, batch: SimpleNamespace, layer: Any) -> torch.Tensor:
        """softmax(q k^T * scale) v over the keys that each token may see, in loops; no page, no batch, no mask."""
        q = self.queries(batch).view(-1, HEADS, HEAD_DIM)
        keys, values = self.pool.get_kv_buffer(layer.layer_id)
        out = torch.empty_like(q)
        owners = batch.req_pool_indices.repeat_interleave(batch.positions.shape[1]).tolist()
        for row, (owner, position) in enumerate(zip(owners, batch.positions.flatten().tolist(), strict=True)):
            first = max(0, position - WINDOW) if layer.sliding_window_size >= 0 else 0
            if self.case.get("chunk") is not None:
                first = max(first, position // self.case["chunk"] * self.case["chunk"])
            seen = self.slots[owner, first : position + 1].long()
            if self.case.get("swa_pool") and layer.layer_id == 1:
                seen = self.pool.full_to_swa_index_mapping[seen]
            for group in range(KEY_HEADS):
                heads = slice(group * HEADS // KEY_HEADS, (group + 1) * HEADS // KEY_HEADS)
                weights = torch.softmax(q[row, heads] @ keys[seen, group].T * layer.scaling, dim=-1)
                out[row, heads] = weights @ values[seen, group]
        return out


def largest(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    return max(float((one - other).abs().max()) for one, other in zip(found, expected, strict=True))


def shape_of(call: dict[str, Any]) -> dict[str, Any]:
    return {
        "max_seqlen_q": call["max_seqlen_q"],
        "cache_seqlens": call["cache_seqlens"].tolist(),
        "cu_seqlens_q": call["cu_seqlens_q"].tolist(),
        "tables": call["page_table"].shape[0],
    }


def prepared(case: Case) -> tuple[Bench, SimpleNamespace]:
    bench = Bench(case)
    batch = bench.batch("verify", case["lens"])
    bench.backend.init_forward_metadata(batch)
    return bench, batch


def eager(case: Case) -> dict[str, Any]:
    with server(case, False):
        bench, batch = prepared(case)
        layers = [bench.layer(0), bench.layer(1)]
        off, calls = zip(*(bench.attend(batch, layer) for layer in layers), strict=True)
        measured = {"off": [shape_of(call) for call in calls], "off arguments": fingerprint(calls)}
        if case.get("only off"):
            return measured
        expected = [bench.reference(batch, layer) for layer in layers]
    with server(case, True):
        bench, batch = prepared(case)
        on, calls = zip(*(bench.attend(batch, layer) for layer in layers), strict=True)
    return {
        **measured,
        "cu_seqlens_k": bench.backend.forward_metadata.cu_seqlens_k.tolist(),
        "on": [shape_of(call) for call in calls],
        "on to reference": largest(on, expected),
        "off to reference": largest(off, expected),
        "on to off": largest(on, off),
    }


def graph(case: Case) -> list[dict[str, Any]]:
    with server(case, case.get("switch", False)):
        bench = Bench(case)
        bench.backend.init_cuda_graph_state(MAX_BS, MAX_BS * case["tokens"])
        captured: dict[tuple[str, int], Any] = {}
        return [graph_step(bench, captured, step) for step in case["steps"]]


def graph_step(bench: Bench, captured: dict[tuple[str, int], Any], step: Case) -> dict[str, Any]:
    """One capture or replay. A graph reads the tensors that its capture bound, and no attribute set later."""
    backend, batch = bench.backend, bench.batch(step["mode"], step["lens"])
    for name in ("seq_lens", "req_pool_indices"):
        # Parts of longer buffers, as the runner's are: who asks for too many gets zeros, not what lies in memory there.
        buffer = torch.zeros(MAX_BS * bench.case["tokens"], dtype=torch.int64)
        setattr(batch, name, buffer[: batch.batch_size].copy_(getattr(batch, name)))
    if step.get("masked"):
        batch.spec_info.custom_mask = torch.ones(1, dtype=torch.bool)
    key = ("decode" if step["mode"] == "idle" else step["mode"], len(step["lens"]))
    table = backend.decode_cuda_graph_metadata["page_table"]
    before = table.clone()
    try:
        backend.init_forward_metadata_out_graph(batch, in_capture=step.get("capture", False))
    except KeyError as missing:
        return {"uncaptured": str(missing.args[0])}
    except AssertionError as refusal:
        return {"error": str(refusal)}
    if step.get("capture"):
        captured[key] = dataclasses.replace(backend.forward_metadata)
    if key not in captured:
        return {"uncaptured": None}
    metadata = captured[key]
    needed = -(-int(metadata.cache_seqlens_int32.max()) // PAGE)
    rows = metadata.page_table.shape[0]
    measured = {
        "max_seq_len_q": metadata.max_seq_len_q,
        "cu_seqlens_q": metadata.cu_seqlens_q.tolist(),
        "cu_seqlens_k": metadata.cu_seqlens_k.tolist(),
        "cache_seqlens": metadata.cache_seqlens_int32.tolist(),
        "addresses": [
            getattr(metadata, name).data_ptr() for name in GRAPH_FIELDS if getattr(metadata, name) is not None
        ],
        "columns missing": max(0, needed - metadata.page_table.shape[1]),
        "rows of others written": int((table[rows:] != before[rows:]).any(dim=1).sum()),
        "digest": fingerprint(
            {name: live(metadata, name) for name in GRAPH_FIELDS if getattr(metadata, name) is not None}
        ),
    }
    if step.get("attend", True):
        backend.forward_metadata = metadata
        layers = [bench.layer(0), bench.layer(1)]
        found = [bench.attend(batch, layer)[0] for layer in layers]
        measured["to reference"] = largest(found, [bench.reference(batch, layer) for layer in layers])
    return measured


def live(metadata: Any, name: str) -> torch.Tensor:
    """A field without the columns of a table that no row of this batch uses."""
    value = getattr(metadata, name)
    if not name.endswith("page_table"):
        return value
    pages = -(-metadata.cache_seqlens_int32 // PAGE)
    return torch.cat([row[:used] for row, used in zip(value, pages.tolist(), strict=True)])


def metadata(case: Case) -> dict[str, Any]:
    with server(case, case["switch"]):
        bench = Bench(case)
        batch = bench.batch("verify", case["lens"])
        if case.get("graph"):
            bench.backend.init_cuda_graph_state(MAX_BS, MAX_BS * case["tokens"])
            try:
                bench.backend.init_forward_metadata_out_graph(batch, in_capture=True)
            except AssertionError as refusal:
                return {"error": str(refusal)}
        else:
            bench.backend.init_forward_metadata(batch)
        found = bench.backend.forward_metadata
        return {
            "queries": found.max_seq_len_q,
            "rows": found.cache_seqlens_int32.numel(),
            "digest": fingerprint(
                [
                    {field.name: trimmed(bench, part, field.name) for field in dataclasses.fields(part)}
                    for part in (found, bench.backend.forward_metadata_spec_decode_expand)
                    if part is not None
                ]
            ),
        }


def trimmed(bench: Bench, part: Any, name: str) -> Any:
    """A field; of a graph's table only the columns that hold the context, which upstream's has too."""
    value = getattr(part, name)
    if bench.case.get("graph") and name == "page_table":
        return value[:, : -(-bench.backend.max_context_len // PAGE)]
    return value


def noncausal(case: Case) -> dict[str, Any]:
    with server(case, case["switch"]):
        bench, batch = prepared(case)
        try:
            bench.attend(batch, bench.layer(0, attn_type=AttentionType.ENCODER_ONLY))
        except AssertionError as refusal:
            return {"error": str(refusal)}
        return {"error": None}


def width(case: Case) -> dict[str, Any]:
    with server(case, case["switch"]):
        extra = get_req_to_token_extra_context_len()
        slots = torch.zeros(1, 1, dtype=torch.int32).expand(REQUESTS, case["context"] + extra)
        pool = Pool(PAGE, KEY_HEADS, torch.float64)
        backend = xpu_backend.XPUAttentionBackend(
            model_runner(pool, slots, heads=HEADS, context_len=case["context"], **case.get("runner", {}))
        )
        backend.init_cuda_graph_state(MAX_BS, MAX_BS * case["tokens"])
        return {"extra": extra, "page_table": list(backend.decode_cuda_graph_metadata["page_table"].shape)}


def draft(case: Case) -> dict[str, Any]:
    """Through the factory, as EAGLE's worker does it."""
    real, made = xpu_backend.XPUAttentionBackend, []

    def count(*arguments: Any, **options: Any) -> Any:
        made.append(real(*arguments, **options))
        return made[-1]

    with server(case, False), mock.patch.object(xpu_backend, "XPUAttentionBackend", count):
        slots = scattered_slots(REQUESTS, 512, PAGE)
        runner = model_runner(
            Pool(slots.numel(), KEY_HEADS, torch.float64),
            slots,
            heads=HEADS,
            is_draft_worker=True,
            draft_attention_backend="intel_xpu",
        )
        factory = DraftBackendFactory(runner, case["topk"], case["num_steps"])
        if not hasattr(factory, "_create_intel_xpu_decode_backend"):
            return {}
        try:
            _, backend = factory._create_intel_xpu_decode_backend()
        except ValueError as refusal:
            return {"error": str(refusal), "made": len(made)}
        batch = SimpleNamespace(
            batch_size=2,
            seq_lens=torch.tensor([70, 9]),
            seq_lens_cpu=torch.tensor([70, 9]),
            seq_lens_sum=79,
            req_pool_indices=torch.tensor([1, 2]),
            forward_mode=ForwardMode.DECODE,
            spec_info=SimpleNamespace(is_draft_input=lambda: True),
            encoder_lens=None,
        )
        backend.init_cuda_graph_state(MAX_BS, MAX_BS * case["topk"])
        backend.init_forward_metadata_out_graph(batch, in_capture=True)
        return {
            "error": None,
            "made": len(made),
            "cache_seqlens": [each.forward_metadata.cache_seqlens_int32.tolist() for each in made],
            "branches prepared": [each.forward_metadata_spec_decode_expand is not None for each in made],
        }


KINDS = {"eager": eager, "graph": graph, "metadata": metadata, "noncausal": noncausal, "width": width, "draft": draft}


def measure(case: Case) -> Any:
    return KINDS[case["kind"]](case)


if __name__ == "__main__":
    answer(measure)
