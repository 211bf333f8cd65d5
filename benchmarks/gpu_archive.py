"""Pack what ``make gpu-test`` and ``make gpu-bench`` need into one small archive, for a machine without this project.

It holds the tests, the benchmark, and of both trees, ours and upstream's, the kernel files that they import, followed
from file to file. On the other machine: unpack, then ``python3 run.py test`` or ``python3 run.py bench``.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping

import click

from benchmarks.gpu_report import SOURCE
from pipeline import compose, pins
from pipeline.errors import PipelineError
from pipeline.files import BUILD, PROJECT, write_atomic
from pipeline.manifest import DEFAULT_LINE, Line, SourceLayer, load_line
from tests.tree.drivers.kernel_files import FUNCTIONS, MODULES, STAND_INS, UPSTREAM_MODULES

TESTS = (
    "tests/gpu/*.py",
    "tests/tree/drivers/kernel_files.py",
    "tests/tree/drivers/standalone.py",
    "tests/tree/drivers/*_loops.py",
    "benchmarks/gpu*.py",
)
LISTS = "tests/tree/drivers/kernel_files.py"
RUN = "tests/gpu/run.py"
BUILDER = "benchmarks/gpu_archive.py"


def needed(files: Mapping[str, bytes], roots: tuple[str, ...], follow: bool = True) -> set[str]:
    """The roots, and with ``follow`` every module of the tree that one of them imports when it is itself imported.

    Raises PipelineError for a file that the tree lacks.
    """
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        if path not in files:
            raise PipelineError(path, expected="a file of the tree", found="none", do=f"correct {LISTS}")
        found.add(path)
        if follow:
            waiting += [f"{name.replace('.', '/')}.py" for name in _imports(files[path])]
    return found


def _imports(source: bytes) -> Iterator[str]:
    """Modules of SGLang that a file imports at its top level, without those that the tests stand in for."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sglang."):
            if node.module not in STAND_INS:
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (
                each.name for each in node.names if each.name.startswith("sglang.") and each.name not in STAND_INS
            )


def contents(ours: Mapping[str, bytes], upstream: Mapping[str, bytes]) -> dict[str, bytes]:
    """Every file of the archive, by its path there."""
    files = {"run.py": (PROJECT / RUN).read_bytes()}
    for pattern in TESTS:
        for file in sorted(PROJECT.glob(pattern)):
            files[file.relative_to(PROJECT).as_posix()] = file.read_bytes()
    del files[RUN], files[BUILDER]
    for path in needed(ours, MODULES) | needed(ours, FUNCTIONS, follow=False):
        files[f"trees/ours/{path}"] = ours[path]
    for path in needed(upstream, UPSTREAM_MODULES):
        files[f"trees/upstream/{path}"] = upstream[path]
    return files


def source(files: Mapping[str, bytes], tree: str) -> bytes:
    """``source.json``: digest of the composed tree, and of this archive's other files as ``sha256sum`` lists them."""
    listing = "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in sorted(files.items()))
    digest = f"sha256:{hashlib.sha256(listing.encode()).hexdigest()}"
    return (json.dumps({"tree": tree, "archive": digest}) + "\n").encode()


def pack(files: Mapping[str, bytes]) -> bytes:
    """The same bytes for the same files."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for path, data in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def pristine(line: Line) -> dict[str, bytes]:
    """Upstream's tree before our first layer."""
    first = line.release.layers[0]
    assert isinstance(first, SourceLayer)
    pin = line.release.pins[first.source]
    return dict(pins.read(pin, line.release.base.python_tag, BUILD / "cache").files)


@click.command()
@click.option("--line", "name", default=DEFAULT_LINE, show_default=True)
def main(name: str) -> None:
    """Write ``.build/<line>/gpu.tar.gz``."""
    line = load_line(name)
    composed = compose.compose(line)
    files = contents(composed.files, pristine(line))
    data = pack({**files, SOURCE: source(files, composed.record.digest)})
    target = BUILD / name / "gpu.tar.gz"
    write_atomic(target, data)
    click.echo(f"{target}: {len(data):,} bytes")


if __name__ == "__main__":
    main()
