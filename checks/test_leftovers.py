"""Nothing of the workshop is left in what we added: no diagnostics, no backup files, no refused package."""

import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib.metadata import distributions
from pathlib import Path, PurePosixPath

from checks.files import walk
from checks.given import Given
from checks.verdict import Verdict

IPEX = "intel-extension-for-pytorch"
IPEX_WHY = "XPU support is in torch itself and that package has ended"
_IPEX_IMPORT = re.compile(r"\b(?:import|from)\s+intel_extension_for_pytorch\b|import_module\(\W*intel_extension_for")


def test_leftovers(given: Given, verdict: Verdict) -> None:
    """Paths of our layer and new files; lines that we added; the deliberately absent package."""
    added = list(_added_lines(given))
    paths = sorted({*_layer_paths(given), *_new_paths(given)})
    for path in paths:
        _judge_path(path, given, verdict)
    for place, text in added:
        for rule in given.leftover_content:
            if re.search(rule.pattern, text):
                verdict.problem(f"{place}: {rule.reason}: {text.strip()[:120]!r}")
    if IPEX not in {_normal(name) for name in given.allows}:
        _refuse_ipex(given, added, verdict)
    files = sum(given.ours(path) for path in given.files)
    verdict.conclude(
        f"clean: paths of ours: {len(paths)}, lines of ours: {len(added)}, files looked at: {files}; "
        f"{IPEX} {'is allowed by the base' if IPEX in map(_normal, given.allows) else 'is absent'}"
    )


def _layer_paths(given: Given) -> Iterator[str]:
    """Paths of our layers relative to ``/``, without those that upstream named."""
    root = str(given.package_root).strip("/") + "/"
    for entry in given.layer_paths:
        path = entry.strip("/")
        if not given.exists_upstream(path.removeprefix(root)):
            yield path


def _new_paths(given: Given) -> Iterator[str]:
    """Files below the package root that neither the base nor upstream has, relative to ``/``."""
    root = str(given.package_root).strip("/")
    for path in walk(given.package_root, problems=[]):  # what cannot be listed is the tree check's to tell
        if path not in given.inventory and not given.exists_upstream(path):
            yield f"{root}/{path}"


def _judge_path(path: str, given: Given, verdict: Verdict) -> None:
    root, record = str(given.package_root).strip("/"), str(given.record_path).strip("/")
    if not (f"{path}/").startswith(f"{root}/") and not any(
        f"{home}/".startswith(f"{path}/") for home in (root, record)
    ):
        verdict.problem(f"{path}: the layer carries it, expected only {root}/ and {record}")
        return
    for rule in given.leftover_paths:
        if path_matches(rule.pattern, PurePosixPath(path)):
            verdict.problem(f"{path}: {rule.reason} ({rule.pattern})")


def path_matches(pattern: str, path: PurePosixPath) -> bool:
    """A pattern ending in ``/`` is for any folder on the way, another for the last part."""
    if pattern.endswith("/"):
        return any(fnmatchcase(part, pattern[:-1]) for part in path.parent.parts)
    return fnmatchcase(path.name, pattern)


def _added_lines(given: Given) -> Iterator[tuple[str, str]]:
    """``file:line`` and text of the lines that the image has more often than upstream's file."""
    for path in sorted(given.files):
        if given.ours(path):
            known = Counter(_lines(given.upstream / path))
            for number, text in enumerate(_lines(given.package_root / path), 1):
                if known[text] > 0:
                    known[text] -= 1
                else:
                    yield f"{path}:{number}", text


def _lines(path: Path) -> list[str]:
    """Lines of a file; none when it does not exist (a new file upstream, a missing one in the image)."""
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []


def _refuse_ipex(given: Given, added: list[tuple[str, str]], verdict: Verdict) -> None:
    for distribution in distributions():
        if _normal(distribution.name or "") == IPEX:
            verdict.problem(f"{IPEX} {distribution.version} is installed: {IPEX_WHY}; expected a base without it")
    folder = given.package_root / IPEX.replace("-", "_")
    if folder.exists():
        verdict.problem(f"{folder} exists: {IPEX_WHY}; expected a base without it")
    for place, text in added:
        if _IPEX_IMPORT.search(text):
            verdict.problem(f"{place}: imports {IPEX}: {IPEX_WHY}; found {text.strip()[:120]!r}")


def _normal(name: str) -> str:
    """The normalised name of a distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
