"""What a registry serves for one of our images: manifest, config, our own small layer, and the record inside it.

No base layer is read. What comes back is bounded: our layer and the config have limits of their own.
"""

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from pipeline.base import CONFIG_LIMIT
from pipeline.compose import tree_digest
from pipeline.documents import RECORD_PATH, Record
from pipeline.errors import ReleaseError, VerifyError
from pipeline.image import LAYER_LIMIT
from pipeline.oci import WHITEOUT, Image
from pipeline.registry import Registry, Repository, parse_pinned

_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Member:
    """One file of our layer."""

    sha256: str
    mode: int


@dataclass(frozen=True)
class Published:
    """One image as its registry serves it; manifest, config and our layer were verified against their digests."""

    repository: Repository
    image: Image
    """Sparse: the layout is a scratch folder without blobs."""
    members: dict[str, Member]
    """Path, relative to ``/``, of every file of our layer but directories."""
    record: Record

    @property
    def reference(self) -> str:
        """The image by digest."""
        return f"{self.repository}@{self.image.digest}"


def parse_reference(text: str) -> tuple[Repository, str]:
    """Read ``repository:tag`` or ``repository@sha256:<hex>`` into repository and tag or digest.

    Raises:
        VerifyError: it is neither.
    """
    with reading():
        if "@" in text:
            return parse_pinned(text)
        name, _, tag = text.rpartition(":")
        if name and _TAG.fullmatch(tag):
            return Repository.parse(name), tag
    raise VerifyError(
        text,
        expected="the file of a release record, repository:tag or repository@sha256:<64 hex digits>",
        do="correct the argument",
    )


@contextmanager
def reading() -> Iterator[None]:
    """A registry that fails here is a matter of the verification, not of a release."""
    try:
        yield
    except ReleaseError as error:
        raise VerifyError(error.what, expected=error.expected, found=error.found, do=error.do) from error


def read(registry: Registry, reference: str, scratch: Path) -> Published:
    """Read an image by tag or digest; our layer passes through the folder ``scratch``.

    Raises:
        VerifyError: the registry fails, or what it serves is no image of this pipeline.
    """
    where = f"{registry.repository}{'@' if reference.startswith('sha256:') else ':'}{reference}"
    with reading():
        manifest = registry.get_manifest(reference)
        try:
            document = json.loads(manifest.content)
            config = registry.get_blob(document["config"]["digest"], CONFIG_LIMIT)
            image = Image(scratch, manifest.digest, manifest.content, config)
            layer = image.layers[-1]
        except (ValueError, KeyError, TypeError, IndexError):
            raise _foreign(where, "the manifest of one platform's image", manifest.media_type) from None
        if layer.size > LAYER_LIMIT:
            raise _foreign(where, f"a last layer of at most {LAYER_LIMIT:,} bytes", f"one of {layer.size:,}")
        file = scratch / "layer.tar"
        registry.fetch_blob(layer, file)
    members, record = _read_layer(file, where)
    return Published(registry.repository, image, members, record)


def _foreign(where: str, expected: str, found: str) -> VerifyError:
    return VerifyError(where, expected=expected, found=found, do="name an image that this pipeline released")


def _read_layer(file: Path, where: str) -> tuple[dict[str, Member], Record]:
    kept: dict[str, bytes] = {}
    try:
        members = read_members(file, kept)
        if RECORD_PATH not in kept:
            raise _foreign(where, f"/{RECORD_PATH} in the last layer", "none")
        return members, Record.model_validate_json(kept[RECORD_PATH])
    except tarfile.TarError as error:
        raise _foreign(where, "a plain tar of regular files as last layer", str(error)) from None
    except ValidationError as error:
        raise _foreign(where, f"/{RECORD_PATH} as this pipeline writes it", error.errors()[0]["msg"]) from None


def read_members(file: Path, kept: dict[str, bytes] | None = None) -> dict[str, Member]:
    """Files of a layer of ours; the bytes of the record go into ``kept``.

    Raises:
        tarfile.TarError: it is no plain tar of regular files and directories.
    """
    members: dict[str, Member] = {}
    with tarfile.open(file, "r:") as tar:
        for member in tar:
            if member.isdir():
                continue
            if not member.isreg() or member.issparse():  # a sparse file of a few bytes may claim any size
                raise tarfile.TarError(f"/{member.name}, which is no regular file")
            stream = tar.extractfile(member)
            assert stream is not None  # it is a regular file
            data = stream.read()
            members[member.name] = Member(hashlib.sha256(data).hexdigest(), member.mode)
            if kept is not None and member.name == RECORD_PATH:
                kept[RECORD_PATH] = data
    return members


def wrong_files(published: Published) -> list[str]:
    """Files of our layer that are not what the record inside it says, each with the reason.

    Whiteouts may only delete below the package root. The rest of the tree is in the base, by its digest.
    """
    wrong, roots, deleted = [], set[str](), []
    for path, member in published.members.items():
        inside = _tree_path(path, published.record)
        if PurePosixPath(path).name.startswith(WHITEOUT):
            deleted.append(path)
        elif path == RECORD_PATH:
            continue
        elif inside is None:
            wrong.append(f"/{path}: the record does not name it")
        elif published.record.files[inside].sha256 != member.sha256:
            wrong.append(f"/{path}: is not what the record says")
        else:
            roots.add(path.removesuffix(inside))
    wrong += [f"/{path}: deletes outside the package root" for path in deleted if not path.startswith(tuple(roots))]
    if len(roots) > 1:
        wrong.append(f"files below more than one package root: {', '.join('/' + root for root in sorted(roots))}")
    return sorted(wrong)


def _tree_path(path: str, record: Record) -> str | None:
    """The path inside the tree of a path of the image; only its end can be one, below the package root."""
    parts = path.split("/")
    ends = ("/".join(parts[start:]) for start in range(len(parts)))
    return next((end for end in ends if end in record.files), None)


def own_digest(record: Record) -> str:
    """Digest of the tree that a record lists, computed again from its files."""
    return tree_digest({path: entry.sha256 for path, entry in record.files.items()})
