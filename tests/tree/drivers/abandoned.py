"""A request whose handler ends early: what the real TokenizerManager keeps of it, and what it sends to the scheduler.

A case: ``name``; ``when`` ("streaming", after the scheduler's first piece; "tokenizing", before the scheduler knows of
the request; "answered", after its last piece); ``n`` (samples of the prompt; more than one have IDs of their own, here
"made-1" and so on, after "made-0" for the prompt alone); ``refused`` (how many aborts the scheduler's socket refuses).
Answer: ``aborts``, the request IDs of what is sent to end it, the response's own later abort included; ``known``, the
IDs of which a state is left; ``left``, the same once the scheduler has answered the abort. IDs are sorted.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from types import SimpleNamespace
from typing import Any
from unittest import mock

from sglang.srt.managers import tokenizer_manager as module  # type: ignore[import-not-found]  # in the base image only
from sglang.srt.managers.io_struct import AbortReq, GenerateReqInput  # type: ignore[import-not-found]
from sglang.srt.runtime_context import get_context  # type: ignore[import-not-found]

from .answer import Case, answer

RID = "a-request"


class Manager(module.TokenizerManager):  # type: ignore[misc]
    """The class without its processes and sockets; what it does not use here is a mock."""

    def __init__(self, refused: int) -> None:
        self.refused = refused
        self.rid_to_state: dict[str, Any] = {}
        self.sent: list[Any] = []
        self.enable_metrics = self.enable_lora = self.enable_trace = self.is_pause = False
        self.encoder_dispatch_ready: dict[str, Any] = {}
        self.server_args = SimpleNamespace(tokenizer_worker_num=1, language_only=False)
        self.is_pause_cond = asyncio.Condition()
        self.model_update_lock = SimpleNamespace(reader_lock=contextlib.AsyncExitStack())
        self.tokenizing = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = mock.MagicMock()
        self.__dict__[name] = found
        return found

    def _init_req_state(self, obj: Any, *_: Any) -> None:
        for rid in obj.rid if isinstance(obj.rid, list) else [obj.rid]:
            self.rid_to_state[rid] = module.ReqState([], False, asyncio.Event(), obj, mock.MagicMock())

    def _set_default_priority(self, obj: Any) -> None: ...

    async def _validate_and_resolve_lora(self, obj: Any) -> None: ...

    async def _tokenize_one_request(self, obj: Any) -> Any:
        await self.tokenizing.wait()
        return SimpleNamespace(
            rid=obj.rid,
            input_ids=obj.input_ids,
            mm_inputs=None,
            sampling_params=SimpleNamespace(max_new_tokens=8000),
            time_stats=mock.MagicMock(),
            wrap_pickle_fields=lambda: None,
        )

    def _dispatch_to_scheduler(self, obj: Any) -> None:
        if isinstance(obj, AbortReq) and self.refused:
            self.refused -= 1
            raise OSError("refused")
        self.sent.append(obj)

    def _wait_one_response(self, obj: Any, *_: Any) -> Any:
        return self._pieces(obj)

    async def _pieces(self, obj: Any) -> Any:
        piece = {"meta_info": {"id": obj.rid}}
        if all(each.sampling_params.max_new_tokens for each in self.sent if each.rid == obj.rid):
            yield piece
        del self.rid_to_state[obj.rid]  # as the scheduler's last output does
        yield piece


def _transport() -> Any:
    """Features of images; up to 0.5.19 they are prepared without a wait."""
    return SimpleNamespace(
        prepare_for_dispatch=lambda _inputs: [],
        prepare_for_dispatch_async=mock.AsyncMock(return_value=[]),
        cancel_for_dispatch=lambda _items: None,
    )


def _numbered() -> Any:
    """GenerateReqInput.regenerate_rid, with IDs that one can name."""
    count = itertools.count()

    def regenerate(self: Any) -> str:
        self.rid = rid = f"made-{next(count)}"
        return rid

    return regenerate


async def abandon(when: str, n: int, refused: int) -> dict[str, Any]:
    manager = Manager(refused)
    manager.cuda_vmm_feature_transport = _transport()
    obj = GenerateReqInput(input_ids=[1, 2, 3], rid=RID, stream=True, sampling_params={"n": n})
    response = manager.create_abort_task(obj)
    stream = manager.generate_request(obj)
    if when == "tokenizing":
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(anext(stream), 0.05)
    else:
        manager.tokenizing.set()
        for _ in range({"streaming": 1, "answered": 2}[when]):
            await anext(stream)
    await stream.aclose()
    with mock.patch.object(asyncio, "sleep", mock.AsyncMock()):
        await response()
    aborts = sorted(each.rid for each in manager.sent if isinstance(each, AbortReq))
    known = sorted(manager.rid_to_state)
    for rid in aborts:
        manager.rid_to_state.pop(rid, None)
    return {"aborts": aborts, "known": known, "left": sorted(manager.rid_to_state)}


def measure(case: Case) -> dict[str, Any]:
    with (
        get_context().override_server_args(device="cpu"),
        mock.patch.object(module, "wrap_shm_features", _same),
        mock.patch.object(GenerateReqInput, "regenerate_rid", _numbered()),
    ):
        return asyncio.run(abandon(case["when"], case["n"], case["refused"]))


def _same(tokenized: Any) -> Any:
    return tokenized


if __name__ == "__main__":
    answer(measure)
