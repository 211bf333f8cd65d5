"""A real private dockerd: start, stop, faults, and images that enter it without a registry."""

import contextlib
import os
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline import engine as engines
from pipeline.engine import PROC, EngineStatus, PrivateEngine, mount_points
from pipeline.errors import EngineError
from pipeline.oci import Image, LayerEntry, blob_path, whiteout
from pipeline.store import Engine
from tests.engine.images import add_layer, make_base


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build folder on a machine where no other engine answers."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(engines, "DEFAULT_SOCKET", tmp_path / "no.sock")
    return tmp_path / "build"


def left_of(private: PrivateEngine) -> list[str]:
    """Processes and mounts that belong to a private engine."""
    names = [os.fsencode(private.folder), os.fsencode(private.runtime)]
    left = []
    for entry in PROC.iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and any(name in (entry / "cmdline").read_bytes() for name in names):
                left.append(f"process {entry.name}")
    for point, _ in mount_points((PROC / "self/mountinfo").read_text()):
        if private.folder in point.parents or private.runtime in point.parents:
            left.append(f"mount {point}")
    return left


def use(build: Path) -> Engine:
    """Find or start the engine, and close the connection: these tests care for the daemon."""
    found = engines.find_or_start(build)
    found.client.close()
    return found


def test_start_twice_stop_twice_leaves_nothing(build: Path) -> None:
    private = PrivateEngine.of(build)
    assert engines.status(build) == EngineStatus(False, "private", private.host)
    first = use(build)
    pid = private.pid()
    assert (first.kind, first.host) == ("private", private.host)
    assert use(build).host == first.host
    assert private.pid() == pid
    found = engines.status(build)
    assert (found.running, found.kind, found.host, found.pid) == (True, "private", private.host, pid)
    assert found.version
    assert private.runtime.stat().st_mode & 0o777 == 0o700

    assert engines.stop(build) is True
    assert left_of(private) == []
    assert not private.runtime.exists()
    assert not private.pid_file.exists()
    assert engines.stop(build) is False
    assert engines.status(build) == EngineStatus(False, "private", private.host)


def test_two_starts_at_once_give_one_daemon(build: Path) -> None:
    private = PrivateEngine.of(build)
    try:
        with ThreadPoolExecutor(2) as pool:
            hosts = {found.host for found in pool.map(use, [build, build])}
        assert hosts == {private.host}
        daemons = [left for left in left_of(private) if left.startswith("process")]
        assert len(daemons) == 2  # dockerd and its containerd
    finally:
        engines.stop(build)


def test_start_after_a_kill_and_with_a_foreign_pid_file(build: Path) -> None:
    private = PrivateEngine.of(build)
    with subprocess.Popen(["sleep", "600"]) as foreign:
        try:
            use(build)
            pid = private.pid()
            assert pid
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            assert private.pid_file.read_text() == str(pid)
            assert not engines.status(build).running
            assert use(build).host == private.host
            assert private.pid() not in (None, pid)
            engines.stop(build)

            private.pid_file.write_text(str(foreign.pid))
            assert use(build).host == private.host
            assert engines.stop(build) is True
            assert foreign.poll() is None
            assert left_of(private) == []
        finally:
            foreign.kill()
            engines.stop(build)


def test_dockerd_that_cannot_start_is_quoted(build: Path) -> None:
    private = PrivateEngine.of(build)
    private.folder.mkdir(parents=True)
    private.data_root.write_text("a file where a folder should be")
    with pytest.raises(EngineError) as caught:
        use(build)
    assert caught.value.line().startswith("dockerd ended while starting: found ")
    assert str(private.data_root) in caught.value.line()
    assert left_of(private) == []
    shutil.rmtree(private.runtime)


def test_engine_of_docker_host_is_used_and_never_stopped(
    engine: Engine, build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    assert use(build).kind == "given"
    found = engines.status(build)
    assert (found.running, found.kind, found.host, found.pid) == (True, "given", engine.host, None)
    assert engines.stop(build) is False
    assert engine.client.ping()
    assert PrivateEngine.of(build).pid() is None


def test_engine_at_the_default_socket_is_used(
    engine: Engine, private: PrivateEngine, build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "DEFAULT_SOCKET", private.socket)
    assert use(build).kind == "given"
    assert engine.client.ping()
    assert PrivateEngine.of(build).pid() is None


@pytest.fixture(scope="module")
def image(python_base: Image, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The base with a changed file, a new one, and one deleted."""
    entries = [
        LayerEntry("usr/lib/python3.11/this.py", b"print('ours')\n"),
        LayerEntry("usr/lib/python3.11/added.py", b"print('added')\n"),
        whiteout("usr/lib/python3.11/antigravity.py"),
    ]
    return add_layer(python_base, tmp_path_factory.mktemp("image") / "x", entries)


def test_base_then_layer_without_a_registry(engine: Engine, python_base: Image, image: Image) -> None:
    base_tag = engine.ensure_base(python_base, "base")
    held = image.blob(python_base.layers[0].digest)
    # Proof that only our layer is sent: the base's is no longer there to be sent.
    away = held.with_name("away")
    held.rename(away)
    try:
        tag = engine.ensure_image(image, "line", python_base)
    finally:
        away.rename(held)
    assert engine.client.images.get(tag).id == image.config_digest
    assert engine.client.images.get(base_tag).id == python_base.config_digest
    script = "import importlib.util as u, this, added; print(u.find_spec('antigravity'))"
    output = engine.client.containers.run(tag, ["-c", script], entrypoint=["python3"], network_mode="none", remove=True)
    assert output == b"ours\nadded\nNone\n"


def test_image_without_its_base_is_loaded_whole(engine: Engine, python_base: Image, image: Image) -> None:
    tag = engine.ensure_image(image, "line", python_base)
    assert engine.client.images.get(tag).id == image.config_digest
    assert engine.find(image) == tag
    assert engine.find(python_base) is None


def test_what_the_engine_holds_is_not_sent_again(
    engine: Engine, python_base: Image, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags = [engine.ensure_base(python_base, "base"), engine.ensure_image(image, "line", python_base)]
    monkeypatch.setattr(engine.client.api, "load_image", lambda _data: pytest.fail("sent again"))
    assert tags == [engine.ensure_base(python_base, "base"), engine.ensure_image(image, "line", python_base)]


def test_other_image_under_our_tag_is_not_taken_for_ours(engine: Engine, python_base: Image, image: Image) -> None:
    base_tag = engine.ensure_base(python_base, "base")
    tag = engine.ensure_image(image, "line", python_base)
    engine.client.images.remove(tag)
    engine.client.images.get(base_tag).tag(*tag.split(":"))
    assert engine.find(image) is None
    assert engine.client.images.get(engine.ensure_image(image, "line", python_base)).id == image.config_digest


def test_damaged_layer_is_refused_by_the_engine(engine: Engine, tmp_path: Path) -> None:
    image = make_base(tmp_path / "image", [LayerEntry("file", b"content")])
    blob = blob_path(image.layout, image.layers[0].digest)
    data = blob.read_bytes()
    blob.write_bytes(data.replace(b"content", b"damaged"))
    with pytest.raises(EngineError) as caught:
        engine.ensure_base(image, "base")
    assert image.layers[0].digest in caught.value.line()
    assert engine.find(image) is None


def test_cleaning_up_spares_what_is_not_ours(engine: Engine, python_base: Image, image: Image) -> None:
    tag = engine.ensure_base(python_base, "base")
    other = engine.ensure_image(image, "line", python_base)
    stored = engine.client.images.get(tag)
    stored.tag("theirs/app", "1")
    command = ["-c", "pass"]
    theirs = engine.client.containers.create("theirs/app:1", command, labels={"io.sglang-xpu.owner": "x"})
    ours = engine.client.containers.create(tag, command, labels=engine.labels)
    engine.client.volumes.create(labels=engine.labels)
    their_volume = engine.client.volumes.create()
    try:
        engine.remove_ours(keep=[tag])
        assert engine.find(python_base) == tag
        assert engine.find(image) is None
        assert [found.id for found in engine.client.containers.list(all=True)] == [theirs.id]
        assert [found.id for found in engine.client.volumes.list()] == [their_volume.id]
        engine.remove_ours()
        assert engine.client.images.get("theirs/app:1").id == stored.id
        assert not [name for found in engine.client.images.list() for name in found.tags if name in (tag, other)]
    finally:
        assert ours.id != theirs.id
        theirs.remove()
        their_volume.remove()
        engine.client.images.remove("theirs/app:1")
