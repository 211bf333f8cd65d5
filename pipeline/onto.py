"""The release that a series is to be judged against: a wheel of the package index, or a folder.

Unlike a pin it comes without a hash, so the one that was found is part of what is reported.
"""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pipeline import pins
from pipeline.console import step
from pipeline.errors import PinError
from pipeline.oci import digest_file

PYTHON_TAG = "cp311"
"""Of a series without a line; the wheels of all Pythons hold the same files."""
WHEEL = re.compile(r"(sglang)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)")


@dataclass(frozen=True)
class Onto:
    """A release as a tree."""

    name: str
    """``sglang==VERSION``, or the folder."""
    tree: pins.SourceTree
    sha256: str | None = None
    """Of the wheel."""


def read(text: str, python_tag: str, cache: Path) -> Onto:
    """The release that ``--onto`` names.

    Raises:
        PinError: the index has no such wheel, or the folder does not hold SGLang.
    """
    with step(f"Read {text}") as state:
        if match := WHEEL.fullmatch(text):
            wheel = _wheel(match[1], match[2], python_tag, cache)
            found = Onto(text, pins.read_wheel(wheel), digest_file(wheel).removeprefix("sha256:"))
        else:
            found = Onto(text, _folder(Path(text)))
        state.detail = f"{len(found.tree.files)} files"
    return found


def _wheel(name: str, version: str, python_tag: str, cache: Path) -> Path:
    """The wheel, from where pins are kept or from the index; there its folder is its hash."""
    store = cache / "sha256"
    store.mkdir(parents=True, exist_ok=True)
    for wheel in sorted(store.glob(f"*/{name}-{version}-{python_tag}-*.whl")):
        if digest_file(wheel) == f"sha256:{wheel.parent.name}":
            return wheel
    requirement = f"{name}=={version}"
    with tempfile.TemporaryDirectory(dir=store, prefix=".wheel.") as scratch:
        options = ["download", "--no-deps", "--progress-bar=off", "--dest", scratch]
        advice = "check the version, the network and the package index that pip is configured with"
        pins.run_pip([*options, *pins.wheel_tags(python_tag), requirement], requirement, advice)
        (wheel,) = Path(scratch).glob("*.whl")
        folder = store / digest_file(wheel).removeprefix("sha256:")
        folder.mkdir(exist_ok=True)
        return wheel.rename(folder / wheel.name)


def _folder(folder: Path) -> pins.SourceTree:
    """The package in an unpacked wheel or in a checkout of SGLang's repository."""
    for root in (folder, folder / "python"):
        if (root / "sglang").is_dir():
            tree = pins.read_folder(root / "sglang")
            files = {f"sglang/{path}": data for path, data in tree.files.items()}
            return pins.SourceTree(files, frozenset(f"sglang.{name}" for name in tree.extensions))
    raise PinError(
        f"--onto {folder}", expected="sglang==VERSION, or a folder with sglang/ or python/sglang/", do="correct it"
    )
