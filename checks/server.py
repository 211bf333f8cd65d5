"""SGLang's own server as a child process, and the few requests that a check sends to it."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_SECONDS = 240.0
STOP_SECONDS = 60.0
REQUEST_SECONDS = 60.0
FLUSH_SECONDS = 30.0
"""How long a flush may wait; less than a request takes."""
POLL_SECONDS = 0.05
ENDS = (0, -signal.SIGTERM, -signal.SIGKILL)
"""Statuses of a stop in good order: 0.5.23 returns, 0.5.18 kills its processes and at last itself."""


class ServerError(Exception):
    """The server did not do what was asked of it: one line."""


class Server:
    """A server that listens on the loopback interface."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port

    def wait_until_healthy(self) -> float:
        """Seconds until ``/health`` answered 200.

        Raises:
            ServerError: it ended before, or the time is up.
        """
        begun = time.monotonic()
        while time.monotonic() - begun < START_SECONDS:
            if self.process.poll() is not None:
                raise ServerError(f"expected it to start, it ended with status {self.process.returncode}")
            try:
                if self.get("/health")[0] == 200:
                    return time.monotonic() - begun
            except OSError:
                pass  # nothing listens yet
            time.sleep(POLL_SECONDS)
        raise ServerError(f"expected /health to answer 200 within {START_SECONDS:.0f} s, it did not")

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body."""
        return self._whole("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> bytes:
        """The body of a 200.

        Raises:
            ServerError: another status.
        """
        status, content = self._whole("POST", path, body)
        if status != 200:
            raise ServerError(f"{path.partition('?')[0]}: expected status 200, found {status}: {content[:200]!r}")
        return content

    def tokens(self, prompt: str, count: int) -> list[int]:
        """``count`` greedy tokens after the prompt."""
        sampling = {"temperature": 0, "max_new_tokens": count, "ignore_eos": True}
        answer = json.loads(self.post("/generate", {"text": prompt, "sampling_params": sampling}))
        return [int(token) for token in answer["output_ids"]]

    def flush(self) -> None:
        """Empty the caches once no request is left: an answer leaves before the scheduler has put its request away.

        Raises:
            ServerError: it was refused, or one was still left when the time was up.
        """
        self.post(f"/flush_cache?timeout={FLUSH_SECONDS}", {})

    @contextmanager
    def stream(self, path: str, body: dict[str, Any]) -> Iterator[Iterator[str]]:
        """Payloads of the server-sent events; leaving early closes the connection, as a client that gives up does.

        Raises:
            ServerError: the answer broke off.
        """
        with self._connection(path) as connection:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            lines = (line.decode("utf-8", "replace").strip() for line in response)
            yield (line.removeprefix("data: ") for line in lines if line.startswith("data: "))

    def stop(self) -> None:
        """End it as an orchestrator does: SIGTERM, then wait.

        Raises:
            ServerError: it crashed, or it, or a process of its group, was still there when the time was up.
        """
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise ServerError(f"expected it to end within {STOP_SECONDS:.0f} s of SIGTERM, it did not") from None
        if (status := self.process.returncode) not in ENDS:
            raise ServerError(f"expected it to end in good order on SIGTERM, it ended with status {status}")
        begun = time.monotonic()
        while _group_lives(self.process.pid):
            if time.monotonic() - begun > STOP_SECONDS:
                raise ServerError("expected its processes to end with it, found one still running")
            time.sleep(POLL_SECONDS)

    def _whole(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        with self._connection(path) as connection:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()

    @contextmanager
    def _connection(self, path: str) -> Iterator[http.client.HTTPConnection]:
        """For one request; an answer that breaks off half-way is an error of the server, however Python names it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_SECONDS)
        try:
            yield connection
        except ConnectionError:
            raise  # one of them is an HTTPException too, but says only that nobody answers, as when it starts
        except http.client.HTTPException as error:
            raise ServerError(f"{path}: expected a whole answer, it broke off: {error!r}") from error
        finally:
            connection.close()


@contextmanager
def started(model: Path, flags: dict[str, str], log: Path) -> Iterator[Server]:
    """A server of this image's SGLang on a free port; whatever is left of it at the end is killed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--host", "127.0.0.1"]
    command += ["--port", str(port), *(part for pair in flags.items() for part in pair if part)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield Server(process, port)
    finally:
        if _group_lives(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _group_lives(group: int) -> bool:
    """Whether a process of the group still runs: one that has ended may stay, as nobody in a container reaps it."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, owner = status.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # it ended meanwhile
        if int(owner) == group and state != "Z":
            return True
    return False
