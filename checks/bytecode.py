"""Whether a ``.pyc`` can be trusted.

A timestamp-based file is valid for Python when time and size of the source match. Times in our layers are
constant, so an edit of equal length would go unnoticed: only hash-based files that Python checks at import
(PEP 552, flags ``0b11``) are safe beside a source that changed.
"""

import importlib.util
from pathlib import Path, PurePosixPath

CHECKED_HASH = 0b11
"""PEP 552: bit 0 says hash-based, bit 1 says that Python checks the source at import."""


def source_of(path: str) -> str:
    """Where the source of a bytecode file lies, relative to the same root.

    ``a/__pycache__/b.cpython-311.opt-1.pyc`` belongs to ``a/b.py``, a legacy ``a/b.pyc`` to ``a/b.py`` too.
    """
    file = PurePosixPath(path)
    if file.parent.name != "__pycache__":
        return str(file.with_suffix(".py"))
    stem = file.stem
    if ".opt-" in stem:
        stem = stem.rpartition(".opt-")[0]
    name = stem.rpartition(".")[0] or stem
    return str(file.parent.parent / f"{name}.py")


def stale(file: Path, source: Path) -> str | None:
    """Why Python might run this bytecode although its source says something else; None when it cannot."""
    with file.open("rb") as stream:
        header = stream.read(16)
    if len(header) < 16:
        return "bytecode shorter than its header"
    flags = int.from_bytes(header[4:8], "little")
    if flags != CHECKED_HASH:
        kind = "unchecked-hash" if flags & 1 else "timestamp"
        return f"{kind} bytecode beside a source that the base did not have so, expected checked-hash or none"
    if header[8:16] != importlib.util.source_hash(source.read_bytes()):
        return "checked-hash bytecode of another source"
    return None
