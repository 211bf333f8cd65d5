"""Debian's docker-registry on an ephemeral loopback port, for tests only."""

import http.client
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

BINARY = "docker-registry"
READY_SECONDS = 30.0


class RegistryServer:
    """One registry process over a folder; it can be killed and started again on the same port.

    Args:
        folder: for configuration, log and data.
        driver: ``inmemory`` keeps no data, and is three times as fast.
        disk: bytes of a file system of its own for the data, for tests of a full one; needs root.
    """

    def __init__(self, folder: Path, driver: str = "filesystem", disk: int | None = None) -> None:
        self._driver, self._disk = driver, disk
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process and wait until it answers."""
        binary = shutil.which(BINARY)
        assert binary, f"{BINARY} is missing: apt-get install -y --no-install-recommends {BINARY}"
        config = {
            "version": "0.1",
            "log": {"level": "warn"},
            "storage": {self._driver: self._driver_options(), "delete": {"enabled": True}},
            "http": {"addr": self.address, "secret": "for tests only"},
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        config_file = self._folder / "config.yml"
        config_file.write_text(yaml.safe_dump(config))
        with (self._folder / "log").open("ab") as log:
            command = [*self._own_disk(), binary, "serve", str(config_file)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + READY_SECONDS
        while not self._answers():
            assert self._process.poll() is None, f"{BINARY} ended: {(self._folder / 'log').read_text()[-500:]}"
            assert time.monotonic() < deadline, f"{BINARY} does not answer after {READY_SECONDS:.0f} s"
            time.sleep(0.02)

    def _driver_options(self) -> dict[str, str]:
        return {"rootdirectory": str(self._folder / "data")} if self._driver == "filesystem" else {}

    def _own_disk(self) -> list[str]:
        """What mounts a small file system that the process alone sees, and that goes with it."""
        if self._disk is None:
            return []
        (self._folder / "data").mkdir(exist_ok=True)
        mount = f'mount -t tmpfs -o size={self._disk} none "$0" && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mount, str(self._folder / "data")]

    def leave_free(self, size: int) -> None:
        """Make the process's own file system as large as what it holds and ``size`` bytes more."""
        assert self._process is not None
        state = os.statvfs(f"/proc/{self._process.pid}/root{self._folder / 'data'}")
        used = (state.f_blocks - state.f_bfree) * state.f_frsize
        inside = ["nsenter", f"--target={self._process.pid}", "--mount"]
        resize = ["mount", "-o", f"remount,size={used + size}", str(self._folder / "data")]
        subprocess.run([*inside, *resize], check=True, capture_output=True)

    def kill(self) -> None:
        """SIGKILL: nothing is tidied up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """SIGTERM, and wait until it is gone."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=READY_SECONDS)
            self._process = None

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(self.address, timeout=1)
        try:
            connection.request("GET", "/v2/")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


@contextmanager
def registry_server(folder: Path, driver: str = "filesystem", disk: int | None = None) -> Iterator[RegistryServer]:
    """A running registry that keeps its data below ``folder``; see :class:`RegistryServer`."""
    server = RegistryServer(folder, driver, disk)
    try:
        server.start()
        yield server
    finally:
        server.stop()
