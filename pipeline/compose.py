"""Compose the tree: sources, overlays and patches in the manifest's order, with a record of where each file came from.

Order is part of the contract. A source or overlay that would overwrite a file which an earlier patch changed is an
error naming both; so is an overlay over any existing file, a step whose digest is not the locked one, and an import
that no file of the tree can answer.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import yaml

from pipeline import imports, patches, pins
from pipeline.console import step
from pipeline.documents import ComposeStep, FileEntry, Record
from pipeline.errors import ComposeError, ManifestError, PinError
from pipeline.files import BUILD, PROJECT, new_folder, write_atomic
from pipeline.manifest import DirPin, Line, OverlayLayer, PatchesLayer, SourceLayer

OVERLAYS = PROJECT / "overlays"
PATCHES = PROJECT / "patches"


@dataclass
class Composed:
    """The composed tree in memory."""

    files: dict[str, bytes]
    upstream: dict[str, bytes]
    """Per file that is not untouched from the first source: its bytes as the last source brought it, before any
    patch. Files of overlays have none. What differs from these is our own writing."""
    record: Record


@dataclass
class Draft:
    """The tree while it grows, with what every file went through."""

    files: dict[str, bytes] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    patched: dict[str, list[str]] = field(default_factory=dict)
    pristine: dict[str, bytes] = field(default_factory=dict)
    extensions: frozenset[str] = frozenset()
    steps: list[ComposeStep] = field(default_factory=list)

    def put(self, path: str, data: bytes) -> bool:
        """Set a file; tell whether its bytes changed."""
        sha256 = hashlib.sha256(data).hexdigest()
        changed = self.hashes.get(path) != sha256
        self.files[path], self.hashes[path] = data, sha256
        return changed

    def bring(self, origin: str, new: Mapping[str, bytes]) -> int:
        """Lay files of a source or overlay; the number of files that changed."""
        for path in new:
            if path in self.patched:
                raise ComposeError(
                    f"{origin} overwrites {path}, which {self.patched[path][-1]} changed before it",
                    do="move the layer before the patches in release.yaml",
                )
        self.origins.update(dict.fromkeys(new, origin))
        return sum(self.put(path, data) for path, data in new.items())

    def close_step(self, name: str, changed: int, note: str | None = None) -> None:
        digest = tree_digest(self.hashes)
        self.steps.append(ComposeStep(name=name, changed=changed, digest=digest, note=note))


def tree_digest(hashes: Mapping[str, str]) -> str:
    """Digest of a tree: sha256 of the lines ``<sha256>  <path>`` in byte order of the paths.

    The lines are those of ``sha256sum``, so that anyone can repeat it:
    ``find sglang -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum``.
    """
    listing = "".join(f"{hashes[path]}  {path}\n" for path in sorted(hashes, key=str.encode))
    return "sha256:" + hashlib.sha256(listing.encode()).hexdigest()


def read_overlay(name: str, overlays: Path = OVERLAYS) -> dict[str, bytes]:
    """Files of a named overlay set; ``README.md`` at its top is for people and stays out."""
    if not (overlays / name).is_dir():
        known = ", ".join(sorted(path.name for path in overlays.glob("*") if path.is_dir())) or "none"
        raise ComposeError(f"overlay {name!r}", expected=f"a folder in {overlays}", found=known, do="correct the name")
    if (overlays / name).is_symlink():
        raise ComposeError(f"{overlays / name}: is a symlink", expected="a folder", do="copy what it points to")
    try:
        files = dict(pins.read_folder(overlays / name).files)
    except PinError as error:
        raise ComposeError(error.what, expected=error.expected, found=error.found, do=error.do) from error
    files.pop("README.md", None)
    return files


def compose(line: Line, build: Path = BUILD, overlays: Path = OVERLAYS, series: Path | None = None) -> Composed:
    """Compose a line in memory; nothing is written outside the cache of pins.

    Raises:
        PinError: an input cannot be had or is not what its hash says.
        ComposeError: see the module's text.
    """
    draft = Draft()
    for _ in grow(draft, line, build, overlays, series or PATCHES / line.name):
        pass
    record = _record(line, draft)
    _prove_lock(line, record)
    _prove_imports(draft, record)
    upstream = {path: draft.pristine[path] for path in _not_untouched(record) if path in draft.pristine}
    return Composed(draft.files, upstream, record)


def grow(draft: Draft, line: Line, build: Path, overlays: Path, series: Path) -> Iterator[str]:
    """Lay one layer or patch after the other on ``draft``; yields the name of each step once it is done."""
    release = line.release
    for layer in release.layers:
        match layer:
            case SourceLayer():
                source = pins.read(release.pins[layer.source], release.base.python_tag, build / "cache")
                _lay_source(draft, layer, source)
                yield draft.steps[-1].name
            case OverlayLayer():
                _lay_overlay(draft, layer.overlay, read_overlay(layer.overlay, overlays))
                yield draft.steps[-1].name
            case PatchesLayer():
                for patch in patches.read_series(series):
                    _lay_patch(draft, patch)
                    yield draft.steps[-1].name


def _not_untouched(record: Record) -> set[str]:
    """Files that a second source, an overlay or a patch brought or changed."""
    first = record.steps[0].name
    return {path for path, entry in record.files.items() if entry.patches or entry.origin != first}


def _lay_source(draft: Draft, layer: SourceLayer, source: pins.SourceTree) -> None:
    chosen: Mapping[str, bytes] = source.files
    note = None
    if layer.files is not None:
        missing = [path for path in layer.files if path not in source.files]
        if missing:
            raise ComposeError(
                f"source:{layer.source}: {missing[0]}",
                expected="the file in that pin",
                found="none",
                do="correct the layer's files in release.yaml",
            )
        chosen = {path: source.files[path] for path in layer.files}
    else:
        draft.extensions = source.extensions
    changed = draft.bring(f"source:{layer.source}", chosen)
    draft.pristine.update(chosen)
    if layer.files is not None:
        note = f"{changed} of {len(chosen)} files differ from the tree before"
    draft.close_step(f"source:{layer.source}", changed, note)


def _lay_overlay(draft: Draft, name: str, files: Mapping[str, bytes]) -> None:
    origin = f"overlay:{name}"
    for path in files:
        if path in draft.files and path not in draft.patched:
            raise ComposeError(
                f"{origin}: {path} exists already, from {draft.origins[path]}",
                expected="new files only",
                do="change an existing file with a patch",
            )
        below = next((str(parent) for parent in PurePosixPath(path).parents if str(parent) in draft.files), None)
        if below is not None:
            raise ComposeError(
                f"{origin}: {path}",
                expected=f"{below} to be a folder",
                found="a file of the tree",
                do="correct the path in the overlay",
            )
    draft.close_step(origin, draft.bring(origin, files))


def _lay_patch(draft: Draft, patch: patches.Patch) -> None:
    for path, data in patches.apply(patch, draft.files).items():
        draft.put(path, data)
        draft.patched.setdefault(path, []).append(patch.name)
    draft.close_step(f"patch:{patch.name}", len(patch.files))


def _record(line: Line, draft: Draft) -> Record:
    return Record(
        line=line.name,
        sources={name: pin.model_dump(mode="json", exclude_none=True) for name, pin in line.release.pins.items()},
        steps=tuple(draft.steps),
        digest=tree_digest(draft.hashes),
        files={
            path: FileEntry(
                sha256=draft.hashes[path], origin=draft.origins[path], patches=tuple(draft.patched.get(path, ()))
            )
            for path in draft.files
        },
    )


def _prove_lock(line: Line, record: Record) -> None:
    """Compare every step with the lock; work in progress (a ``dir`` pin) has none to compare with."""
    if any(isinstance(pin, DirPin) for pin in line.release.pins.values()):
        return
    advice = f"if you meant it: build.py compose --line {line.name} --write-lock"
    locked = line.lock.steps if line.lock else {}
    for number, entry in enumerate(record.steps):
        expected = locked.get(entry.name)
        if expected != entry.digest:
            raise ComposeLockError(
                f"{line.folder / 'lock.yaml'}: tree after {entry.name} (step {number + 1})",
                expected=expected or "no such step",
                found=entry.digest,
                do=advice,
                record=record,
            )
    if list(locked) != [entry.name for entry in record.steps]:
        raise ComposeLockError(
            f"{line.folder / 'lock.yaml'}: steps",
            expected=", ".join(locked),
            found=", ".join(entry.name for entry in record.steps),
            do=advice,
            record=record,
        )


class ComposeLockError(ComposeError):
    """The composed tree is sound but is not the locked one; carries the record for ``--write-lock``."""

    def __init__(self, what: str, *, expected: object, found: object, do: str, record: Record) -> None:
        super().__init__(what, expected=expected, found=found, do=do)
        self.record = record


def _prove_imports(draft: Draft, record: Record) -> None:
    found = imports.check(draft.files, _not_untouched(record), draft.origins, draft.extensions)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ComposeError(
            f"{found[0].text}{more}", do="take the file from the matching source, or add the missing part"
        )


def write(composed: Composed, line: Line, build: Path = BUILD) -> None:
    """Write ``tree/`` and ``record.json`` below ``.build/<line>/``; each appears by rename, the record first.

    Where a run is killed between the two, the record is then not the one of the last verdict, and no later run takes
    what lies there for unchanged.
    """
    out = build / line.name
    with step("Write the tree") as state, new_folder(out / "tree") as draft:
        for path, data in composed.files.items():
            target = draft / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        state.detail = f"{len(composed.files)} files"
        write_atomic(out / "record.json", composed.record.to_json())


def write_lock(line: Line, **entries: object) -> None:
    """Replace top-level entries of the line's ``lock.yaml`` (``steps``, ``base``), keeping the others."""
    if not line.folder.is_dir():
        raise ManifestError(str(line.folder), expected="a folder", found="none")
    lock = line.lock.model_dump(mode="json", exclude_none=True) if line.lock else {}
    document = {"steps": {}, **lock, **entries}
    header = "# Written by build.py compose --write-lock and build.py base build --write-lock. Do not edit.\n"
    text = header + yaml.safe_dump(document, sort_keys=False, width=200)
    write_atomic(line.folder / "lock.yaml", text.encode())
