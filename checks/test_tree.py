"""The package tree of the image is exactly what the record and the base's inventory say."""

import json

from checks import bytecode
from checks.files import Found, scan
from checks.given import BaseFile, Given
from checks.verdict import Verdict

NEW_FILE_MODE = 0o644


def test_tree(given: Given, verdict: Verdict) -> None:
    """Every file and symlink below the package root, its bytes and its mode; no stale bytecode; the record."""
    found, unreadable = scan(given.package_root)
    for problem in unreadable:
        verdict.problem(problem)
    _removals(given, verdict)
    expected = expected_files(given)
    _compare(expected, found, given, verdict)
    judged = _bytecode(given, found, verdict)
    _record(given, verdict)
    changed = sum(given.ours(path) for path in given.files)
    verdict.conclude(
        f"{len(found)} files below {given.package_root} equal the record ({len(given.files)} files, {changed} of "
        f"them from later layers) and the base's inventory; {judged} bytecode files belong to their sources"
    )


def expected_files(given: Given) -> dict[str, BaseFile]:
    """What must lie below the package root: the base, less what was removed or replaced, and the tree.

    Below the tree's own folders the base may add only what the record leaves out on purpose: compiled
    extensions and bytecode.
    """
    expected = {
        path: entry
        for path, entry in given.inventory.items()
        if path not in given.removed
        and (path.split("/", 1)[0] not in given.tree_roots or path.endswith((".so", ".pyc", ".pyo")))
    }
    for path, entry in given.files.items():
        before = given.inventory.get(path)
        expected[path] = BaseFile(entry.sha256, before.mode if before else NEW_FILE_MODE)
    return expected


def _removals(given: Given, verdict: Verdict) -> None:
    for path in sorted(given.removed):
        if path in given.files:
            verdict.problem(f"{path}: the layer deletes it, expected it to stay: it is in the record")
        elif path.split("/", 1)[0] not in given.tree_roots:
            verdict.problem(f"{path}: the layer deletes it, expected deletions only below {_roots(given)}")


def _roots(given: Given) -> str:
    return ", ".join(f"{root}/" for root in sorted(given.tree_roots))


def _compare(expected: dict[str, BaseFile], found: dict[str, Found], given: Given, verdict: Verdict) -> None:
    for path in sorted(expected.keys() | found.keys()):
        source = "record" if path in given.files else "base's inventory"
        if path not in found:
            verdict.problem(f"{path}: missing, expected the file of the {source}")
        elif path not in expected:
            verdict.problem(f"{path}: extra file, neither the record nor what remains of the base has it")
        elif found[path].sha256 != expected[path].sha256:
            verdict.problem(
                f"{path}: expected sha256 {expected[path].sha256} of the {source}, found {found[path].sha256}"
            )
        elif not found[path].symlink and found[path].mode != expected[path].mode:
            verdict.problem(f"{path}: expected mode {expected[path].mode:04o}, found {found[path].mode:04o}")


def _bytecode(given: Given, found: dict[str, Found], verdict: Verdict) -> int:
    """Judge every bytecode file; returns how many there are."""
    files = [path for path in sorted(found) if path.endswith(".pyc")]
    for path in files:
        source = bytecode.source_of(path)
        as_in_base = _as_in_base(path, given, found) and _as_in_base(source, given, found)
        if as_in_base and (source in found or path.split("/", 1)[0] not in given.tree_roots):
            continue
        if source not in found:
            verdict.problem(f"{path}: bytecode without its source {source}; delete it with a whiteout")
        elif reason := bytecode.stale(given.package_root / path, given.package_root / source):
            verdict.problem(f"{path}: {reason}; delete it with a whiteout")
    return len(files)


def _as_in_base(path: str, given: Given, found: dict[str, Found]) -> bool:
    """Whether a path is what the base had, also when the base had nothing there."""
    before, now = given.inventory.get(path), found.get(path)
    return (before and before.sha256) == (now and now.sha256)


def _record(given: Given, verdict: Verdict) -> None:
    try:
        inside = json.loads(given.record_path.read_bytes())
    except (OSError, ValueError) as error:
        verdict.problem(f"{given.record_path}: expected the record of this image, found none that can be read: {error}")
        return
    if inside != given.record:
        keys = [key for key in {**inside, **given.record} if inside.get(key) != given.record.get(key)]
        verdict.problem(f"{given.record_path}: expected the record of this image, found another: {', '.join(keys)}")
