"""Reading a checkpoint from a folder, and from a Hub on loopback through the unmodified ``huggingface_hub``."""

import dataclasses
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.checkpoint import gate, source
from pipeline.checkpoint.releases import Release
from pipeline.checkpoint.source import HubSource, LocalSource, open_source
from pipeline.errors import CheckpointError
from tests.fast import small_checkpoints as small
from tests.fast.builders import write_files
from tests.fast.checkpoints import draft, failed, target, write_sparse
from tests.fast.hub_server import CDN_HOST, TOKEN, Fault, HubServer, connect, hub_server

REPO = "somebody/model"
PIN = Release("0.5.23")
SHARD = "objects"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    with hub_server() as server:
        connect(server, monkeypatch, tmp_path / "home")
        monkeypatch.setattr("time.sleep", lambda _: None)
        yield server


def add(hub: HubServer, files: dict[str, bytes], **options: Any) -> str:
    return hub.add(REPO, dict(files), **options)


def error_of(text: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        gate.check(text, "target", PIN)
    line = caught.value.line()
    assert "\n" not in line
    assert TOKEN not in line
    return line


def test_folder_and_hub_give_the_same_verdict(hub: HubServer, tmp_path: Path) -> None:
    files = target().files()
    commit = add(hub, files)
    local = gate.check(str(write_files(tmp_path / "model", files)), "target", PIN)
    remote = gate.check(REPO, "target", PIN)
    assert remote.results == local.results
    assert (local.revision, remote.revision) == (None, commit)
    assert remote.bytes_read == local.bytes_read
    assert remote.publishable_and_servable


def test_revision_is_resolved_once_and_then_kept(hub: HubServer) -> None:
    first = add(hub, target().files())
    add(hub, draft().files())
    assert gate.check(f"{REPO}@{first}", "target", PIN).publishable_and_servable
    resolved = [row.path for row in hub.log if "/resolve/" in row.path]
    assert resolved
    assert all(f"/resolve/{first}/" in path for path in resolved)


def test_only_headers_and_samples_are_read(hub: HubServer, tmp_path: Path) -> None:
    """Two sparse codebooks of 64 MiB whose first bytes are not zero: a block is read of each."""
    shape = dataclasses.replace(small.SHAPE, vocabulary=1 << 22)
    config = json.dumps(small.draft_config(vocab_size=shape.vocabulary))
    folder = write_files(tmp_path / "big", {**draft().files(), "config.json": config})
    write_sparse(folder / "model.safetensors", {name: ("BF16", row) for name, row in shape.tensors().items()})
    hub.add(REPO, folder)
    report = gate.check(REPO, "draft", PIN)
    assert failed(report) == {}
    assert hub.bytes_sent < 1 << 18


def test_token_goes_to_the_hub_and_not_to_the_other_host(hub: HubServer) -> None:
    add(hub, target().files(), private=True)
    assert gate.check(REPO, "target", PIN).publishable_and_servable
    assert any(row.headers.get("authorization") == f"Bearer {TOKEN}" for row in hub.log)
    assert hub.cdn_headers
    assert all("authorization" not in headers for headers in hub.cdn_headers)


def test_private_repository_without_a_token(hub: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    connect(hub, monkeypatch, tmp_path / "home", token=None)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    add(hub, target().files(), private=True)
    assert error_of(REPO) == (
        f"{REPO}@main: no such repository, or no access to it; check the name, or log in with `hf auth login`"
    )


def test_missing_repository_and_revision(hub: HubServer) -> None:
    add(hub, target().files())
    assert "no such repository" in error_of("somebody/nothing")
    assert error_of(f"{REPO}@nowhere").startswith(f"{REPO}@nowhere: no such revision")


def test_empty_repository(hub: HubServer) -> None:
    add(hub, {})
    hub.repos[REPO].commits.clear()
    hub.repos[REPO].refs.clear()
    assert "no commit yet" in error_of(REPO)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("GET", "/resolve/", status=429, headers={"Retry-After": "1"}),
        Fault("GET", "/resolve/", status=500),
        Fault("GET", SHARD, status=503),
        Fault("GET", SHARD, truncate=20),
        Fault("GET", SHARD, truncate=0, times=2),
        Fault("GET", SHARD, ignore_range=True),
        Fault("GET", SHARD, delay=0.2),
    ],
    ids=["429", "500", "503 from the store", "cut", "cut twice", "range ignored", "slow"],
)
def test_passing_fault_is_overcome(hub: HubServer, fault: Fault) -> None:
    add(hub, target().files())
    hub.faults.append(fault)
    assert gate.check(REPO, "target", PIN).publishable_and_servable
    assert fault.times == 0


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault("GET", "/resolve/", status=500, times=99), "the Hub answered 500"),
        (Fault("GET", "/resolve/", status=403, times=99), "the Hub answered 403"),
        (Fault("GET", SHARD, status=404, times=99), "the Hub answered 404"),
        (Fault("GET", SHARD, truncate=20, times=99), "a connection that breaks each time"),
        (Fault("GET", "/tree/", status=200, body=b"<html>", times=99), "not an answer that the Hub gives"),
        (Fault("GET", "/tree/", status=200, body=b'[{"type": "file"}]', times=99), "not an answer that the Hub gives"),
        (Fault("GET", "/api/models/", status=401, body=TOKEN.encode(), times=99), "the Hub answered 401; log in"),
    ],
)
def test_lasting_fault_is_one_line(hub: HubServer, fault: Fault, says: str, caplog: pytest.LogCaptureFixture) -> None:
    add(hub, target().files())
    hub.faults.append(fault)
    with caplog.at_level(logging.DEBUG):
        assert says in error_of(REPO)
    assert TOKEN not in caplog.text


def test_server_that_ignores_ranges_is_not_read_through(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload block in the middle of a shard: the whole file is not an answer."""
    monkeypatch.setattr("pipeline.checkpoint.checkpoint.FIRST_READ", 64)
    add(hub, target().files())
    hub.faults.append(Fault("GET", SHARD, ignore_range=True, times=99))
    line = error_of(REPO)
    assert "206" in line
    assert "signature" not in line


def test_server_that_cannot_be_reached(hub: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    add(hub, target().files())
    with hub_server() as gone:
        pass
    connect(gone, monkeypatch, tmp_path / "home")
    assert "while talking to the Hub" in error_of(REPO)


def test_offline_mode_is_named(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    add(hub, target().files())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in error_of(REPO)


@pytest.mark.parametrize("text", ["/no/such/folder", "./nothing", "one-word", "a/b/c", "a/b@", "-x/y", "a b/c", ""])
def test_what_is_no_source_is_named(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    if not text:
        text = "x"
    with pytest.raises(CheckpointError, match="expected a folder, or a Hub id"):
        open_source(text)


def test_folder_wins_over_a_hub_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_files(tmp_path / "somebody" / "model", target().files())
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_source(REPO), LocalSource)


def test_links_are_followed_and_special_files_left_alone(tmp_path: Path) -> None:
    write_files(tmp_path / "blobs", target().files())
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for name in target().files():
        (folder / name).symlink_to(tmp_path / "blobs" / name)
    os.mkfifo(folder / "pipe.safetensors")
    (folder / "dead.safetensors").symlink_to("nowhere")
    assert gate.check(str(folder), "target", PIN).publishable_and_servable


def test_file_that_shrinks_is_named(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "model", target().files())
    opened = source.open_folder(folder)
    (folder / "config.json").write_bytes(b"{")
    with pytest.raises(CheckpointError, match=r"config\.json: expected \d+ bytes at 0, found 1"):
        gate.check(opened, "target", PIN)


def test_every_read_is_counted(tmp_path: Path) -> None:
    opened = source.open_folder(write_files(tmp_path / "m", {"a": b"12345"}))
    assert opened.read("a", 1, 3) == b"234"
    assert opened.read("a", 4, 9) == b"5"
    assert opened.read("a", 5, 9) == b""
    assert (opened.bytes_read, opened.requests) == (4, 2)


def test_large_listing_comes_in_pages(hub: HubServer) -> None:
    hub.page_size = 2
    add(hub, {**target().files(), **{f"notes-{number}.txt": b"x" for number in range(7)}})
    opened = open_source(REPO)
    assert isinstance(opened, HubSource)
    assert len(opened.sizes) == 10
    assert CDN_HOST not in str(opened)
