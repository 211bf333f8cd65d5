"""The JSON documents that stages hand to each other, as frozen typed models.

=================  ==========================================  =======================================
document           file                                        written by
=================  ==========================================  =======================================
``Record``         ``.build/<line>/record.json`` and image     :mod:`pipeline.compose`
``Inventory``      ``.build/inventories/<base digest>.json``   :mod:`pipeline.inventory`
``CheckReport``    ``.build/<line>/check-report.json``         :mod:`pipeline.check`
``ReleaseRecord``  ``releases/<pinned tag>.json`` and registry :mod:`pipeline.release_record`
=================  ==========================================  =======================================

Paths inside a tree are relative to the package root, with forward slashes (``sglang/srt/models/dflash.py``).
Digests are written as ``sha256:<64 hex>`` where they name an OCI object or a whole tree, and as 64 hex digits
where they name one file.
"""

import json
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]

RECORD_PATH = "usr/local/share/sglang-xpu/record.json"
"""Where the record lies inside an image, relative to ``/``."""


class Document(BaseModel):
    """Frozen, and closed: an unknown key in a stored document is an error, not a surprise."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def to_json(self) -> bytes:
        """Canonical bytes: sorted keys, no spaces, newline at the end; equal documents give equal bytes."""
        return canonical_json(self.model_dump(mode="json", exclude_none=True)) + b"\n"


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys, compact separators and no ASCII escapes, as UTF-8 bytes without a newline."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


class FileEntry(Document):
    """One file of the composed tree."""

    sha256: Sha256
    origin: str
    """Name of the layer that brought the file: ``source:<pin>`` or ``overlay:<set>``."""
    patches: tuple[str, ...] = ()
    """Patches that touched it, in series order."""


class ComposeStep(Document):
    """One layer or patch, with the digest of the whole tree after it."""

    name: str
    """``source:<pin>``, ``overlay:<set>`` or ``patch:<file name>``."""
    changed: int
    """Files that this step added, changed or removed."""
    digest: Digest
    note: str | None = None


class Record(Document):
    """What the composed tree consists of and where each file came from."""

    line: str
    sources: dict[str, dict[str, Any]]
    """Per pin name, the pin as the manifest states it."""
    steps: tuple[ComposeStep, ...]
    digest: Digest
    """Digest of the whole tree: see :func:`pipeline.compose.tree_digest`."""
    files: dict[str, FileEntry]


class InventoryFile(Document):
    """One file below the package root of a base."""

    sha256: Sha256
    mode: int
    """Permission bits, as an integer (``0o644`` is 420)."""


class Inventory(Document):
    """What a base holds below its package root, and which packages are installed."""

    base: Digest
    """Digest of the base's platform manifest."""
    package_root: str
    """Absolute path in the image, ``/usr/local/lib/python3.11/dist-packages``."""
    files: dict[str, InventoryFile]
    """Every regular file and symlink below the package root; a symlink's sha256 is that of its target text."""
    debian: dict[str, str]
    """Debian package to version."""
    python: dict[str, str]
    """Python distribution (normalised name) to version."""


class CheckStatus(StrEnum):
    """How one check ended; ``not_run`` also when the container died before the check's turn."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    NOT_RUN = "not_run"
    NOT_APPLICABLE = "not_applicable"
    """There is nothing for it to judge in this image, and its reason says which image it judges."""

    @property
    def is_sound(self) -> bool:
        """Whether it says nothing against the image."""
        return self in (CheckStatus.PASSED, CheckStatus.NOT_APPLICABLE)


class CheckResult(Document):
    """One row of the table of checks."""

    name: str
    status: CheckStatus
    seconds: float
    reason: str
    """One line: what was proven, or what is wrong and where."""
    table: tuple[dict[str, str], ...] = ()
    """What the check found out beside its verdict, for people who look something up."""


class CheckReport(Document):
    """The verdict on exactly one image."""

    image: Digest
    """Digest of the image's manifest."""
    base_kind: str
    base: Digest
    tree: Digest
    checks_digest: Digest
    """Digest of the ``checks/`` folder that judged it, data files included."""
    manifest: Digest
    """Digest of what the line is made from: see :func:`pipeline.stages.manifest_digest`."""
    checks: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether checks passed and none says anything against the image."""
        statuses = {check.status for check in self.checks}
        return CheckStatus.PASSED in statuses and all(status.is_sound for status in statuses)


class ReleasedImage(Document):
    """The objects of a released image, by digest."""

    digest: Digest
    """Of the manifest: what to deploy by."""
    config: Digest
    layer: Digest
    """Our one layer, a plain tar: its digest is its diff_id too."""
    tree: Digest
    base: Digest
    base_kind: str
    base_name: str


class ReleasedCheck(Document):
    """How a check ended, without the time that it took."""

    name: str
    status: CheckStatus
    reason: str


class ReleaseRecord(Document):
    """What was released, from what, and how it was judged; all but ``recorded_at`` follows from the inputs."""

    line: str
    release: str
    """Date, YYYYMMDD."""
    repository: str
    tags: tuple[str, ...]
    """The pinned tag, then the moving one."""
    image: ReleasedImage
    pins: dict[str, dict[str, Any]]
    """Per pin name, the pin as the manifest states it."""
    steps: tuple[ComposeStep, ...]
    patches: dict[str, Sha256]
    """Patch file name, in series order, to the SHA-256 of the file."""
    manifest: Digest
    checks_digest: Digest
    checks: tuple[ReleasedCheck, ...]
    checkpoints: dict[str, Digest]
    """Checkpoint report that the manifest requires, to the digest of its file."""
    tools: dict[str, str]
    """Tool to version, or to the digest of its lock file."""
    commit: str | None = None
    """Commit of this project; absent for a folder without one, which loopback alone admits."""
    dirty: bool
    """Whether the working tree differed from the commit, which loopback alone admits."""
    recorded_at: str
    """RFC 3339, UTC."""
