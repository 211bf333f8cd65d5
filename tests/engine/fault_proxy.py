"""A proxy on loopback in front of a registry that does harm at a chosen request, for tests only.

It forwards every request unchanged, the ``Host`` header included, so that the registry's own ``Location`` headers lead
back through it. A :class:`Fault` decides by a request's number or text whether it acts, and what it does instead.
"""

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

UPSTREAM_SECONDS = 30
HOP_HEADERS = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date"})
"""Headers of one connection: the proxy sets its own."""


class Request(NamedTuple):
    """One request as it came; ``number`` counts from 0 since :meth:`FaultProxy.arm`."""

    number: int
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """``PUT /v2/team/image/manifests/model``: what patterns are matched against."""
        return f"{self.method} {self.target}"


class Answer(NamedTuple):
    """What goes back; ``half`` sends only the first half of its bytes and then cuts the connection."""

    status: int
    headers: dict[str, str]
    body: bytes
    half: bool = False


class Upstream(NamedTuple):
    """The registry behind the proxy."""

    address: str

    def forward(self, request: Request) -> Answer:
        """Hand the request on and take the whole answer."""
        connection = http.client.HTTPConnection(self.address, timeout=UPSTREAM_SECONDS)
        try:
            connection.request(request.method, request.target, request.body or None, request.headers)
            response = connection.getresponse()
            body = response.read()
            return Answer(response.status, dict(response.getheaders()), body)
        finally:
            connection.close()

    def forward_half(self, request: Request) -> None:
        """Hand on the request with half of its body, then cut the connection to the registry."""
        connection = http.client.HTTPConnection(self.address, timeout=UPSTREAM_SECONDS)
        try:
            connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                connection.putheader(name, value)
            connection.endheaders(request.body[: len(request.body) // 2])
        finally:
            connection.close()


Act = Callable[[Request, Upstream], Answer | None]
"""What a fault does with a request; ``None`` cuts the connection without an answer."""


def cut_before(_request: Request, _upstream: Upstream) -> None:
    """The registry never sees the request."""


def cut_after(request: Request, upstream: Upstream) -> None:
    """The registry does what was asked, and nobody hears of it."""
    upstream.forward(request)


def cut_within(request: Request, upstream: Upstream) -> Answer | None:
    """Half of the request's body reaches the registry; of a request without body, half of the answer arrives."""
    if request.body:
        upstream.forward_half(request)
        return None
    return upstream.forward(request)._replace(half=True)


def status(code: int) -> Act:
    """Answer with a status, without asking the registry."""
    return lambda _request, _upstream: Answer(code, {}, b'{"errors":[]}')


def status_after(code: int) -> Act:
    """The registry does what was asked, and the answer is a failure."""

    def act(request: Request, upstream: Upstream) -> Answer:
        upstream.forward(request)
        return Answer(code, {}, b'{"errors":[]}')

    return act


def wrong_digest(request: Request, upstream: Upstream) -> Answer:
    """The registry does what was asked, and the answer states another digest."""
    answer = upstream.forward(request)
    stated = {name: value for name, value in answer.headers.items() if name.lower() != "docker-content-digest"}
    return answer._replace(headers=stated | {"Docker-Content-Digest": "sha256:" + "e" * 64})


def open_an_upload(request: Request, upstream: Upstream) -> Answer:
    """Forget what a mount asks for: the registry opens an upload and answers 202."""
    return upstream.forward(request._replace(target=request.target.partition("?")[0]))


def first(hook: Callable[[], None]) -> Act:
    """Do something else, then go on as if nothing were."""

    def act(request: Request, upstream: Upstream) -> Answer:
        hook()
        return upstream.forward(request)

    return act


@dataclass
class Fault:
    """Acts on requests that ``matches`` picks, ``times`` times; on all of them when that is None."""

    matches: Callable[[Request], bool]
    act: Act
    times: int | None = None
    hits: int = 0

    def takes(self, request: Request) -> bool:
        """Whether this request is harmed; counts it."""
        if (self.times is not None and self.hits >= self.times) or not self.matches(request):
            return False
        self.hits += 1
        return True


@dataclass
class FaultProxy:
    """A running proxy; without a fault it only counts."""

    upstream: Upstream
    address: str = ""
    """``host:port``."""
    fault: Fault | None = None
    log: list[str] = field(default_factory=list)
    """Text of every request since :meth:`arm`, in order."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def arm(self, fault: Fault | None) -> None:
        """Count from 0 again, with this fault or with none."""
        with self._lock:
            self.fault = fault
            self.log = []

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer | None:
        """What a request gets."""
        with self._lock:
            request = Request(len(self.log), method, target, headers, body)
            self.log.append(request.text)
            fault = self.fault if self.fault is not None and self.fault.takes(request) else None
        return fault.act(request, self.upstream) if fault else self.upstream.forward(request)


@contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """A proxy on an ephemeral loopback port in front of ``upstream`` (``host:port``)."""
    state = FaultProxy(Upstream(upstream))
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"state": state}))
    server.daemon_threads = True
    state.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: FaultProxy

    def log_message(self, *_arguments: object) -> None:
        """The proxy keeps its own log."""

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = self.state.answer(self.command, self.path, dict(self.headers.items()), body)
        if answer is None:
            self._cut()
            return
        self._send(answer)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _any

    def _send(self, answer: Answer) -> None:
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_HEADERS}
        stated = next((v for name, v in answer.headers.items() if name.lower() == "content-length"), None)
        size = stated if self.command == "HEAD" and stated is not None else str(len(answer.body))
        lines = [f"HTTP/1.1 {answer.status} {http.client.responses.get(answer.status, '')}"]
        lines += [f"{name}: {value}" for name, value in (kept | {"Content-Length": size}).items()]
        data = "\r\n".join([*lines, "", ""]).encode() + (b"" if self.command == "HEAD" else answer.body)
        with suppress(ConnectionError):  # a client that was killed meanwhile does not wait for it
            self.wfile.write(data[: len(data) // 2] if answer.half else data)
            self.wfile.flush()
        if answer.half:
            self._cut()

    def _cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):  # the client may be gone already
            self.connection.shutdown(socket.SHUT_RDWR)
