"""Imports one SGLang tree once, and forks an engine for each connection to a Unix socket.

Run as ``python -m tests.e2e.support.serve SOCKET TREE patched``, or ``unpatched``, whichever it is; says ``ready`` on
standard output. A connection sends one line and gets one, both JSON:

    {"server_args": {…}, "log": <file>, "steps": [{"do": <method of Session>, …}, …]}
    {"sglang": <imported file>, "steps": [<answer>, …], "server": {…}}

An engine that does not start, or dies, closes its connection without an answer: SGLang kills the whole process
tree then. Why stands in the log.
"""

from __future__ import annotations

import asyncio
import json
import os
import socketserver
import sys
from pathlib import Path
from typing import Any

from tests.e2e.support import shims

Step = dict[str, Any]
MEASURED = ("cached_tokens", "completion_tokens", "prompt_tokens", "finish_reason", "num_retractions")
SPECULATIVE = "spec_"
SERVER = ("max_total_num_tokens", "page_size", "max_mamba_cache_size", "mamba_radix_cache_strategy")
"""What of the server's state is answered; names of SGLang's ``/server_info``."""

NEVER_REACHED = 256
"""Tokens; an abort takes effect a few verifications after it was asked for."""
FLUSH_SECONDS = 60


class Session:
    """The steps that an engine can be asked for; each returns what is to be answered."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def generate(self, prompts: list[list[int]], max_new_tokens: int, **sampling: Any) -> list[Step]:
        """Continue a batch of prompts greedily, past any stop token; ``sampling`` overrides that."""
        outputs = self._engine.generate(input_ids=prompts, sampling_params=_greedy(max_new_tokens) | sampling)
        return [_measured(output) for output in outputs]

    def logprobs(self, prompts: list[list[int]], max_new_tokens: int) -> list[Step]:
        """As :meth:`generate`, with the target's log probability of each new token."""
        outputs = self._engine.generate(input_ids=prompts, sampling_params=_greedy(max_new_tokens), return_logprob=True)
        return [
            {**_measured(output), "logprobs": [value for value, *_ in output["meta_info"]["output_token_logprobs"]]}
            for output in outputs
        ]

    def converse(self, prompt: list[int], replies: list[list[int]], max_new_tokens: int) -> list[Step]:
        """One answer for the prompt, and one for all that was said after each reply."""
        said, answers = list(prompt), []
        for reply in [[], *replies]:
            said += reply
            answers += self.generate([said], max_new_tokens)
            said += answers[-1]["ids"]
        return answers

    def abort(self, prompts: list[list[int]], max_new_tokens: int, after: int) -> list[Step]:
        """As :meth:`generate`, but the first request goes on until it is aborted, once it has ``after`` tokens."""
        answers: list[Step] = self._engine.loop.run_until_complete(self._abort(prompts, max_new_tokens, after))
        return answers

    async def _abort(self, prompts: list[list[int]], max_new_tokens: int, after: int) -> list[Step]:
        first, *others = prompts
        runs = [self._stream(first, NEVER_REACHED, after)]
        runs += [self._stream(prompt, max_new_tokens, None) for prompt in others]
        return list(await asyncio.gather(*runs))

    async def _stream(self, prompt: list[int], max_new_tokens: int, abort_after: int | None) -> Step:
        rid = os.urandom(8).hex()
        stream = await self._engine.async_generate(
            input_ids=prompt, sampling_params=_greedy(max_new_tokens), stream=True, rid=rid
        )
        last: dict[str, Any] = {}
        async for last in stream:
            if abort_after is not None and len(last["output_ids"]) >= abort_after:
                self._engine.tokenizer_manager.abort_request(rid)
                abort_after = None
        return _measured(last)

    def flush(self) -> Step:
        """Empty the caches once no request is left; answers whether the engine did.

        A request's last tokens leave before the scheduler has put it away, hence the wait.
        """
        flushing = self._engine.tokenizer_manager.flush_cache(timeout_s=FLUSH_SECONDS)
        return {"flushed": bool(self._engine.loop.run_until_complete(flushing).success)}


def _greedy(max_new_tokens: int) -> dict[str, Any]:
    return {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": True}


def _measured(output: dict[str, Any]) -> Step:
    meta = output["meta_info"]
    kept = {name: value for name, value in meta.items() if name in MEASURED or name.startswith(SPECULATIVE)}
    return {"ids": output["output_ids"], **kept}


def serve(request: dict[str, Any]) -> dict[str, Any]:
    """Start an engine, take the steps in order, and stop it."""
    import sglang  # type: ignore[import-not-found]  # the tree under test, after the shims

    engine = sglang.Engine(**request["server_args"])
    session = Session(engine)
    steps = []
    for step in request["steps"]:
        options = {name: value for name, value in step.items() if name != "do"}
        steps.append(getattr(session, step["do"])(**options))
    server = engine.get_server_info()
    engine.shutdown()
    return {"sglang": sglang.__file__, "steps": steps, "server": {name: server.get(name) for name in SERVER}}


class _Connection(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        request = json.loads(self.rfile.readline())
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(log, stream)
        answer = serve(request)
        self.wfile.write(json.dumps(answer).encode() + b"\n")


class _Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """Forks in its main thread, where SGLang wants to set signal handlers."""


def _import_tree() -> None:
    """What an engine's three processes need, models included; forked processes share it."""
    import sglang
    import sglang.srt.managers.detokenizer_manager  # type: ignore[import-not-found]
    import sglang.srt.managers.scheduler  # type: ignore[import-not-found]
    import sglang.srt.models.registry  # type: ignore[import-not-found]

    sglang.Engine  # noqa: B018  (an import on first use)


def main() -> None:
    path, tree, state = sys.argv[1:]
    shims.install(shims.of(Path(tree), patched=state == "patched"))
    _import_tree()
    with _Server(path, _Connection) as server:
        print("ready", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
