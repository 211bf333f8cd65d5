"""Same inputs, same manifest digest: another folder, user, umask, locale, time zone, file order, and Python."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import pins
from pipeline.files import BUILD, PROJECT
from pipeline.oci import link_or_copy
from tests.image.conftest import Real

PYTHON = Path("/usr/bin/python3")
"""Debian's: every user can run it."""
NOBODY = 65534
SCRIPT = """
import random, sys
from pathlib import Path
from pipeline import base as bases, compose, image as images, inventory
from pipeline.manifest import load_line
from pipeline.oci import Image
line, build, layout = load_line(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
composed = compose.compose(line, build)
order = list(composed.files)
random.shuffle(order)
composed.files = {path: composed.files[path] for path in order}
base = Image.load(layout)
taken = inventory.load(base.digest, build)
made = images.build(line, composed, bases.BaseImage("cpu", bases.LOCAL_NAME, base, taken), build / "image")
print(made.digest)
"""


def another_python() -> Path:
    """A Python of another minor version than this one, or this one when the machine has no other."""
    names = [f"python3.{minor}" for minor in (14, 13, 12, 11) if minor != sys.version_info.minor]
    found = [Path(path) for name in names if (path := shutil.which(name))]
    found += sorted(Path.home().glob(".pyenv/versions/3.1[1-9].*/bin/python"), reverse=True)
    return next((python for python in found if python_tag(python) not in ("", python_tag(sys.executable))), PYTHON)


def python_tag(python: Path | str) -> str:
    """``cp312``; empty when it does not run."""
    code = "import sys; print(f'cp3{sys.version_info.minor}')"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user can enter; pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="elsewhere-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def packages(python: Path, folder: Path) -> Path:
    """The pipeline's locked packages for that Python."""
    target = folder / "packages"
    lock = ["--require-hashes", "-r", str(PROJECT / "requirements.lock")]
    tags = pins.wheel_tags(python_tag(python))
    pins.run_pip(["install", "--quiet", "--no-deps", f"--target={target}", *tags, *lock], "packages", "see pip")
    return target


def copied(real: Real, folder: Path, uid: int) -> Path:
    """The project and the caches that a build reads, in another folder; returns the new build folder."""
    ignored = shutil.ignore_patterns(".build", ".git", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(PROJECT, folder / "project", ignore=ignored)
    build = folder / "build"
    shutil.copytree(BUILD / "cache", build / "cache", copy_function=link_or_copy)
    shutil.copytree(BUILD / "inventories", build / "inventories")
    shutil.copytree(real.base.image.layout, folder / "base", copy_function=link_or_copy)
    os.chown(build, uid, uid)
    for path in [folder / "project", *(folder / "project").rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return build


@pytest.mark.parametrize(
    ("python", "uid", "umask"),
    [(PYTHON, NOBODY, 0o077), (another_python(), 0, 0o027)],
    ids=["another-user", "another-python"],
)
def test_who_builds_and_where_does_not_enter_the_image(
    real: Real, folder: Path, python: Path, uid: int, umask: int
) -> None:
    """Folder, user, umask, locale, time zone, order of files and Python are all other than in the first build."""
    build = copied(real, folder, uid)
    path = os.pathsep.join([str(folder / "project"), str(packages(python, folder))])
    done = subprocess.run(
        [python, "-c", SCRIPT, real.line.name, build, folder / "base"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C", "TZ": "Pacific/Apia", "PYTHONPATH": path},
        user=uid,
        group=uid,
        extra_groups=[],
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(f"same digest: {python} ({python_tag(python)}), uid {uid}, umask {umask:03o}, Pacific/Apia, shuffled files")
    assert done.stdout.split() == [real.image.digest]
