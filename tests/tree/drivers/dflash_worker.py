"""The real DFlashWorkerV2 on a CPU, between a stand-in target and a stand-in draft model.

The worker's forward_batch_generation, the request pool, the draft's KV pool, the KV index plans and
Req._compute_max_prefix_len are the tree's own. The target's hidden state of a token is ``(request, position)``, and the
draft's "projection" passes it on, so each KV row says whose it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import sglang.srt.speculative.dflash_worker_v2 as worker_module  # type: ignore[import-not-found]
import torch  # type: ignore[import-not-found]  # in the base image only
from sglang.srt import runtime_context
from sglang.srt.managers.schedule_batch import Req, ReqKvInfo  # type: ignore[import-not-found]
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool  # type: ignore[import-not-found]
from sglang.srt.model_executor.forward_batch_info import ForwardMode  # type: ignore[import-not-found]
from sglang.srt.runtime_context import get_context, get_parallel  # type: ignore[import-not-found]
from sglang.srt.speculative.dflash_info import DFlashVerifyInput  # type: ignore[import-not-found]

try:
    from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator  # type: ignore[import-not-found]
except ImportError:  # up to 0.5.19: no plans, slots are handed over as they are, and a request holds its own row
    KVIndexTranslator = None

CONTEXT, VOCABULARY, HIDDEN, NOISE = 96, 16, 2, -1.0
FIRST_TARGET_SLOT = 1000  # past every draft row of a ring, so that a mix-up is an index error
torch.set_num_threads(1)  # one core is shared with other tests


class Request:
    """What the worker and the request pool read of a Req."""

    def __init__(self, number: int, length: int) -> None:
        self.number = number
        self.length = length  # tokens to prefill, then tokens committed
        self.done = 0  # tokens that prefill has seen
        self.kv = ReqKvInfo() if KVIndexTranslator else SimpleNamespace(kv_allocated_len=0, req_pool_idx=None)
        self.decoding = False
        self.decoded = False  # at least once, so that the worker has had its say about the prefix

    @property
    def req_pool_idx(self) -> int | None:
        """Where an older pool looks for the row."""
        row: int | None = self.kv.req_pool_idx
        return row

    @req_pool_idx.setter
    def req_pool_idx(self, row: int) -> None:
        self.kv.req_pool_idx = row

    def prefix_limit(self) -> int:
        """The tree's own bound on a cache hit."""
        asked = SimpleNamespace(dllm_config=None, return_logprob=False, is_dllm=lambda: False)
        limit: int = Req._compute_max_prefix_len(asked, self.length)
        return limit


def hidden_of(number: int, positions: range) -> torch.Tensor:
    return torch.tensor([[number, position] for position in positions], dtype=torch.float32).view(-1, HIDDEN)


class Attention:
    """A draft layer whose key is its context's (request, position) and whose value is (RoPE's position, 0)."""

    num_kv_heads, head_dim = 1, HIDDEN

    def __init__(self) -> None:
        self.attn = SimpleNamespace(layer_id=0, k_scale=None, v_scale=None)

    def kv_proj_only(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return hidden.clone(), torch.zeros_like(hidden)

    def apply_k_norm(self, key: torch.Tensor) -> torch.Tensor:
        return key

    def apply_k_rope(self, positions: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        assert key[:, 1].tolist() == positions.tolist(), "a hidden state meets another token's position"
        return key


class Harness:
    """One worker over small pools; with ``make_ring`` its draft KV lies in rings, else in the target's slots.

    ``log`` holds what the draft was given and where KV was written, in order.
    """

    def __init__(
        self,
        slots: int,
        page: int,
        window: int | None,
        block: int,
        make_ring: Callable[[ReqToTokenPool], Any] | None = None,
    ) -> None:
        self.page, self.window, self.block = page, window, block
        self.pool = ReqToTokenPool(slots, CONTEXT, "cpu", enable_memory_saver=False)
        target_slots_end = FIRST_TARGET_SLOT + (slots + 1) * CONTEXT
        self.pool.req_to_token.copy_(torch.arange(FIRST_TARGET_SLOT, target_slots_end).view(slots + 1, CONTEXT))
        self.draft_table = torch.zeros_like(self.pool.req_to_token) if window else self.pool.req_to_token
        self.ring = make_ring(self.pool) if make_ring else None
        self.log: list[Any] = []
        self.kv = MHATokenToKVPool(
            self.ring.rows if self.ring else target_slots_end,
            page_size=page,
            dtype=torch.float32,
            head_num=1,
            head_dim=HIDDEN,
            layer_num=1,
            device="cpu",
            enable_memory_saver=False,
            enable_alt_stream=False,
        )
        self.kv.k_buffer[0].fill_(NOISE)
        self.write_kv = self.kv.set_kv_buffer
        self.kv.set_kv_buffer = self.logged_write
        self.wanted: list[int] = []  # drafts that the target will accept, by request of the batch
        self.batch: list[Request] = []
        self.worker = self._worker()

    def translator(self, table: torch.Tensor) -> Any:
        return KVIndexTranslator and KVIndexTranslator(
            req_to_token=table,
            token_to_kv_pool_allocator=None,
            token_to_kv_pool=self.kv,
            page_size=self.page,
            device="cpu",
        )

    def _worker(self) -> Any:
        worker = worker_module.DFlashWorkerV2.__new__(worker_module.DFlashWorkerV2)
        model = SimpleNamespace(
            lm_head=SimpleNamespace(weight=torch.zeros(VOCABULARY, HIDDEN)),
            get_input_embeddings=lambda: lambda ids: torch.zeros(*ids.shape, HIDDEN),
        )
        runner = SimpleNamespace(
            device=torch.device("cpu"),
            model=model,
            prefill_attention_backend_str="torch_native",
            req_to_token_pool=self.pool,
            kv_index_translator=self.translator(self.pool.req_to_token),
        )
        worker.__dict__.update(
            _target_worker=SimpleNamespace(model_runner=runner, forward_batch_generation=self.target_forward),
            model_runner=runner,
            device=torch.device("cpu"),
            page_size=self.page,
            block_size=self.block,
            draft_window_size=self.window,
            use_compact_draft_cache=self.window is not None,
            hicache_draft_plan=SimpleNamespace(mode=None),
            draft_parallel_layout=None,
            draft_tp_context=contextlib.nullcontext,
            draft_model=SimpleNamespace(
                layers=[SimpleNamespace(self_attn=Attention())],
                project_target_hidden=lambda hidden: hidden,
                prepare_context_hidden_for_kv=lambda _layer, hidden: hidden,
            ),
            draft_model_runner=SimpleNamespace(
                token_to_kv_pool=self.kv,
                req_to_token_pool=SimpleNamespace(req_to_token=self.draft_table),
                kv_index_translator=self.translator(self.draft_table),
                forward=self.draft_forward,
                tp_group=None,
            ),
            selector=None,
            lilicorr=None,
            **({"_draft_ring": self.ring} if hasattr(worker_module, "DraftRing") else {}),
            _draft_sampler=None,
            _selector_sample=None,
            _is_domino=False,
            _full_embed_gpu=None,
            _noise_embed_scale=1.0,
            _mask_token_id=0,
            _tp_sync=SimpleNamespace(sync=lambda *_: None),
            _need_mamba_verify_commit=False,
            _target_logits_processor=None,
            _use_fused_kv_materialize=False,
            _fused_kv_helper=None,
            _use_triton_prepare_block=False,
            _use_triton_accept_bonus=False,
            _use_triton_compact_rebuild=True,
            _block_pos_offsets=torch.arange(self.block),
            _draft_block_ids_buf=None,
            _draft_block_spec_info=None,
            _greedy_sample_from_vocab_parallel_head=self.draft_tokens,
        )
        return worker

    def logged_write(self, layer: Any, loc: Any, *rest: Any, **names: Any) -> None:
        self.log.append(["write", getattr(loc, "loc", loc).tolist()])
        self.write_kv(layer, loc, *rest, **names)

    # -- what the worker calls -------------------------------------------------

    def target_forward(self, batch: Any, forward_batch: Any = None, **_: Any) -> Any:
        if batch is None:
            return self.verify(forward_batch.verify_input)
        hidden = [
            hidden_of(request.number, range(prefix, prefix + extend))
            for request, prefix, extend in zip(self.batch, batch.prefix_lens, batch.extend_lens, strict=True)
        ]
        next_tokens = torch.ones(len(self.batch), dtype=torch.int64)
        if not hasattr(KVIndexTranslator, "plan"):
            logits = SimpleNamespace(hidden_states=torch.cat(hidden))
            return SimpleNamespace(logits_output=logits, next_token_ids=next_tokens)
        # A padding row at the end, as rounding to the tensor-parallel size leaves.
        logits = SimpleNamespace(hidden_states=torch.cat([*hidden, torch.full((1, HIDDEN), -7.0)]))
        plan = self.worker.model_runner.kv_index_translator.plan(
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            seq_lens_cpu=None,
            write_virtual=batch.out_cache_loc,
        )
        return SimpleNamespace(kv_loc_plan=plan, logits_output=logits, next_token_ids=next_tokens)

    def verify(self, verify_input: Any) -> Any:
        """Accept exactly the wanted number of drafts, then differ."""
        candidates = verify_input.draft_token.view(len(self.batch), -1)
        predicted = (candidates + 1) % VOCABULARY
        predicted[:, :-1] = candidates[:, 1:]
        for line, wanted in enumerate(self.wanted):
            predicted[line, wanted] = (predicted[line, wanted] + 1) % VOCABULARY
        logits = torch.nn.functional.one_hot(predicted.reshape(-1), VOCABULARY).float()
        hidden = torch.cat(
            [hidden_of(request.number, range(request.length, request.length + self.block)) for request in self.batch]
        )
        return SimpleNamespace(
            logits_output=SimpleNamespace(next_token_logits=logits, hidden_states=hidden),
            can_run_cuda_graph=False,
            routed_experts_output=None,
            indexer_topk_output=None,
        )

    def draft_forward(self, forward_batch: Any) -> Any:
        """Check all that the draft attends to, then write its block as its layers do."""
        for line, request in enumerate(self.batch):
            seen = int(forward_batch.seq_lens[line])
            assert seen >= min(request.length, self.window or CONTEXT), "the draft sees less than its window"
            assert forward_batch.seq_lens_cpu[line] >= seen, "the host's bound is below the device's length"
            rows = self.draft_table[request.kv.req_pool_idx, : seen + self.block].tolist()
            start = request.length - seen
            expected = [[request.number, position] for position in range(start, request.length)]
            found = self.kv.k_buffer[0][rows[:seen], 0].tolist()
            assert found == expected, "a visible position does not hold its request's row"
            block = forward_batch.out_cache_loc.view(len(self.batch), -1)[line].tolist()
            assert rows[seen:] == block, "the table and the write ids of the block differ"
            page = self.page
            assert start % page == 0, "the window does not start at a page"
            self.log.append(["draft", seen, rows])
            assert all(row % page == index % page for index, row in enumerate(rows)), "a page is torn"
        self.kv.k_buffer[0][forward_batch.out_cache_loc] = NOISE
        tokens = len(self.batch) * self.block
        return SimpleNamespace(
            logits_output=SimpleNamespace(hidden_states=torch.zeros(tokens, HIDDEN)), can_run_graph=False
        )

    def draft_tokens(self, *, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.arange(hidden_states.shape[0]) % VOCABULARY

    # -- what the scheduler does -----------------------------------------------

    def scheduled(self, requests: list[Request]) -> dict[str, Any]:
        self.batch = requests
        rows = torch.tensor([request.kv.req_pool_idx for request in requests])
        return {
            "reqs": requests,
            "req_pool_indices": rows,
            "req_pool_indices_cpu": rows,
            "sampling_info": None,
            "return_logprob": False,
            "has_grammar": False,
            "can_run_decode_cuda_graph": False,
            "hicache_consumer_index": -1,
        }

    def prefill(self, requests: list[Request], extends: list[int], mode: ForwardMode = ForwardMode.EXTEND) -> None:
        assert self.pool.alloc(requests) is not None
        batch = SimpleNamespace(
            **self.scheduled(requests),
            forward_mode=mode,
            is_extend_in_batch=True,
            prefix_lens=[request.done for request in requests],
            extend_lens=extends,
            out_cache_loc=torch.cat(
                [
                    self.pool.req_to_token[request.kv.req_pool_idx, request.done : request.done + extend].long()
                    for request, extend in zip(requests, extends, strict=True)
                ]
            ),
            seq_lens=torch.tensor([request.done + extend for request, extend in zip(requests, extends, strict=True)]),
        )
        self.worker.forward_batch_generation(batch)
        for request, extend in zip(requests, extends, strict=True):
            request.done += extend
            request.kv.kv_allocated_len = request.done
            request.decoding = request.done == request.length

    def mixed(self, requests: list[Request], extends: list[int], running: list[Request]) -> None:
        """A prefill step of ``requests`` into which ScheduleBatch.mix_with_running puts ``running``, a token each."""
        for request in running:
            request.length += 1
        self.prefill([*requests, *running], [*extends, *(1 for _ in running)], ForwardMode.MIXED)

    def decode(
        self, requests: list[Request], wanted: list[int], prepare: Callable[[Any], None] = lambda _batch: None
    ) -> None:
        """One step; ``prepare`` gets the batch before the worker does."""
        self.wanted = wanted
        lengths = torch.tensor([request.length for request in requests])
        batch = SimpleNamespace(
            **self.scheduled(requests),
            forward_mode=ForwardMode.DECODE,
            is_extend_in_batch=False,
            seq_lens=lengths,
            seq_lens_cpu=lengths,
            seq_lens_sum=None,
            spec_info=self.worker._make_next_draft_input_decode(
                bonus_tokens=torch.ones(len(requests), dtype=torch.int64), new_seq_lens=lengths
            ),
        )
        prepare(batch)
        result = self.worker.forward_batch_generation(batch)
        assert result.accept_lens.tolist() == [accepted + 1 for accepted in wanted]
        for request, length in zip(requests, result.new_seq_lens.tolist(), strict=True):
            request.length = request.done = length
            request.decoded = True


def target_slots(*, req_pool_indices: Any, req_to_token: Any, start_offset: Any, draft_token_num: int, **_: Any) -> Any:
    """assign_extend_cache_locs_func, whose CPU version lies in a library of SGLang's own."""
    positions = start_offset[:, None] + torch.arange(draft_token_num)
    return req_to_token[req_pool_indices[:, None], positions].reshape(-1).long()


def prepare_for_verify(self: Any, *_: Any, **__: Any) -> tuple[Any, None]:
    return SimpleNamespace(verify_input=self, original_global_num_tokens_cpu=None), None


@contextlib.contextmanager
def surroundings(page: int, window: int | None, block: int) -> Iterator[None]:
    """The server's configuration, and stand-ins for what a CPU lacks."""
    dp = {"attn_dp_enabled": False} if hasattr(runtime_context, "attn_dp_enabled_of") else {}
    with (
        get_context().override_server_args(
            page_size=page, speculative_draft_window_size=window, speculative_num_draft_tokens=block
        ),
        get_parallel().override(tp_size=1, attn_dcp_size=1, attn_dcp_rank=0, **dp),
        mock.patch.object(worker_module, "draft_tp_context", return_value=contextlib.nullcontext(), create=True),
        mock.patch.object(worker_module, "assign_extend_cache_locs_func", target_slots),
        mock.patch.object(DFlashVerifyInput, "prepare_for_verify", prepare_for_verify),
        mock.patch.object(torch.Tensor, "record_stream"),  # a CPU tensor has none
    ):
        yield
