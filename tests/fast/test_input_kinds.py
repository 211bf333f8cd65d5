"""One byte of each kind of input is changed, and exactly those digests change that depend on it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import compose as composing
from pipeline import image as images
from pipeline import inventory
from pipeline.base import BaseImage
from pipeline.compose import Composed
from pipeline.manifest import Line, load_line
from pipeline.oci import LayerEntry
from tests.fast.builders import ROOT, diff, make_commit, make_image, make_line, write_files, write_series

TREE = {"sglang/__init__.py": "", **{f"sglang/{name}.py": f"{name.upper()} = 1\n" for name in "abcd"}}
SECOND = {"sglang/b.py": "B = 2\n", "sglang/unused.py": "U = 1\n"}
"""What the second pin holds; the line takes the first of the two files."""
BASE = {**TREE, "other/__init__.py": "O = 1\n"}
STEPS = ["source:first", "source:second", "overlay:new", "patch:1.patch", "patch:2.patch"]
IMAGE = {"layer", "config", "manifest"}
PROFILE = {
    "why": "It is one.",
    "target": "team/model",
    "target_revision": "main",
    "context_length": 1,
    "max_total_tokens": 1,
    "max_mamba_cache_size": 1,
    "arguments": {"tp": 1},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All inputs of a line: repositories, overlays, patches, manifests, and what lies in the base."""
    commits = {name: make_commit(tmp_path / name, files) for name, files in (("first", TREE), ("second", SECOND))}
    write_files(tmp_path / "overlays/new", {"sglang/new.py": "N = 1\n", "README.md": "For people.\n"})
    first, last = diff("sglang/a.py", "A = 1\n", "X = 3\n"), diff("sglang/c.py", "C = 1\n", "X = 3\n")
    write_series(tmp_path / "patches", {"1.patch": first, "2.patch": last})
    write_files(tmp_path / "base", BASE)
    make_line(
        tmp_path,
        pins={name: {"kind": "git", "url": str(tmp_path / name), "commit": commit} for name, commit in commits.items()},
        layers=[
            {"source": "first"},
            {"source": "second", "files": ["sglang/b.py"]},
            {"overlay": "new"},
            {"patches": "series"},
        ],
        environment={"SWITCH": {"value": "1", "why": "It is on."}},
        architectures={"Model": {"file": "sglang/a.py", "why": "It is served."}},
    )
    write_files(tmp_path, {"manifests/small/profiles.yaml": yaml.safe_dump({"profiles": {"one": PROFILE}})})
    return tmp_path


def digests(folder: Path, name: str) -> dict[str, str]:
    """Digest of every step, of the tree and of each part of the image, which is written to ``folder/name``."""
    composed, line = compose(folder)
    paths = [path for path in (folder / "base").rglob("*") if path.is_file()]
    entries = [LayerEntry(f"{ROOT.strip('/')}/{p.relative_to(folder / 'base')}", p.read_bytes()) for p in paths]
    base = make_image(folder / name / "base", [entries], Env=["A=1"])
    taken = inventory.of_layout(base, ROOT, folder / "build")
    image = images.build(line, composed, BaseImage("cpu", "base", base, taken), folder / name / "image")
    steps = {step.name: step.digest for step in composed.record.steps}
    assert list(steps) == STEPS
    parts = {"layer": image.layers[-1].digest, "config": image.config_digest, "manifest": image.digest}
    return {**steps, "tree": composed.record.digest, **parts}


def compose(folder: Path) -> tuple[Composed, Line]:
    """Compose, accepting the tree in the lock as ``--write-lock`` does."""
    where = (folder / "build", folder / "overlays", folder / "patches")
    composing.accept(load_line("small", folder / "manifests"), *where)
    line = load_line("small", folder / "manifests")
    return composing.compose(line, *where), line


def change(path: str, old: str, new: str) -> Callable[[Path], None]:
    """Replace one byte of a file."""

    def apply(folder: Path) -> None:
        text = (folder / path).read_text()
        assert text.count(old) == 1
        assert [a == b for a, b in zip(old, new, strict=True)].count(False) == 1
        (folder / path).write_text(text.replace(old, new))

    return apply


def change_pin(name: str, path: str, old: str, new: str) -> Callable[[Path], None]:
    """Replace one byte of a pinned file, and pin the commit that has it."""

    def apply(folder: Path) -> None:
        change(f"{name}/{path}", old, new)(folder)
        manifest = folder / "manifests/small/release.yaml"
        document: dict[str, Any] = yaml.safe_load(manifest.read_text())
        document["pins"][name]["commit"] = make_commit(folder / name, {})
        manifest.write_text(yaml.safe_dump(document, sort_keys=False))

    return apply


def manifest(old: str, new: str) -> Callable[[Path], None]:
    return change("manifests/small/release.yaml", old, new)


def since(step: str) -> set[str]:
    """What depends on the content that a step lays: it, the steps after it, the tree and the whole image."""
    return {*STEPS[STEPS.index(step) :], "tree", *IMAGE}


@pytest.mark.parametrize(
    ("apply", "expected"),
    [
        pytest.param(change_pin("first", "sglang/d.py", "D = 1", "D = 2"), since("source:first"), id="pin"),
        pytest.param(change_pin("second", "sglang/b.py", "B = 2", "B = 3"), since("source:second"), id="second pin"),
        # The record, which our layer carries, names the commit.
        pytest.param(change_pin("second", "sglang/unused.py", "U = 1", "U = 2"), IMAGE, id="file that no layer takes"),
        pytest.param(change("overlays/new/sglang/new.py", "N = 1", "N = 2"), since("overlay:new"), id="overlay"),
        pytest.param(change("overlays/new/README.md", "people", "People"), set(), id="README of an overlay"),
        pytest.param(change("patches/1.patch", "+X = 3", "+X = 4"), since("patch:1.patch"), id="patch"),
        pytest.param(change("patches/2.patch", "+X = 3", "+X = 4"), since("patch:2.patch"), id="last patch"),
        pytest.param(change("patches/1.patch", "A change", "a change"), set(), id="header of a patch"),
        pytest.param(manifest("value: '1'", "value: '2'"), {"config", "manifest"}, id="environment"),
        pytest.param(manifest("It is on.", "It is on!"), set(), id="reason of the environment"),
        pytest.param(manifest("title: A title", "title: B title"), {"config", "manifest"}, id="title"),
        pytest.param(manifest("20260131", "20260130"), {"config", "manifest"}, id="release date"),
        pytest.param(manifest("It is served.", "It is served!"), set(), id="what only checks read"),
        pytest.param(change("manifests/small/profiles.yaml", "tp: 1", "tp: 2"), set(), id="profile"),
        pytest.param(change("base/other/__init__.py", "O = 1", "O = 2"), {"config", "manifest"}, id="base"),
        pytest.param(change("base/sglang/d.py", "D = 1", "D = 2"), IMAGE, id="file of the tree in the base"),
    ],
)
def test_one_byte_changes_what_depends_on_it(folder: Path, apply: Callable[[Path], None], expected: set[str]) -> None:
    before = digests(folder, "before")
    apply(folder)
    after = digests(folder, "after")
    assert {name for name in before if before[name] != after[name]} == expected


def test_the_same_inputs_give_the_same_digests(folder: Path) -> None:
    assert digests(folder, "one") == digests(folder, "two")
