"""Releases to a real registry: what is pushed reads back with the same digest, and broken ones complete."""

import http.client
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pipeline import base as bases
from pipeline import release_record
from pipeline.documents import CheckReport, CheckResult, CheckStatus, Record, canonical_json
from pipeline.errors import BaseError, EngineError, ReleaseError
from pipeline.gate import Candidate, GateError
from pipeline.manifest import CpuBase, Line, Lock, LockedBase, PublishedBase, Release
from pipeline.oci import CONFIG_TYPE, INDEX_TYPE, Descriptor, Image, LayerEntry, append_layer, digest_bytes, write_layer
from pipeline.registry import Registry, Repository
from pipeline.release import ReleaseResult, release
from pipeline.store import Engine
from tests.engine.registry_server import RegistryServer, registry_server

TREE = "sha256:" + "7" * 64
CREATED = "2026-11-29T00:00:00Z"
PINNED, MOVING = "model-20261129-cpu", "model-cpu"
WHEEL = {"kind": "pypi", "name": "sglang", "version": "0.5.23", "sha256": {"cp311": "1" * 64}}


@dataclass
class Puller:
    """In place of an engine: what it was asked to pull."""

    pulled: list[str] = field(default_factory=list)
    host: str = "none"

    def compare_pulled(self, image: Image, reference: str) -> None:
        """Take it for the same."""
        assert reference.endswith(f"@{image.digest}")
        self.pulled.append(reference)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RegistryServer]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("pipeline.registry.BACKOFF_SECONDS", 0.01)
    with registry_server(tmp_path / "registry") as running:
        yield running


def make_layer(base: Image, target: Path, name: str, date: str = "20261129", kind: str = "cpu") -> Image:
    """``base`` plus one plain-tar layer that holds one file of 3 MB, with the labels that a release reads."""
    tar = target.with_suffix(".tar")
    layer = write_layer(tar, [LayerEntry(f"srv/{name}", name.encode() * 1_000_000)])
    labels = {
        "io.sglang-xpu.base.kind": kind,
        "io.sglang-xpu.tree.digest": TREE,
        "org.opencontainers.image.base.digest": base.digest,
        "org.opencontainers.image.base.name": "base",
        "org.opencontainers.image.version": date,
    }
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


def run(
    server: RegistryServer,
    image: Image,
    published: str | None = None,
    date: str = "20261129",
    engine: Puller | Engine | None = None,
) -> ReleaseResult:
    """Release ``image``, checked, on the local base or on a published one in repository ``published``."""
    found = engine or Puller()
    return release(candidate(server, image, published, date), f"{server.address}/team/image", lambda: found)


def candidate(server: RegistryServer, image: Image, published: str | None, date: str) -> Candidate:
    """The image with a verdict on it."""
    kind = "published" if published else "cpu"
    digest = image.labels["org.opencontainers.image.base.digest"]
    local = CpuBase.model_construct(kind="cpu", python_tag="cp311")
    reference = f"{server.address}/{published}@{digest}"
    remote = PublishedBase.model_construct(kind="published", reference=reference, python_tag="cp311")
    manifest = Release.model_construct(
        tag="model", release=date, base=remote if published else local, requires_checkpoints=()
    )
    check = CheckResult(name="tree", status=CheckStatus.PASSED, seconds=1, reason="r")
    named = {"base_kind": kind, "base": digest, "tree": TREE, "checks_digest": TREE, "manifest": TREE}
    return Candidate(
        line=Line.model_construct(release=manifest, lock=Lock(steps={}, base=LockedBase(digest=digest))),
        image=image,
        record=Record(line="model", sources={"sglang": WHEEL}, steps=(), digest=TREE, files={}),
        report=CheckReport.model_validate({"image": image.digest, "checks": (check,), **named}),
        manifest=TREE,
        checks_digest=TREE,
        patches={},
        commit="c" * 40,
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
    later = make_layer(base, tmp_path / "later", "new", "20261130")
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


@pytest.mark.parametrize("writes_before", range(11))
def test_a_registry_killed_between_writes_leaves_the_moving_tag_and_a_rerun_completes(
    server: RegistryServer,
    base: Image,
    image: Image,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    writes_before: int,
) -> None:
    run(server, image)
    later = make_layer(base, tmp_path / "later", "new", "20261130")
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


def test_an_older_release_does_not_take_the_moving_tag_back(
    server: RegistryServer, base: Image, image: Image, tmp_path: Path
) -> None:
    later = make_layer(base, tmp_path / "later", "new", "20261130")
    run(server, later, date="20261130")
    with pytest.raises(GateError, match="moving tag: model-cpu: expected a release of 20261129 or older"):
        run(server, image)
    assert held(server, PINNED) is None
    assert held(server, MOVING) == later.digest


def test_the_record_is_found_from_the_digest_alone(server: RegistryServer, image: Image) -> None:
    """This registry has no referrers API: the specification's tag scheme serves."""
    record = run(server, image).record
    assert record is not None
    with Registry(Repository(server.address, "team/image")) as registry:
        assert release_record.fetch(registry, image.digest) == [record]
        assert release_record.fetch(registry, "sha256:" + "0" * 64) == []
    assert held(server, image.digest.replace(":", "-")) is not None
    assert run(server, image).record == record


def test_the_engine_pulls_what_was_staged(server: RegistryServer, image: Image, engine: Engine) -> None:
    run(server, image, engine=engine)
    reference = f"{server.address}/team/image@{image.digest}"
    assert not any(reference in (i.attrs.get("RepoDigests") or ()) for i in engine.client.images.list())
    engine.client.images.pull(f"{server.address}/team/image", tag=image.digest)
    engine.compare_pulled(image, reference)
    assert any(reference in (i.attrs.get("RepoDigests") or ()) for i in engine.client.images.list())
    engine.client.images.remove(reference)


def test_another_image_at_the_engine_is_refused(
    server: RegistryServer, base: Image, image: Image, tmp_path: Path, engine: Engine
) -> None:
    run(server, image)
    other = make_layer(base, tmp_path / "other", "other")
    with pytest.raises(EngineError, match="in the engine is another image"):
        engine.compare_pulled(other, f"{server.address}/team/image@{image.digest}")
    with pytest.raises(EngineError, match="pull "):
        engine.compare_pulled(other, f"{server.address}/team/image@{other.digest}")


# -- a published base ------------------------------------------------------------------------------------------


@pytest.fixture
def plain(tmp_path: Path, base: Image) -> Image:
    """An image on a published base, whose layer is not here."""
    made = replace(make_layer(base, tmp_path / "plain", "two", kind="published"), layout=tmp_path / "plain")
    made.blob(base.layers[0].digest).unlink()
    return made


def push_base(address: str, base: Image) -> None:
    """Publish the base in repository ``team/base``."""
    config = Descriptor(CONFIG_TYPE, base.config_digest, len(base.config_bytes))
    with Registry(Repository(address, "team/base")) as registry:
        registry.push_blob(base.blob(base.layers[0].digest), base.layers[0])
        registry.push_blob(base.config_bytes, config)
        registry.put_manifest(base.digest, base.manifest_bytes, base.media_type)


def published_line(address: str, digest: str, folder: Path) -> Line:
    """A line on the base with that digest."""
    base = PublishedBase(
        kind="published", reference=f"{address}/team/base@{digest}", package_root="/p", python_tag="cp311"
    )
    return Line.model_construct(folder=folder, release=Release.model_construct(base=base))


def test_a_published_base_is_mounted(server: RegistryServer, base: Image, plain: Image) -> None:
    push_base(server.address, base)
    result = run(server, plain, published="team/base")
    assert held(server, "model-20261129") == held(server, "model") == plain.digest
    assert result.bytes_sent < 3_100_000


def test_a_base_that_cannot_be_mounted_is_refused(server: RegistryServer, plain: Image) -> None:
    with pytest.raises(ReleaseError) as caught:
        run(server, plain, published="team/base")
    repository = f"{server.address}/team/image"
    assert caught.value.line().endswith(
        f"found a registry that will not; mirror the base first: build.py base mirror {repository}"
    )
    assert held(server, "model") is None


def test_a_mirrored_base_has_its_digest_and_opens_the_way(
    server: RegistryServer, base: Image, plain: Image, tmp_path: Path
) -> None:
    """From another registry, where nothing can be mounted from."""
    with registry_server(tmp_path / "elsewhere") as elsewhere:
        push_base(elsewhere.address, base)
        line = published_line(elsewhere.address, base.digest, tmp_path)
        reference = bases.mirror(line, f"{server.address}/team/image", tmp_path / "build")
    assert reference == f"{server.address}/team/image@{base.digest}"
    with Registry(Repository(server.address, "team/image")) as registry:
        assert registry.get_manifest(base.digest).content == base.manifest_bytes
        assert registry.get_blob(base.layers[0].digest, 4 << 20) == base.blob(base.layers[0].digest).read_bytes()
    assert run(server, plain, published="team/gone").bytes_sent < 3_100_000
    assert held(server, "model") == plain.digest


def test_within_one_registry_a_base_is_mirrored_by_mounts(server: RegistryServer, base: Image, tmp_path: Path) -> None:
    push_base(server.address, base)
    line = published_line(server.address, base.digest, tmp_path)
    fetched: list[object] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Registry, "fetch_blob", lambda *arguments: fetched.append(arguments))
        bases.mirror(line, f"{server.address}/team/image", tmp_path / "build")
    assert fetched == []
    assert held(server, base.digest) == base.digest


def test_an_index_is_refused_with_the_platform_digest_to_pin(
    server: RegistryServer, base: Image, tmp_path: Path
) -> None:
    push_base(server.address, base)
    row = Descriptor(base.media_type, base.digest, len(base.manifest_bytes)).as_json()
    platforms = [row | {"platform": {"os": "linux", "architecture": "amd64"}}]
    index = canonical_json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": platforms})
    with Registry(Repository(server.address, "team/base")) as registry:
        registry.put_manifest(digest_bytes(index), index, INDEX_TYPE)
    line = published_line(server.address, digest_bytes(index), tmp_path)
    with pytest.raises(BaseError) as caught:
        bases.mirror(line, f"{server.address}/team/image", tmp_path / "build")
    assert f"; pin {server.address}/team/base@{base.digest}, for linux/amd64" in caught.value.line()


def test_a_local_base_is_not_mirrored(server: RegistryServer, tmp_path: Path) -> None:
    made = Release.model_construct(base=CpuBase.model_construct(kind="cpu"))
    with pytest.raises(BaseError, match="expected kind published, found cpu; a local base has no registry"):
        bases.mirror(Line.model_construct(folder=tmp_path, release=made), f"{server.address}/x", tmp_path)
