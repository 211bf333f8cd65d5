"""What a base holds: read once from its layers, stored by the base's digest.

From the inventory the image stage computes which files differ and what must be deleted, and the ``tree`` check
verifies inside the image that everything else is untouched.
"""

import hashlib
import re
import tarfile
from collections.abc import Callable, Iterable
from email.parser import BytesParser
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO

from pydantic import ValidationError

from pipeline.documents import Inventory, InventoryFile
from pipeline.errors import BaseError
from pipeline.files import BUILD, write_atomic
from pipeline.oci import CHUNK, WHITEOUT, Image

OPAQUE = ".wh..wh..opq"
DPKG_STATUS = "var/lib/dpkg/status"

OpenLayer = Callable[[], BinaryIO]


class _Merged:
    """The merged view of the parts of a file system that an inventory needs."""

    def __init__(self, package_root: str) -> None:
        self.root = package_root.strip("/") + "/"
        self.depth = self.root.count("/") + 1
        self.files: dict[str, InventoryFile] = {}
        self.kept: dict[str, bytes] = {}
        """Bytes of the few files whose content is needed: dpkg's status and distributions' METADATA."""
        self.fresh: set[str] = set()
        """Paths of the layer being read, which its own whiteouts do not hide."""

    def wanted(self, path: str) -> bool:
        return path.startswith(self.root) or path == DPKG_STATUS

    def delete(self, path: str) -> None:
        below = path + "/" if path else ""
        for known in [known for known in self.files if known == path or known.startswith(below)]:
            if known not in self.fresh:
                del self.files[known]
                self.kept.pop(known, None)

    def add(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = member.name.removeprefix("./").strip("/")
        parent, _, name = path.rpartition("/")
        if name == OPAQUE:
            self.delete(parent)
        elif name.startswith(WHITEOUT):
            self.delete(f"{parent}/{name.removeprefix(WHITEOUT)}".lstrip("/"))
        elif member.isdir():
            self.files.pop(path, None)  # a directory in the place of a file or symlink
        elif self.wanted(path):
            self.files[path] = self._entry(tar, member, path)
            self.fresh.add(path)

    def _entry(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> InventoryFile:
        if member.issym():
            return InventoryFile(sha256=hashlib.sha256(member.linkname.encode()).hexdigest(), mode=0o777)
        if member.islnk():
            target = member.linkname.removeprefix("./").strip("/")
            if target not in self.files:
                raise BaseError(f"/{path}: is a hard link out of the package root", expected="a file inside it")
            if target in self.kept:
                self.kept[path] = self.kept[target]
            return self.files[target]
        stream = tar.extractfile(member)
        if stream is None:
            raise BaseError(f"/{path}", expected="a regular file or symlink", found=f"tar type {member.type!r}")
        # Directly below the root only: setuptools and others carry distributions of their own inside.
        distribution = path.removeprefix(self.root).endswith(".dist-info/METADATA") and path.count("/") == self.depth
        keep = path == DPKG_STATUS or distribution
        sha256, data = _hash(stream, keep)
        if keep:
            self.kept[path] = data
        return InventoryFile(sha256=sha256, mode=member.mode & 0o7777)


def _hash(stream: IO[bytes], keep: bool) -> tuple[str, bytes]:
    digest, data = hashlib.sha256(), bytearray()
    while piece := stream.read(CHUNK):
        digest.update(piece)
        if keep:
            data += piece
    return digest.hexdigest(), bytes(data)


def take(base: str, layers: Iterable[OpenLayer], package_root: str) -> Inventory:
    """Inventory of an image from its layer streams, lowest first; each is read once, in pieces.

    Args:
        base: digest of the image's manifest.
        package_root: absolute path of the folder that holds ``sglang``.

    Raises:
        BaseError: a layer is unreadable (zstd layers are: mirror the base with gzip), or nothing is there.
    """
    merged = _Merged(package_root)
    for open_layer in layers:
        try:
            merged.fresh.clear()
            with open_layer() as stream, tarfile.open(fileobj=stream, mode="r|*") as tar:
                for member in tar:
                    merged.add(tar, member)
        except (tarfile.TarError, OSError) as error:
            raise BaseError(f"{base}: a layer cannot be read: {error}", do="layers must be tar or tar+gzip") from error
    inside = {path.removeprefix(merged.root): e for path, e in merged.files.items() if path.startswith(merged.root)}
    if not inside:
        raise BaseError(
            f"{base}: {package_root}", expected="Python packages", found="nothing", do="correct package_root"
        )
    return Inventory(
        base=base,
        package_root=package_root,
        files=dict(sorted(inside.items())),
        debian=_debian(merged.kept.get(DPKG_STATUS, b"")),
        python=_python(data for path, data in merged.kept.items() if path != DPKG_STATUS),
    )


def _debian(status: bytes) -> dict[str, str]:
    packages: dict[str, str] = {}
    for block in status.split(b"\n\n"):
        fields = BytesParser().parsebytes(block.strip() + b"\n\n", headersonly=True)
        if "installed" in (fields["Status"] or "").split():
            packages[fields["Package"]] = fields["Version"]
    return dict(sorted(packages.items()))


def _python(metadata: Iterable[bytes]) -> dict[str, str]:
    distributions: dict[str, str] = {}
    for data in metadata:
        fields = BytesParser().parsebytes(data, headersonly=True)
        distributions[re.sub(r"[-_.]+", "-", fields["Name"]).lower()] = fields["Version"]
    return dict(sorted(distributions.items()))


def path_of(digest: str, build: Path = BUILD) -> Path:
    """Where the inventory of a base is stored."""
    return build / "inventories" / f"{digest.replace(':', '-')}.json"


def load(digest: str, build: Path = BUILD) -> Inventory | None:
    """The stored inventory of a base, or None when there is none (or one of an older form)."""
    try:
        inventory = Inventory.model_validate_json(path_of(digest, build).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    return inventory if inventory.base == digest else None


def of_layout(base: Image, package_root: str, build: Path = BUILD) -> Inventory:
    """The inventory of a base whose blobs lie in its layout; taken once, then stored."""
    stored = load(base.digest, build)
    if stored is not None and stored.package_root == package_root:
        return stored
    layers: list[OpenLayer] = [partial(_open, base.blob(layer.digest)) for layer in base.layers]
    inventory = take(base.digest, layers, package_root)
    write_atomic(path_of(base.digest, build), inventory.to_json())
    return inventory


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


def difference(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """Package differences, one readable item each: ``openssl 3.0.17-1 → 3.0.18-1``."""
    names = sorted(old.keys() | new.keys())
    return [
        f"{name} {old.get(name, '(absent)')} → {new.get(name, '(absent)')}"
        for name in names
        if old.get(name) != new.get(name)
    ]
