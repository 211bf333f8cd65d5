"""OCI objects on disk: layouts, manifests, configs and deterministic plain-tar layers.

A layer written here is an uncompressed tar, so its digest equals its diff_id and no compressor's version has a
say in it. Media types and field names follow the OCI image specification 1.1.
"""

import hashlib
import io
import itertools
import json
import os
import shutil
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.documents import canonical_json
from pipeline.errors import ImageError

EPOCH = 1577836800
"""Modification time of everything in our layers, seconds: 2020-01-01T00:00:00Z."""

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
DOCKER_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LAYER_TYPE = "application/vnd.docker.image.rootfs.diff.tar"

WHITEOUT = ".wh."
CHUNK = 1 << 20


@dataclass(frozen=True)
class Descriptor:
    """Reference to a blob; ``size`` in bytes."""

    media_type: str
    digest: str
    size: int

    def as_json(self) -> dict[str, Any]:
        """The descriptor as it stands in a manifest."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True)
class LayerEntry:
    """One regular file of a layer; ``path`` is relative to ``/``; ``content`` is bytes or a file to copy."""

    path: str
    content: bytes | Path
    mode: int = 0o644


def whiteout(path: str) -> LayerEntry:
    """The entry that deletes ``path`` of the layers below."""
    parent, _, name = path.rpartition("/")
    return LayerEntry(f"{parent}/{WHITEOUT}{name}" if parent else WHITEOUT + name, b"")


def digest_bytes(data: bytes) -> str:
    """``sha256:<hex>`` of some bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> str:
    """``sha256:<hex>`` of a file, read in pieces."""
    with path.open("rb") as stream:
        return "sha256:" + hashlib.file_digest(stream, "sha256").hexdigest()


def digest_tree(folders: Mapping[str, Path]) -> str:
    """Digest over paths and bytes of every file below some folders, but bytecode; where they lie does not enter.

    Args:
        folders: name that stands for a folder, to the folder; a file is named alone.
    """
    files = {
        f"{name}/{path.relative_to(folder).as_posix()}": path
        for name, folder in folders.items()
        for path in ([folder] if folder.is_file() else folder.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }
    return digest_bytes(canonical_json({name: digest_file(path) for name, path in files.items()}))


class _HashingWriter(io.RawIOBase):
    """Counts and hashes what passes through to the file below."""

    def __init__(self, target: BinaryIO) -> None:
        self.target = target
        self.hash = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.hash.update(data)
        self.size += len(data)
        return self.target.write(data)


def write_layer(
    target: Path, entries: Iterable[LayerEntry], directories: Sequence[str] = (), media_type: str = LAYER_TYPE
) -> Descriptor:
    """Write ``entries`` as a tar that depends on their paths, modes and bytes only.

    Args:
        target: file to write; the caller renames it into place.
        entries: files, in any order; a path that occurs twice is an :class:`ImageError`.
        directories: directories to state, mode 0755. A directory that the base has need not be stated, and one
            above the package root must not be: stating it would replace a symlinked parent of the base.
        media_type: of the returned descriptor; the bytes are the same for OCI and Docker.
    """
    members: list[tuple[str, LayerEntry | None]] = [(path, None) for path in sorted(set(directories))]
    members += [(entry.path, entry) for entry in entries]
    members.sort(key=lambda member: member[0])
    for (before, _), (after, _) in itertools.pairwise(members):
        if before == after:
            raise ImageError(f"layer entry {after} occurs twice", do="report this: the record should forbid it")
    with target.open("wb") as raw:
        writer = _HashingWriter(raw)
        with tarfile.open(fileobj=writer, mode="w|", format=tarfile.PAX_FORMAT, bufsize=CHUNK) as tar:
            for path, entry in members:
                _add(tar, path, entry)
    return Descriptor(media_type, "sha256:" + writer.hash.hexdigest(), writer.size)


def _add(tar: tarfile.TarFile, path: str, entry: LayerEntry | None) -> None:
    if path.startswith("/") or ".." in path.split("/"):
        raise ImageError(f"layer entry {path} leaves the image root", do="use a path relative to /")
    info = tarfile.TarInfo(path)
    info.mtime = EPOCH
    if entry is None:
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(info)
        return
    info.mode = entry.mode
    if isinstance(entry.content, bytes):
        info.size = len(entry.content)
        tar.addfile(info, io.BytesIO(entry.content))
        return
    if entry.content.is_symlink():
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, str(entry.content.readlink()), 0o777
        tar.addfile(info)
        return
    info.size = entry.content.stat().st_size
    with entry.content.open("rb") as stream:
        tar.addfile(info, stream)


@dataclass(frozen=True)
class Image:
    """One platform image: its manifest and config bytes, and the folder where its blobs lie.

    ``layout`` may be sparse: a base that stays in its registry has no layer blobs here.
    """

    layout: Path
    digest: str
    manifest_bytes: bytes
    config_bytes: bytes

    @classmethod
    def load(cls, layout: Path) -> "Image":
        """Read the only image of a layout and verify manifest and config against their digests."""
        index_file = layout / "index.json"
        try:
            (entry,) = json.loads(index_file.read_bytes())["manifests"]
            digest = str(entry["digest"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ImageError(
                f"{index_file}", expected="an OCI index with one manifest", found=error, do="build it again"
            ) from error
        manifest = read_blob(layout, digest)
        config = read_blob(layout, json.loads(manifest)["config"]["digest"])
        return cls(layout, digest, manifest, config)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The parsed manifest."""
        document: dict[str, Any] = json.loads(self.manifest_bytes)
        return document

    @cached_property
    def config(self) -> dict[str, Any]:
        """The parsed config."""
        document: dict[str, Any] = json.loads(self.config_bytes)
        return document

    @property
    def media_type(self) -> str:
        """Media type of the manifest (OCI or Docker schema 2)."""
        return str(self.manifest.get("mediaType", MANIFEST_TYPE))

    @property
    def config_digest(self) -> str:
        """Digest of the config, which classic Docker stores use as the image ID."""
        return str(self.manifest["config"]["digest"])

    @property
    def layers(self) -> tuple[Descriptor, ...]:
        """Layer descriptors, lowest first."""
        return tuple(
            Descriptor(layer["mediaType"], layer["digest"], layer["size"]) for layer in self.manifest["layers"]
        )

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the config."""
        pairs = self.config.get("config", {}).get("Env") or []
        return dict(pair.split("=", 1) for pair in pairs)

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the config."""
        return dict(self.config.get("config", {}).get("Labels") or {})

    def blob(self, digest: str) -> Path:
        """Path of a blob in the layout, whether or not it is there."""
        return blob_path(self.layout, digest)


def blob_path(layout: Path, digest: str) -> Path:
    """Path of a blob in a layout."""
    algorithm, _, value = digest.partition(":")
    return layout / "blobs" / algorithm / value


def read_blob(layout: Path, digest: str) -> bytes:
    """Bytes of a small blob, verified against its digest."""
    path = blob_path(layout, digest)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ImageError(f"{path}: {error.strerror}", do="remove the folder and build it again") from error
    if digest_bytes(data) != digest:
        raise ImageError(
            str(path), expected=digest, found=digest_bytes(data), do="remove the folder and build it again"
        )
    return data


def append_layer(
    base: Image,
    target: Path,
    layer_file: Path,
    layer: Descriptor,
    *,
    environment: dict[str, str],
    labels: dict[str, str],
    created: str,
    comment: str,
) -> Image:
    """Make ``base`` plus one layer as a new layout at ``target`` (which must not exist).

    Only the base's manifest and config are read; its blobs, where present, are hard-linked. The result
    depends on the arguments alone: no host name, user, clock or tool version enters it.

    Args:
        layer_file: the tar that ``layer`` describes; it is linked into the layout.
        environment: variables to set or replace, in the config's ``Env``.
        labels: labels to set or replace.
        created: RFC 3339 time for config and history.
        comment: text of the new history entry.
    """
    config = json.loads(base.config_bytes)
    for volatile in ("container", "container_config", "docker_version"):
        config.pop(volatile, None)
    run = config.setdefault("config", {})
    merged = {**base.environment, **environment}
    run["Env"] = [f"{name}={value}" for name, value in merged.items()]
    run["Labels"] = {**base.labels, **labels}
    config["created"] = created
    config["rootfs"]["diff_ids"] = [*config["rootfs"]["diff_ids"], layer.digest]
    config["history"] = [*config.get("history", []), {"created": created, "created_by": comment}]
    return _write_layout(base, target, canonical_json(config), [*base.layers, layer], {layer.digest: layer_file})


def _write_layout(
    base: Image, target: Path, config: bytes, layers: Sequence[Descriptor], own: dict[str, Path]
) -> Image:
    config_descriptor = Descriptor(base.manifest["config"]["mediaType"], digest_bytes(config), len(config))
    manifest_document = {
        "schemaVersion": 2,
        "mediaType": base.media_type,
        "config": config_descriptor.as_json(),
        "layers": [layer.as_json() for layer in layers],
    }
    manifest = canonical_json(manifest_document)
    blobs = target / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for layer in layers:
        source = own.get(layer.digest, base.blob(layer.digest))
        if source.exists() and not blob_path(target, layer.digest).exists():
            link_or_copy(source, blob_path(target, layer.digest))
    write_index(target, base.media_type, manifest, config)
    return Image(target, digest_bytes(manifest), manifest, config)


def write_index(target: Path, media_type: str, manifest: bytes, config: bytes) -> None:
    """Put manifest, config, ``index.json`` and ``oci-layout`` into a layout whose layer blobs are there."""
    for data in (manifest, config):
        path = blob_path(target, digest_bytes(data))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    descriptor = Descriptor(media_type, digest_bytes(manifest), len(manifest))
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [descriptor.as_json()]}
    (target / "index.json").write_bytes(canonical_json(index))
    (target / "oci-layout").write_bytes(canonical_json({"imageLayoutVersion": "1.0.0"}))


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Hard-link, or copy where the file system cannot."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
