"""The archive for a machine with a CUDA device: complete, reproducible, and plain about what it cannot run."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks import gpu_archive
from benchmarks.gpu_report import Figure, markdown
from pipeline.errors import PipelineError
from pipeline.files import PROJECT
from tests.tree.drivers.kernel_files import FUNCTIONS, MODULES

KERNEL = "sglang/kernels/ops/a.py"


def tree(**sources: str) -> dict[str, bytes]:
    return {f"sglang/kernels/ops/{name}.py": source.encode() for name, source in sources.items()}


def whole() -> dict[str, bytes]:
    """Every listed file, empty."""
    return dict.fromkeys((*MODULES, *FUNCTIONS), b"")


def unpacked(folder: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(fileobj=io.BytesIO(gpu_archive.pack(files))) as archive:
        for entry in archive:
            target = folder / entry.name
            target.parent.mkdir(parents=True, exist_ok=True)
            data = archive.extractfile(entry)
            assert data is not None
            target.write_bytes(data.read())
    return folder


def test_imports_are_followed_from_file_to_file() -> None:
    files = tree(a="from sglang.kernels.ops.b import x", b="import sglang.kernels.ops.c", c="import torch", d="")
    assert gpu_archive.needed(files, (KERNEL,)) == {f"sglang/kernels/ops/{name}.py" for name in "abc"}


def test_what_the_tests_stand_in_for_is_not_followed() -> None:
    files = tree(a="from sglang.srt.utils import is_xpu\ndef lazy():\n    from sglang.srt.elsewhere import x")
    assert gpu_archive.needed(files, (KERNEL,)) == {KERNEL}


@pytest.mark.parametrize("source", ["from sglang.kernels.ops.gone import x", "import sglang.kernels.ops.gone"])
def test_an_import_of_a_file_that_is_not_there_is_refused(source: str) -> None:
    with pytest.raises(PipelineError, match=r"sglang/kernels/ops/gone\.py: expected a file of the tree, found none"):
        gpu_archive.needed(tree(a=source), (KERNEL,))


@pytest.mark.parametrize("missing", [MODULES[0], FUNCTIONS[0]])
def test_a_listed_file_that_is_not_there_is_refused(missing: str) -> None:
    ours = whole()
    del ours[missing]
    with pytest.raises(PipelineError, match=missing):
        gpu_archive.contents(ours, whole())


def test_the_same_files_give_the_same_bytes() -> None:
    files = gpu_archive.contents(whole(), whole())
    assert gpu_archive.pack(files) == gpu_archive.pack(dict(reversed(files.items())))


def test_figures_can_be_traced_to_the_tree_and_to_the_files() -> None:
    """Both digests change with what they are of; the second is what ``sha256sum`` makes of the files."""
    first = json.loads(gpu_archive.source({"a": b"1", "b": b"2"}, "sha256:tree"))
    assert first["tree"] == "sha256:tree"
    listing = f"{hashlib.sha256(b'1').hexdigest()}  a\n{hashlib.sha256(b'2').hexdigest()}  b\n"
    assert first["archive"] == f"sha256:{hashlib.sha256(listing.encode()).hexdigest()}"
    assert json.loads(gpu_archive.source({"a": b"1", "b": b"3"}, "sha256:tree"))["archive"] != first["archive"]


def test_its_own_modules_are_all_inside() -> None:
    """Every module of this project that a file of the archive imports is in the archive."""
    files = gpu_archive.contents(whole(), whole())
    for path, data in files.items():
        for line in data.decode().splitlines():
            words = line.split()
            if words[:1] == ["from"] and words[1].startswith(("tests.", "benchmarks.")):
                module = f"{words[1].replace('.', '/')}"
                names = [f"{module}/{word.strip(',')}.py" for word in words[3:]]
                assert f"{module}.py" in files or set(names) <= set(files), f"{path}: {line}"


def test_without_torch_it_says_so_and_runs_nothing(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, gpu_archive.contents(whole(), whole()))
    for what in ("test", "bench"):
        outcome = subprocess.run(
            [sys.executable, "-S", str(folder / "run.py"), what], capture_output=True, text=True, check=True
        )
        assert outcome.stdout.startswith("not run: torch, triton, pytest cannot be imported by ")


def test_without_torch_pytest_collects_nothing_and_says_why(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, gpu_archive.contents(whole(), whole()))
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir=.", "--import-mode=importlib", "tests/gpu"]
    outcome = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert outcome.returncode == 5, outcome.stdout
    assert "not run: torch and triton cannot be imported" in outcome.stdout


def test_a_table_holds_time_bandwidth_and_error() -> None:
    machine = {"device": "D", "driver": "1", "torch": "2", "triton": "3"}
    time = {"us": 10.0, "low": 9.0, "high": 12.0}
    figures = [
        Figure("T", "c", "w", time=time, bytes=500_000),
        Figure("T", "d", "w", time=time, bytes=9_000),
        Figure("U", "c", "w", error=0.5),
    ]
    measured = {"date": "2026-11-29", "machine": machine, "bytes_per_second": 1e12}
    measured |= {"command": "run", "tree": "sha256:1", "archive": "sha256:2"}
    text = markdown({**measured, "figures": [each.as_json() for each in figures]})
    assert "| c | w | 10.0 | 9.0 to 12.0 | 5.0% |" in text
    assert "| d | w | 10.0 | 9.0 to 12.0 | below 0.1% |" in text
    assert "| c | w | 5.0e-01 |" in text
    assert "Command `run`, composed tree `sha256:1`, archive `sha256:2`." in text


def test_the_published_tables_are_those_of_the_raw_results() -> None:
    document = json.loads((PROJECT / "docs/gpu-results.json").read_text(encoding="utf-8"))
    assert markdown(document) in (PROJECT / "docs/gpu-results.md").read_text(encoding="utf-8")


def test_every_published_time_has_its_least_bytes_beside_it() -> None:
    document = json.loads((PROJECT / "docs/gpu-results.json").read_text(encoding="utf-8"))
    timed = [each for each in document["figures"] if "time" in each]
    assert timed
    assert [each for each in timed if not each.get("bytes")] == []
