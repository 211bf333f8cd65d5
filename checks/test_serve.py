"""The server of exactly this tree starts and serves a tiny dense model on the CPU, without any stand-in."""

import json
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from checks import tiny_model
from checks.server import POLL_SECONDS, REQUEST_SECONDS, Server, ServerError, started
from checks.verdict import Verdict

FLAGS = {
    "--device": "cpu",
    "--attention-backend": "torch_native",
    "--sampling-backend": "pytorch",
    "--dtype": "float32",
    "--max-total-tokens": "9000",
    "--max-running-requests": "4",
    "--mem-fraction-static": "0.5",
    "--skip-server-warmup": "",
}
RESOLVED = {"device": "cpu", "attention_backend": "torch_native", "dtype": "float32", "max_total_tokens": 9000}
"""What the server must say of itself."""
PROMPT = "To be served, or not to be served"
REPEATS = 5
COUNT = 24
"""Tokens of one request."""
LONG = 8000
"""Tokens of the request that is cancelled: far more than it can make before that."""


def test_serve(verdict: Verdict) -> None:
    """Start, answer, repeat, flush, cancel, answer again, stop."""
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch, "server.log")
        tiny_model.write(Path(scratch, "model"))
        try:
            with started(Path(scratch, "model"), FLAGS, log) as server:
                seconds = server.wait_until_healthy()
                _flags(server, verdict)
                _requests(server, verdict)
                server.stop()
        except (ServerError, OSError, ValueError, LookupError) as error:
            verdict.problem(f"server: {type(error).__name__}: {error}; its output is in the check's log")
            seconds = 0.0
        if verdict.failed:
            print(log.read_text(errors="replace"), file=sys.stderr)
    verdict.conclude(
        f"healthy after {seconds:.0f} s; streamed, repeated {REPEATS} greedy requests, flushed, cancelled a stream, "
        "stopped on SIGTERM; a dense model on the CPU, so no XPU kernel, no quantised weight and no draft was run"
    )


def _flags(server: Server, verdict: Verdict) -> None:
    info = json.loads(server.get("/server_info")[1])
    for name, wanted in RESOLVED.items():
        if info[name] != wanted:
            verdict.problem(f"/server_info: expected {name} {wanted!r}, found {info[name]!r}")


def _requests(server: Server, verdict: Verdict) -> None:
    first = server.tokens(PROMPT, COUNT)
    if len(set(first)) < 2:
        verdict.problem(f"/generate: expected {COUNT} tokens that differ, found {first}")
    _stream(server, verdict)
    runs = [server.tokens(PROMPT, COUNT) for _ in range(REPEATS)]
    if any(run != first for run in runs):
        verdict.problem(f"/generate: expected {first} each of {REPEATS} times, found {runs}")
    server.flush()
    if (again := server.tokens(PROMPT, COUNT)) != first:
        verdict.problem(f"/generate after /flush_cache: expected {first}, found {again}")
    _cancel(server, verdict)
    if (again := server.tokens(PROMPT, COUNT)) != first:
        verdict.problem(f"/generate after a cancelled stream: expected {first}, found {again}")


def _stream(server: Server, verdict: Verdict) -> None:
    """A completion comes in pieces, its usage counts what was asked for, and the stream ends as the API says."""
    request = {"model": "default", "prompt": PROMPT, "max_tokens": COUNT, "temperature": 0, "stream": True}
    with server.stream("/v1/completions", request | {"stream_options": {"include_usage": True}}) as events:
        found = list(events)
    if not found or found[-1] != "[DONE]":
        verdict.problem(f"/v1/completions: expected a stream that ends in [DONE], found {found[-1:]}")
        return
    pieces = [json.loads(event) for event in found[:-1]]
    usage = [piece["usage"]["completion_tokens"] for piece in pieces if piece.get("usage")]
    texts = sum(bool(piece["choices"]) for piece in pieces)
    if texts < 2 or usage != [COUNT]:
        verdict.problem(f"/v1/completions: expected {COUNT} tokens in pieces, found {texts} pieces and usage {usage}")


def _cancel(server: Server, verdict: Verdict) -> None:
    """A client that goes away frees its request long before all tokens are made."""
    sampling = {"temperature": 0, "max_new_tokens": LONG, "ignore_eos": True}
    with server.stream("/generate", {"text": PROMPT, "sampling_params": sampling, "stream": True}) as events:
        begun_with = list(islice(events, 2))
    if len(begun_with) < 2:
        raise ServerError(f"/generate: expected a stream of up to {LONG} tokens, it ended after {begun_with}")
    used, begun = 0, time.monotonic()
    while (load := _load(server))["num_running_reqs"]:
        used = max(used, load["num_used_tokens"])
        if time.monotonic() - begun > REQUEST_SECONDS:
            break
        time.sleep(POLL_SECONDS)
    if used > LONG // 2 or load["num_running_reqs"]:
        verdict.problem(f"cancelled stream: expected its request to end early, it held {used} of {LONG} tokens")


def _load(server: Server) -> dict[str, int]:
    """Counters of the only scheduler."""
    loads: list[dict[str, int]] = json.loads(server.get("/v1/loads?include=core")[1])["loads"]
    return loads[0]
