"""An engine and its image store: bring images in without a registry, prove what arrived, clean up after us.

Two kinds of store answer to the same API. The classic one names an image by the digest of its config, the
containerd one by the digest of its manifest; either is accepted as proof of identity.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import docker
import urllib3
from docker.errors import DockerException, ImageNotFound
from docker.models.images import Image as StoredImage

from pipeline import console
from pipeline.archive import image_archive
from pipeline.errors import EngineError
from pipeline.oci import Image

Kind = Literal["given", "private"]

TAG_PREFIX = "sglang-xpu-pipeline/"
"""Repository names below this and the owner are ours: made here, and the only ones removed here."""

OWNER_LABEL = "io.sglang-xpu.owner"
"""Label on our containers and volumes; its value, as in our tags, is the build folder's
:func:`pipeline.engine.folder_id`, so that two build folders can share one engine."""


@contextmanager
def engine_errors(what: str) -> Iterator[None]:
    """Turn whatever the SDK and its transport raise into one-line :class:`EngineError`."""
    try:
        yield
    except (DockerException, urllib3.exceptions.HTTPError, OSError) as error:
        raise EngineError(what, found=str(error) or type(error).__name__, do="see the engine's log") from error


def tag_of(image: Image, owner: str, name: str) -> str:
    """The tag under which an image enters an engine: ``sglang-xpu-pipeline/<owner>/<name>:<12 hex of its digest>``."""
    return f"{TAG_PREFIX}{owner}/{name}:{image.digest.removeprefix('sha256:')[:12]}"


def is_same(image: Image, stored: StoredImage) -> bool:
    """Whether a stored image is ``image``, by config digest (classic store) or manifest digest (containerd)."""
    digests = {str(entry).rpartition("@")[2] for entry in stored.attrs.get("RepoDigests") or ()}
    return stored.id in (image.config_digest, image.digest) or image.digest in digests


@dataclass(frozen=True)
class Engine:
    """A container engine that answered; ``host`` is its address, ``owner`` labels what we leave in it."""

    client: docker.DockerClient
    kind: Kind
    host: str
    owner: str

    @property
    def labels(self) -> dict[str, str]:
        """Labels for every container and volume of ours."""
        return {OWNER_LABEL: self.owner}

    @property
    def _prefix(self) -> str:
        return f"{TAG_PREFIX}{self.owner}/"

    def find(self, image: Image) -> str | None:
        """Our tag of ``image``, if the engine holds it under one and it is proven to be that image."""
        short = image.digest.removeprefix("sha256:")[:12]
        with engine_errors(f"{self.host}: list images"):
            for stored in self.client.images.list(filters={"reference": f"{self._prefix}*:{short}"}):
                if is_same(image, stored):
                    return next(tag for tag in stored.tags if tag.startswith(self._prefix))
        return None

    def ensure_base(self, base: Image, name: str) -> str:
        """Load a base with all its layers, unless the engine holds it; return its tag."""
        return self.find(base) or self._load(base, name, ())

    def ensure_image(self, image: Image, name: str, base: Image) -> str:
        """Load an image, leaving out the layers of ``base`` if the engine holds that; return its tag."""
        held = [layer.digest for layer in base.layers] if self.find(base) else []
        return self.find(image) or self._load(image, name, held)

    def _load(self, image: Image, name: str, held: Collection[str]) -> str:
        tag = tag_of(image, self.owner, name)
        archive = image_archive(image, f"docker.io/{tag}", held)
        api: Any = self.client.api
        with console.step(f"load {tag} into the engine") as step, engine_errors(f"load {tag}"):
            for answer in api.load_image(_counted(archive, step)):
                # A refusal before the first layer comes as the API's error document, a later one as a message.
                if problem := answer.get("error") or answer.get("message"):
                    raise EngineError(f"load {tag}", found=problem, do="see the engine's log")
        return self._prove(image, tag)

    def pull_base(self, base: Image, reference: str, name: str) -> str:
        """Have the engine pull a published base, unless it holds it; return our tag.

        Args:
            base: manifest and config of that base; its layers need not be here.
            reference: ``repository@sha256:…`` of the platform manifest.
        """
        if tag := self.find(base):
            return tag
        repository, _, digest = reference.partition("@")
        tag = tag_of(base, self.owner, name)
        with console.step(f"pull {reference}"), engine_errors(f"pull {reference}"):
            pulled = self.client.images.pull(repository, tag=digest)
            pulled.tag(*tag.rsplit(":", 1))
        return self._prove(base, tag)

    def compare_pulled(self, image: Image, reference: str) -> None:
        """Pull ``repository@sha256:…`` and prove by its ID that it is ``image``; a name that was not here goes again.

        Raises:
            EngineError: it cannot be pulled, or is another image.
        """
        repository, _, digest = reference.partition("@")
        with console.step(f"pull {reference}"), engine_errors(f"pull {reference}"):
            had = any(reference in (stored.attrs.get("RepoDigests") or ()) for stored in self.client.images.list())
            # The ID alone: the name that a pull by digest leaves holds that digest whatever was pulled.
            found = self.client.images.pull(repository, tag=digest).id
            if not had:
                self.client.images.remove(reference)
        if found not in (image.config_digest, image.digest):
            raise EngineError(
                f"{reference} in the engine is another image",
                expected=f"config {image.config_digest} or manifest {image.digest}",
                found=found,
                do="do not use this registry until its operator looked",
            )

    def _prove(self, image: Image, tag: str) -> str:
        with engine_errors(f"inspect {tag}"):
            try:
                stored = self.client.images.get(tag)
            except ImageNotFound:
                raise EngineError(
                    f"{self.host}: {tag} is not in the engine after it was loaded", do="see the engine's log"
                ) from None
        if not is_same(image, stored):
            raise EngineError(
                f"{tag} in the engine is another image",
                expected=f"config {image.config_digest} or manifest {image.digest}",
                found=f"{stored.id} {stored.attrs.get('RepoDigests') or ''}",
                do="remove that tag from the engine and try again",
            )
        return tag

    def remove_ours(self, keep: Collection[str] = ()) -> None:
        """Remove this build folder's containers and volumes, and our tags except ``keep``.

        Images go by tag, never by ID: removing an ID would drop tags that others gave to it. What a pull by
        digest brought stays under that digest.
        """
        ours: dict[str, str | list[str] | bool] = {"label": f"{OWNER_LABEL}={self.owner}"}
        with engine_errors(f"{self.host}: clean up"):
            for container in self.client.containers.list(all=True, filters=ours):
                container.remove(force=True, v=True)
            for volume in self.client.volumes.list(filters=ours):
                volume.remove()
            for stored in self.client.images.list(filters={"reference": f"{self._prefix}*"}):
                for tag in stored.tags:
                    if tag.startswith(self._prefix) and tag not in keep:
                        self.client.images.remove(tag)


def _counted(archive: Iterator[bytes], step: console.Step) -> Iterator[bytes]:
    sent = 0
    for piece in archive:
        sent += len(piece)
        step.detail = f"{sent / 1e6:.0f} MB"
        yield piece
