"""A small Hugging Face Hub on loopback that the unmodified ``huggingface_hub`` reads from and commits to.

Looked at first, for a maintained package that could serve instead (November 2026):

* ``olah`` 0.5.4 is a mirror that fetches from huggingface.co: it needs a Hub behind it and takes no commits.
* ``hf-local-hub`` 3.0.0 is a client for a Go binary that its wheel lacks.
* ``huggingface_hub``'s own tests talk to Hugging Face's staging site.

None can plant a fault or show the headers it got, so this fixture speaks the part of the protocol that is used here:
revision, tree (in pages), ``resolve`` with ranges, the redirect of LFS files to another host, pre-upload, LFS batch
(basic transfer) with upload and verify, commit as NDJSON with ``parentCommit``, creation of a repository. It does not
speak Xet: clients run with ``HF_HUB_DISABLE_XET=1`` (:func:`connect`, :meth:`HubServer.environment`), else
``huggingface_hub`` would upload through ``hf-xet``.
"""

import base64
import hashlib
import io
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import yaml

HUB_HOST, CDN_HOST = "127.0.0.1", "127.0.0.2"
"""Two hosts, both loopback: a token must never reach the second."""
TOKEN = "hf_PlantedTokenThatMustNeverBeShown0123"
STALE = "A commit has happened since. Please refresh and try again."


class File:
    """A file of a commit; content is bytes or, for large or sparse ones, a file on disk that is read in ranges."""

    def __init__(self, content: bytes | Path, lfs: bool) -> None:
        self.content = content
        self.lfs = lfs
        self.size = len(content) if isinstance(content, bytes) else content.stat().st_size

    @cached_property
    def sha256(self) -> str:
        with self.open() as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    @cached_property
    def blob_id(self) -> str:
        """Git's id: of the content, or of the LFS pointer that git holds for it."""
        body = self.pointer if self.lfs else self.read(0, self.size)
        return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()

    @property
    def pointer(self) -> bytes:
        text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size}\n"
        return text.encode()

    def open(self) -> io.BufferedReader | io.BytesIO:
        return self.content.open("rb") if isinstance(self.content, Path) else io.BytesIO(self.content)

    def read(self, start: int, stop: int) -> bytes:
        with self.open() as stream:
            stream.seek(start)
            return stream.read(stop - start)


@dataclass
class Commit:
    oid: str
    parent: str | None
    files: dict[str, File]
    title: str


@dataclass
class Repo:
    commits: dict[str, Commit] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    private: bool = False

    def find(self, revision: str) -> Commit | None:
        return self.commits.get(self.refs.get(revision, revision))

    def commit(self, files: dict[str, File], title: str = "change", branch: str = "main") -> str:
        """Put a new commit with exactly these files on ``branch``; returns its id."""
        parent = self.refs.get(branch)
        names = "".join(f"{path}:{file.blob_id}\n" for path, file in sorted(files.items()))
        oid = hashlib.sha1(f"{len(self.commits)} {parent} {title}\n{names}".encode()).hexdigest()
        self.commits[oid] = Commit(oid, parent, files, title)
        self.refs[branch] = oid
        return oid


@dataclass
class Fault:
    """What to do differently, ``times`` times, with requests that match; several parts may be set.

    ``status`` answers with it (0: not); ``delay`` waits that many seconds before the body; ``truncate`` cuts the
    connection after so many bytes of a body whose full length was promised; ``ignore_range`` answers a ranged request
    with 200 and the whole; ``meanwhile`` runs first, so that something changes between two requests of one client.
    """

    method: str
    pattern: str
    """Searched in ``host/path``."""
    status: int = 0
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    delay: float = 0.0
    truncate: int | None = None
    ignore_range: bool = False
    meanwhile: Callable[[], object] | None = None


@dataclass
class Request:
    """One request as it came in."""

    host: str
    method: str
    path: str
    """Without its query."""
    headers: dict[str, str]
    """Names in lower case."""
    sent: int = 0
    """Bytes of the answer's body."""

    def __str__(self) -> str:
        return f"{self.method} {self.host}{self.path}"


@dataclass
class HubServer:
    """State and switches of the Hub."""

    url: str = ""
    """What ``HF_ENDPOINT`` is set to."""
    cdn: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    log: list[Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    """LFS objects uploaded and not yet part of a commit, by SHA-256."""
    page_size: int = 50
    """Entries of the tree per page."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, repo: str, files: dict[str, bytes | Path] | Path, *, private: bool = False) -> str:
        """Put ``files`` (or a folder) as a new commit on ``main`` of ``repo``; returns the commit's id."""
        if isinstance(files, Path):
            files = {str(path.relative_to(files)): path for path in sorted(files.rglob("*")) if path.is_file()}
        made = self.repos.setdefault(repo, Repo())
        made.private = private
        return made.commit({path: File(content, _is_lfs(path)) for path, content in files.items()})

    def change(self, repo: str, path: str, content: bytes) -> str:
        """Somebody else's commit: one file changed on ``main``; returns the commit's id."""
        found = self.repos[repo]
        head = found.find("main")
        assert head is not None
        return found.commit({**head.files, path: File(content, _is_lfs(path))}, title="somebody else's change")

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        """Content of every file of a revision."""
        commit = self.repos[repo].find(revision)
        assert commit is not None
        return {path: file.read(0, file.size) for path, file in commit.files.items()}

    @property
    def writes(self) -> list[Request]:
        """Requests that change something, or prepare to; the look at a card's front matter does neither."""
        reads = ("GET", "HEAD")
        return [row for row in self.log if row.method not in reads and row.path != "/api/validate-yaml"]

    @property
    def bytes_sent(self) -> int:
        return sum(row.sent for row in self.log)

    @property
    def cdn_headers(self) -> list[dict[str, str]]:
        """Headers of every request to the second host."""
        return [row.headers for row in self.log if row.host == CDN_HOST]

    def environment(self, token: str | None = TOKEN) -> dict[str, str]:
        """Variables for a process of its own that shall use this Hub; add ``PATH`` and ``HF_HOME`` yourself."""
        base = {"HF_ENDPOINT": self.url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        return base if token is None else {**base, "HF_TOKEN": token}


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """Run a Hub and its second host on ephemeral loopback ports."""
    state = HubServer()
    servers = []
    for host, handler in ((HUB_HOST, _Hub), (CDN_HOST, _Cdn)):
        server = _Server((host, 0), type("Handler", (handler,), {"state": state, "host": host}))
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
    state.url, state.cdn = (f"http://{server.server_address[0]!s}:{server.server_port}" for server, _ in servers)
    try:
        yield state
    finally:
        for server, thread in servers:
            server.shutdown()
            thread.join()
            server.server_close()


def connect(server: HubServer, monkeypatch: pytest.MonkeyPatch, home: Path, token: str | None = TOKEN) -> None:
    """Make ``huggingface_hub`` in this process use ``server``: its constants are read from the environment at import.

    ``home`` becomes its home, so that neither cache nor token of the machine is touched.
    """
    from huggingface_hub import constants

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**server.environment(token), "HF_HOME": str(home)}.items():
        monkeypatch.setenv(name, value)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    values: dict[str, object] = {
        "ENDPOINT": server.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": template,
        "HF_HUB_DISABLE_XET": True,
    }
    values |= {"HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub"), "HF_TOKEN_PATH": str(home / "token")}
    for constant, setting in values.items():
        monkeypatch.setattr(constants, constant, setting)


def _is_lfs(path: str) -> bool:
    return path.endswith((".safetensors", ".bin"))


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gives up on a cut connection is what the tests are about; all else is shown."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Refusal(Exception):
    """An answer that is an error, with the code that ``huggingface_hub`` tells its exceptions by."""

    def __init__(self, status: int, message: str, code: str | None = None, **more: str) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.more = status, message, code, more


class _Base(BaseHTTPRequestHandler):
    state: ClassVar[HubServer]
    host: ClassVar[str]
    protocol_version = "HTTP/1.1"
    fault: Fault | None
    row: Request
    body: bytes

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are in ``HubServer.log``."""

    def handle_any(self) -> None:
        parts = urlsplit(self.path)
        self.body = self._read_body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.row = Request(self.host, self.command, unquote(parts.path), headers)
        self.fault = self._take_fault(f"{self.host}{parts.path}")
        with self.state.lock:
            self.state.log.append(self.row)
        if self.fault and self.fault.meanwhile:
            self.fault.meanwhile()
        try:
            if self.fault and self.fault.status:
                self.answer(self.fault.status, self.fault.body, self.fault.headers)
            else:
                self.route(parts.path, parse_qs(parts.query))
        except _Refusal as refusal:
            body = json.dumps({"error": refusal.message, **refusal.more}).encode()
            headers = {"X-Error-Message": refusal.message, "Content-Type": "application/json"}
            self.answer(refusal.status, body, headers | ({"X-Error-Code": refusal.code} if refusal.code else {}))

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    def route(self, path: str, query: dict[str, list[str]]) -> None:
        raise NotImplementedError

    def _read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _take_fault(self, where: str) -> Fault | None:
        with self.state.lock:
            for fault in self.state.faults:
                if fault.times and self.command == fault.method and re.search(fault.pattern, where):
                    fault.times -= 1
                    return fault
        return None

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        """Send it, or as much and as late as the fault says."""
        fault = self.fault or Fault("", "")
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault.delay:
            self.wfile.flush()
            time.sleep(fault.delay)
        part = body if fault.truncate is None else body[: fault.truncate]
        self.row.sent += len(part)
        self.wfile.write(part)
        if len(part) < len(body):
            self.close_connection = True

    def answer_json(self, document: Any, headers: dict[str, str] | None = None) -> None:
        self.answer(200, json.dumps(document).encode(), {"Content-Type": "application/json", **(headers or {})})

    def answer_file(self, file: File, headers: dict[str, str]) -> None:
        """The file, or the one range of it that was asked for."""
        headers = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream", **headers}
        if self.command == "HEAD":
            self.answer(200, b"", {**headers, "Content-Length": str(file.size)})
            return
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted is None or (self.fault and self.fault.ignore_range):
            self.answer(200, file.read(0, file.size), headers)
            return
        first, last = wanted.groups()
        start = int(first) if first else max(0, file.size - int(last))
        stop = min(int(last) + 1, file.size) if first and last else file.size
        if start >= file.size:
            self.answer(416, b"", {**headers, "Content-Range": f"bytes */{file.size}"})
            return
        span = {"Content-Range": f"bytes {start}-{stop - 1}/{file.size}"}
        self.answer(206, file.read(start, stop), {**headers, **span})


class _Cdn(_Base):
    """The second host: holds LFS objects, takes uploads, knows no tokens (its URLs are signed)."""

    def route(self, path: str, query: dict[str, list[str]]) -> None:
        oid = path.rsplit("/", 1)[-1]
        if query.get("signature") != [oid[:8]]:
            raise _Refusal(403, "the URL is not signed")
        if self.command == "PUT":
            if hashlib.sha256(self.body).hexdigest() != oid:
                raise _Refusal(400, "the content is not what the object id says")
            self.state.objects[oid] = self.body
            self.answer(200, b"", {"ETag": f'"{oid}"'})
            return
        commits = [commit for repo in self.state.repos.values() for commit in repo.commits.values()]
        files = (file for commit in commits for file in commit.files.values() if file.lfs and file.sha256 == oid)
        if (file := next(files, None)) is None:
            raise _Refusal(404, "no such object")
        self.answer_file(file, {"ETag": f'"{oid}"'})


_REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"
_ROUTES: list[tuple[str, str, str]] = [
    ("GET", rf"/api/models/{_REPO}(?:/revision/(?P<revision>[^/]+))?", "info"),
    ("GET", rf"/api/models/{_REPO}/tree/(?P<revision>[^/]+)(?:/(?P<path>.*))?", "tree"),
    ("POST", rf"/api/models/{_REPO}/paths-info/(?P<revision>[^/]+)", "paths_info"),
    ("GET|HEAD", rf"/{_REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "resolve"),
    ("POST", rf"/api/models/{_REPO}/preupload/(?P<revision>[^/]+)", "preupload"),
    ("POST", rf"/{_REPO}\.git/info/lfs/objects/batch", "lfs_batch"),
    ("POST", rf"/{_REPO}\.git/info/lfs/objects/verify", "lfs_verify"),
    ("POST", rf"/api/models/{_REPO}/commit/(?P<revision>[^/]+)", "commit"),
    ("POST", r"/api/repos/create", "create_repo"),
    ("POST", r"/api/validate-yaml", "validate_yaml"),
]
_WRITES = {"preupload", "lfs_batch", "lfs_verify", "commit", "create_repo"}


class _Hub(_Base):
    """The Hub's own host."""

    query: dict[str, list[str]]

    def route(self, path: str, query: dict[str, list[str]]) -> None:
        self.query = query
        for methods, pattern, name in _ROUTES:
            if self.command in methods.split("|") and (match := re.fullmatch(pattern, path)):
                if name in _WRITES:
                    self._require_token()
                getattr(self, name)(**{key: unquote(value) for key, value in match.groupdict().items() if value})
                return
        raise _Refusal(404, f"no such page: {self.command} {path}")

    def _require_token(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise _Refusal(401, "Invalid username or password.")

    def _repo(self, name: str) -> Repo:
        repo = self.state.repos.get(name)
        if repo is None or repo.private:
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise _Refusal(401, "Repository not found", "RepoNotFound")
            if repo is None:
                raise _Refusal(404, "Repository not found", "RepoNotFound")
        return repo

    def _commit(self, repo: str, revision: str) -> Commit:
        commit = self._repo(repo).find(revision)
        if commit is None:
            raise _Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    def info(self, repo: str, revision: str = "main") -> None:
        found = self._repo(repo)
        if not found.commits and revision == "main":
            self.answer_json({"id": repo, "modelId": repo, "sha": None, "private": found.private, "siblings": []})
            return
        commit = self._commit(repo, revision)
        siblings = [
            {"rfilename": path, **({"size": file.size, "blobId": file.blob_id} if "blobs" in self.query else {})}
            for path, file in sorted(commit.files.items())
        ]
        about = {"id": repo, "modelId": repo, "sha": commit.oid, "private": found.private, "siblings": siblings}
        self.answer_json(about)

    def tree(self, repo: str, revision: str, path: str = "") -> None:
        """Entries in pages: the next one is named by a ``Link`` header."""
        commit = self._commit(repo, revision)
        below = f"{path}/" if path else ""
        recursive = self.query.get("recursive", ["false"])[0]
        rows: dict[str, dict[str, Any]] = {}
        for name, file in sorted(commit.files.items()):
            folder, deeper, _ = name.removeprefix(below).partition("/")
            if not name.startswith(below):
                continue
            if deeper and recursive.lower() == "false":
                rows[below + folder] = {"type": "directory", "path": below + folder, "size": 0, "oid": "0" * 40}
            else:
                rows[name] = _row(name, file)
        start = int(self.query.get("cursor", ["0"])[0])
        stop = start + self.state.page_size
        following = f"{self.state.url}{urlsplit(self.path).path}?recursive={recursive}&cursor={stop}"
        self.answer_json(
            list(rows.values())[start:stop], {"Link": f'<{following}>; rel="next"'} if stop < len(rows) else {}
        )

    def paths_info(self, repo: str, revision: str) -> None:
        commit = self._commit(repo, revision)
        if self.headers.get("Content-Type", "").startswith("application/json"):
            names = json.loads(self.body)["paths"]
        else:
            names = parse_qs(self.body.decode())["paths"]
        self.answer_json([_row(name, commit.files[name]) for name in names if name in commit.files])

    def resolve(self, repo: str, revision: str, path: str) -> None:
        """Small files come from here; LFS files by a redirect to the other host, with a signature in its query."""
        commit = self._commit(repo, revision)
        if (file := commit.files.get(path)) is None:
            raise _Refusal(404, "Entry not found", "EntryNotFound")
        headers = {"X-Repo-Commit": commit.oid}
        if not file.lfs:
            self.answer_file(file, {**headers, "ETag": f'"{file.blob_id}"'})
            return
        linked = {"X-Linked-Size": str(file.size), "X-Linked-ETag": f'"{file.sha256}"', "Accept-Ranges": "bytes"}
        location = {"Location": f"{self.state.cdn}/objects/{file.sha256}?signature={file.sha256[:8]}"}
        self.answer(302, b"", {**headers, **linked, **location})

    def preupload(self, repo: str, revision: str) -> None:
        found = self._repo(repo)
        commit = found.find(revision)
        if commit is None and (found.commits or revision != "main"):
            raise _Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        there = commit.files if commit else {}
        rows = []
        for row in json.loads(self.body)["files"]:
            old = there.get(row["path"])
            oid = None if old is None else old.sha256 if old.lfs else old.blob_id
            mode = "lfs" if _is_lfs(row["path"]) else "regular"
            rows.append({"path": row["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.answer_json({"files": rows})

    def lfs_batch(self, repo: str) -> None:
        """Where to send each object that is not here yet."""
        commits = self._repo(repo).commits.values()
        known = {file.sha256 for commit in commits for file in commit.files.values() if file.lfs}
        rows: list[dict[str, Any]] = []
        for wanted in json.loads(self.body)["objects"]:
            oid = wanted["oid"]
            row = {"oid": oid, "size": wanted["size"]}
            if oid not in known:
                upload = f"{self.state.cdn}/uploads/{oid}?signature={oid[:8]}"
                verify = f"{self.state.url}/{repo}.git/info/lfs/objects/verify"
                row["actions"] = {"upload": {"href": upload}, "verify": {"href": verify}}
            rows.append(row)
        self.answer_json({"transfer": "basic", "objects": rows})

    def lfs_verify(self, repo: str) -> None:
        self._repo(repo)
        wanted = json.loads(self.body)
        if len(self.state.objects.get(wanted["oid"], b"")) != wanted["size"]:
            raise _Refusal(422, "the object was not uploaded as announced")
        self.answer_json({})

    def commit(self, repo: str, revision: str) -> None:
        """One commit from NDJSON lines; a parent that is no longer the head is refused with 412, as the Hub does."""
        found = self._repo(repo)
        lines = [json.loads(line) for line in self.body.splitlines()]
        with self.state.lock:
            head = found.find(revision)
            if head is None and (found.commits or revision != "main"):
                raise _Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
            header = lines[0]["value"]
            if "parentCommit" in header and header["parentCommit"] != (head.oid if head else None):
                raise _Refusal(412, STALE)
            files = dict(head.files) if head else {}
            for line in lines[1:]:
                self._apply(files, line["key"], line["value"])
            oid = found.commit(files, header["summary"], revision)
        self.answer_json({"success": True, "commitOid": oid, "commitUrl": f"{self.state.url}/{repo}/commit/{oid}"})

    def _apply(self, files: dict[str, File], key: str, value: dict[str, Any]) -> None:
        path = value["path"]
        if key == "file":
            files[path] = File(base64.b64decode(value["content"]), lfs=False)
        elif key == "lfsFile":
            files[path] = self._lfs_object(value["oid"])
        elif key == "deletedFile":
            if files.pop(path, None) is None:
                raise _Refusal(404, "A file with this name doesn't exist", "EntryNotFound")
        else:
            raise _Refusal(400, f"operation {key!r} is not spoken here")

    def _lfs_object(self, oid: str) -> File:
        if oid in self.state.objects:
            return File(self.state.objects[oid], lfs=True)
        commits = [commit for repo in self.state.repos.values() for commit in repo.commits.values()]
        for file in (file for commit in commits for file in commit.files.values() if file.lfs):
            if file.sha256 == oid:
                return file
        raise _Refusal(400, f"LFS object {oid} was never uploaded")

    def create_repo(self) -> None:
        wanted = json.loads(self.body)
        name = f"{wanted.get('organization') or 'somebody'}/{wanted['name']}"
        if name in self.state.repos:
            raise _Refusal(409, "You already created this model repo", url=f"{self.state.url}/{name}")
        self.state.repos[name] = Repo(private=wanted.get("visibility") == "private")
        self.answer_json({"url": f"{self.state.url}/{name}"})

    def validate_yaml(self) -> None:
        """The Hub looks at a card's front matter before a commit."""
        text = json.loads(self.body)["content"]
        match = re.match(r"---\r?\n(.*?)\r?\n---(\r?\n|$)", text, re.DOTALL)
        try:
            data = yaml.safe_load(match[1]) if match else {}
        except yaml.YAMLError as error:
            body = json.dumps({"errors": [{"message": str(error)}], "warnings": []}).encode()
            self.answer(400, body, {"Content-Type": "application/json"})
            return
        warnings = [] if data else [{"message": "empty or missing yaml metadata in repo card"}]
        self.answer_json({"errors": [], "warnings": warnings})


def _row(path: str, file: File) -> dict[str, Any]:
    """A file as tree and paths-info show it."""
    row: dict[str, Any] = {"type": "file", "path": path, "size": file.size, "oid": file.blob_id}
    if file.lfs:
        row["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": len(file.pointer)}
    return row
