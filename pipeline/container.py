"""Run one Python script in a container that can reach and change nothing, and read what it writes.

The image is used as it is: the script and its files come in a read-only volume at ``/checks`` that is filled
through the engine's API, so that a remote engine sees them too.
"""

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from docker.models.containers import Container
from docker.models.volumes import Volume
from docker.types import LogConfig, Mount

from pipeline import console
from pipeline.errors import EngineError
from pipeline.oci import LayerEntry, write_layer
from pipeline.store import Engine, engine_errors

MOUNT = "/checks"
COMMAND = ["-I", "-B", f"{MOUNT}/run.py"]
"""Isolated, so that no variable of the image changes what Python imports; without bytecode, as / is read-only."""

PROCESSES = 512
"""Limit of processes and threads: torch starts one thread per core, several times over."""
USER = "65534:65534"
"""Debian's nobody and nogroup: owns nothing in an image."""
TEMPORARY = "size=1g,uid=65534,gid=65534"
"""Options of the tmpfs at /tmp; the engine adds noexec, nosuid and nodev. Its pages count as memory. It belongs to
the user because runc gives it the mode of the image's own /tmp, which need not be open to all."""

POLL_SECONDS = 0.2
DRAIN_SECONDS = 10.0
"""How long the last output may take to arrive once the container has ended."""


@dataclass(frozen=True)
class Limits:
    """Of the whole container: ``memory`` in bytes, swap included; ``seconds`` of run time."""

    memory: int
    seconds: float


@dataclass(frozen=True)
class Ended:
    """How a container ended: its standard output, or ``None`` and why there is none to use."""

    output: bytes | None
    reason: str


def run_confined(
    engine: Engine, tag: str, entries: Sequence[LayerEntry], limits: Limits, log: Path, step: console.Step
) -> Ended:
    """Run ``/checks/run.py`` in a container of the image ``tag``; leaves neither container nor volume behind.

    Standard output counts only when the script ended by itself, with status 0 or 1.

    Args:
        entries: what the volume holds; paths are relative to ``/checks``.
        log: file that gets standard error while it is written.
        step: shows the last line of it.

    Raises:
        EngineError: the engine refused something, or went away.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    with _volume(engine) as volume:
        _fill(engine, tag, volume, entries)
        with _container(engine, tag, volume, limits) as container:
            return _run(container, limits, log, step)


@contextlib.contextmanager
def _volume(engine: Engine) -> Iterator[Volume]:
    with engine_errors("create the volume of the checks"):
        volume = engine.client.volumes.create(labels=engine.labels)
    try:
        yield volume
    finally:
        _remove(volume)


def _remove(thing: Container | Volume) -> None:
    """Remove it; where the engine is gone, say so: the verdict matters more, and a later clean-up gets it."""
    try:
        with engine_errors(f"remove {thing.id} from the engine"):
            thing.remove(force=True)
    except EngineError as error:
        console.warn(error.line())


def _fill(engine: Engine, tag: str, volume: Volume, entries: Sequence[LayerEntry]) -> None:
    """Put files into the volume by way of a container that never starts; the umask here has no say in modes."""
    parents = {str(parent) for entry in entries for parent in PurePosixPath(entry.path).parents}
    mount = Mount(MOUNT, volume.name, no_copy=True)
    with tempfile.TemporaryDirectory() as scratch:
        tar = Path(scratch, "checks.tar")
        write_layer(tar, entries, sorted(parents - {"."}))
        with engine_errors("fill the volume of the checks"), tar.open("rb") as stream:
            container = engine.client.containers.create(
                tag, ["never started"], mounts=[mount], network_mode="none", labels=engine.labels
            )
            try:
                container.put_archive(MOUNT, stream)
            finally:
                _remove(container)


@contextlib.contextmanager
def _container(engine: Engine, tag: str, volume: Volume, limits: Limits) -> Iterator[Container]:
    # The image's own environment is under test. Only the home of a user that /etc/passwd lacks is given: SGLang
    # makes its cache folders below it when it is imported.
    with engine_errors("create the check container"):
        container = engine.client.containers.create(
            tag,
            COMMAND,
            entrypoint=["python3"],
            working_dir="/",
            user=USER,
            environment={"HOME": "/tmp"},
            network_mode="none",
            read_only=True,
            tmpfs={"/tmp": TEMPORARY},
            mounts=[Mount(MOUNT, volume.name, read_only=True, no_copy=True)],
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            mem_limit=limits.memory,
            memswap_limit=limits.memory,
            pids_limit=PROCESSES,
            # A given engine's default may be a log that cannot be read back.
            log_config=LogConfig(type=LogConfig.types.JSON),
            labels=engine.labels,
        )
    try:
        yield container
    finally:
        _remove(container)


def _run(container: Container, limits: Limits, log: Path, step: console.Step) -> Ended:
    reader = threading.Thread(target=_copy_errors, args=(container, log, step), daemon=True)
    with engine_errors("run the check container"):
        container.start()
        reader.start()
        state = _wait(container, limits.seconds)
        if state["Running"]:
            container.kill()
        reader.join(DRAIN_SECONDS)
        return _ended(container, state, limits)


def _wait(container: Container, seconds: float) -> dict[str, Any]:
    """State of the container, as the API gives it, when it has ended or its time is up."""
    deadline = time.monotonic() + seconds
    while True:
        container.reload()
        state: dict[str, Any] = container.attrs["State"]
        if not state["Running"] or time.monotonic() > deadline:
            return state
        time.sleep(POLL_SECONDS)


def _ended(container: Container, state: dict[str, Any], limits: Limits) -> Ended:
    if state["Running"]:
        return Ended(None, f"the check container did not end within {limits.seconds:.0f} s and was killed")
    if state["ExitCode"] in (0, 1) and (output := container.logs(stdout=True, stderr=False)):
        return Ended(output, "")
    if state["OOMKilled"]:
        limit = limits.memory / (1 << 30)
        return Ended(None, f"the check container ran out of memory (limit {limit:.2g} GiB)")
    return Ended(None, f"the check container ended with status {state['ExitCode']} and gave no results")


def _copy_errors(container: Container, log: Path, step: console.Step) -> None:
    """Copy standard error to the log as it comes; ends with the container."""
    try:
        with engine_errors("read the output of the check container"), log.open("wb") as file:
            for piece in container.logs(stdout=False, stderr=True, stream=True, follow=True):
                file.write(piece)
                file.flush()
                lines = [line.strip() for line in piece.decode(errors="replace").splitlines()]
                step.detail = next((line[:80] for line in reversed(lines) if line), step.detail)
    except EngineError as error:
        console.warn(error.line())
