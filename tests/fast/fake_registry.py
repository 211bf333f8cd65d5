"""An in-process registry on loopback that logs every request and can be told to misbehave."""

import base64
import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

USER, PASSWORD, TOKEN = "builder", "s3cret-password", "s3cret-token"
BASIC = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


@dataclass
class Fault:
    """What to answer instead, ``times`` times, to requests that match; status 0 cuts the connection."""

    method: str
    pattern: str
    status: int
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class FakeRegistry:
    """State and switches of the registry."""

    address: str = ""
    """``host:port``."""
    log: list[str] = field(default_factory=list)
    """``METHOD path`` of every request, without its query, in order."""
    queries: list[dict[str, list[str]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    blobs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    manifests: dict[tuple[str, str], tuple[bytes, str]] = field(default_factory=dict)
    forms: list[dict[str, list[str]]] = field(default_factory=list)
    """Bodies posted to the token service."""
    faults: list[Fault] = field(default_factory=list)
    auth: str = "anonymous"
    """``anonymous``, ``basic`` or ``bearer``."""
    mounts: bool = True
    referrers: bool = True
    """Whether it has the referrers API; it answers one row a page."""
    absolute_locations: bool = False
    served: dict[str, bytes] = field(default_factory=dict)
    """Bytes to serve for a path, whatever was stored."""
    redirect_blobs: bool = False
    states_digests: bool = True
    allowed_writes: int | None = None
    """Requests that may still change something before the connection is cut at every one; None: all."""

    @property
    def writes(self) -> list[str]:
        """Requests that could change something."""
        return [row for row in self.log if row.split()[0] not in ("GET", "HEAD")]


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    """Run a fake registry on an ephemeral loopback port."""
    state = FakeRegistry()
    handler = type("Handler", (_Handler,), {"state": state})
    server = _Server(("127.0.0.1", 0), handler)
    state.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gives up on a cut connection is what the tests are about; all else is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    state: FakeRegistry
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Keep stderr for the tests."""

    def _serve(self) -> None:
        state, url = self.state, urlsplit(self.path)
        self.url, self.query = url.path, parse_qs(url.query)
        state.log.append(f"{self.command} {url.path}")
        state.queries.append(self.query)
        state.headers.append(dict(self.headers))
        fault = next((fault for fault in state.faults if self._matches(fault)), None)
        if fault is not None:
            fault.times -= 1
            self._fail(fault)
            return
        if state.allowed_writes is not None and self.command not in ("GET", "HEAD"):
            state.allowed_writes -= 1
            if state.allowed_writes < 0:
                self.close_connection = True
                return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.url == "/token":
            self._token(body)
        elif self._authorized():
            self._route(body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve

    def _matches(self, fault: Fault) -> bool:
        return fault.times > 0 and fault.method == self.command and re.search(fault.pattern, self.url) is not None

    def _fail(self, fault: Fault) -> None:
        self.close_connection = True
        if fault.status:
            self._answer(fault.status, fault.body, {"Connection": "close", **fault.headers})

    def _authorized(self) -> bool:
        given = self.headers.get("Authorization")
        wanted = {"anonymous": given, "basic": BASIC, "bearer": f"Bearer {TOKEN}"}[self.state.auth]
        if given == wanted:
            return True
        challenge = 'Basic realm="fake"'
        if self.state.auth == "bearer":
            scope = "repository:team/image:pull,push repository:team/base:pull"
            challenge = f'Bearer realm="http://{self.state.address}/token",service="fake",scope="{scope}"'
        self._answer(401, b'{"errors":[{"code":"UNAUTHORIZED"}]}', {"WWW-Authenticate": challenge})
        return False

    def _token(self, body: bytes) -> None:
        if self.command == "POST":
            self.state.forms.append(parse_qs(body.decode()))
        if self.headers.get("Authorization") in (None, BASIC):
            self._answer(200, json.dumps({"token": TOKEN}).encode())
        else:
            self._answer(401)

    def _route(self, body: bytes) -> None:
        match = re.fullmatch(r"/v2/(.+)/(blobs|manifests)/(uploads/)?(.*)", self.url)
        listing = re.fullmatch(r"/v2/(.+)/referrers/(.+)", self.url)
        if listing and self.state.referrers:
            self._referrers(*listing.groups())
            return
        if match is None:
            self._answer(200 if self.url == "/v2/" else 404)
            return
        repository, kind, upload, name = match.groups()
        if upload:
            self._upload(repository, body)
        elif kind == "blobs":
            self._blob(repository, name)
        elif self.command == "PUT":
            digest = _digest(body)
            for reference in {name, digest}:
                self.state.manifests[repository, reference] = (body, self.headers["Content-Type"])
            subject = json.loads(body).get("subject", {}).get("digest") if self.state.referrers else None
            self._answer(201, headers=self._stated(digest) | ({"OCI-Subject": subject} if subject else {}))
        else:
            self._manifest(repository, name)

    def _referrers(self, repository: str, subject: str) -> None:
        rows = []
        for (where, reference), (data, media_type) in self.state.manifests.items():
            document = json.loads(data)
            if (
                where == repository
                and reference == _digest(data)
                and document.get("subject", {}).get("digest") == subject
            ):
                row = {"mediaType": media_type, "digest": reference, "size": len(data)}
                rows.append(row | {"artifactType": document["artifactType"]})
        page = int(self.query.get("page", ["0"])[0])
        index = {"schemaVersion": 2, "manifests": rows[page : page + 1]}
        link = {"Link": f'<{self.url}?page={page + 1}>; rel="next"'} if page + 1 < len(rows) else {}
        self._answer(200, json.dumps(index).encode(), link)

    def _upload(self, repository: str, body: bytes) -> None:
        base = f"http://{self.state.address}" if self.state.absolute_locations else ""
        location = {"Location": f"{base}/v2/{repository}/blobs/uploads/1?_state=a%2Bb"}
        match self.command:
            case "POST" if "mount" in self.query:
                (digest,), (source,) = self.query["mount"], self.query["from"]
                data = self.state.blobs.get((source, digest)) if self.state.mounts else None
                if data is None:
                    self._answer(202, headers=location)
                else:
                    self.state.blobs[repository, digest] = data
                    self._answer(201, headers=self._stated(digest))
            case "POST":
                self._answer(202, headers=location)
            case "PUT":
                (digest,) = self.query["digest"]
                right = self.query["_state"] == ["a+b"] and _digest(body) == digest
                if right:
                    self.state.blobs[repository, digest] = body
                self._answer(201 if right else 400, headers=self._stated(digest))
            case _:
                self._answer(204)

    def _blob(self, repository: str, digest: str) -> None:
        data = self.state.blobs.get((repository, digest))
        if data is not None and self.state.redirect_blobs and self.command == "GET" and not self.query:
            other = f"http://localhost:{self.state.address.rpartition(':')[2]}{self.url}?signature=1"
            self._answer(307, headers={"Location": other})
            return
        self._object(data, "application/octet-stream", digest)

    def _manifest(self, repository: str, reference: str) -> None:
        data, media_type = self.state.manifests.get((repository, reference), (None, ""))
        self._object(data, media_type, _digest(data) if data is not None else "")

    def _object(self, data: bytes | None, media_type: str, digest: str) -> None:
        if data is None:
            self._answer(404, b'{"errors":[{"code":"NOT_FOUND"}]}')
            return
        self._answer(200, self.state.served.get(self.url, data), {"Content-Type": media_type, **self._stated(digest)})

    def _stated(self, digest: str) -> dict[str, str]:
        return {"Docker-Content-Digest": digest} if self.state.states_digests else {}

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
