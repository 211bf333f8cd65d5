"""The Hub of the tests, asked by the unmodified ``huggingface_hub``: the protocol, and every fault it can plant."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationCopy,
    CommitOperationDelete,
    HfApi,
    get_session,
    hf_hub_download,
    hf_hub_url,
)
from huggingface_hub.errors import (
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tests.fast.hub_server import CDN_HOST, STALE, TOKEN, Fault, HubServer, connect, hub_server

# huggingface_hub's own basic LFS upload passes `data=`, of which its HTTP client warns.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO = "somebody/model"
WEIGHTS = bytes(range(256)) * 40
CARD = b"---\nlicense: apache-2.0\n---\n# A model\n"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    with hub_server() as server:
        connect(server, monkeypatch, tmp_path / "home")
        server.add(REPO, {"config.json": b"{}", "README.md": CARD, "sub/a.txt": b"a", "model.safetensors": WEIGHTS})
        yield server


def ranged(filename: str, span: str) -> httpx2.Response:
    """A ranged read as ``huggingface_hub`` does it: its session, its headers, redirects followed."""
    url = hf_hub_url(REPO, filename)
    headers = {"Authorization": f"Bearer {TOKEN}", "Range": f"bytes={span}"}
    return get_session().get(url, headers=headers, follow_redirects=True)


def test_revision_is_resolved_to_a_commit(hub: HubServer) -> None:
    info = HfApi().model_info(REPO, revision="main")
    assert info.sha == hub.repos[REPO].refs["main"]
    assert HfApi().model_info(REPO, revision=info.sha).sha == info.sha


def test_tree_comes_in_pages_with_lfs_hashes(hub: HubServer) -> None:
    hub.page_size = 2
    rows = {row.path: row for row in HfApi().list_repo_tree(REPO, recursive=True)}
    assert sorted(rows) == ["README.md", "config.json", "model.safetensors", "sub/a.txt"]
    lfs = rows["model.safetensors"].lfs  # type: ignore[union-attr]
    assert lfs is not None
    assert lfs.sha256 == hashlib.sha256(WEIGHTS).hexdigest()
    assert sum("/tree/" in row.path for row in hub.log) == 2
    assert [row.path for row in HfApi().list_repo_tree(REPO, path_in_repo="sub")] == ["sub/a.txt"]
    assert "sub" in [row.path for row in HfApi().list_repo_tree(REPO)]


def test_files_are_downloaded_through_the_redirect_without_the_token(hub: HubServer) -> None:
    path = Path(hf_hub_download(REPO, "model.safetensors"))
    assert path.read_bytes() == WEIGHTS
    assert hub.cdn_headers
    assert all("authorization" not in headers for headers in hub.cdn_headers)
    assert any(row.headers.get("authorization") == f"Bearer {TOKEN}" for row in hub.log)


@pytest.mark.parametrize(("filename", "whole"), [("model.safetensors", WEIGHTS), ("README.md", CARD)])
def test_ranges(hub: HubServer, filename: str, whole: bytes) -> None:
    for span, wanted in {"3-9": whole[3:10], "5-": whole[5:], "-4": whole[-4:]}.items():
        response = ranged(filename, span)
        assert (response.status_code, response.content) == (206, wanted)
    assert ranged(filename, f"{len(whole)}-").status_code == 416
    assert all("authorization" not in headers for headers in hub.cdn_headers)


def test_what_is_not_there_has_the_hubs_error_codes(hub: HubServer) -> None:
    with pytest.raises(RepositoryNotFoundError):
        HfApi().model_info("somebody/else")
    with pytest.raises(RevisionNotFoundError):
        HfApi().model_info(REPO, revision="nowhere")
    with pytest.raises(RemoteEntryNotFoundError):
        hf_hub_download(REPO, "missing.txt")
    hub.repos[REPO].private = True
    with pytest.raises(RepositoryNotFoundError):
        HfApi(token=False).model_info(REPO)


def test_one_commit_adds_regular_and_lfs_files_and_deletes(hub: HubServer) -> None:
    parent = HfApi().model_info(REPO).sha
    more = b"new weights" * 1000
    operations: list[CommitOperationAdd | CommitOperationCopy | CommitOperationDelete] = [
        CommitOperationAdd("config.json", b'{"a": 1}'),
        CommitOperationAdd("more.safetensors", more),
        CommitOperationDelete("sub/a.txt"),
    ]
    made = HfApi().create_commit(REPO, operations, commit_message="two files", parent_commit=parent)
    files = hub.files(REPO)
    assert files["config.json"] == b'{"a": 1}'
    assert files["more.safetensors"] == more
    assert "sub/a.txt" not in files
    assert hub.repos[REPO].refs["main"] == made.oid
    assert hub.repos[REPO].commits[made.oid].parent == parent
    assert [row.path.rsplit("/", 2)[-2] for row in hub.writes if row.host != CDN_HOST] == [
        "preupload",
        "objects",
        "objects",
        "commit",
    ]
    assert all("authorization" not in headers for headers in hub.cdn_headers)


def test_stale_parent_is_refused(hub: HubServer) -> None:
    parent = HfApi().model_info(REPO).sha
    theirs = hub.change(REPO, "config.json", b'{"theirs": 1}')
    add = CommitOperationAdd("config.json", b'{"ours": 1}')
    with pytest.raises(HfHubHTTPError, match=STALE) as caught:
        HfApi().create_commit(REPO, [add], commit_message="ours", parent_commit=parent)
    assert caught.value.response.status_code == 412
    assert hub.repos[REPO].refs["main"] == theirs


def test_writing_needs_the_token(hub: HubServer) -> None:
    with pytest.raises(HfHubHTTPError) as caught:
        HfApi(token=False).create_commit(REPO, [CommitOperationAdd("a.txt", b"a")], commit_message="no token")
    assert caught.value.response.status_code == 401
    assert "a.txt" not in hub.files(REPO)


def test_card_with_broken_front_matter_is_refused(hub: HubServer) -> None:
    card = CommitOperationAdd("README.md", b"---\na: [\n---\n")
    with pytest.raises(ValueError, match="Invalid metadata"):
        HfApi().create_commit(REPO, [card], commit_message="broken card")
    assert hub.writes == []


def test_repository_is_made_once(hub: HubServer) -> None:
    HfApi().create_repo("somebody/new", private=True)
    HfApi().create_repo("somebody/new", exist_ok=True)
    assert hub.repos["somebody/new"].private
    with pytest.raises(HfHubHTTPError):
        HfApi().create_repo("somebody/new")
    HfApi().create_commit("somebody/new", [CommitOperationAdd("a.txt", b"a")], commit_message="first")
    assert hub.files("somebody/new") == {"a.txt": b"a"}


@pytest.mark.parametrize("status", [401, 404, 500])
def test_fault_status(hub: HubServer, status: int) -> None:
    hub.faults.append(Fault("GET", "/api/models/", status=status))
    with pytest.raises(HfHubHTTPError) as caught:
        HfApi().model_info(REPO)
    assert caught.value.response.status_code == status
    assert HfApi().model_info(REPO).id == REPO


@pytest.mark.parametrize(("status", "headers"), [(429, {"Retry-After": "0"}), (500, {})])
def test_fault_then_good(hub: HubServer, status: int, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    hub.faults.append(Fault("POST", "objects/batch", status, headers=headers))
    HfApi().create_commit(REPO, [CommitOperationAdd("x.safetensors", b"x" * 600)], commit_message="retried")
    assert hub.files(REPO)["x.safetensors"] == b"x" * 600
    assert len(waits) == 1


def test_fault_truncated_body(hub: HubServer) -> None:
    hub.faults.append(Fault("GET", f"{CDN_HOST}/objects", truncate=5))
    with pytest.raises(httpx2.RemoteProtocolError):
        ranged("model.safetensors", "0-99")
    assert ranged("model.safetensors", "0-99").content == WEIGHTS[:100]


def test_fault_slow_body(hub: HubServer) -> None:
    hub.faults.append(Fault("GET", f"{CDN_HOST}/objects", delay=5))
    with pytest.raises(httpx2.ReadTimeout):
        get_session().get(hf_hub_url(REPO, "model.safetensors"), follow_redirects=True, timeout=0.1)


def test_fault_range_ignored(hub: HubServer) -> None:
    hub.faults.append(Fault("GET", f"{CDN_HOST}/objects", ignore_range=True))
    response = ranged("model.safetensors", "0-9")
    assert (response.status_code, len(response.content)) == (200, len(WEIGHTS))


def test_fault_change_between_two_requests(hub: HubServer) -> None:
    hub.faults.append(Fault("GET", "resolve", meanwhile=lambda: hub.change(REPO, "README.md", b"changed")))
    before = HfApi().model_info(REPO).sha
    assert ranged("README.md", "0-").content == b"changed"
    assert HfApi().model_info(REPO).sha != before


def test_large_files_are_served_from_disk_in_ranges(hub: HubServer, tmp_path: Path) -> None:
    sparse = tmp_path / "big" / "model.safetensors"
    sparse.parent.mkdir()
    with sparse.open("wb") as stream:
        stream.truncate(1 << 26)
        stream.seek(1 << 25)
        stream.write(b"here")
    hub.add(REPO, sparse.parent)
    assert ranged("model.safetensors", f"{1 << 25}-{(1 << 25) + 3}").content == b"here"
    assert hub.bytes_sent == 4


def test_a_process_of_its_own_finds_it_by_environment(hub: HubServer, tmp_path: Path) -> None:
    code = f"from huggingface_hub import HfApi; print(HfApi().model_info({REPO!r}).sha)"
    environment = {"PATH": os.environ["PATH"], "HF_HOME": str(tmp_path), **hub.environment()}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hub.repos[REPO].refs["main"]
