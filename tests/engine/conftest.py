"""A private engine for the tests, and a small real base to run in it."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.engine import PrivateEngine
from pipeline.oci import Image, LayerEntry
from pipeline.store import Engine
from tests.engine.images import make_base

PYTHON = Path("/usr/bin/python3")
"""Debian's own interpreter: what the tests run inside images is made of it."""
UNNEEDED = {"__pycache__", "test", "idlelib", "lib2to3", "ensurepip", "config-3.11-x86_64-linux-gnu"}


@pytest.fixture(scope="session")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateEngine]:
    """The engine of a build folder of its own; it is stopped and its data removed at the end."""
    made = PrivateEngine.of(tmp_path_factory.mktemp("engine"))
    yield made
    made.stop()
    shutil.rmtree(made.folder)


@pytest.fixture
def engine(private: PrivateEngine) -> Iterator[Engine]:
    """That engine, running; containers, volumes and images of ours are removed after each test."""
    started = private.start()
    with contextlib.closing(started.client):
        yield started
        started.remove_ours()


@pytest.fixture(scope="session")
def python_base(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """A base of one layer that holds a Python and nothing else."""
    entries = list(_python_entries())
    return make_base(tmp_path_factory.mktemp("python-base") / "image", entries, ["tmp", "checks"])


def _python_entries() -> Iterator[LayerEntry]:
    library = Path("/usr/lib") / PYTHON.resolve().name
    yield LayerEntry("usr/bin/python3", PYTHON.resolve(), 0o755)
    binaries = [PYTHON]
    for path in library.rglob("*"):
        if path.is_file() and not path.is_symlink() and not UNNEEDED & set(path.parts):
            yield LayerEntry(str(path.relative_to("/")), path)
            binaries += [path] if path.suffix == ".so" else []
    # Lines of ldd that name a file: "libm.so.6 => /lib/… (0x…)" and "/lib64/ld-linux… (0x…)".
    linked = subprocess.run(["ldd", *map(str, binaries)], check=True, capture_output=True, text=True).stdout
    for name in sorted({word for word in linked.split() if word.startswith("/") and not word.endswith(":")}):
        yield LayerEntry(name.removeprefix("/"), Path(name).resolve(), 0o755)
