"""Releases to a real registry: what is pushed reads back with the same digest, and broken ones complete."""

import http.client
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.documents import CheckReport, CheckResult, CheckStatus, Record, canonical_json
from pipeline.errors import ReleaseError
from pipeline.manifest import CpuBase, Line, PublishedBase, Release
from pipeline.oci import CONFIG_TYPE, Image, LayerEntry, append_layer, digest_bytes, write_layer
from pipeline.registry import Registry, Repository
from pipeline.release import ReleaseResult, release
from tests.engine.registry_server import RegistryServer, registry_server

TREE = "sha256:" + "7" * 64
CREATED = "2026-11-29T00:00:00Z"
PINNED, MOVING = "model-20261129-cpu", "model-cpu"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RegistryServer]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr("pipeline.registry.BACKOFF_SECONDS", 0.01)
    with registry_server(tmp_path / "registry") as running:
        yield running


def make_layer(base: Image, target: Path, name: str) -> Image:
    """``base`` plus one plain-tar layer that holds one file of 3 MB."""
    tar = target.with_suffix(".tar")
    layer = write_layer(tar, [LayerEntry(f"srv/{name}", name.encode() * 1_000_000)])
    labels = {"name": name}
    return append_layer(
        base, target, tar, layer, environment={}, labels=labels, created=CREATED, comment=f"layer {name}"
    )


@pytest.fixture
def base(tmp_path: Path) -> Image:
    config = canonical_json({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}})
    descriptor = {"mediaType": CONFIG_TYPE, "digest": digest_bytes(config), "size": len(config)}
    manifest = canonical_json({"schemaVersion": 2, "config": descriptor, "layers": []})
    empty = Image(tmp_path / "empty", digest_bytes(manifest), manifest, config)
    return make_layer(empty, tmp_path / "base", "one")


@pytest.fixture
def image(tmp_path: Path, base: Image) -> Image:
    return make_layer(base, tmp_path / "image", "two")


def run(server: RegistryServer, image: Image, published: str | None = None, date: str = "20261129") -> ReleaseResult:
    """Release ``image``, checked, on the local base or on a published one in repository ``published``."""
    kind = "published" if published else "cpu"
    local = CpuBase.model_construct(kind="cpu")
    remote = PublishedBase.model_construct(kind="published", reference=f"{server.address}/{published}@{TREE}")
    manifest = Release.model_construct(tag="model", release=date, base=remote if published else local)
    check = CheckResult(name="tree", status=CheckStatus.PASSED, seconds=1, reason="r")
    return release(
        Line.model_construct(release=manifest),
        image,
        Record(line="model", sources={"sglang": {"kind": "pypi"}}, steps=(), digest=TREE, files={}),
        CheckReport(image=image.digest, base_kind=kind, tree=TREE, checks=(check,)),
        kind,
        f"{server.address}/team/image",
    )


def held(server: RegistryServer, reference: str, path: str = "team/image") -> str | None:
    """Digest that the registry serves for a tag or digest."""
    with Registry(Repository(server.address, path)) as registry:
        return registry.head_manifest(reference)


def test_a_release_reads_back_byte_for_byte(server: RegistryServer, image: Image, tmp_path: Path) -> None:
    result = run(server, image)
    assert held(server, PINNED) == held(server, MOVING) == held(server, image.digest) == image.digest
    with Registry(Repository.parse(result.repository)) as registry:
        content, media_type, digest = registry.get_manifest(image.digest)
        assert (content, media_type, digest) == (image.manifest_bytes, image.media_type, image.digest)
        assert registry.get_blob(image.config_digest, limit=10_000) == image.config_bytes
        for number, layer in enumerate(image.layers):
            registry.fetch_blob(layer, tmp_path / str(number))
            assert (tmp_path / str(number)).read_bytes() == image.blob(layer.digest).read_bytes()
    assert held(server, "latest") is None


def test_a_second_run_sends_nothing(server: RegistryServer, image: Image) -> None:
    assert run(server, image).bytes_sent > 6_000_000
    assert run(server, image).bytes_sent == 0


def test_the_pinned_tag_stays_and_the_moving_tag_follows(
    server: RegistryServer, base: Image, image: Image, tmp_path: Path
) -> None:
    run(server, image)
    later = make_layer(base, tmp_path / "later", "new")
    with pytest.raises(ReleaseError) as caught:
        run(server, later)
    assert f"{PINNED}: expected {later.digest} or none, found {image.digest}" in caught.value.line()
    assert held(server, PINNED) == held(server, MOVING) == image.digest
    assert held(server, later.digest) is None
    run(server, later, date="20261130")
    assert held(server, PINNED) == image.digest
    assert held(server, "model-20261130-cpu") == held(server, MOVING) == later.digest


def test_an_upload_that_broke_off_does_not_spoil_the_next(server: RegistryServer, image: Image) -> None:
    layer = image.layers[-1]
    connection = http.client.HTTPConnection(server.address)
    connection.request("POST", "/v2/team/image/blobs/uploads/")
    started = connection.getresponse()
    started.read()
    connection.putrequest("PUT", f"{started.getheader('Location')}&digest={layer.digest}")
    connection.putheader("Content-Length", str(layer.size))
    connection.endheaders(image.blob(layer.digest).read_bytes()[: layer.size // 2])
    connection.close()
    run(server, image)
    assert held(server, MOVING) == image.digest


@pytest.mark.parametrize("writes_before", range(7))
def test_a_registry_killed_between_writes_leaves_the_moving_tag_and_a_rerun_completes(
    server: RegistryServer,
    base: Image,
    image: Image,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    writes_before: int,
) -> None:
    run(server, image)
    later = make_layer(base, tmp_path / "later", "new")
    send, writes = Registry._send, 0

    def send_until_killed(registry: Registry, method: str, where: str, **rest: object) -> object:
        nonlocal writes
        if method in ("POST", "PUT"):
            if writes == writes_before:
                server.kill()
            writes += 1
        return send(registry, method, where, **rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Registry, "_send", send_until_killed)
        with pytest.raises(ReleaseError, match=r"team/image: "):
            run(server, later, date="20261130")
    server.start()
    assert held(server, MOVING) == image.digest
    assert held(server, "model-20261130-cpu") in (None, later.digest)
    run(server, later, date="20261130")
    assert held(server, MOVING) == held(server, "model-20261130-cpu") == later.digest


def test_a_published_base_is_mounted(server: RegistryServer, base: Image, image: Image, tmp_path: Path) -> None:
    with Registry(Repository(server.address, "team/base")) as registry:
        registry.push_blob(base.blob(base.layers[0].digest), base.layers[0])
    sparse = replace(image, layout=tmp_path / "image")
    sparse.blob(base.layers[0].digest).unlink()
    result = run(server, sparse, published="team/base")
    assert held(server, "model-20261129") == held(server, "model") == image.digest
    assert result.bytes_sent < 3_100_000


def test_a_base_that_cannot_be_mounted_is_refused(server: RegistryServer, image: Image) -> None:
    with pytest.raises(ReleaseError) as caught:
        run(server, image, published="team/base")
    assert caught.value.line().endswith("found a registry that will not; mirror the base first")
    assert held(server, "model") is None
