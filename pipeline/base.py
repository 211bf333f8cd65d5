"""Bases: the local ``cpu`` base, built here as an OCI layout, and published bases, read from their registry.

The local base has three layers, so that a new SGLang release re-makes only the small last one:

1. Debian, by mmdebstrap, without the build machine's host name and resolver;
2. hashed wheels and the stand-ins of ``recipes/cpu/stubs``;
3. the pinned SGLang wheel.

Python sources lie there with a constant modification time, so a timestamp ``.pyc`` of a file that a later layer
replaces with one of equal size would look valid. The bytecode is therefore checked-hash (PEP 552), made by the base's
own interpreter. Debian's mirror moves: the same inputs give the same base only on one state of the mirror, and the
base's digest, not its recipe, is what a lock and a label name.
"""

import ast
import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from pipeline import inventory, oci, pins, registry
from pipeline.console import note, step
from pipeline.documents import Inventory, canonical_json
from pipeline.errors import BaseError, PinError, ReleaseError
from pipeline.files import BUILD, PROJECT, new_folder, write_atomic
from pipeline.manifest import CpuBase, Line, PublishedBase, PypiPin, SourceLayer
from pipeline.oci import (
    CONFIG_TYPE,
    EPOCH,
    LAYER_TYPE,
    MANIFEST_TYPE,
    Descriptor,
    Image,
    LayerEntry,
    blob_path,
    digest_bytes,
    digest_file,
    write_index,
    write_layer,
)

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
STUBS = PROJECT / "recipes" / "cpu" / "stubs"
CREATED = "2020-01-01T00:00:00Z"
CONFIG_LIMIT = 8 << 20
"""Bytes; configs of real images have tens of KiB."""
LOCAL_NAME = "localhost/sglang-xpu-base:cpu"
LABEL_KIND = "io.sglang-xpu.base.kind"
PLATFORM = ("linux", "amd64")
"""Operating system and architecture of every image here."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class BaseImage:
    """A base with everything that the image stage reads of it."""

    kind: str
    name: str
    """Reference for people and for the label ``org.opencontainers.image.base.name``."""
    image: Image
    inventory: Inventory
    allows: tuple[str, ...] = ()


def package_root(base: CpuBase | PublishedBase) -> str:
    """Absolute path in the image of the folder that holds ``sglang``."""
    if isinstance(base, PublishedBase):
        return base.package_root
    return f"/usr/local/lib/python3.{base.python_tag[3:]}/dist-packages"


def get(line: Line, build: Path = BUILD) -> BaseImage:
    """The base of a line: built, read from its registry, or from the cache.

    Raises:
        BaseError, PinError: it cannot be had.
    """
    base = line.release.base
    root = package_root(base)
    if isinstance(base, PublishedBase):
        return _published(base, build)
    folder = _folder(line, base, build)
    if not (folder / "index.json").is_file():
        _build_cpu(line, base, folder, build)
        for old in folder.parent.glob(f"{line.name}-cpu-*"):
            if old != folder:
                shutil.rmtree(old)
    image = Image.load(folder)
    with step("Inventory of the base") as state:
        taken = inventory.of_layout(image, root, build)
        state.detail = f"{len(taken.files)} files, {len(taken.debian)} Debian and {len(taken.python)} Python packages"
    return BaseImage("cpu", LOCAL_NAME, image, taken)


def cached(line: Line, build: Path = BUILD) -> bool:
    """Whether :func:`get` would find the base without building or reading it anew."""
    base = line.release.base
    if isinstance(base, PublishedBase):
        return inventory.load("sha256:" + base.reference.rpartition("sha256:")[2], build) is not None
    return (_folder(line, base, build) / "index.json").is_file()


def _folder(line: Line, base: CpuBase, build: Path) -> Path:
    """Where the local base of a line lies; other inputs, another folder, and the last one goes."""
    return build / "bases" / f"{line.name}-cpu-{_inputs(line, base)[:16]}"


def _published(base: PublishedBase, build: Path) -> BaseImage:
    image = _read_published(base, build)
    taken = inventory.load(image.digest, build)
    if taken is None:
        raise BaseError(
            f"{base.reference}: inventory",
            expected=str(inventory.path_of(image.digest, build)),
            found="none",
            do="run build.py base inventory (it reads the base's layers once)",
        )
    return BaseImage("published", base.reference, image, taken, base.allows)


@contextmanager
def _reading_a_base() -> Iterator[None]:
    """A registry that fails here is a matter of the base, not of a release."""
    try:
        yield
    except ReleaseError as error:
        raise BaseError(error.what, expected=error.expected, found=error.found, do=error.do) from error


@_reading_a_base()
def _read_published(base: PublishedBase, build: Path) -> Image:
    """Manifest and config of a published base, as a layout without layer blobs."""
    repository, digest = registry.parse_pinned(base.reference)
    folder = build / "bases" / digest.replace(":", "-")
    if not (folder / "index.json").is_file():
        with step(f"Read manifest and config of {base.reference}"), registry.Registry(repository) as client:
            manifest = _platform_manifest(base, client.get_manifest(digest))
            config = client.get_blob(json.loads(manifest.content)["config"]["digest"], CONFIG_LIMIT)
        with new_folder(folder) as draft:
            write_index(draft, manifest.media_type, manifest.content, config)
    return Image.load(folder)


def _platform_manifest(base: PublishedBase, manifest: registry.Manifest) -> registry.Manifest:
    """The manifest itself; an index over platforms is refused with the digest to pin in its place."""
    rows = json.loads(manifest.content).get("manifests")
    if rows is None:
        return manifest
    platforms = [(row.get("platform", {}), str(row["digest"])) for row in rows]
    ours = [digest for found, digest in platforms if (found.get("os"), found.get("architecture")) == PLATFORM]
    pin = f"pin {base.reference.partition('@')[0]}@{ours[0]}" if len(ours) == 1 else "pin one of its manifests"
    raise BaseError(
        base.reference,
        expected="the digest of a platform manifest",
        found=f"an index of {len(platforms)} manifests",
        do=f"{pin}, for {'/'.join(PLATFORM)}",
    )


@_reading_a_base()
def mirror(line: Line, repository: str, build: Path = BUILD) -> str:
    """Copy the published base of a line into ``repository``, byte for byte; the reference of the copy.

    Within one registry layers are mounted; from another they pass through a scratch folder, one at a time.

    Raises:
        BaseError: a base that is not published, or a registry that fails or alters it.
    """
    base = line.release.base
    if not isinstance(base, PublishedBase):
        raise BaseError(
            f"{line.folder / 'release.yaml'}: base",
            expected="kind published",
            found=base.kind,
            do="a local base has no registry to mirror from; it is pushed with the image, to loopback",
        )
    image = _read_published(base, build)
    source, digest = registry.parse_pinned(base.reference)
    target = registry.Repository.parse(repository)
    config = image.manifest["config"]
    with registry.Registry(source) as origin, registry.Registry(target) as client:
        for layer in dict.fromkeys(image.layers):
            _mirror_layer(layer, origin, client, image.layout.parent)
        client.push_blob(image.config_bytes, Descriptor(config["mediaType"], config["digest"], config["size"]))
        client.put_manifest(digest, image.manifest_bytes, image.media_type)
        if client.get_manifest(digest).content != image.manifest_bytes:
            raise BaseError(f"{target}@{digest}", expected="the bytes that were sent", found="others")
    return f"{target}@{digest}"


def _mirror_layer(layer: Descriptor, origin: registry.Registry, target: registry.Registry, folder: Path) -> None:
    with step(f"Layer {layer.digest}") as state:
        state.detail = f"{layer.size / 2**20:.0f} MiB"
        if target.has_blob(layer.digest):
            return
        same_registry = origin.repository.host == target.repository.host
        if same_registry and target.mount_blob(layer.digest, origin.repository.path):
            return
        with tempfile.TemporaryDirectory(dir=folder, prefix=".layer.") as scratch:
            file = Path(scratch, "layer")
            origin.fetch_blob(layer, file)
            target.push_blob(file, layer)


@_reading_a_base()
def read_inventory(base: PublishedBase, build: Path = BUILD) -> Inventory:
    """Take and store the inventory of a published base; its layers pass through a scratch folder, one at a time."""
    image = _read_published(base, build)
    repository, _ = registry.parse_pinned(base.reference)
    with (
        step(f"Inventory of {base.reference}") as state,
        tempfile.TemporaryDirectory(dir=image.layout.parent, prefix=".layer.") as scratch,
        registry.Registry(repository) as client,
    ):
        file = Path(scratch, "layer")

        def open_layer(layer: Descriptor) -> BinaryIO:
            state.detail = f"layer {layer.digest[:19]}, {layer.size / 2**20:.0f} MiB"
            client.fetch_blob(layer, file)
            return file.open("rb")

        taken = inventory.take(image.digest, [partial(open_layer, layer) for layer in image.layers], base.package_root)
    write_atomic(inventory.path_of(image.digest, build), taken.to_json())
    return taken


def sglang_pin(line: Line) -> PypiPin:
    first = line.release.layers[0]
    pin = line.release.pins[first.source] if isinstance(first, SourceLayer) else None
    if not isinstance(pin, PypiPin):
        raise BaseError(
            f"{line.folder / 'release.yaml'}: the cpu base installs SGLang's wheel",
            expected="a pypi pin as first layer",
            found=pin.kind if pin else "none",
            do="use a published base for a git or dir pin",
        )
    return pin


def _inputs(line: Line, base: CpuBase) -> str:
    """Hash of everything that decides what the local base holds, but the state of Debian's mirror."""
    stubs = {path.relative_to(STUBS).as_posix(): digest_file(path) for path in sorted(STUBS.rglob("*.py"))}
    inputs = {
        "base": base.model_dump(mode="json"),
        "requirements": digest_file(line.folder / base.requirements),
        "sglang": sglang_pin(line).sha256[base.python_tag],
        "stubs": stubs,
        "recipe": [_code(Path(__file__)), _code(Path(oci.__file__))],
    }
    return hashlib.sha256(canonical_json(inputs)).hexdigest()


def _code(module: Path) -> str:
    """A module without comments and layout, so that tidying up does not remake the base."""
    return ast.dump(ast.parse(module.read_bytes()))


def _build_cpu(line: Line, base: CpuBase, target: Path, build: Path) -> None:
    torch = _torch_wheel(line.folder / base.requirements, base, build)
    wheel = pins.fetch(sglang_pin(line), base.python_tag, build / "cache")
    with new_folder(target) as layout, tempfile.TemporaryDirectory(dir=target.parent, prefix=".work.") as scratch:
        work = Path(scratch)
        (layout / "blobs" / "sha256").mkdir(parents=True)
        debian = work / "debian.tar"
        with step("Debian packages (mmdebstrap)"):
            _debootstrap(base, debian)
        with step("Unpack the base's interpreter"):
            python = _Interpreter(debian, work / "python")
        layers = [_adopt(layout, debian, Descriptor(LAYER_TYPE, digest_file(debian), debian.stat().st_size))]
        packages = [f"--find-links={torch.parent}", "-r", str(line.folder / base.requirements)]
        layers.append(_python_layer(layout, work / "packages", "Python packages", packages, base, python, STUBS))
        # By name, not by path: pip would write the path into direct_url.json.
        sglang = ["--no-index", f"--find-links={wheel.parent}", pins.describe(sglang_pin(line))]
        layers.append(_python_layer(layout, work / "sglang", "SGLang", sglang, base, python))
        _finish(layout, layers)


def _torch_wheel(requirements: Path, base: CpuBase, build: Path) -> Path:
    """The torch wheel of the requirements, fetched before anything else: it is the one that may not be had.

    Raises:
        BaseError: the requirements do not name a CPU build by hash.
        PinError: neither the configured index nor PyTorch's public CPU index has it.
    """
    text = requirements.read_text(encoding="utf-8")
    match = re.search(r"^torch==(\S+\+cpu) \\\n\s+--hash=sha256:([0-9a-f]{64})$", text, re.MULTILINE)
    if match is None:
        raise BaseError(
            f"{requirements}: torch",
            expected="one hashed CPU build (torch==<version>+cpu)",
            found="none",
            do="docs/bump-a-pin.md says how the file is made",
        )
    folder = build / "cache" / "sha256" / match[2]
    for wheel in folder.glob("*.whl"):
        if digest_file(wheel) == f"sha256:{match[2]}":
            return wheel
    folder.mkdir(parents=True, exist_ok=True)
    requirement = f"torch=={match[1]}"
    with step(f"Download {requirement}"):
        try:
            return pins.download(requirement, match[2], base.python_tag, folder)
        except PinError as error:
            if error.expected is not None:
                raise
            note(f"{requirement} is not on the configured index; asking {PYTORCH_CPU_INDEX}")
        try:
            return pins.download(requirement, match[2], base.python_tag, folder, [f"--index-url={PYTORCH_CPU_INDEX}"])
        except PinError as error:
            raise PinError(
                f"{requirement} (sha256 {match[2]})",
                expected=f"it on the index that pip is configured with, or on {PYTORCH_CPU_INDEX}",
                found="it on neither",
                do=f"configure an index that has it, or put the wheel into {folder}; nothing else was downloaded",
            ) from error


PASSED_ON = {"PATH", "HOME", "TMPDIR", "APT_CONFIG", "http_proxy", "https_proxy", "no_proxy"}
"""Variables that mmdebstrap gets from here: any other could reach a package's scripts, and so the base."""


def _debootstrap(base: CpuBase, target: Path) -> None:
    mode = "root" if os.geteuid() == 0 else "unshare"
    # mmdebstrap copies both files from the machine that builds: they differ between machines and tell on them.
    hook = 'rm -f "$1/etc/hostname" "$1/etc/resolv.conf"'
    command = [
        "mmdebstrap",
        f"--mode={mode}",
        "--variant=minbase",
        "--format=tar",
        "--quiet",
        f"--include={','.join(base.debian)}",
        f"--customize-hook={hook}",
        "--skip=output/dev",
        base.suite,
        str(target),
    ]
    environment = {name: value for name, value in os.environ.items() if name in PASSED_ON} | {
        "SOURCE_DATE_EPOCH": str(EPOCH),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        # With SOURCE_DATE_EPOCH Debian's py3compile writes checked-hash bytecode, but what it imports itself on the way
        # would be left with timestamps.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise BaseError(
            "mmdebstrap",
            expected="the program",
            found="none",
            do="apt-get install --no-install-recommends mmdebstrap",
        ) from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("E: ")] or done.stderr.splitlines()
        raise BaseError(
            f"mmdebstrap --mode={mode} ended with {done.returncode}: {lines[-1] if lines else 'no output'}",
            do="check that Debian's mirror answers, and the rights of this user",
        )


INTERPRETER = ("./lib*", "./bin", "./usr/bin/python3*", "./usr/lib/python3*", "./usr/lib/x86_64-linux-gnu")
"""What of Debian's layer its Python needs to run."""


class _Interpreter:
    """The base's own Python, run from its unpacked files through the base's own dynamic loader.

    So the bytecode depends on the base alone, and neither a chroot nor a Python of the same version is needed here.
    """

    def __init__(self, debian: Path, root: Path) -> None:
        self.root = root
        root.mkdir()
        # Not tarfile: its extraction filters, which later Pythons insist on, are younger than Debian 12's Python.
        command = ["tar", "--extract", f"--file={debian}", f"--directory={root}", "--no-same-owner", "--wildcards"]
        done = subprocess.run([*command, *INTERPRETER], capture_output=True, text=True, check=False)
        if done.returncode:
            raise BaseError(f"{debian}: unpacking its Python: {done.stderr.strip().splitlines()[-1:]}")
        self.library = root / "usr/lib/x86_64-linux-gnu"

    def run(self, *arguments: str) -> None:
        loader = self.library / "ld-linux-x86-64.so.2"
        command = [
            str(loader),
            "--library-path",
            str(self.library),
            str(self.root / "usr/bin/python3"),
            *arguments,
        ]
        environment = {
            "PYTHONHOME": str(self.root / "usr"),
            "PATH": PATH,
            "LC_ALL": "C.UTF-8",
            "PYTHONHASHSEED": "0",
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines()
            raise BaseError(f"compiling bytecode: {lines[-1] if lines else done.returncode}")

    def compile(self, folder: Path, shown_as: str) -> None:
        """Checked-hash bytecode for everything below ``folder``, with ``shown_as`` as path in tracebacks."""
        # Some packages ship templates that are no Python at all: compileall reports them with status 1.
        script = (
            "import compileall, py_compile, sys\n"
            "compileall.compile_dir(sys.argv[1], quiet=2, force=True, workers=2, stripdir=sys.argv[1],\n"
            "    prependdir=sys.argv[2], maxlevels=60,\n"
            "    invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)\n"
        )
        self.run("-c", script, str(folder), shown_as)


def _python_layer(
    layout: Path,
    work: Path,
    title: str,
    what: list[str],
    base: CpuBase,
    python: _Interpreter,
    extra: Path | None = None,
) -> Descriptor:
    root = package_root(base)
    with step(f"{title}: install"):
        options = ["install", "--no-deps", "--no-compile", "--progress-bar=off", f"--target={work}"]
        options += ["--require-hashes"] if "-r" in what else []
        pins.run_pip(
            [*options, *pins.wheel_tags(base.python_tag), *what], title, "check the network and the package index"
        )
        if extra is not None:
            shutil.copytree(extra, work, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        _forget_scripts(work)
    with step(f"{title}: compile bytecode"):
        python.compile(work, root)
    with step(f"{title}: write the layer") as state:
        draft = layout / "layer.tar"
        descriptor = write_layer(draft, _entries(work, root.strip("/")), [root.strip("/")])
        state.detail = f"{descriptor.size / 2**20:.0f} MiB"
    shutil.rmtree(work)
    return _adopt(layout, draft, descriptor)


def _forget_scripts(work: Path) -> None:
    """Drop console scripts: their first line names the Python that ran pip. ``python -m`` is the way in the image."""
    for name in ("bin", "share", "etc", "include", "man"):
        shutil.rmtree(work / name, ignore_errors=True)
    for record in work.glob("*.dist-info/RECORD"):
        rows = list(csv.reader(record.read_text(encoding="utf-8").splitlines()))
        kept = [row for row in rows if not row[0].startswith("../") and (work / row[0]).exists()]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(sorted(kept))
        record.write_text(text.getvalue(), encoding="utf-8")


def _entries(work: Path, root: str) -> Iterator[LayerEntry]:
    for path in work.rglob("*"):
        if path.is_symlink() or path.is_file():
            executable = not path.is_symlink() and path.stat().st_mode & 0o111
            yield LayerEntry(f"{root}/{path.relative_to(work).as_posix()}", path, 0o755 if executable else 0o644)


def _adopt(layout: Path, file: Path, descriptor: Descriptor) -> Descriptor:
    shutil.move(file, blob_path(layout, descriptor.digest))
    return descriptor


def _finish(layout: Path, layers: list[Descriptor]) -> None:
    names = ("Debian packages", "Python packages", "SGLang")
    config = canonical_json(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": CREATED,
            "config": {"Env": [f"PATH={PATH}", "LANG=C.UTF-8"], "Cmd": ["python3"], "Labels": {LABEL_KIND: "cpu"}},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
            "history": [{"created": CREATED, "created_by": name} for name in names],
        }
    )
    manifest = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": Descriptor(CONFIG_TYPE, digest_bytes(config), len(config)).as_json(),
            "layers": [layer.as_json() for layer in layers],
        }
    )
    write_index(layout, MANIFEST_TYPE, manifest, config)
