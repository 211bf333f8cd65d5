"""A small package root that stands in for an image, and the real checks on it.

The fake SGLang has a registry that works as upstream's does: it imports every module of ``sglang.srt.models`` and
turns a failed import into a log message.
"""

import dataclasses
import hashlib
import importlib
import importlib.util
import json
import marshal
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from checks import test_environment, test_features, test_kernels, test_leftovers, test_registry, test_startup, test_tree
from checks.given import load
from checks.run import Row
from checks.verdict import Verdict
from pipeline import check_data
from pipeline.check_data import CHECKS
from pipeline.manifest import DEFAULT_LINE, load_line

SOURCE = "source:sglang"
REGISTRY = """\
import importlib
import logging
import pkgutil

logger = logging.getLogger(__name__)


class _Registry:
    def __init__(self):
        self.models = {}
        package = importlib.import_module("sglang.srt.models")
        for _, name, _ in pkgutil.iter_modules(package.__path__, "sglang.srt.models."):
            try:
                entry = getattr(importlib.import_module(name), "EntryClass", [])
            except Exception as error:
                logger.warning(f"Ignore import error when loading {name}: {error}")
                continue
            self.models.update({cls.__name__: cls for cls in entry})

    def get_supported_archs(self):
        return self.models.keys()


ModelRegistry = _Registry()
"""
DRAFT = """\
class OldDraft:
    def forward(self):
        return 1


class Selector:
    pass


class NewDraft(OldDraft):
    def forward(self):
        return Selector()


EntryClass = [OldDraft, NewDraft]
"""
KERNEL = """\
# torch.profiler is mentioned by upstream here
def kernel(tl, b_val):
    beta = tl.sigmoid(b_val).to(tl.bfloat16)
    return beta
"""
PATCHED_KERNEL = KERNEL.replace("tl.bfloat16", "tl.float32")
SERVER = '''\
import os


class Envs:
    DECLARED_ONLY = "EnvBool(False)"
    USED = "EnvBool(False)"


envs = Envs()
"""A text that names IN_A_TEXT."""
LIMIT = os.environ.get("READ_BY_GET")
USES = envs.USED.strip()
'''
TREE = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/models/__init__.py": "",
    "sglang/srt/models/registry.py": REGISTRY,
    "sglang/srt/models/draft.py": DRAFT,
    "sglang/srt/kernel.py": PATCHED_KERNEL,
    "sglang/srt/server.py": SERVER,
    "sglang/srt/new.py": "VALUE = 1\n",
}
BASE = {
    **TREE,
    "sglang/srt/kernel.py": KERNEL,
    "sglang/core.cpython-311.so": "binary\n",
    "other/__init__.py": "A = 1\n",
}
del BASE["sglang/srt/new.py"]
RECORD = "share/record.json"
ASK_SGLANG = ("test_imports.py", "test_launch.py", "test_quantization.py", "test_serve.py")
"""Checks that start the image's SGLang in a process; test_checks_xpu.py and test_checks_serve.py give them one."""
CHECK_FUNCTIONS = (
    test_environment.test_environment,
    test_features.test_features,
    test_kernels.test_kernels,
    test_leftovers.test_leftovers,
    test_registry.test_registry,
    test_startup.test_startup,
    test_tree.test_tree,
)


def bytecode(source: Path, *, flags: int = 0b11, text: bytes | None = None) -> bytes:
    """A ``.pyc`` for a source: checked-hash by default, timestamp-based for ``flags=0`` (PEP 552).

    Args:
        text: what was compiled, if not what the source says now.
    """
    content = source.read_bytes() if text is None else text
    if flags & 1:
        stamp = importlib.util.source_hash(content)
    else:
        status = source.stat()
        stamp = int(status.st_mtime).to_bytes(4, "little") + status.st_size.to_bytes(4, "little")
    code = marshal.dumps(compile(content, str(source), "exec"))
    return importlib.util.MAGIC_NUMBER + flags.to_bytes(4, "little") + stamp + code


def sha256(data: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(data).hexdigest()


@dataclass
class Report:
    """What run.py wrote and printed."""

    rows: dict[str, dict[str, Any]]
    junit: str
    returncode: int
    stderr: str

    @property
    def statuses(self) -> dict[str, str]:
        """Checks that say something against the image, with their status."""
        sound = ("passed", "not_applicable")
        return {name: row["status"] for name, row in self.rows.items() if row["status"] not in sound}

    def reason(self, name: str) -> str:
        """The reason of one check."""
        return str(self.rows[name]["reason"])


@dataclass
class FakeImage:
    """Folders ``root`` (the package root) and ``checks`` (the volume), and the parts of ``input.json``.

    Built sound: every check passes. A test spoils one thing and runs.
    """

    home: Path
    given: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    foreign_record: bool = False
    """Whether the test puts something else in place of the image's record."""

    def __post_init__(self) -> None:
        for path, text in {**BASE, **TREE}.items():
            self.write(path, text)
        self.given = {
            "line": "fake",
            "base_kind": "cpu",
            "package_root": str(self.root),
            "record_path": str(self.home / RECORD),
            "record": self._record(),
            "inventory": {"files": {path: _entry(text) for path, text in BASE.items()}},
            "allows": [],
            "removed": [],
            "layer_paths": [
                *(str(path).strip("/") for path in [*reversed(self.root.parents[:-1]), self.root]),
                *(f"{self.root}/{path}".strip("/") for path in ("sglang/srt/kernel.py", "sglang/srt/new.py")),
                f"{self.home}/{RECORD}".strip("/"),
            ],
            "environment": {
                "base": {"PYTHONPATH": str(self.root), "LANG": "C.UTF-8"},
                "defaults": {
                    "READ_BY_GET": {"value": "1", "why": "test"},
                    "USED": {"value": "1", "why": "test"},
                    "ELSEWHERE": {"value": "x", "why": "test", "read_by": "the driver"},
                },
            },
            "architectures": {"NewDraft": {"file": "sglang/srt/models/draft.py", "why": "", "must_have": ["Selector"]}},
            "profiles": {},
            "configs": {},
            "features": [
                {
                    "id": "beta",
                    "title": "Beta in FP32",
                    "why": "",
                    "origin": "patch beta.patch",
                    "file": "sglang/srt/kernel.py",
                    "in": "kernel",
                    "find": ["tl.sigmoid(...).to(tl.float32)"],
                    "absent": ["tl.bfloat16"],
                }
            ],
            "leftovers": {
                "paths": [
                    {"pattern": "*.orig", "reason": "backup"},
                    {"pattern": "tests/", "reason": "folder of tests"},
                ],
                "content": [{"pattern": r"torch\.profiler", "reason": "profiler"}],
            },
            "known_bad_environment": [{"name": "SLOW", "value": "^1$", "reason": "measured as slow"}],
            "quantization": check_data.input_parts(load_line(DEFAULT_LINE))["quantization"],
        }
        self.variables = {
            **self.given["environment"]["base"],
            **{name: entry["value"] for name, entry in self.given["environment"]["defaults"].items()},
            "HOME": "/nonexistent",
        }

    @property
    def root(self) -> Path:
        """The package root."""
        return self.home / "root"

    def write(self, path: str, data: str | bytes) -> Path:
        """Write one file below the package root, mode 0644."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data.encode() if isinstance(data, str) else data)
        file.chmod(0o644)
        return file

    def put_in_tree(self, path: str, text: str) -> None:
        """Make a file part of the tree as composed: in the image, in the record and in the base."""
        data = self.write(path, text).read_bytes()
        self.given["record"]["files"][path] = {"sha256": sha256(data), "origin": SOURCE, "patches": []}
        self.put_in_base(path)

    def put_in_base(self, path: str) -> None:
        """Make the inventory say what the image has there."""
        data = (self.root / path).read_bytes()
        self.given["inventory"]["files"][path] = {"sha256": sha256(data), "mode": 0o644}

    def patch(self, path: str, text: str) -> None:
        """Make a file one that the record says a patch changed; upstream's bytes stay as they are in BASE."""
        data = self.write(path, text).read_bytes()
        self.given["record"]["files"][path] = {"sha256": sha256(data), "origin": SOURCE, "patches": ["x.patch"]}

    def run(self) -> Report:
        """Run every check in this process: a hundred times faster than a start of Python and pytest for each fault."""
        given = dataclasses.replace(load(self.write_volume()), environment=self.variables)
        rows, failures = {}, []
        with self._imports():
            for check in CHECK_FUNCTIONS:
                properties: list[tuple[str, object]] = []
                row = Row(status="ran")
                try:
                    check(given, Verdict(properties))
                except pytest.fail.Exception as failure:
                    failures.append(str(failure))
                row.note(properties)
                name = check.__name__.removeprefix("test_")
                rows[name] = row.close(name, "never ran")
        return Report(rows, "", 0, "\n".join(failures))

    def start(self, checks: Mapping[str, str] | None = None) -> Report:
        """Run the volume's run.py in a process of its own; ``checks`` replaces the check files."""
        volume = self.write_volume()
        if checks is not None:
            for file in volume.glob("test_*.py"):
                file.unlink()
            for name, text in checks.items():
                (volume / name).write_text(text)
        command = [sys.executable, "-s", "-B", str(volume / "run.py")]
        ended = subprocess.run(command, env=self.variables, capture_output=True, text=True, cwd="/", check=False)
        document = json.loads(ended.stdout)
        rows = {row["name"]: row for row in document["checks"]}
        return Report(rows, document["junit"], ended.returncode, ended.stderr)

    def write_volume(self) -> Path:
        """Write what the check container would find below /checks, new each time."""
        volume = self.home / "checks"
        shutil.rmtree(volume, ignore_errors=True)
        shutil.copytree(CHECKS, volume, ignore=shutil.ignore_patterns("__pycache__", *ASK_SGLANG))
        record = self.given.get("record", {"files": {}})
        for path, text in BASE.items():
            if record["files"].get(path, {}).get("patches"):
                file = volume / "upstream" / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        (volume / "input.json").write_text(json.dumps(self.given))
        if not self.foreign_record:
            inside = self.home / RECORD
            inside.parent.mkdir(exist_ok=True)
            inside.write_text(json.dumps(record))
        return volume

    @contextmanager
    def _imports(self) -> Iterator[None]:
        """Let ``sglang`` come from this image only, and leave no trace of it."""
        path, write = sys.path[:], sys.dont_write_bytecode
        sys.path.insert(0, str(self.root))
        sys.dont_write_bytecode = True
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path[:], sys.dont_write_bytecode = path, write
            for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
                del sys.modules[name]

    def _record(self) -> dict[str, Any]:
        files: dict[str, Any] = {}
        for path, text in TREE.items():
            files[path] = {"sha256": sha256(text.encode()), "origin": SOURCE, "patches": []}
        files["sglang/srt/kernel.py"]["patches"] = ["beta.patch"]
        files["sglang/srt/new.py"]["origin"] = "overlay:new"
        step = {"name": SOURCE, "changed": len(TREE), "digest": "sha256:" + "0" * 64}
        return {"line": "fake", "sources": {}, "steps": [step], "digest": step["digest"], "files": files}


def _entry(text: str) -> dict[str, Any]:
    return {"sha256": sha256(text.encode()), "mode": 0o644}
