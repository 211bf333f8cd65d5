"""Small images, written as layouts without any tool."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from pipeline import oci
from pipeline.documents import canonical_json
from pipeline.oci import Descriptor, Image, LayerEntry


def make_base(layout: Path, entries: list[LayerEntry], directories: Iterable[str] = ()) -> Image:
    """Write a layout with an image of one layer; parents of the entries are made."""
    blobs = layout / "blobs/sha256"
    blobs.mkdir(parents=True)
    parents = {str(parent) for entry in entries for parent in PurePosixPath(entry.path).parents} - {"."}
    layer = oci.write_layer(layout / "layer", entries, sorted({*parents, *directories}))
    (layout / "layer").rename(oci.blob_path(layout, layer.digest))
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/bin", "GREETING=hello"], "Entrypoint": ["/no/such/program"]},
        "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
    }
    data = canonical_json(config)
    manifest = {
        "schemaVersion": 2,
        "mediaType": oci.MANIFEST_TYPE,
        "config": Descriptor(oci.CONFIG_TYPE, oci.digest_bytes(data), len(data)).as_json(),
        "layers": [layer.as_json()],
    }
    oci.write_index(layout, oci.MANIFEST_TYPE, canonical_json(manifest), data)
    return Image.load(layout)


def add_layer(base: Image, folder: Path, entries: list[LayerEntry]) -> Image:
    """``base`` with one more layer."""
    folder.mkdir()
    layer = oci.write_layer(folder / "layer.tar", entries)
    return oci.append_layer(
        base,
        folder / "image",
        folder / "layer.tar",
        layer,
        environment={},
        labels={"io.sglang-xpu.test": "yes"},
        created="2020-01-01T00:00:00Z",
        comment="test",
    )
