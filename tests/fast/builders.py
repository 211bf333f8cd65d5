"""Small inputs that several tests build: release lines, patches, images, and a matcher for errors."""

import difflib
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline import oci
from pipeline.base import BaseImage
from pipeline.documents import Inventory, canonical_json
from pipeline.errors import PipelineError
from pipeline.manifest import Line, load_line
from pipeline.oci import Descriptor, Image, LayerEntry

ROOT = "/usr/local/lib/python3.11/dist-packages"
SHA256 = "0" * 64
HEADER = "Description: A change\n Why it is needed.\nOrigin: vendor\nForwarded: no\nLast-Update: 2026-01-31\n\n"


def says(*patterns: str) -> Callable[[PipelineError], bool]:
    """Whether an error's one line matches every pattern."""

    def matches(error: PipelineError) -> bool:
        line = error.line()
        assert "\n" not in line
        return all(re.search(pattern, line) for pattern in patterns)

    return matches


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files below ``folder``."""
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def diff(path: str, old: str, new: str, context: int = 3) -> str:
    """A unified diff of one file, without a header; both texts end with a newline."""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{path}", f"b/{path}", n=context
    )
    return "".join(lines)


def write_series(folder: Path, patches: Mapping[str, str]) -> Path:
    """Write ``series`` and its patches, each with a header."""
    write_files(folder, {"series": "".join(f"{name}\n" for name in patches)})
    return write_files(folder, {name: HEADER + text for name, text in patches.items()})


def git(folder: Path, *arguments: str) -> str:
    """Output of git in ``folder``, without this machine's configuration."""
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def make_commit(folder: Path, files: Mapping[str, str | bytes]) -> str:
    """Commit ``files`` in the repository ``folder``, made when it is none; the commit."""
    write_files(folder, files)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=x")
    return git(folder, "rev-parse", "HEAD")


def release_document(**replaced: Any) -> dict[str, Any]:
    """A valid ``release.yaml`` of one wheel, as YAML would be read; the pin ``second`` is for further layers."""
    pin = {"kind": "pypi", "name": "sglang", "version": "1", "sha256": {"cp311": SHA256}}
    document: dict[str, Any] = {
        "title": "A title",
        "model": "A model",
        "tag": "a",
        "release": 20260131,
        "pins": {"sglang": pin, "second": dict(pin)},
        "layers": [{"source": "sglang"}],
        "base": {"kind": "cpu", "suite": "bookworm", "debian": ["python3"], "requirements": "base-cpu.txt"},
        "environment": {},
        "architectures": {},
    }
    return document | replaced


def make_line(folder: Path, *, lock: Mapping[str, Any] | None = None, **replaced: Any) -> Line:
    """Write ``folder/manifests/small/`` and load it."""
    documents: dict[str, Any] = {"release": release_document(**replaced), "profiles": {"profiles": {}}}
    if lock is not None:
        documents["lock"] = lock
    for name, document in documents.items():
        write_files(folder / "manifests" / "small", {f"{name}.yaml": yaml.safe_dump(document, sort_keys=False)})
    return load_line("small", folder / "manifests")


def make_image(layout: Path, layers: list[list[LayerEntry]], **run: Any) -> Image:
    """An OCI layout of plain-tar layers; ``run`` is the config's part about running."""
    (layout / "blobs" / "sha256").mkdir(parents=True)
    written: list[Descriptor] = []
    for entries in layers:
        layer = oci.write_layer(layout / "layer", entries)
        (layout / "layer").rename(oci.blob_path(layout, layer.digest))
        written.append(layer)
    diff_ids = [layer.digest for layer in written]
    config = canonical_json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": run,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
            "history": [{"created_by": "base"} for _ in written],
        }
    )
    manifest = {
        "schemaVersion": 2,
        "mediaType": oci.MANIFEST_TYPE,
        "config": Descriptor(oci.CONFIG_TYPE, oci.digest_bytes(config), len(config)).as_json(),
        "layers": [layer.as_json() for layer in written],
    }
    oci.write_index(layout, oci.MANIFEST_TYPE, canonical_json(manifest), config)
    return Image.load(layout)


def make_base(layout: Path, files: Mapping[str, bytes], inventory: Inventory) -> BaseImage:
    """A cpu base of one layer with ``files`` below the package root."""
    root = ROOT.strip("/")
    image = make_image(layout, [[LayerEntry(f"{root}/{path}", data) for path, data in files.items()]], Env=["A=1"])
    return BaseImage("cpu", "small-base:cpu", image, inventory)
