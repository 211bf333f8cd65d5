"""The image stage: base plus one deterministic layer with exactly the files that differ, and what the checks are told.

Same inputs, same manifest digest: file order, times, umask, user, folder and host do not enter.
"""

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.base import LABEL_KIND, BaseImage
from pipeline.compose import Composed
from pipeline.console import step
from pipeline.documents import RECORD_PATH, Inventory, Record
from pipeline.errors import ImageError
from pipeline.files import BUILD, new_folder
from pipeline.manifest import Line, SourceLayer
from pipeline.oci import (
    DOCKER_LAYER_TYPE,
    DOCKER_MANIFEST_TYPE,
    LAYER_TYPE,
    WHITEOUT,
    Image,
    LayerEntry,
    append_layer,
    whiteout,
    write_layer,
)
from pipeline.pins import describe

LAYER_LIMIT = 8 << 20
"""Bytes that our layer may have. It holds changed text files and the record; more means that the base is another."""


@dataclass(frozen=True)
class Difference:
    """What our layer must do to the base; paths are relative to the package root."""

    changed: dict[str, int]
    """Path to permission bits of every file to lay."""
    removed: tuple[str, ...]
    """Paths to delete: files that the tree no longer has, and bytecode of files that change."""


def difference(record: Record, inventory: Inventory) -> Difference:
    """Compare the composed tree with the base."""
    changed = {
        path: inventory.files[path].mode if path in inventory.files else 0o644
        for path, entry in record.files.items()
        if path not in inventory.files or inventory.files[path].sha256 != entry.sha256
    }
    tops = {path.split("/", 1)[0] for path in record.files}
    removed = set[str]()
    for path in inventory.files:
        if path.split("/", 1)[0] not in tops or path.endswith(".so"):
            continue
        if path.endswith(".pyc"):
            source = source_of(path)
            if source in changed or source not in record.files:
                removed.add(path)
        elif path not in record.files:
            removed.add(path)
    return Difference(changed, tuple(sorted(removed)))


def source_of(bytecode: str) -> str:
    """Source path of a ``.pyc``: ``a/__pycache__/b.cpython-311.pyc`` belongs to ``a/b.py``."""
    path = PurePosixPath(bytecode)
    if path.parent.name == "__pycache__":
        return str(path.parent.parent / f"{path.name.split('.')[0]}.py")
    return str(path.with_suffix(".py"))


def labels(line: Line, base: BaseImage, record: Record) -> dict[str, str]:
    """OCI annotation keys and our own, as labels.

    ``revision`` names the packaged software's revision, the first source pin. The commit of this project is no input
    of the image: the tree digest and the record say what is inside, and a change of a document makes no new image.
    """
    first = line.release.layers[0]
    assert isinstance(first, SourceLayer)
    patches = [entry.name.removeprefix("patch:") for entry in record.steps if entry.name.startswith("patch:")]
    return {
        "org.opencontainers.image.title": line.release.title,
        "org.opencontainers.image.version": line.release.release,
        "org.opencontainers.image.revision": describe(line.release.pins[first.source]),
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.base.name": base.name,
        "org.opencontainers.image.base.digest": base.image.digest,
        LABEL_KIND: base.kind,
        "io.sglang-xpu.line": line.name,
        "io.sglang-xpu.tree.digest": record.digest,
        "io.sglang-xpu.patches": ",".join(patches),
    }


def build(line: Line, composed: Composed, base: BaseImage, target: Path | None = None) -> Image:
    """Write the image as an OCI layout, by default ``.build/<line>/image``.

    Raises:
        ImageError: the layer is larger than :data:`LAYER_LIMIT`.
    """
    record, root = composed.record, base.inventory.package_root.strip("/")
    delta = difference(record, base.inventory)
    entries = [LayerEntry(f"{root}/{path}", composed.files[path], mode) for path, mode in delta.changed.items()]
    entries += [whiteout(f"{root}/{path}") for path in delta.removed]
    entries.append(LayerEntry(RECORD_PATH, record.to_json()))
    media_type = DOCKER_LAYER_TYPE if base.image.media_type == DOCKER_MANIFEST_TYPE else LAYER_TYPE
    target = target or BUILD / line.name / "image"
    with step("Image") as state, new_folder(target) as draft:
        file = draft / "layer.tar"
        layer = write_layer(file, entries, _new_directories(delta, base.inventory, root), media_type)
        if layer.size > LAYER_LIMIT:
            raise ImageError(
                f"{target}: our layer",
                expected=f"at most {LAYER_LIMIT} bytes",
                found=f"{layer.size} bytes, {len(delta.changed)} files",
                do="the base must hold the pinned SGLang",
            )
        image = append_layer(
            base.image,
            draft / "layout",
            file,
            layer,
            environment={name: default.value for name, default in line.release.environment.items()},
            labels=labels(line, base, record),
            created=line.release.created,
            comment=f"{line.release.title}, {line.release.release}",
        )
        file.unlink()
        for child in (draft / "layout").iterdir():
            child.rename(draft / child.name)
        (draft / "layout").rmdir()
        state.detail = (
            f"{len(delta.changed)} files changed, {len(delta.removed)} removed, layer {layer.size / 1024:.0f} KiB"
        )
    return Image(target, image.digest, image.manifest_bytes, image.config_bytes)


def _new_directories(delta: Difference, inventory: Inventory, root: str) -> list[str]:
    """Directories that the base lacks. Stating one that it has could replace a symlink there."""
    parents = {str(parent) for path in delta.changed for parent in PurePosixPath(path).parents} - {"."}
    new = [parent for parent in parents if not any(path.startswith(f"{parent}/") for path in inventory.files)]
    return [f"{root}/{path}" for path in new] + [str(PurePosixPath(RECORD_PATH).parent)]


def layer_paths(image: Image, base: Image) -> list[str]:
    """Paths, relative to ``/``, of everything but whiteouts in the layers that ``image`` adds to ``base``."""
    paths: list[str] = []
    for layer in image.layers[len(base.layers) :]:
        with tarfile.open(image.blob(layer.digest)) as tar:
            paths += [member.name for member in tar if not member.isdir()]
    return sorted(path for path in set(paths) if not PurePosixPath(path).name.startswith(WHITEOUT))


def facts(line: Line, record: Record, base: BaseImage, image: Image) -> dict[str, Any]:
    """What the checks inside the image compare it with: the content of their ``input.json``, but for the data files."""
    defaults = {name: d.model_dump(mode="json") for name, d in line.release.environment.items()}
    return {
        "line": line.name,
        "base_kind": base.kind,
        "package_root": base.inventory.package_root,
        "record_path": f"/{RECORD_PATH}",
        "record": json.loads(record.to_json()),
        "inventory": json.loads(base.inventory.to_json()),
        "allows": list(base.allows),
        "removed": list(difference(record, base.inventory).removed),
        "layer_paths": layer_paths(image, base.image),
        "environment": {"base": base.image.environment, "defaults": defaults},
        "architectures": {name: a.model_dump(mode="json") for name, a in line.release.architectures.items()},
        **launches(line),
    }


def launches(line: Line) -> dict[str, Any]:
    """The profiles that this image serves, and the ``config.json`` of each model folder that they mount.

    Raises:
        ManifestError: a profile mounts a folder whose configuration the line does not keep.
    """
    profiles = {name: profile for name, profile in line.profiles.profiles.items() if profile.image is None}
    listen = line.profiles.machine.listen if line.profiles.machine else []
    rows = {
        name: {
            "argv": [*profile.argv, *listen],
            "environment": profile.environment,
            "mounts": profile.mounts,
            "resolved": profile.resolved,
            "graphs": profile.graphs.model_dump() if profile.graphs else {},
            "draft_ring": profile.draft_ring.model_dump() if profile.draft_ring else {},
        }
        for name, profile in profiles.items()
    }
    folders = {folder for profile in profiles.values() for folder in profile.mounts.values()}
    return {"profiles": rows, "configs": {folder: line.config(folder) for folder in sorted(folders)}}
