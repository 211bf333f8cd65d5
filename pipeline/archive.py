"""Turn an image layout into a stream that every Docker image store loads, without a copy on disk.

The tar is two formats at once: a docker-archive (``manifest.json``, read by classic stores) and an OCI layout
(``oci-layout`` and ``index.json``, read by containerd stores), both pointing at the same ``blobs/sha256/``.
"""

import io
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path

from pipeline.documents import canonical_json
from pipeline.errors import ImageError
from pipeline.oci import CHUNK, EPOCH, INDEX_TYPE, Descriptor, Image, blob_path

NAME_ANNOTATION = "io.containerd.image.name"
"""Annotation of an index entry from which a containerd store takes the image's name."""


def image_archive(image: Image, tag: str, without: Collection[str] = ()) -> Iterator[bytes]:
    """Yield the tar of ``image`` in pieces of at most 1 MiB.

    Args:
        tag: full reference with registry host, as containerd wants it; the classic format gets the same one.
        without: digests of layers that the engine already holds. They are named but not contained: classic
            stores look a layer up by its chain of diff_ids before they open its file, containerd stores look
            a blob up by its digest.

    Raises:
        ImageError: a layer to be sent is not in the layout, or has another size than its descriptor says.
            Raised before the first byte is yielded.
    """
    layers = {layer.digest: layer for layer in image.layers if layer.digest not in without}
    for layer in layers.values():
        _require(image.blob(layer.digest), layer)
    return _members(image, tag, list(layers))


def _require(blob: Path, layer: Descriptor) -> None:
    size = blob.stat().st_size if blob.is_file() else None
    if size != layer.size:
        raise ImageError(
            f"layer {blob}",
            expected=f"{layer.size} bytes",
            found="no such file" if size is None else f"{size} bytes",
            do="build the image again",
        )


def _members(image: Image, tag: str, layers: list[str]) -> Iterator[bytes]:
    yield from _member("oci-layout", canonical_json({"imageLayoutVersion": "1.0.0"}))
    yield from _member("index.json", _index(image, tag))
    yield from _member("manifest.json", _docker_manifest(image, tag))
    yield from _member(_path(image.digest), image.manifest_bytes)
    yield from _member(_path(image.config_digest), image.config_bytes)
    for digest in layers:
        yield from _member(_path(digest), image.blob(digest))
    yield bytes(2 * tarfile.BLOCKSIZE)


def _path(digest: str) -> str:
    return blob_path(Path(), digest).as_posix()


def _index(image: Image, tag: str) -> bytes:
    manifest = Descriptor(image.media_type, image.digest, len(image.manifest_bytes)).as_json()
    entry = {**manifest, "annotations": {NAME_ANNOTATION: tag}}
    return canonical_json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]})


def _docker_manifest(image: Image, tag: str) -> bytes:
    layers = [_path(layer.digest) for layer in image.layers]
    return canonical_json([{"Config": _path(image.config_digest), "RepoTags": [tag], "Layers": layers}])


def _member(name: str, content: bytes | Path) -> Iterator[bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content) if isinstance(content, bytes) else content.stat().st_size
    info.mtime = EPOCH
    yield info.tobuf(tarfile.PAX_FORMAT)
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as stream:
        while piece := stream.read(CHUNK):
            yield piece
    yield bytes(-info.size % tarfile.BLOCKSIZE)
