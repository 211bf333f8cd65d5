"""Compose the tree: sources, overlays and patches in the manifest's order, with a record of where each file came from.

Order is part of the contract. A source or overlay that would overwrite a file which an earlier patch changed is an
error naming both; so is an overlay over any existing file, a listed file or a step that is not the locked one, and an
import that no file of the tree can answer. Where a file is of another revision than it should be, the error names both.
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
from pipeline.manifest import DirPin, Line, Lock, LockedFiles, OverlayLayer, PatchesLayer, SourceLayer

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


def compose(
    line: Line, build: Path = BUILD, overlays: Path = OVERLAYS, series: Path | None = None, *, prove_files: bool = True
) -> Composed:
    """Compose a line in memory; nothing is written outside the cache of pins.

    Args:
        prove_files: compare the listed files with the lock's; a release record, which has steps alone, is no such lock.

    Raises:
        PinError: an input cannot be had or is not what its hash says.
        ComposeError: see the module's text.
    """
    draft = Draft()
    last = [layer.source for layer in line.release.layers if isinstance(layer, SourceLayer)][-1]
    for name in grow(draft, line, build, overlays, series or PATCHES / line.name):
        if prove_files and name == f"source:{last}":
            _prove_files(line, draft)
    record = _record(line, draft)
    _prove_lock(line, record)
    _prove_imports(line, draft, record)
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
                    _lay_patch(line, draft, patch)
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


def _lay_patch(line: Line, draft: Draft, patch: patches.Patch) -> None:
    try:
        changed = patches.apply(patch, draft.files)
    except patches.MisfitError as error:
        what = f"{error.what}, in the file of {_revision(line, draft.origins[error.path])}"
        if locked := _locked_elsewhere(line, draft, error.path):
            what += f", which {line.folder / 'lock.yaml'} has of {locked}"
        raise ComposeError(what, expected=error.expected, found=error.found, do=error.do) from error
    for path, data in changed.items():
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


def _revision(line: Line, origin: str) -> str:
    """An origin with the revision that it stands for: ``source:dflash2 (sglang==0.5.19)``."""
    kind, _, name = origin.partition(":")
    return f"{origin} ({pins.describe(line.release.pins[name])})" if kind == "source" else origin


def _listed(line: Line, draft: Draft) -> dict[str, LockedFiles]:
    """Per source that lists its files, those that are in the tree from there, as they were before any patch."""
    found: dict[str, LockedFiles] = {}
    for layer in line.release.layers:
        if isinstance(layer, SourceLayer) and layer.files is not None:
            origin = f"source:{layer.source}"
            hashes = {
                path: hashlib.sha256(draft.pristine[path]).hexdigest()
                for path in layer.files
                if draft.origins[path] == origin
            }
            revision = pins.describe(line.release.pins[layer.source])
            found[layer.source] = LockedFiles(revision=revision, sha256=hashes)
    return found


def _locked_elsewhere(line: Line, draft: Draft, path: str) -> str | None:
    """The source and revision that a file should be of, if those are not what it is of."""
    for source, locked in (line.lock.files if line.lock else {}).items():
        there = f"source:{source} ({locked.revision})"
        if path in locked.sha256 and there != _revision(line, draft.origins.get(path, "")):
            return there
    return None


def _is_work_in_progress(line: Line) -> bool:
    """Whether a pin is a folder, which no lock can hold."""
    return any(isinstance(pin, DirPin) for pin in line.release.pins.values())


def _prove_files(line: Line, draft: Draft) -> None:
    """Compare each file that a layer lists with the lock: what it is, and what it was taken from."""
    if _is_work_in_progress(line):
        return
    here, locked = _listed(line, draft), line.lock.files if line.lock else {}
    for source, wanted in locked.items():
        found = here[source].sha256 if source in here else {}
        for path, sha256 in wanted.sha256.items():
            if found.get(path) != sha256:
                raise _other_file(line, draft, path, f"sha256:{sha256} of source:{source} ({wanted.revision})")
    for source, listed in here.items():
        revision = locked[source].revision if source in locked else "no such source"
        for path in listed.sha256:
            if source not in locked or path not in locked[source].sha256:
                raise _other_file(line, draft, path, f"no such file in {line.folder / 'lock.yaml'}")
        if listed.revision != revision:
            raise ComposeError(
                f"{line.folder / 'lock.yaml'}: source:{source}",
                expected=revision,
                found=listed.revision,
                do=_accept(line),
            )


def _other_file(line: Line, draft: Draft, path: str, expected: str) -> ComposeError:
    found = "no such file"
    if path in draft.pristine:
        sha256 = hashlib.sha256(draft.pristine[path]).hexdigest()
        found = f"sha256:{sha256} of {_revision(line, draft.origins[path])}"
    return ComposeError(path, expected=expected, found=found, do=_accept(line))


def _accept(line: Line) -> str:
    return f"if you meant it: build.py compose --line {line.name} --write-lock"


def _prove_lock(line: Line, record: Record) -> None:
    """Compare every step with the lock; work in progress has none to compare with."""
    if _is_work_in_progress(line):
        return
    advice = _accept(line)
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
    """The composed tree is sound but is not the locked one; carries its record."""

    def __init__(self, what: str, *, expected: object, found: object, do: str, record: Record) -> None:
        super().__init__(what, expected=expected, found=found, do=do)
        self.record = record


def _prove_imports(line: Line, draft: Draft, record: Record) -> None:
    origins = {path: _revision(line, origin) for path, origin in draft.origins.items()}
    found = imports.check(draft.files, _not_untouched(record), origins, draft.extensions)
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


def accept(line: Line, build: Path = BUILD, overlays: Path = OVERLAYS, series: Path | None = None) -> None:
    """Write into the lock what the line composes to, unless it is work in progress.

    Raises:
        PinError, ComposeError: as :func:`compose`, but for the lock and for imports.
    """
    draft = Draft()
    for _ in grow(draft, line, build, overlays, series or PATCHES / line.name):
        pass
    if not _is_work_in_progress(line):
        write_lock(line, steps={entry.name: entry.digest for entry in draft.steps}, files=_listed(line, draft))


def write_lock(line: Line, **entries: object) -> None:
    """Replace top-level entries of the line's ``lock.yaml`` (``steps``, ``files``, ``base``), keeping the others."""
    if not line.folder.is_dir():
        raise ManifestError(str(line.folder), expected="a folder", found="none")
    lock = line.lock.model_dump() if line.lock else {"steps": {}}
    document = Lock.model_validate(lock | entries).model_dump(mode="json", exclude_defaults=True)
    header = "# Written by build.py compose --write-lock and build.py base build --write-lock. Do not edit.\n"
    text = header + yaml.safe_dump(document, sort_keys=False, width=200)
    write_atomic(line.folder / "lock.yaml", text.encode())
