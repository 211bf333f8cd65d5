"""The parts of the local base that need neither Debian's mirror nor a package index."""

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline import base as bases
from pipeline import pins
from pipeline.errors import BaseError, PinError
from pipeline.manifest import CpuBase

SHA = "a" * 64
CPU = CpuBase(kind="cpu", suite="bookworm", debian=("python3",), requirements="base.txt")


def requirements(folder: Path, torch: str) -> Path:
    path = folder / "base.txt"
    path.write_text(f"numpy==1 \\\n    --hash=sha256:{'b' * 64}\n{torch} \\\n    --hash=sha256:{SHA}\n    # via x\n")
    return path


class Index:
    """Stands for ``pins.download``; knows which index has the wheel."""

    def __init__(self, has: str | None, error: PinError | None = None) -> None:
        self.has = has
        self.error = error or PinError("torch==2.13.0+cpu: No matching distribution found")
        self.asked: list[str] = []

    def __call__(self, requirement: str, sha256: str, _tag: str, folder: Path, extra: Sequence[str] = ()) -> Path:
        assert (requirement, sha256) == ("torch==2.13.0+cpu", SHA)
        self.asked.append(extra[0].removeprefix("--index-url=") if extra else "configured")
        if self.asked[-1] != self.has:
            raise self.error
        return folder / "torch.whl"


@pytest.mark.parametrize(
    ("has", "asked"),
    [
        ("configured", ["configured"]),
        (bases.PYTORCH_CPU_INDEX, ["configured", bases.PYTORCH_CPU_INDEX]),
    ],
)
def test_torch_comes_from_the_configured_index_else_from_pytorchs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has: str, asked: list[str]
) -> None:
    index = Index(has)
    monkeypatch.setattr(pins, "download", index)
    bases._torch_wheel(requirements(tmp_path, "torch==2.13.0+cpu"), CPU, tmp_path / "build")
    assert index.asked == asked


def test_torch_that_no_index_has_stops_the_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    index = Index(None)
    monkeypatch.setattr(pins, "download", index)
    with pytest.raises(PinError, match="torch==2"):
        bases._torch_wheel(requirements(tmp_path, "torch==2.13.0+cpu"), CPU, tmp_path / "build")
    assert index.asked == ["configured", bases.PYTORCH_CPU_INDEX]


def test_torch_with_another_hash_is_not_looked_for_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    index = Index(None, PinError("torch", expected="sha256 a", found="sha256 b"))
    monkeypatch.setattr(pins, "download", index)
    with pytest.raises(PinError, match="torch"):
        bases._torch_wheel(requirements(tmp_path, "torch==2.13.0+cpu"), CPU, tmp_path / "build")
    assert index.asked == ["configured"]


@pytest.mark.parametrize("torch", ["torch==2.13.0", "torch==2.13.0+cu130", "torch>=2.13.0+cpu"])
def test_anything_but_one_cpu_build_of_torch_is_refused(tmp_path: Path, torch: str) -> None:
    with pytest.raises(BaseError, match="CPU build"):
        bases._torch_wheel(requirements(tmp_path, torch), CPU, tmp_path / "build")


def test_scripts_are_forgotten_and_the_record_says_so(tmp_path: Path) -> None:
    for name in ("bin/tool", "share/man/tool.1", "tool/__init__.py", "torch/bin/torch_shm_manager"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("#!/somebody/elses/python\n")
    record = tmp_path / "tool-1.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text(
        "../../bin/tool,sha256=depends-on-the-builder,9\nbin/tool,,\ntorch/bin/torch_shm_manager,,\n"
        'tool/__init__.py,sha256=x,1\n"tool-1.dist-info/RECORD",,\n'
    )
    bases._forget_scripts(tmp_path)
    assert not (tmp_path / "bin").exists()
    assert not (tmp_path / "share").exists()
    rows = [row[0] for row in csv.reader(record.read_text().splitlines())]
    assert rows == ["tool-1.dist-info/RECORD", "tool/__init__.py", "torch/bin/torch_shm_manager"]


def test_cached_base_depends_on_its_inputs_not_on_comments(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("x = 1  # one\n")
    before = bases._code(module)
    module.write_text("# a comment\nx    =    1\n")
    assert bases._code(module) == before
    module.write_text("x = 2\n")
    assert bases._code(module) != before
