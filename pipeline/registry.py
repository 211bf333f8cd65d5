"""Client of one repository in an OCI registry (OCI distribution specification 1.1).

Blobs stream from and to disk; what is read is verified against its digest. TLS everywhere but on loopback.
Credentials come from Docker's configuration and its credential helpers, and never enter a message: errors name
the registry, the operation, a status and the registry's error code, but no URL, header or body.
"""

import hashlib
import ipaddress
import json
import re
import tempfile
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urljoin, urlsplit

import docker.auth
import requests
import requests.auth
from docker.credentials.errors import StoreError
from docker.errors import DockerException
from urllib3.exceptions import InvalidHeader
from urllib3.util import Retry

from pipeline.console import warn
from pipeline.documents import canonical_json
from pipeline.errors import ReleaseError
from pipeline.oci import (
    CHUNK,
    DOCKER_MANIFEST_TYPE,
    INDEX_TYPE,
    MANIFEST_TYPE,
    Descriptor,
    digest_bytes,
)

CONNECT_SECONDS = 10
READ_SECONDS = 60
RETRIES = 3
BACKOFF_SECONDS = 0.5
"""Pause before the first retry; it doubles with each."""
RETRY_AFTER_MAX_SECONDS = 60.0
"""Longest pause that a registry may ask for; one that asks for more is given up on."""
MANIFEST_MAX_BYTES = 4 << 20
"""Largest manifest that the specification lets a registry be sent."""

EMPTY_TYPE, EMPTY = "application/vnd.oci.empty.v1+json", b"{}"
"""What stands for a config where an artifact has none (image specification 1.1)."""

MANIFEST_TYPES = (
    MANIFEST_TYPE,
    DOCKER_MANIFEST_TYPE,
    INDEX_TYPE,
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
TRY_LATER = frozenset({429, 500, 502, 503, 504})

DOCKER_HUB = "registry-1.docker.io"
DOCKER_HUB_NAMES = frozenset({"docker.io", "index.docker.io", DOCKER_HUB})

_HOST = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)(:[0-9]{1,5})?")
_PATH = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_ERROR_CODE = re.compile(r"[A-Z][A-Z_]{2,39}")

T = TypeVar("T")


@dataclass(frozen=True)
class Repository:
    """A repository: ``host`` with its port, where there is one, and ``path``."""

    host: str
    path: str

    @classmethod
    def parse(cls, text: str) -> "Repository":
        """Read ``host[:port]/path``; a name without a host is one of Docker Hub, as for Docker itself.

        Raises:
            ReleaseError: a tag or digest, an uppercase letter, or anything else that is no repository.
        """
        first, slash, rest = text.partition("/")
        has_host = bool(slash) and (first == "localhost" or any(mark in first for mark in ".:["))
        host, path = (first, rest) if has_host else ("docker.io", text)
        if host in DOCKER_HUB_NAMES:
            host, path = DOCKER_HUB, path if "/" in path else f"library/{path}"
        if not _HOST.fullmatch(host) or not _PATH.fullmatch(path):
            raise ReleaseError(
                f"repository {text!r}",
                expected="host[:port]/path in lowercase, without tag or digest",
                do=_hint(text),
            )
        return cls(host, path)

    @property
    def is_loopback(self) -> bool:
        """Whether the host is this machine, by its name or address alone."""
        name = urlsplit(f"//{self.host}").hostname or ""
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return name == "localhost"

    @property
    def url(self) -> str:
        """Base of the registry's API: plain HTTP on loopback, else HTTPS."""
        return f"{'http' if self.is_loopback else 'https'}://{self.host}"

    def __str__(self) -> str:
        return f"{self.host}/{self.path}"


def _hint(text: str) -> str:
    name, at, digest = text.partition("@")
    if at:
        return f"leave out {at + digest!r}"
    if _HOST.fullmatch(text) and any(mark in text for mark in ".:"):
        return f"add a path: {text}/name"
    stem, colon, tag = name.rpartition(":")
    if colon and "/" not in tag:
        return f"leave out {colon + tag!r}" if stem else "correct the name"
    return f"did you mean {text.lower()!r}?" if text != text.lower() else "correct the name"


def parse_pinned(reference: str) -> tuple[Repository, str]:
    """Read ``repository@sha256:<hex>`` into repository and digest."""
    name, _, digest = reference.partition("@")
    if not _DIGEST.fullmatch(digest):
        raise ReleaseError(
            f"reference {reference!r}", expected="repository@sha256:<64 hex digits>", do="pin it by digest"
        )
    return Repository.parse(name), digest


def referrers_tag(subject: str) -> str:
    """Tag of the index that lists the referrers of a digest where the registry has no API for it."""
    return subject.replace(":", "-")


class Manifest(NamedTuple):
    """A manifest as the registry serves it, with the digest of exactly these bytes."""

    content: bytes
    media_type: str
    digest: str


class _TryLater(Exception):
    """An answer or failure that a later attempt may not meet; ``pause`` in seconds, if the registry gave one."""

    def __init__(self, found: str, pause: float | None = None) -> None:
        super().__init__(found)
        self.found = found
        self.pause = pause


@dataclass
class _Authorization(requests.auth.AuthBase):
    """Adds the current ``Authorization`` header to requests to the registry itself, and to no other host.

    Being a requests auth object, it also keeps requests from sending what it finds in ``~/.netrc``.
    """

    origin: str
    header: str | None = None

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self.header is not None and _origin(request.url or "") == self.origin:
            request.headers["Authorization"] = self.header
        return request


@dataclass
class Registry:
    """One repository of a registry, and what was sent to it.

    Every method raises :class:`ReleaseError` when the registry does not do what it should, after
    :data:`RETRIES` retries where a later attempt may succeed. All operations are safe to repeat. As a context
    manager it closes its connections.
    """

    repository: Repository
    bytes_sent: int = 0
    """Bodies of blobs and manifests that the registry took, in bytes."""
    _session: requests.Session = field(default_factory=requests.Session, repr=False)
    _authorization: _Authorization = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._authorization = _Authorization(_origin(self.repository.url))

    def __enter__(self) -> "Registry":
        return self

    def __exit__(self, *reason: object) -> None:
        self._session.close()

    def has_blob(self, digest: str) -> bool:
        """Whether the repository holds a blob, so that it need not be sent.

        One at which the registry keeps failing has to be: a full disk leaves docker-registry with a blob that it
        answers 500 for until it is sent again.
        """

        def attempt() -> bool:
            response = self._send("HEAD", f"blobs/{digest}")
            self._expect(response, f"look for blob {digest}", 200, 404)
            return response.status_code == 200

        try:
            return self._repeat(f"look for blob {digest}", attempt)
        except ReleaseError as error:
            if not str(error.found).startswith("500"):
                raise
            warn(f"{error.line()}; taken for missing, to be sent again")
            return False

    def push_blob(self, content: Path | bytes, descriptor: Descriptor) -> int:
        """Send a blob, streamed where it is a file, unless the repository holds it; the number of bytes sent."""
        if self.has_blob(descriptor.digest):
            return 0
        operation = f"upload blob {descriptor.digest}"
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        if size != descriptor.size:
            what = operation if isinstance(content, bytes) else str(content)
            raise ReleaseError(
                what, expected=f"{descriptor.size} bytes", found=f"{size} bytes", do="build the image again"
            )

        def attempt() -> None:
            # After a broken upload its session may hold part of the bytes: each attempt starts a new one.
            started = self._send("POST", "blobs/uploads/")
            self._expect(started, operation, 202)
            response = self._send(
                "PUT",
                self._location(started, operation),
                params={"digest": descriptor.digest},
                headers={"Content-Type": "application/octet-stream"},
                body=content,
            )
            self._expect(response, operation, 201)
            self._same_digest(response, operation, descriptor.digest)

        self._repeat(operation, attempt)
        self.bytes_sent += size
        return size

    def mount_blob(self, digest: str, source: str) -> bool:
        """Take a blob from repository ``source`` (a path) of the same registry; ``False`` if it will not.

        A registry that cannot mount answers 202 and opens an upload, which is cancelled here.
        """
        operation = f"mount blob {digest} from {source}"

        def attempt() -> bool:
            response = self._send("POST", "blobs/uploads/", params={"mount": digest, "from": source})
            self._expect(response, operation, 201, 202)
            if response.status_code == 201:
                self._same_digest(response, operation, digest)
                return True
            cancelled = self._send("DELETE", self._location(response, operation))
            self._expect(cancelled, f"cancel the upload that {operation} began", 200, 202, 204, 404, 405)
            return False

        return self._repeat(operation, attempt)

    def put_manifest(self, reference: str, content: bytes, media_type: str) -> bool:
        """Store a manifest under a tag or its digest; whether the registry keeps it as a referrer of its subject."""
        digest, operation = digest_bytes(content), f"put manifest {reference}"

        def attempt() -> requests.Response:
            headers = {"Content-Type": media_type}
            response = self._send("PUT", f"manifests/{reference}", headers=headers, body=content)
            self._expect(response, operation, 201)
            self._same_digest(response, operation, digest)
            return response

        response = self._repeat(operation, attempt)
        self.bytes_sent += len(content)
        return "OCI-Subject" in response.headers

    def head_manifest(self, reference: str) -> str | None:
        """Digest that a tag or digest stands for, ``None`` when there is no such manifest."""
        operation = f"look up {reference}"

        def attempt() -> requests.Response:
            response = self._send("HEAD", f"manifests/{reference}", headers=_ACCEPT)
            self._expect(response, operation, 200, 404)
            return response

        response = self._repeat(operation, attempt)
        if response.status_code == 404:
            return None
        digest = response.headers.get("Docker-Content-Digest")
        return digest or self.get_manifest(reference).digest  # the header is optional

    def get_manifest(self, reference: str) -> Manifest:
        """A manifest by tag or digest, verified against the digest asked for or stated."""
        operation = f"get manifest {reference}"

        def attempt() -> Manifest:
            with closing(self._send("GET", f"manifests/{reference}", headers=_ACCEPT, stream=True)) as response:
                self._expect(response, operation, 200)
                content = b"".join(self._bounded(response, operation, MANIFEST_MAX_BYTES))
                media_type = response.headers.get("Content-Type", "").partition(";")[0]
                stated = response.headers.get("Docker-Content-Digest")
            expected = reference if _DIGEST.fullmatch(reference) else stated
            return Manifest(content, media_type, self._verified(operation, content, expected))

        return self._repeat(operation, attempt)

    def get_blob(self, digest: str, limit: int) -> bytes:
        """A blob of at most ``limit`` bytes, verified."""
        operation = f"get blob {digest}"

        def attempt() -> bytes:
            with closing(self._send("GET", f"blobs/{digest}", stream=True)) as response:
                self._expect(response, operation, 200)
                content = b"".join(self._bounded(response, operation, limit))
            self._verified(operation, content, digest)
            return content

        return self._repeat(operation, attempt)

    def fetch_blob(self, descriptor: Descriptor, target: Path) -> None:
        """Stream a blob to ``target``, which appears by rename once its digest is verified."""
        operation = f"get blob {descriptor.digest}"

        def attempt() -> None:
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".blob.") as scratch:
                draft, sha256 = Path(scratch, "blob"), hashlib.sha256()
                with (
                    closing(self._send("GET", f"blobs/{descriptor.digest}", stream=True)) as response,
                    draft.open("wb") as stream,
                ):
                    self._expect(response, operation, 200)
                    for chunk in self._bounded(response, operation, descriptor.size):
                        sha256.update(chunk)
                        stream.write(chunk)
                self._same(operation, descriptor.digest, f"sha256:{sha256.hexdigest()}")
                draft.replace(target)

        self._repeat(operation, attempt)

    # -- referrers (distribution specification 1.1) ------------------------------------------------------------

    def push_referrer(self, subject: Descriptor, artifact_type: str, content: bytes) -> str:
        """Attach a document to the manifest ``subject``; the digest of the artifact's manifest.

        A registry without the referrers API gets the specification's fallback: an index under the tag
        ``sha256-<hex of the subject>``.
        """
        config = Descriptor(EMPTY_TYPE, digest_bytes(EMPTY), len(EMPTY))
        document = Descriptor(artifact_type, digest_bytes(content), len(content))
        self.push_blob(EMPTY, config)
        self.push_blob(content, document)
        manifest = canonical_json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "artifactType": artifact_type,
                "config": config.as_json(),
                "layers": [document.as_json()],
                "subject": subject.as_json(),
            }
        )
        artifact = Descriptor(MANIFEST_TYPE, digest_bytes(manifest), len(manifest))
        if not self.put_manifest(artifact.digest, manifest, MANIFEST_TYPE):
            self._list_under_tag(subject.digest, {**artifact.as_json(), "artifactType": artifact_type})
        return artifact.digest

    def _list_under_tag(self, subject: str, entry: dict[str, Any]) -> None:
        listed = self._tagged_referrers(subject)
        if all(row["digest"] != entry["digest"] for row in listed):
            index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [*listed, entry]}
            self.put_manifest(referrers_tag(subject), canonical_json(index), INDEX_TYPE)

    def list_referrers(self, subject: str, artifact_type: str) -> list[str]:
        """Digests of the artifacts of one type that refer to the manifest ``subject``, in the registry's order."""
        operation, where = f"list referrers of {subject}", f"referrers/{subject}"
        rows: list[dict[str, Any]] = []
        while where:

            def attempt(where: str = where) -> requests.Response:
                response = self._send("GET", where, headers={"Accept": INDEX_TYPE})
                self._expect(response, operation, 200, 404)
                return response

            response = self._repeat(operation, attempt)
            if response.status_code == 404:  # no such API here
                rows = self._tagged_referrers(subject)
                break
            rows += self._index_rows(response.content, operation)
            link = response.links.get("next", {}).get("url")
            where = self._same_origin(urljoin(response.url, link), operation) if link else ""
        return [str(row["digest"]) for row in rows if row.get("artifactType") == artifact_type]

    def get_referrer(self, artifact: str, limit: int) -> bytes:
        """The document of an artifact that :meth:`push_referrer` made, of at most ``limit`` bytes."""
        operation = f"get referrer {artifact}"
        try:
            (layer,) = json.loads(self.get_manifest(artifact).content)["layers"]
            digest = str(layer["digest"])
        except (ValueError, KeyError, TypeError):
            raise self._error(operation, "an artifact of one document", "another", "see who pushed it") from None
        return self.get_blob(digest, limit)

    def _tagged_referrers(self, subject: str) -> list[dict[str, Any]]:
        tag = referrers_tag(subject)
        if self.head_manifest(tag) is None:
            return []
        return self._index_rows(self.get_manifest(tag).content, f"read {tag}")

    def _index_rows(self, content: bytes, operation: str) -> list[dict[str, Any]]:
        try:
            rows = json.loads(content)["manifests"]
            return [row for row in rows if _DIGEST.fullmatch(row["digest"])]
        except (ValueError, KeyError, TypeError):
            raise self._error(operation, "an OCI index", "another document", "see who pushed it") from None

    def _same_origin(self, url: str, operation: str) -> str:
        if _origin(url) != self._authorization.origin:
            raise self._error(operation, "its next page at the registry", f"one at {_origin(url)}", "tell its operator")
        return url

    # -- one exchange ------------------------------------------------------------------------------------------

    def _send(
        self,
        method: str,
        where: str,
        *,
        params: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        body: bytes | Path | None = None,
        stream: bool = False,
    ) -> requests.Response:
        """Send one request, a second time when the registry first wants credentials.

        Raises:
            _TryLater: the registry was not reached, or asks to come back.
        """
        url = where if "://" in where else f"{self.repository.url}/v2/{self.repository.path}/{where}"
        response = self._exchange(method, url, params, headers, body, stream)
        if response.status_code == 401 and self._authenticate(response):
            response = self._exchange(method, url, params, headers, body, stream)
        if response.status_code in TRY_LATER:
            raise _TryLater(_status(response), _retry_after(response))
        return response

    def _exchange(
        self,
        method: str,
        url: str,
        params: dict[str, str] | None,
        headers: dict[str, str] | None,
        body: bytes | Path | None,
        stream: bool,
    ) -> requests.Response:
        def send(data: Any) -> requests.Response:
            return self._session.request(
                method,
                url,
                params=params,
                headers=headers,
                data=data,
                auth=self._authorization,
                timeout=(CONNECT_SECONDS, READ_SECONDS),
                allow_redirects=method in ("GET", "HEAD"),
                stream=stream,
            )

        if isinstance(body, Path):
            with body.open("rb") as opened:
                return send(opened)
        return send(body)

    def _repeat(self, operation: str, attempt: Callable[[], T]) -> T:
        """Run ``attempt`` until it succeeds, at most once and :data:`RETRIES` times more."""
        pause = BACKOFF_SECONDS
        for retries_left in range(RETRIES, -1, -1):
            try:
                return attempt()
            except requests.exceptions.SSLError:
                raise self._error(
                    operation, "a certificate that can be verified", "another", "correct the host or its CA"
                ) from None
            except requests.RequestException as error:
                failure = _TryLater(_reason(error))
            except _TryLater as error:
                failure = error
            wait = pause if failure.pause is None else failure.pause
            if wait > RETRY_AFTER_MAX_SECONDS:
                failure.found += f", to be asked again in {wait:.0f} s"
            if not retries_left or wait > RETRY_AFTER_MAX_SECONDS:
                break
            sleep(wait)
            pause *= 2
        raise self._error(operation, "an answer", failure.found, "run again when the registry is well")

    def _location(self, response: requests.Response, operation: str) -> str:
        """Where an upload goes on: absolute or relative, with its query; never from HTTPS down to HTTP."""
        location = response.headers.get("Location")
        if not location:
            raise self._error(operation, "a Location header", "none", "report it to the registry's operator")
        url = urljoin(response.url, location)
        if urlsplit(url).scheme != "https" and _origin(url) != self._authorization.origin:
            raise self._error(
                operation,
                "an upload at the registry or over https",
                f"one at {_origin(url)}",
                "correct the registry's external address",
            )
        return url

    # -- verdicts ----------------------------------------------------------------------------------------------

    def _expect(self, response: requests.Response, operation: str, *statuses: int) -> None:
        if response.status_code in statuses:
            return
        do = {
            401: f"docker login {self.repository.host}",
            403: f"use an account that may write to {self.repository}",
            404: "check the name of the repository and that the object was pushed",
            413: "raise the size limit of the registry or the proxy before it",
        }.get(response.status_code, "see the registry's log")
        expected = " or ".join(map(str, statuses))
        raise self._error(operation, f"status {expected}", _status(response), do)

    def _same_digest(self, response: requests.Response, operation: str, digest: str) -> None:
        self._same(operation, digest, response.headers.get("Docker-Content-Digest", digest))

    def _verified(self, operation: str, content: bytes, expected: str | None) -> str:
        digest = digest_bytes(content)
        self._same(operation, expected or digest, digest)
        return digest

    def _same(self, operation: str, expected: str, found: str) -> None:
        if expected != found:
            raise self._error(operation, expected, found, "do not use this registry until its operator looked")

    def _bounded(self, response: requests.Response, operation: str, limit: int) -> Iterator[bytes]:
        size = 0
        for chunk in response.iter_content(CHUNK):
            size += len(chunk)
            if size > limit:
                raise self._error(operation, f"at most {limit} bytes", "more", "check what the registry serves")
            yield chunk

    def _error(self, operation: str, expected: str, found: str, do: str) -> ReleaseError:
        return ReleaseError(f"{self.repository}: {operation}", expected=expected, found=found, do=do)

    # -- credentials -------------------------------------------------------------------------------------------

    def _authenticate(self, response: requests.Response) -> bool:
        """Answer a 401 of the registry itself: get a token, or basic credentials.

        ``False`` when there is nothing to answer with, and for any other host that an upload or a redirect led
        to: its challenge could name a token service of its own.
        """
        if _origin(response.url) != self._authorization.origin:
            return False
        scheme, _, rest = response.headers.get("WWW-Authenticate", "").partition(" ")
        credentials = self._credentials()
        if scheme.lower() == "bearer":
            challenge = dict(_PARAMETER.findall(rest))
            self._authorization.header = f"Bearer {self._token(challenge, credentials)}"
            return True
        if scheme.lower() == "basic" and credentials.password is not None:
            self._authorization.header = credentials.basic()
            return True
        return False

    def _credentials(self) -> "_Credentials":
        """What Docker's configuration holds for this registry."""
        host = None if self.repository.host == DOCKER_HUB else self.repository.host
        try:
            with warnings.catch_warnings(action="ignore"):  # a helper that is not installed: an error below
                found = docker.auth.load_config().resolve_authconfig(host) or {}
        except (DockerException, StoreError, ValueError):
            # The cause may quote what a credential helper printed.
            raise self._error(
                "read Docker's configuration",
                "credentials",
                "a file or credential helper that fails",
                f"docker login {self.repository.host}",
            ) from None
        lower = {key.lower(): value for key, value in found.items()}
        return _Credentials(lower.get("username"), lower.get("password"), lower.get("identitytoken"))

    def _token(self, challenge: dict[str, str], credentials: "_Credentials") -> str:
        """Ask the token service that the registry names (Docker registry v2 token and OAuth2 specifications)."""
        operation, realm = "get a token", challenge.get("realm", "")
        service = Repository(urlsplit(realm).netloc, "")
        if urlsplit(realm).scheme != "https" and not (service.is_loopback and self.repository.is_loopback):
            raise self._error(
                operation, "a token service over https", "another", "correct the registry's configuration"
            )
        query = [("service", challenge.get("service", ""))]
        query += [("scope", scope) for scope in challenge.get("scope", "").split()]
        timeout = (CONNECT_SECONDS, READ_SECONDS)
        if credentials.identity_token is not None:
            form = {"grant_type": "refresh_token", "refresh_token": credentials.identity_token}
            form |= {"client_id": "sglang-xpu-images", "service": challenge.get("service", "")}
            form |= {"scope": challenge.get("scope", "")}
            response = self._session.post(realm, data=form, auth=_nobody, timeout=timeout, allow_redirects=False)
        else:
            auth = _Authorization(_origin(realm), credentials.basic() if credentials.password else None)
            response = self._session.get(realm, params=query, auth=auth, timeout=timeout)
        if response.status_code in TRY_LATER:
            raise _TryLater(f"{_status(response)} from the token service", _retry_after(response))
        self._expect(response, operation, 200)
        try:
            answer = response.json()
            return str(answer.get("token") or answer["access_token"])
        except (ValueError, KeyError, AttributeError):
            raise self._error(operation, "a token", "none", "see the log of the token service") from None


@dataclass(frozen=True)
class _Credentials:
    """Credentials for one registry; their text representation shows none of it."""

    username: str | None = field(repr=False)
    password: str | None = field(repr=False)
    identity_token: str | None = field(repr=False)

    def basic(self) -> str:
        """Value of an ``Authorization`` header for the basic scheme."""
        return "Basic " + b64encode(f"{self.username}:{self.password}".encode()).decode()


_ACCEPT = {"Accept": ", ".join(MANIFEST_TYPES)}


def _nobody(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Send no credentials, those of ``~/.netrc`` included."""
    return request


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _status(response: requests.Response) -> str:
    """Status and the registry's error code, as in ``403 DENIED``; its free text may hold anything."""
    try:
        code = str(response.json()["errors"][0]["code"])
    except (ValueError, KeyError, IndexError, TypeError, requests.RequestException):
        return str(response.status_code)
    return f"{response.status_code} {code}" if _ERROR_CODE.fullmatch(code) else str(response.status_code)


def _retry_after(response: requests.Response) -> float | None:
    value = response.headers.get("Retry-After")
    try:
        return Retry().parse_retry_after(value) if value else None
    except InvalidHeader:
        return None


def _reason(error: BaseException) -> str:
    """Why a request failed, without its URL: the system's word where there is one."""
    if isinstance(error, requests.Timeout):
        return f"no answer in {READ_SECONDS} s"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror and not isinstance(cause, requests.RequestException):
            return cause.strerror.lower()
        cause = cause.__cause__ or cause.__context__
    return "a broken connection"
