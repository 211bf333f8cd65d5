"""The archive that carries an image into an engine, and the proof of what arrived, with the engine faked."""

import json
import re
import tarfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import docker
import pytest

from pipeline import oci
from pipeline.archive import NAME_ANNOTATION, image_archive
from pipeline.documents import canonical_json
from pipeline.errors import EngineError, ImageError, PipelineError
from pipeline.oci import Image
from pipeline.store import Engine, is_same, tag_of


def says(pattern: str) -> Callable[[PipelineError], bool]:
    """Whether an error's one line matches."""
    return lambda error: bool(re.search(pattern, error.line()))


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """Two layers of which the lower one occurs twice, in a layout."""
    layout = tmp_path / "layout"
    (layout / "blobs/sha256").mkdir(parents=True)
    layers = []
    for content in (b"a" * 3_000_000, b"b"):
        layer = oci.write_layer(layout / "layer", [oci.LayerEntry("file", content)])
        (layout / "layer").rename(oci.blob_path(layout, layer.digest))
        layers.append(layer)
    layers = [layers[0], *layers]
    diff_ids = [layer.digest for layer in layers]
    config = canonical_json({"os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids}})
    manifest = {
        "schemaVersion": 2,
        "mediaType": oci.MANIFEST_TYPE,
        "config": oci.Descriptor(oci.CONFIG_TYPE, oci.digest_bytes(config), len(config)).as_json(),
        "layers": [layer.as_json() for layer in layers],
    }
    oci.write_index(layout, oci.MANIFEST_TYPE, canonical_json(manifest), config)
    return Image.load(layout)


def unpack(pieces: Iterator[bytes]) -> dict[str, bytes]:
    members = {}
    with tarfile.open(fileobj=BytesIO(b"".join(pieces))) as tar:
        for member in tar:
            stream = tar.extractfile(member)
            assert stream
            assert member.name not in members
            members[member.name] = stream.read()
    return members


def test_archive_is_an_oci_layout_and_a_docker_archive(image: Image) -> None:
    members = unpack(image_archive(image, "docker.io/ours/x:1"))
    blobs = {name: data for name, data in members.items() if name.startswith("blobs/")}
    assert all(oci.digest_bytes(data) == name.replace("blobs/sha256/", "sha256:") for name, data in blobs.items())
    (entry,) = json.loads(members["index.json"])["manifests"]
    assert entry["digest"] == image.digest
    assert entry["annotations"] == {NAME_ANNOTATION: "docker.io/ours/x:1"}
    (docker_entry,) = json.loads(members["manifest.json"])
    assert members[docker_entry["Config"]] == image.config_bytes
    assert docker_entry["RepoTags"] == ["docker.io/ours/x:1"]
    assert docker_entry["Layers"] == [f"blobs/sha256/{layer.digest[7:]}" for layer in image.layers]
    assert set(blobs) == {*docker_entry["Layers"], docker_entry["Config"], f"blobs/sha256/{image.digest[7:]}"}


def test_archive_names_but_does_not_hold_what_the_engine_has(image: Image) -> None:
    lower, _, upper = image.layers
    image.blob(lower.digest).unlink()
    members = unpack(image_archive(image, "docker.io/ours/x:1", [lower.digest]))
    assert f"blobs/sha256/{lower.digest[7:]}" not in members
    assert f"blobs/sha256/{upper.digest[7:]}" in members
    assert len(json.loads(members["manifest.json"])[0]["Layers"]) == 3


def test_archive_comes_in_pieces(image: Image) -> None:
    assert max(len(piece) for piece in image_archive(image, "x:1")) == oci.CHUNK


@pytest.mark.parametrize(("fault", "found"), [("missing", "no such file"), ("short", "7 bytes")])
def test_archive_refuses_a_bad_layer_before_the_first_byte(image: Image, fault: str, found: str) -> None:
    blob = image.blob(image.layers[0].digest)
    blob.unlink()
    if fault == "short":
        blob.write_bytes(b"1234567")
    with pytest.raises(ImageError, check=says(rf"layer {blob}: expected \d+ bytes, found {found}")):
        image_archive(image, "x:1")


class Stored:
    """What the SDK says of an image."""

    def __init__(self, identity: str, digests: list[str] | None = None, tags: list[str] | None = None) -> None:
        self.id = identity
        self.attrs = {"RepoDigests": digests}
        self.tags = tags or []


class Images:
    """An image store that takes whatever it is sent and then answers with ``stored``."""

    def __init__(self, stored: Stored | None, answers: list[dict[str, str]]) -> None:
        self.stored, self.answers = stored, answers

    def get(self, tag: str) -> Stored:
        if self.stored is None:
            raise docker.errors.ImageNotFound(tag)
        return self.stored

    def load_image(self, pieces: Iterator[bytes]) -> list[dict[str, str]]:
        for _ in pieces:
            pass
        return self.answers

    def list(self, **_filters: object) -> list[Stored]:
        return []


class Client:
    """The two faces of a client that share one store."""

    def __init__(self, stored: Stored | None = None, answers: list[dict[str, str]] | None = None) -> None:
        self.images = self.api = Images(stored, answers or [])


def fake_engine(client: Any) -> Engine:
    return Engine(cast(docker.DockerClient, client), "given", "fake://", "owner")


def test_identity_by_config_or_manifest_digest(image: Image) -> None:
    other = "sha256:" + "0" * 64
    assert is_same(image, cast(Any, Stored(image.config_digest)))
    assert is_same(image, cast(Any, Stored(image.digest)))
    assert is_same(image, cast(Any, Stored(other, [f"registry/x@{other}", f"registry/y@{image.digest}"])))
    assert not is_same(image, cast(Any, Stored(other, [f"registry/x@{other}"])))
    assert not is_same(image, cast(Any, Stored(other)))


def test_loaded_image_that_is_another_is_refused_with_both_digests(image: Image) -> None:
    other = "sha256:" + "0" * 64
    with pytest.raises(EngineError) as caught:
        fake_engine(Client(Stored(other))).ensure_base(image, "base")
    line = caught.value.line()
    assert all(digest in line for digest in (image.config_digest, image.digest, other))


@pytest.mark.parametrize("key", ["error", "message"])
def test_refusal_to_load_is_quoted(image: Image, key: str) -> None:
    client = Client(Stored(image.config_digest), [{"stream": "x"}, {key: "no space left"}])
    with pytest.raises(EngineError, check=says(r"load sglang-xpu-pipeline/owner/base:\w{12}: found no space left")):
        fake_engine(client).ensure_base(image, "base")


def test_image_that_did_not_arrive_is_an_error(image: Image) -> None:
    with pytest.raises(EngineError, check=says("is not in the engine after it was loaded")):
        fake_engine(Client()).ensure_base(image, "base")


def test_engine_that_goes_away_is_one_line(image: Image) -> None:
    class Gone(Images):
        def list(self, **_filters: object) -> list[Stored]:
            raise ConnectionResetError(104, "Connection reset by peer")

    client = Client()
    client.images = Gone(None, [])
    with pytest.raises(EngineError, check=says(r"fake://: list images: found .*reset by peer")):
        fake_engine(client).find(image)


def test_tag_names_the_image(image: Image) -> None:
    assert tag_of(image, "owner", "base") == f"sglang-xpu-pipeline/owner/base:{image.digest[7:19]}"


def test_cleaning_up_removes_our_tags_only() -> None:
    removed: list[str] = []

    class Shared(Images):
        def list(self, **_filters: object) -> list[Stored]:
            return [
                Stored(
                    "x",
                    tags=[
                        "theirs/app:1",
                        "sglang-xpu-pipeline/other/b:1",
                        "sglang-xpu-pipeline/owner/a:1",
                        "sglang-xpu-pipeline/owner/b:1",
                    ],
                )
            ]

        def remove(self, tag: str) -> None:
            removed.append(tag)

    class Nothing:
        def list(self, **_filters: object) -> list[object]:
            return []

    client: Any = Client()
    client.images, client.containers, client.volumes = Shared(None, []), Nothing(), Nothing()
    fake_engine(client).remove_ours(keep=["sglang-xpu-pipeline/owner/b:1"])
    assert removed == ["sglang-xpu-pipeline/owner/a:1"]


class Pulled:
    """An image store that gets one image by digest."""

    def __init__(self, got: str, held: tuple[str, ...] = ()) -> None:
        self.id, self.attrs = got, {"RepoDigests": list(held)}
        self.removed: list[str] = []

    def list(self) -> list["Pulled"]:
        return [self]

    def pull(self, repository: str, tag: str) -> "Pulled":
        self.attrs["RepoDigests"].append(f"{repository}@{tag}")
        return self

    def remove(self, name: str) -> None:
        self.removed.append(name)


def pulling(images: Pulled) -> Engine:
    client = cast(docker.DockerClient, type("Client", (), {"images": images})())
    return Engine(client, "given", "fake://", "owner")


@pytest.mark.parametrize("store", ["classic", "containerd"])
@pytest.mark.parametrize("had", [True, False])
def test_what_is_pulled_is_compared_by_its_id_and_a_new_name_goes_again(image: Image, store: str, had: bool) -> None:
    reference = f"example.com/x@{image.digest}"
    images = Pulled(image.config_digest if store == "classic" else image.digest, (reference,) if had else ())
    pulling(images).compare_pulled(image, reference)
    assert images.removed == ([] if had else [reference])


def test_another_image_under_the_right_digest_is_refused(image: Image) -> None:
    other = "sha256:" + "0" * 64
    images = Pulled(other)
    with pytest.raises(EngineError, check=says(f"in the engine is another image: expected .*, found {other}; do not")):
        pulling(images).compare_pulled(image, f"example.com/x@{image.digest}")
    assert images.removed == [f"example.com/x@{image.digest}"]
