"""What the line costs, measured: ``make bench``. Prints figures; asserts nothing.

Every figure is of this machine and this run. The comparison with a Dockerfile runs both ways in turn, through the
same engine and from the same base, so that a slow minute of the machine hits both.
"""

import contextlib
import io
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.table import Table

from pipeline import base as bases
from pipeline import compose, console, engine, stages
from pipeline import image as images
from pipeline.base import BaseImage
from pipeline.compose import Composed
from pipeline.documents import CheckReport
from pipeline.files import BUILD, PROJECT, build_lock
from pipeline.manifest import DEFAULT_LINE, Line, load_line
from pipeline.oci import Image
from pipeline.store import TAG_PREFIX, Engine

ROUNDS = 5


def timed(action: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Seconds of each round."""
    seconds = []
    for _ in range(rounds):
        started = time.monotonic()
        action()
        seconds.append(time.monotonic() - started)
    return seconds


def shown(seconds: list[float]) -> str:
    """Median with minimum and maximum, in seconds."""
    return f"{statistics.median(seconds):.2f} s (min {min(seconds):.2f}, max {max(seconds):.2f}, {len(seconds)} rounds)"


def command(*arguments: str) -> Callable[[], object]:
    """``build.py`` as a whole process, as a user starts it."""
    line = [sys.executable, str(PROJECT / "build.py"), *arguments]
    return lambda: subprocess.run(line, cwd=PROJECT, check=True, capture_output=True)


def cold(rounds: int) -> list[float]:
    """``make image`` in new clones: nothing of the project's is there; pip's and apt's own caches are."""

    def clone_and_build() -> None:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            clone = Path(folder, "clone")
            subprocess.run(["git", "clone", "--quiet", str(PROJECT), str(clone)], check=True)
            try:
                subprocess.run(["make", "image"], cwd=clone, check=True, capture_output=True)
            finally:
                subprocess.run(["make", "engine-stop"], cwd=clone, check=True, capture_output=True)

    return timed(clone_and_build, rounds)


def our_way(line: Line, composed: Composed, base: BaseImage, running: Engine, folder: Path) -> Image:
    """Append the layer, write config and manifest, load the image into the engine."""
    image = images.build(line, composed, base, folder)
    running.ensure_image(image, "bench", base.image)
    return image


def dockerfile_way(composed: Composed, base: BaseImage, running: Engine, number: int) -> str:
    """``FROM base``, ``COPY`` of the files that differ, as most projects do it; the image ID."""
    root = base.inventory.package_root
    delta = images.difference(composed.record, base.inventory)
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        files = {f"files/{path}": composed.files[path] for path in delta.changed}
        text = f"FROM {running.find(base.image)}\nCOPY files/ {root}/\n"
        for name, data in {"Dockerfile": text.encode(), **files}.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), int(time.time())
            tar.addfile(info, io.BytesIO(data))
    context.seek(0)
    tag = f"{TAG_PREFIX}{running.owner}/dockerfile:{number}"
    made, _ = running.client.images.build(fileobj=context, custom_context=True, nocache=True, rm=True, tag=tag)
    return str(made.id)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the stages' own lines."""
    before, console.err.quiet = console.err.quiet, True
    try:
        yield
    finally:
        console.err.quiet = before


def stages_alone(line: Line, table: Table) -> tuple[Composed, BaseImage, Image]:
    """Figures of single stages, from the caches."""
    with quiet():
        table.add_row("compose from the cache", shown(timed(lambda: compose.compose(line))))
        composed, base = compose.compose(line), bases.get(line)
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            target = Path(folder, "image")
            table.add_row(
                "layer, config and manifest", shown(timed(lambda: images.build(line, composed, base, target)))
            )
            image = images.build(line, composed, base, target)
    read = len(base.image.manifest_bytes) + len(base.image.config_bytes)
    whole = sum(layer.size for layer in base.image.layers)
    table.add_row(
        "bytes of the base read for it", f"{read} of {whole} (manifest and config; the inventory is made once)"
    )
    table.add_row("our layer", f"{image.layers[-1].size} bytes, {len(composed.record.files)} files recorded in it")
    return composed, base, image


def side_by_side(line: Line, composed: Composed, base: BaseImage, table: Table) -> None:
    """Our append against a Dockerfile, in turn, through one engine."""
    ours: list[float] = []
    theirs: list[float] = []
    our_digests, their_ids = set[str](), set[str]()
    with quiet(), contextlib.closing((running := engine.find_or_start(BUILD)).client):
        kept = [running.ensure_base(base.image, "base")]
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            for number in range(ROUNDS):
                running.remove_ours(keep=kept)
                started = time.monotonic()
                our_digests.add(our_way(line, composed, base, running, Path(folder, str(number))).digest)
                between = time.monotonic()
                their_ids.add(made := dockerfile_way(composed, base, running, number))
                ours.append(between - started)
                theirs.append(time.monotonic() - between)
        sizes = [running.client.images.get(name).attrs["Size"] for name in (kept[0], made)]
        running.remove_ours(keep=kept)
    table.add_row("append and load, ours", f"{shown(ours)}; {len(our_digests)} digest in {ROUNDS} builds")
    table.add_row("Dockerfile COPY, same files", f"{shown(theirs)}; {len(their_ids)} image IDs in {ROUNDS} builds")
    ratios = [other / own for own, other in zip(ours, theirs, strict=True)]
    spread = f"min {min(ratios):.1f}, max {max(ratios):.1f}"
    table.add_row("bytes that the Dockerfile's layer adds", f"{sizes[1] - sizes[0]} (it holds no record)")
    table.add_row("Dockerfile / ours, pair by pair", f"{statistics.median(ratios):.1f} ({spread})")


@click.command()
@click.option("--line", "line_name", default=DEFAULT_LINE, show_default=True)
@click.option("--cold", "cold_rounds", default=0, show_default=True, help="Rounds of `make image` in a new clone.")
def main(line_name: str, cold_rounds: int) -> None:
    """Measure the line and print one table."""
    table = Table("what", "measured", title=f"{line_name}, Python {sys.version.split()[0]}")
    if cold_rounds:
        table.add_row("make image, new clone", shown(cold(cold_rounds)))
    command("image", "--line", line_name)()
    table.add_row("make image again, nothing changed", shown(timed(command("image", "--line", line_name))))
    table.add_row("build.py check (load and all checks)", shown(timed(command("check", "--line", line_name), 2)))
    line = load_line(line_name)
    with build_lock():
        report = CheckReport.model_validate_json((BUILD / line.name / "check-report.json").read_bytes())
        seconds = ", ".join(f"{row.name} {row.seconds:.1f}" for row in report.checks)
        table.add_row("checks alone", f"{sum(row.seconds for row in report.checks):.1f} s: {seconds}")
        stages.require_space(line)
        composed, base, _ = stages_alone(line, table)
        side_by_side(line, composed, base, table)
    console.out.print(table)


if __name__ == "__main__":
    main()
