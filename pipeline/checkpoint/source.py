"""Where a checkpoint comes from: a local folder, or a repository on the Hub, read in ranges.

``huggingface_hub`` does all that it offers: revision to commit, listing, token, endpoint, redirects, waiting after 429
and 5xx. The ranged read itself is here, because its own (``parse_safetensors_file_metadata``, ``HfFileSystem``) hold
the whole answer in memory, which is the whole shard when a server ignores the range.
"""

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import CheckpointError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TIMEOUT_SECONDS = 20.0
"""Without one byte from the server."""
ATTEMPTS = 3
"""Reads of one range when the connection breaks within it."""
HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[^@\s]+))?")


@dataclass
class Source(ABC):
    """Files of one checkpoint by name (top folder only), with what reading them cost."""

    name: str
    revision: str | None = None
    """The commit, for a Hub repository."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of every file."""
    bytes_read: int = 0
    requests: int = 0
    """Reads of a local file count too."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def read(self, file: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes of a file, fewer when it ends before; ``length`` None is all of the rest.

        Raises:
            CheckpointError: it cannot be read.
        """
        stop = self.sizes[file] if length is None else min(start + length, self.sizes[file])
        if stop <= start:
            return b""
        data = self._read(file, start, stop)
        self._count(len(data))
        if len(data) != stop - start:
            raise CheckpointError(f"{self}/{file}", expected=f"{stop - start} bytes at {start}", found=len(data))
        return data

    def _count(self, size: int = 0) -> None:
        with self._lock:
            self.bytes_read += size
            self.requests += 1

    @abstractmethod
    def _read(self, file: str, start: int, stop: int) -> bytes: ...

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}" if self.revision else self.name


@dataclass
class LocalSource(Source):
    """A folder on this machine."""

    @property
    def folder(self) -> Path:
        return Path(self.name)

    def _read(self, file: str, start: int, stop: int) -> bytes:
        try:
            with (self.folder / file).open("rb") as stream:
                stream.seek(start)
                return stream.read(stop - start)
        except OSError as error:
            raise CheckpointError(f"{self.folder / file}: {error.strerror}", do="give read access") from error


@dataclass
class HubSource(Source):
    """A model repository at one commit."""

    def _read(self, file: str, start: int, stop: int) -> bytes:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # loaded lazily

        url = hf_hub_url(self.name, file, revision=self.revision)
        headers = {**build_hf_headers(), "Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        for _ in range(ATTEMPTS):
            with hub_errors(f"{self}/{file}"):
                data = _ranged(url, headers, start, stop)
            if data is not None:
                return data
            self._count()
        raise CheckpointError(
            f"{self}/{file}", expected=f"bytes {start} to {stop}", found="a connection that breaks each time"
        )


def _ranged(url: str, headers: dict[str, str], start: int, stop: int) -> bytes | None:
    """The range, or None when the connection broke within it; never more than the range is held."""
    import httpx2
    from huggingface_hub.utils import hf_raise_for_status, http_stream_backoff  # type: ignore[attr-defined]

    with http_stream_backoff("GET", url, headers=headers, timeout=TIMEOUT_SECONDS) as response:
        hf_raise_for_status(response)
        if response.status_code != 206 and start:
            raise CheckpointError(
                url.split("?")[0],
                expected="206 with the range that was asked for",
                found=f"{response.status_code} with the whole file",
                do="use an endpoint that serves ranges; no whole shard is read",
            )
        data = bytearray()
        try:
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) >= stop - start:
                    break
        except httpx2.TransportError:  # leaving the block by it would confuse the retry of http_stream_backoff
            return None
    return bytes(data[: stop - start])


@contextmanager
def hub_errors(what: str) -> Iterator[None]:
    """Turn what ``huggingface_hub`` raises into one line; texts of the server, which may repeat a token, stay out.

    Raises:
        CheckpointError: for any of it.
    """
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except (errors.RepositoryNotFoundError, errors.GatedRepoError) as error:
        raise CheckpointError(
            f"{what}: no such repository, or no access to it", do="check the name, or log in with `hf auth login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"{what}: no such revision", do="name a branch, tag or commit after @") from error
    except errors.EntryNotFoundError as error:
        raise CheckpointError(f"{what}: no such file", do="look at the repository's file list") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no answer"
        do = "log in with `hf auth login`, or ask for access" if status in (401, 403) else "try again later"
        raise CheckpointError(f"{what}: the Hub answered {status}", do=do) from error
    except errors.OfflineModeIsEnabled as error:
        raise CheckpointError(f"{what}: HF_HUB_OFFLINE is set", do="unset it, or name a local folder") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise CheckpointError(
            f"{what}: {type(error).__name__} while talking to the Hub", do="check the network and HF_ENDPOINT"
        ) from error
    except (errors.HFValidationError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{what}: not an answer that the Hub gives", do="check HF_ENDPOINT") from error


def open_source(text: str) -> Source:
    """A folder if there is one of this name, else a Hub repository ``owner/name[@revision]``.

    Raises:
        CheckpointError: neither, or it cannot be listed.
    """
    folder = Path(text)
    if folder.is_dir():
        return open_folder(folder)
    match = HUB_ID.fullmatch(text)
    if match is None or folder.is_absolute() or text.startswith("."):
        raise CheckpointError(text, expected="a folder, or a Hub id owner/name[@revision]", found="neither")
    return open_hub(match["repo"], match["revision"])


def open_folder(folder: Path) -> LocalSource:
    """Every regular file of a folder.

    Raises:
        CheckpointError: it cannot be listed.
    """
    try:
        sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    except OSError as error:
        raise CheckpointError(f"{folder}: {error.strerror}", do="give read access") from error
    return LocalSource(str(folder), sizes=sizes)


def open_hub(repo: str, revision: str | None = None, api: "HfApi | None" = None) -> HubSource:
    """A model repository, its revision resolved to the commit.

    Raises:
        CheckpointError: no such repository or revision, no access, or no answer.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    api = api or HfApi()
    with hub_errors(f"{repo}@{revision or 'main'}"):
        sha = api.model_info(repo, revision=revision, timeout=TIMEOUT_SECONDS).sha
        entries = list(api.list_repo_tree(repo, revision=sha)) if sha else []
    if sha is None:
        raise CheckpointError(f"{repo}: the repository has no commit yet", do="publish something into it first")
    sizes = {entry.path: entry.size for entry in entries if isinstance(entry, RepoFile)}
    return HubSource(repo, sha, sizes, requests=2)
