"""What holds for the project's own files: patches, lock files, modules, and no trace of the machine they came from."""

import importlib
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

from pipeline import release
from pipeline.errors import PipelineError
from pipeline.files import PROJECT
from pipeline.manifest import DirPin, OverlayLayer, PypiPin, lines, load_line
from pipeline.patches import DEP3_REQUIRED, read_series

NOT_OURS = {".git", ".build", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}
# Written in pieces, so that this file does not match itself.
MACHINE_PATH = re.compile("|".join(["/wo" + "rk/", "/tm" + "p/w\\b", r"/\.libr" + "ary", "/ho" + "me/[a-z]"]))
LOCKS = sorted(PROJECT.glob("requirements*.lock")) + sorted(PROJECT.glob("manifests/*/*.txt"))
REQUIREMENT = re.compile(
    r"^([A-Za-z0-9][A-Za-z0-9._-]*)(\[[^]]*\])?==(\S+)((?: \\\n +--hash=sha256:[0-9a-f]{64})+)$", re.M
)


@cache
def own_files() -> tuple[Path, ...]:
    """Every file of the project that is not generated."""
    found: list[Path] = []
    for folder, folders, names in os.walk(PROJECT):
        folders[:] = sorted(set(folders) - NOT_OURS)
        found += [Path(folder, name) for name in sorted(names) if name != ".git"]
    return tuple(found)


def requirements(lock: Path) -> dict[str, str]:
    """Name and version of every requirement, each with at least one hash."""
    text = "\n".join(line for line in lock.read_text(encoding="utf-8").splitlines() if not re.match(r"\s*(#|$)", line))
    found = list(REQUIREMENT.finditer(text))
    rest = REQUIREMENT.sub("", text).strip()
    assert not rest, f"{lock}: not a hashed requirement: {rest.splitlines()[0]}"
    return {match[1]: match[3] for match in found}


def test_no_file_names_a_path_of_the_machine_that_it_was_written_on() -> None:
    found = [
        f"{path.relative_to(PROJECT)}:{number}: {line.strip()[:80]}"
        for path in own_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("line", ["see /wo" + "rk/x", "cd /tm" + "p/w && x", "a/.libr" + "ary/b", "/ho" + "me/me/x"])
def test_planted_path_of_a_machine_is_found(line: str) -> None:
    assert MACHINE_PATH.search(line)


def test_no_file_is_left_over_from_an_editor_merge_or_build() -> None:
    kinds = {".orig", ".rej", ".bak", ".swp", ".pyc", ".so", ".whl", ".log", ".tar"}
    assert [str(path) for path in own_files() if path.suffix in kinds or path.name.endswith("~")] == []


def test_every_text_file_ends_with_a_newline_and_has_no_crlf() -> None:
    files = [(path, path.read_bytes()) for path in own_files()]
    assert [str(path) for path, data in files if b"\r\n" in data or (data and not data.endswith(b"\n"))] == []


@pytest.mark.parametrize("module", sorted(path.stem for path in (PROJECT / "pipeline").glob("*.py")))
def test_module_can_be_imported_and_says_what_it_is_for(module: str) -> None:
    name = "pipeline" if module == "__init__" else f"pipeline.{module}"
    assert importlib.import_module(name).__doc__


def test_set_up_needs_nothing_but_the_standard_library() -> None:
    code = "import pipeline.bootstrap"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(PROJECT)!r}); {code}"])
    assert done.returncode == 0


@pytest.mark.parametrize("folder", sorted((PROJECT / "patches").iterdir()), ids=lambda folder: folder.name)
def test_patches_belong_to_a_line_and_have_their_header(folder: Path) -> None:
    assert folder.name in lines()
    for patch in read_series(folder):
        assert all(patch.header[field].strip() for field in DEP3_REQUIRED)
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", patch.header["Last-Update"]), patch.name
        assert len(patch.summary) <= 80, patch.name
        assert "\n" in patch.header["Description"], f"{patch.name}: says what but not why"


@pytest.mark.parametrize("name", lines())
def test_line_can_be_released(name: str) -> None:
    line = load_line(name)
    assert not [pin for pin in line.release.pins.values() if isinstance(pin, DirPin)]
    assert all((PROJECT / "overlays" / x.overlay).is_dir() for x in line.release.layers if isinstance(x, OverlayLayer))
    assert line.lock
    assert line.lock.steps


@pytest.mark.parametrize("name", lines())
def test_pins_have_a_hash_for_the_python_of_the_base(name: str) -> None:
    release = load_line(name).release
    pins = [pin for pin in release.pins.values() if isinstance(pin, PypiPin)]
    assert all(release.base.python_tag in pin.sha256 for pin in pins)


def test_every_overlay_is_used_by_a_line() -> None:
    layers = [layer for name in lines() for layer in load_line(name).release.layers]
    used = {layer.overlay for layer in layers if isinstance(layer, OverlayLayer)}
    overlays = PROJECT / "overlays"
    assert {path.name for path in overlays.glob("*") if path.is_dir()} == used


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_requirement_of_a_lock_file_has_a_hash(lock: Path) -> None:
    assert len(requirements(lock)) > 10


@pytest.mark.parametrize("extra", ["a==1", "a>=1", "-e .", "--index-url https://x", "a @ file:///x", "a==1 \\"])
def test_planted_requirement_without_a_hash_is_found(tmp_path: Path, extra: str) -> None:
    good = "b==1 \\\n    --hash=sha256:" + "0" * 64 + "\n    # via a\n"
    (tmp_path / "x.lock").write_text(good)
    assert requirements(tmp_path / "x.lock") == {"b": "1"}
    (tmp_path / "x.lock").write_text(good + extra + "\n")
    with pytest.raises(AssertionError, match="not a hashed requirement"):
        requirements(tmp_path / "x.lock")


@pytest.mark.parametrize("lock", sorted(PROJECT.glob("requirements*.lock")), ids=lambda lock: lock.name)
def test_the_pipeline_itself_needs_no_torch(lock: Path) -> None:
    heavy = re.compile(r"torch|triton|nvidia|sglang|numpy", re.IGNORECASE)
    assert [name for name in requirements(lock) if heavy.search(name)] == []


def test_the_development_lock_holds_the_pipelines_versions() -> None:
    base, development = (requirements(PROJECT / f"requirements{kind}.lock") for kind in ("", "-dev"))
    assert {name: development.get(name) for name in base} == base


@pytest.mark.parametrize("lock", sorted(PROJECT.glob("manifests/*/*.txt")), ids=str)
def test_torch_of_the_cpu_base_is_a_cpu_build(lock: Path) -> None:
    found = requirements(lock)
    assert found["torch"].endswith("+cpu")
    assert [name for name in found if name.startswith(("nvidia-", "cuda"))] == []


@pytest.mark.parametrize(
    "path", [p for p in own_files() if p.suffix == ".yaml"], ids=lambda p: str(p.relative_to(PROJECT))
)
def test_yaml_file_parses(path: Path) -> None:
    assert yaml.safe_load(path.read_text(encoding="utf-8")) is not None


def test_every_kind_of_error_is_raised_somewhere() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (PROJECT / "pipeline").glob("*.py"))
    unused = [kind.__name__ for kind in PipelineError.__subclasses__() if f"{kind.__name__}(" not in text]
    assert unused == []


def test_lines_share_no_tag() -> None:
    """A tag of two lines would hold whichever was released last."""
    kinds = ("cpu", "published")
    tags = [tag for name in lines() for kind in kinds for tag in release.tags(load_line(name), kind)]
    assert sorted(tags) == sorted(set(tags))
    assert len(tags) == 4 * len(lines())
