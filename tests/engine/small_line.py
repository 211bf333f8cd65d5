"""A release line so small that every real stage takes a moment: a copy of the pipeline, a tiny SGLang, a real base.

The tree comes from a git commit and a wheel, an overlay and two patches; the base is a published one that holds a
Python and that SGLang. Commands run as processes of their own in the copy, where all of the pipeline's folders lie.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from pipeline.files import PROJECT
from pipeline.oci import CONFIG_TYPE, Descriptor, Image, LayerEntry, digest_file
from pipeline.registry import Registry, Repository
from tests.engine.images import add_layer
from tests.fast.builders import diff, make_commit, write_files, write_series
from tests.fast.fake_image import ASK_SGLANG

NAME = "small"
SMALL = """\
import os


class SmallForCausalLM:
    fast = os.environ.get("SMALL_FAST")

    def first(self, x):
        y = x + 1
        y = y * 2
        return y

    def second(self, x):
        y = x + 1
        y = y * 2
        return y


EntryClass = SmallForCausalLM
"""
REGISTRY = """\
from sglang.srt.models import draft, small


class _Registry:
    models = {c.__name__: c for c in (small.EntryClass, draft.EntryClass)}

    def get_supported_archs(self):
        return self.models.keys()


ModelRegistry = _Registry()
"""
DRAFT = "class SmallDraft:\n    steps = 1\n\n\nEntryClass = SmallDraft\n"
TREE = {
    "sglang/__init__.py": "",
    "sglang/launch_server.py": "from sglang.srt import models\n",
    "sglang/srt/__init__.py": "",
    "sglang/srt/layers/attention/xpu_backend.py": "from sgl_kernel import attend\n",
    "sglang/srt/models/__init__.py": "",
    "sglang/srt/models/draft.py": DRAFT,
    "sglang/srt/models/registry.py": REGISTRY,
    "sglang/srt/models/small.py": SMALL,
    "sglang/version.txt": "no newline at the end",
}
"""What the commit holds in its folder ``python``."""
WHEEL = {"sglang/srt/models/draft.py": DRAFT.replace("steps = 1", "steps = 2")}
"""What the wheel holds; it is the line's second source."""
OVERLAY = {"sglang/srt/extra.py": "EXTRA = 1\n"}
DEPENDENCY = "small_dependency/__init__.py"
"""A file of the base that is no part of the tree."""
KERNELS = {"sgl_kernel/__init__.py": "def attend(): ...\n"}
"""The base's kernel package, with what the tree imports from it."""
FIRST = diff("sglang/srt/models/small.py", SMALL, SMALL.replace("x + 1", "x + 3", 1))
SECOND = diff("sglang/srt/extra.py", "EXTRA = 1\n", "EXTRA = 2\n")
PATCHES = {"first.patch": FIRST, "second.patch": SECOND}
FEATURES = [
    {
        "id": "three",
        "title": "Three is added",
        "why": "One is too little.",
        "origin": "patch first.patch",
        "file": "sglang/srt/models/small.py",
        "in": "SmallForCausalLM.first",
        "find": ["x + 3"],
    }
]
RUN = "import sys; from pipeline import cli; sys.exit(cli.run(sys.argv[1:]))"


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        """The lines that are red on a terminal."""
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


@dataclass(frozen=True)
class SmallLine:
    """The copy in ``folder``; ``shared`` holds what all copies use, such as the repository of the first pin."""

    folder: Path
    shared: Path
    docker_host: str

    @property
    def build(self) -> Path:
        """Its build folder."""
        return self.folder / ".build"

    @property
    def out(self) -> Path:
        """Where the outputs of the line lie."""
        return self.build / NAME

    @property
    def manifest(self) -> Path:
        """``release.yaml``."""
        return self.folder / "manifests" / NAME / "release.yaml"

    @property
    def patches(self) -> Path:
        """The folder of the series."""
        return self.folder / "patches" / NAME

    @property
    def overlay(self) -> Path:
        """The folder of the only overlay."""
        return self.folder / "overlays" / "extras"

    @property
    def scratch(self) -> Path:
        """Folder for temporary files of the commands."""
        return self.folder / "scratch"

    @property
    def wheel(self) -> Path:
        """The pinned wheel in that index."""
        return next(self.index.glob("*.whl"))

    @property
    def index(self) -> Path:
        """The folder that serves as package index of the commands."""
        return self.folder / "index"

    def copy(self, folder: Path) -> "SmallLine":
        """The same line, with everything that was built, in another folder."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return replace(self, folder=folder)

    def environment(self) -> dict[str, str]:
        """Environment of the commands: nothing of this machine's configuration."""
        own = {
            "DOCKER_HOST": self.docker_host,
            "DOCKER_CONFIG": str(self.shared),
            "HOME": str(self.shared),
            "TMPDIR": str(self.scratch),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.index),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "LC_ALL": "C.UTF-8",
            "PATH": os.environ.get("PATH", os.defpath),
        }
        return {name: value for name, value in own.items() if value}

    def command(self, *arguments: str, before: str = "") -> list[str]:
        """A command line that runs ``build.py`` with ``arguments``, after the Python code ``before``.

        ``build.py`` itself would first make the copy a virtual environment of its own.
        """
        words = [*arguments, "--line", NAME] if arguments[0] != "engine" else [*arguments]
        return [sys.executable, "-c", f"{before}\n{RUN}", *words]

    def start(
        self, *arguments: str, before: str = "", wrap: Iterable[str] = (), **pipes: Any
    ) -> "subprocess.Popen[str]":
        """Start a command in a process group of its own; ``wrap`` is put before the command line."""
        command = [*wrap, *self.command(*arguments, before=before)]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            **pipes,
        )

    def run(self, *arguments: str, before: str = "", wrap: Iterable[str] = ()) -> Done:
        """Run a command to its end."""
        with self.start(*arguments, before=before, wrap=wrap, stdin=subprocess.DEVNULL) as process:
            out, err = process.communicate()
        return Done(process.returncode, out, err)

    def ok(self, *arguments: str) -> Done:
        """Run a command that must succeed."""
        done = self.run(*arguments)
        assert done.code == 0, done.err
        return done

    def edit(self, **replaced: Any) -> dict[str, Any]:
        """Replace top-level keys of the manifest; the manifest as it was."""
        document: dict[str, Any] = yaml.safe_load(self.manifest.read_text())
        self.manifest.write_text(yaml.safe_dump(document | replaced, sort_keys=False))
        return document

    def edit_pin(self, name: str, **replaced: Any) -> None:
        """Replace keys of one pin."""
        pins = self.edit()["pins"]
        self.edit(pins={**pins, name: {**pins[name], **replaced}})

    def pin_wheel(self, sha256: str) -> None:
        """Pin the wheel by another hash."""
        self.edit_pin("models", sha256={self.edit()["base"]["python_tag"]: sha256})

    def image(self) -> Image:
        """The image that was built."""
        return Image.load(self.out / "image")

    def report(self) -> dict[str, str]:
        """Status of each check."""
        document = json.loads((self.out / "check-report.json").read_bytes())
        return {row["name"]: row["status"] for row in document["checks"]}

    def unfinished(self) -> list[str]:
        """What no command may leave: hidden or temporary names in the build folder and the manifests, scratch files."""
        found = [path for folder in (self.folder / "manifests", self.build) for path in folder.rglob("*")]
        drafts = [path for path in found if path.name.startswith((".", "tmp"))]
        return sorted(str(path.relative_to(self.folder)) for path in [*drafts, *self.scratch.iterdir()])


def make_wheel(index: Path, files: Mapping[str, str], symlinks: Mapping[str, str]) -> str:
    """Write the wheel ``models`` 1.0 into a package index; its sha256."""
    index.mkdir(exist_ok=True)
    path = index / "models-1.0-py3-none-any.whl"
    metadata = {
        "METADATA": "Metadata-Version: 2.1\nName: models\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for link, target in symlinks.items():
            entry = zipfile.ZipInfo(link)
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, target)
        for name, text in {**files, **{f"models-1.0.dist-info/{n}": text for n, text in metadata.items()}}.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return digest_file(path).removeprefix("sha256:")


def publish_base(python_base: Image, package_root: str, folder: Path, address: str) -> str:
    """Push the base, a Python with the plain tree and one package more, to a registry; its pinned reference."""
    root = package_root.strip("/")
    files = {**TREE, **KERNELS, DEPENDENCY: "X = 1\n", "sglang-0.1.dist-info/METADATA": "Name: sglang\nVersion: 0.1\n"}
    entries = [LayerEntry(f"{root}/{path}", text.encode()) for path, text in files.items()]
    return push(add_layer(python_base, folder, entries), Repository(address, "team/base"))


def push(image: Image, repository: Repository) -> str:
    """Push an image by digest; its pinned reference."""
    config = Descriptor(CONFIG_TYPE, image.config_digest, len(image.config_bytes))
    with Registry(repository) as registry:
        for blob in (*image.layers, config):
            registry.push_blob(image.blob(blob.digest), blob)
        registry.put_manifest(image.digest, image.manifest_bytes, image.media_type)
    return f"{repository}@{image.digest}"


def make(folder: Path, shared: Path, python_base: Image, python: str, address: str, docker_host: str) -> SmallLine:
    """Make the line and compose it; ``python`` is the base's, as ``python3.11``."""
    line = SmallLine(folder, shared, docker_host)
    ours = ("manifests", "overlays", "patches", "tests")
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns(".*", "__pycache__", *ours))
    line.scratch.mkdir()
    for name in ASK_SGLANG:
        (folder / "checks" / name).unlink()
    package_root = f"/usr/local/lib/{python}/dist-packages"
    tag = "cp" + python.removeprefix("python").replace(".", "")
    commit = make_commit(shared / "repository", {f"python/{path}": text for path, text in TREE.items()})
    write_files(line.overlay, OVERLAY)
    write_series(line.patches, PATCHES)
    document = {
        "title": "A small line",
        "model": "Small",
        "tag": NAME,
        "release": 20260131,
        "pins": {
            "sglang": {"kind": "git", "url": str(shared / "repository"), "commit": commit, "subdir": "python"},
            "models": {
                "kind": "pypi",
                "name": "models",
                "version": "1.0",
                "sha256": {tag: make_wheel(line.index, WHEEL, {})},
            },
        },
        "layers": [
            {"source": "sglang"},
            {"source": "models", "files": list(WHEEL)},
            {"overlay": "extras"},
            {"patches": "series"},
        ],
        "base": {
            "kind": "published",
            "reference": publish_base(python_base, package_root, shared / "base", address),
            "package_root": package_root,
            "python_tag": tag,
        },
        "environment": {"SMALL_FAST": {"value": "1", "why": "It is fast."}},
        "architectures": {
            "SmallForCausalLM": {"file": "sglang/srt/models/small.py", "why": "The model."},
            "SmallDraft": {"file": "sglang/srt/models/draft.py", "why": "The draft."},
        },
    }
    write_files(line.manifest.parent, {"release.yaml": yaml.safe_dump(document, sort_keys=False)})
    rest = {"profiles": {"profiles": {}}, "features": FEATURES, "quantization": {"stops_with": "no such weights"}}
    write_files(line.manifest.parent, {f"{name}.yaml": yaml.safe_dump(part) for name, part in rest.items()})
    line.ok("compose", "--write-lock")
    line.ok("base", "inventory")
    line.ok("base", "build", "--write-lock")
    return line
