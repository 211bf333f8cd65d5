"""What changes between two upstream trees beside the text of our patches: files, environment variables, launch flags.

Each change says who of us uses the name, so that a vanished flag of a profile is told from one that nobody sets. Both
trees are read as text; nothing of them is imported or run.
"""

import ast
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal

from pipeline import environment_variables, launch_flags
from pipeline.documents import Document
from pipeline.files import PROJECT
from pipeline.imports import sources
from pipeline.launch_flags import LaunchFlag
from pipeline.manifest import Line, OverlayLayer, SourceLayer

SPECULATIVE = ("sglang/srt/speculative/", "sglang/kernels/ops/speculative/")
"""Folders whose files are compared when a file of the second source imports them."""
MOVED_SIMILARITY = 0.5
"""How much of a file must be found again under the same name elsewhere to call it moved."""
ANY_VALUE = "any value"


class FileChange(Document):
    """A file of DFlash2, or one that such a file imports."""

    path: str
    status: Literal["same", "changed", "vanished", "moved", "new"]
    why: str
    """Which source lists it, or which file imports it."""
    added: int = 0
    removed: int = 0
    to: str | None = None
    """Of a moved file: where it is now."""


class NameChange(Document):
    """A variable or flag that is not what it was."""

    name: str
    what: Literal["vanished", "default", "choices"]
    old: str
    """Default before; of choices, those that are gone."""
    new: str = ""
    """Default now; of choices, those that came."""
    used_by: tuple[str, ...] = ()
    """Who of us names it; nobody when empty."""


class NameChanges(Document):
    """All variables, or all flags."""

    before: int
    after: int
    new: int
    """How many names came; they harm nobody and are only counted."""
    changes: tuple[NameChange, ...] = ()
    """Those that we use come first."""
    not_compared: tuple[str, ...] = ()
    """What could not be read from the source, one sentence each."""

    @property
    def ours(self) -> tuple[NameChange, ...]:
        """The changes that concern us."""
        return tuple(change for change in self.changes if change.used_by)


class UpstreamChanges(Document):
    """The comparison of two trees."""

    files: tuple[FileChange, ...]
    variables: NameChanges
    flags: NameChanges


def compare(
    old: Mapping[str, bytes], new: Mapping[str, bytes], files: Mapping[str, str], uses: Mapping[str, str]
) -> UpstreamChanges:
    """Compare two trees, both without any patch of ours.

    Args:
        files: files of the second source to the source's name, see :func:`second_source`.
        uses: who of us, to the text that names variables and flags, see :func:`uses_of`.
    """
    return UpstreamChanges(
        files=tuple(_files(old, new, files)), variables=_variables(old, new, uses), flags=_flags(old, new, uses)
    )


def second_source(line: Line) -> dict[str, str]:
    """Files that sources after the first one bring, each with the name of its source."""
    layers = [layer for layer in line.release.layers if isinstance(layer, SourceLayer)]
    return {path: layer.source for layer in layers for path in layer.files or ()}


def uses_of(line: Line, project: Path = PROJECT) -> dict[str, str]:
    """Texts of a line that may name a variable or a flag: manifest, profiles, the page, overlays, patches."""
    found = {"release.yaml": "\n".join(line.release.variables)}
    for name, profile in line.profiles.profiles.items():
        if profile.image is None:
            flags = [f"--{flag}" for flag in (*profile.flags, *profile.without_draft)]
            found[f"profile {name}"] = "\n".join([*profile.environment, *flags])
    paths = [project / "docs/environment.md", *sorted((project / "patches" / line.name).glob("*.patch"))]
    for layer in line.release.layers:
        if isinstance(layer, OverlayLayer):
            paths += sorted((project / "overlays" / layer.overlay).rglob("*.py"))
    found |= {str(path.relative_to(project)): path.read_text(encoding="utf-8") for path in paths if path.is_file()}
    return found


def _used_by(name: str, uses: Mapping[str, str]) -> tuple[str, ...]:
    word = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
    return tuple(who for who, text in uses.items() if word.search(text))


def _ours_first(changes: Iterable[NameChange]) -> tuple[NameChange, ...]:
    return tuple(sorted(changes, key=lambda change: (not change.used_by, change.what, change.name)))


def _variables(old: Mapping[str, bytes], new: Mapping[str, bytes], uses: Mapping[str, str]) -> NameChanges:
    before, after = environment_variables.read(old), environment_variables.read(new)
    gaps = _unread("variable", f"{environment_variables.DECLARATIONS} and os.environ", before, after)
    there = environment_variables.mentioned(new, before.keys() - after.keys())
    changes: list[NameChange] = []
    for name, default in () if gaps else before.items():
        now = after.get(name)
        if now is None and name not in there:
            changes.append(NameChange(name=name, what="vanished", old=default, used_by=_used_by(name, uses)))
        elif default and now and not environment_variables.same(default, now):
            changes.append(NameChange(name=name, what="default", old=default, new=now, used_by=_used_by(name, uses)))
    return NameChanges(
        before=len(before),
        after=len(after),
        new=len(after.keys() - before.keys()),
        changes=_ours_first(changes),
        not_compared=gaps,
    )


def _flags(old: Mapping[str, bytes], new: Mapping[str, bytes], uses: Mapping[str, str]) -> NameChanges:
    before, after = launch_flags.read(old), launch_flags.read(new)
    gaps = _unread("flag", launch_flags.PARSER, before, after)
    both = () if gaps else sorted(before.keys() & after.keys())
    changes = [change for name in both for change in _flag(before[name], after[name], uses)]
    changes += [
        NameChange(name=name, what="vanished", old=flag.default, used_by=_used_by(name, uses))
        for name, flag in before.items()
        if name not in after and not gaps
    ]
    computed = [name for name in both if before[name].computed or after[name].computed]
    return NameChanges(
        before=len(before),
        after=len(after),
        new=len(after.keys() - before.keys()),
        changes=_ours_first(changes),
        not_compared=(*gaps, *(f"choices of {name}: made when the server starts" for name in computed)),
    )


def _unread(kind: str, where: str, before: Mapping[str, object], after: Mapping[str, object]) -> tuple[str, ...]:
    """Why nothing can be said, where a tree shows none: not that all of them vanished."""
    sides = [side for side, found in (("old", before), ("new", after)) if not found]
    return tuple(f"every {kind}: none found in {where} of the {side} tree" for side in sides)


def _flag(old: LaunchFlag, new: LaunchFlag, uses: Mapping[str, str]) -> Iterator[NameChange]:
    used = _used_by(old.name, uses)
    if old.default != new.default:
        yield NameChange(name=old.name, what="default", old=old.default, new=new.default, used_by=used)
    if not old.computed and not new.computed and old.choices != new.choices:
        gone, came = _difference(old.choices, new.choices), _difference(new.choices, old.choices)
        yield NameChange(name=old.name, what="choices", old=gone, new=came, used_by=used)


def _difference(choices: tuple[str, ...] | None, other: tuple[str, ...] | None) -> str:
    """What one list has and the other lacks; None takes any value."""
    if choices is None:
        return ANY_VALUE
    return ", ".join(choice for choice in choices if choice not in (other or ()))


def _files(old: Mapping[str, bytes], new: Mapping[str, bytes], files: Mapping[str, str]) -> Iterator[FileChange]:
    whys = {path: f"source {source}" for path, source in files.items()}
    for path in files:
        for tree in (old, new):
            for imported in _imported(tree, path):
                whys.setdefault(imported, f"imported by {path}")
    for path, why in whys.items():
        yield _file(path, why, old, new)


def _file(path: str, why: str, old: Mapping[str, bytes], new: Mapping[str, bytes]) -> FileChange:
    if path not in old and path in new:
        return FileChange(path=path, status="new", why=why, added=len(new[path].splitlines()))
    if path in new:
        added, removed = _counts(old[path], new[path])
        status: Literal["same", "changed"] = "same" if old[path] == new[path] else "changed"
        return FileChange(path=path, status=status, why=why, added=added, removed=removed)
    to = _moved(path, old, new) if path in old else None
    if to is None:
        return FileChange(path=path, status="vanished", why=why)
    added, removed = _counts(old[path], new[to])
    return FileChange(path=path, status="moved", why=why, added=added, removed=removed, to=to)


def _moved(path: str, old: Mapping[str, bytes], new: Mapping[str, bytes]) -> str | None:
    """Where a file went: the same bytes under any name, or most of its lines under its own name elsewhere."""
    came = sorted(new.keys() - old.keys())
    same = next((each for each in came if new[each] == old[path]), None)
    if same is not None:
        return same
    alike = [each for each in came if PurePosixPath(each).name == PurePosixPath(path).name]
    ratios = {each: _matcher(old[path], new[each]).ratio() for each in alike}
    best = max(alike, key=lambda each: ratios[each], default=None)
    return best if best is not None and ratios[best] >= MOVED_SIMILARITY else None


def _matcher(old: bytes, new: bytes) -> difflib.SequenceMatcher[bytes]:
    return difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)


def _counts(old: bytes, new: bytes) -> tuple[int, int]:
    """Lines that came and lines that went."""
    if old == new:
        return 0, 0
    codes = [code for code in _matcher(old, new).get_opcodes() if code[0] != "equal"]
    return sum(code[4] - code[3] for code in codes), sum(code[2] - code[1] for code in codes)


def _imported(tree: Mapping[str, bytes], path: str) -> list[str]:
    """Files of the speculative folders that a file imports, wherever in it."""
    try:
        nodes = list(ast.walk(ast.parse(tree.get(path, b""))))
    except (SyntaxError, ValueError):
        return []
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = sources(path, node)
            names = [f"{module}.{alias.name}" for module in modules for alias in node.names]
            stems = [name.replace(".", "/") for name in (*modules, *names)]
            found |= {each for stem in stems for each in (f"{stem}.py", f"{stem}/__init__.py") if each in tree}
    return sorted(each for each in found if each.startswith(SPECULATIVE))
