"""Edit a patch as a commit: a git work tree of the composed layers and patches, and the way back into the series.

The work tree lies in ``.build/<line>/worktree`` and is a repository of its own: one commit per layer, then one per
patch, whose message is its DEP-3 header. Whatever is committed on top of a patch's commit becomes part of that patch.
The series is written only when every patch of it is proven to apply exactly; then all files change or none does.
"""

import datetime
import difflib
import hashlib
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from pydantic import BaseModel

from pipeline import git, patches
from pipeline.compose import OVERLAYS, PATCHES, Draft, grow, tree_digest
from pipeline.console import step, warn
from pipeline.errors import ComposeError
from pipeline.files import BUILD, new_folder, write_atomic
from pipeline.manifest import Line, PatchesLayer
from pipeline.patch_text import Change
from pipeline.patches import Patch
from pipeline.replay import Conflict, apply, is_made_for, leftover_markers, replay

WHY = "<why: what goes wrong, for whom, where in the source, with evidence>"
"""Stands in the header of a new patch until someone says why."""
SETTINGS = {
    "user.name": "patch series",
    "user.email": "series@localhost",
    "core.autocrlf": "false",
    "core.hooksPath": "/dev/null",
    "core.quotePath": "false",
    "commit.gpgSign": "false",
    "diff.renames": "false",
    "merge.renames": "false",
    "gc.auto": "0",
}
"""What a person's own git must do here, whatever their configuration says elsewhere."""
ATTRIBUTES = "* diff=python -text -eol -ident -filter -working-tree-encoding !merge\n"
UNMERGED = {"DD", "AU", "UD", "UA", "DU", "AA", "UU"}
RESUME = "resolve the marked places, `git add` the files, then build.py patch export"


class State(BaseModel):
    """What a work tree stands for; kept inside its ``.git``."""

    names: tuple[str, ...]
    """Patches that export writes, in order."""
    base: str
    """Commit below the first of them."""
    made: str
    """Commit that was checked out; another HEAD means work that is not exported."""
    inputs: str
    """Digest of the tree below and of the diffs from there on, as they were then."""
    done: tuple[str, ...] = ()
    """Commits of the first patches, which are replayed already; work goes on at the one after them."""
    resolving: bool = False
    new: bool = False
    drops: dict[str, str] = {}
    """Patches to be dropped once the others are replayed, each with its reason."""

    @property
    def below(self) -> str:
        """Commit below the patch that is worked on."""
        return self.done[-1] if self.done else self.base

    @property
    def name(self) -> str:
        """The patch that is worked on."""
        return self.names[len(self.done)]


class Worktree:
    """The work tree of a line and the series that it is made of."""

    def __init__(self, line: Line, build: Path = BUILD, overlays: Path = OVERLAYS, series: Path | None = None) -> None:
        self.line = line
        self.build = build
        self.overlays = overlays
        self.series = series or PATCHES / line.name
        self.folder = build / line.name / "worktree"

    def edit(self, name: str) -> None:
        """Make the work tree of everything up to a patch.

        Raises:
            ComposeError: no such patch, one that does not apply, or a work tree with work that is not exported.
        """
        series = patches.read_series(self.series)
        index = self._find(series, name)
        self._require_no_work()
        below, commits = self._layers(index)
        with step(f"Work tree of {series[index].name}"), new_folder(self.folder) as repository:
            state = self._start(repository, below, commits, series[index:])
            change = apply(series[index], below.files)
            made = git.commit(repository, state.base, [(change.header, change.after)])[0]
            _save(repository, state.model_copy(update={"made": made}))
            git.text(repository, "reset", "--quiet", "--hard", made)

    def new(self, name: str, description: str) -> None:
        """Make the work tree of the whole series, with an empty commit for a new patch on top.

        Raises:
            ComposeError: a bad or known name, a series that does not compose, or work that is not exported.
        """
        series = patches.read_series(self.series)
        name = _file_name(name)
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*\.patch", name) or name in [patch.name for patch in series]:
            raise ComposeError(f"patch name {name!r}", expected="a new name of a-z, 0-9, dot, _ and -", do="change it")
        self._require_no_work()
        below, commits = self._layers(len(series))
        today = datetime.date.today().isoformat()
        header = f"Description: {' '.join(description.split())}\n {WHY}\nOrigin: vendor\nForwarded: no\n"
        with step(f"Work tree for {name}"), new_folder(self.folder) as repository:
            state = self._start(repository, below, commits, [])
            made = git.commit(repository, state.base, [(f"{header}Last-Update: {today}\n".encode(), {})])[0]
            _save(repository, state.model_copy(update={"made": made, "names": (name,), "new": True}))
            git.text(repository, "reset", "--quiet", "--hard", made)

    def export(self) -> list[Path]:
        """Write the series back from the work tree; the files that changed.

        Raises:
            ComposeError: uncommitted work, a change that no patch may hold, or later patches in conflict with it; then
                the work tree holds the conflict, and the next export goes on from there.
        """
        state, below, on_disk = self._opened()
        known = {patch.name: patch for patch in on_disk}
        changes = [*self._done(state, known), self._work(state, known.get(state.name))]
        return self._go_on(state, state, below, on_disk, changes)

    def _opened(self) -> tuple[State, Draft, list[Patch]]:
        """The state, the tree below the first patch that is to be written, and that patch and those after it on disk.

        Raises:
            ComposeError: no work tree, or one that was made for other layers or patches.
        """
        state = self._load()
        series = patches.read_series(self.series)
        first = len(series) if state.new else min(self._find(series, name) for name in (*state.drops, *state.names))
        below, _ = self._layers(first)
        if state.inputs != _digest(below, series[first:]):
            raise ComposeError(
                f"{self.series}: the layers or patches changed since this work tree was made",
                do="undo that change, export, then make it again",
            )
        return state, below, series[first:]

    def _done(self, state: State, known: Mapping[str, Patch]) -> list[Change]:
        """The patches that are replayed already."""
        pairs = zip(state.names, (state.base, *state.done), state.done, strict=False)
        return [self._change(name, self._kept(known[name], above), below, above) for name, below, above in pairs]

    def _go_on(
        self, before: State, state: State, below: Draft, on_disk: Sequence[Patch], changes: list[Change]
    ) -> list[Path]:
        """Replay the patches after ``changes`` and write them all; the files that changed.

        Args:
            before: what the work tree goes back to when a conflict cannot be laid out.
            on_disk: the patches from the first one that is written or dropped.
        """
        known, worked = {patch.name: patch for patch in on_disk}, len(changes)
        rest = [known[name] for name in state.names[worked:]]
        try:
            _replay(changes, rest, below.files, _origins(on_disk, below.files))
        except Conflict as conflict:
            done = git.commit(self.folder, state.base, [(change.header, change.after) for change in changes])
            try:
                self._show(self.folder, state.model_copy(update={"done": tuple(done)}), conflict)
            except BaseException:  # above all Ctrl-C: the work is as it was, in one commit
                _save(self.folder, before)
                git.text(self.folder, "reset", "--quiet", "--hard", done[worked - 1] if worked else state.base)
                raise
            raise self._stopped(conflict) from conflict
        written = self._write(changes, below.files, state.drops)
        if not changes:
            shutil.rmtree(self.folder)
            return written
        commits = git.commit(self.folder, state.base, [(change.header, change.after) for change in changes])
        inputs = _digest(below, [patch for patch in patches.read_series(self.series) if patch.name in state.names])
        _save(self.folder, State(names=state.names, base=state.base, made=commits[0], inputs=inputs))
        git.text(self.folder, "reset", "--quiet", "--hard", commits[0])
        return written

    def refresh(self) -> str:
        """Put every patch at its place in the current tree again; the difference that this makes to the patch files.

        Raises:
            ComposeError: a hunk whose place is not certain. The patches before it are written, the work tree holds it.
        """
        series = patches.read_series(self.series)
        self._require_no_work()
        below, _ = self._layers(0)
        changes: list[Change] = []
        try:
            _replay(changes, series, below.files, {})
        except Conflict as conflict:
            self._write(changes, below.files)
            at = len(changes)
            here, commits = self._layers(at)
            with new_folder(self.folder) as repository:
                state = self._start(repository, here, commits, patches.read_series(self.series)[at:])
                self._show(repository, state, conflict)
            raise self._stopped(conflict) from conflict
        self._write(changes, below.files)
        return "".join(_difference(patch, (self.series / patch.name).read_bytes()) for patch in series)

    def drop(self, names: Sequence[str], why: str) -> list[Path]:
        """Remove patches, put the others at their places, and write the reason into ``CHANGELOG.md`` beside the series.

        A patch that a replay stopped at is dropped in the middle of it: its conflict is gone, and the replay goes on.

        Raises:
            ComposeError: no reason, or a hunk of another patch whose place is not certain; the work tree then holds it.
        """
        series = patches.read_series(self.series)
        dropped = [series[self._find(series, name)].name for name in names]
        if not why.strip():
            raise ComposeError(f"drop {', '.join(dropped)}", expected="a reason", found="none", do="say --why")
        if self.folder.exists() and (state := self._load()).resolving and dropped == [state.name]:
            return self._drop_in_conflict(state.name, why)
        self._require_no_work()
        below, commits = self._layers(0)
        drops = {patch.name: why for patch in series if patch.name in dropped}
        kept = [patch for patch in series if patch.name not in drops]
        changes: list[Change] = []
        try:
            _replay(changes, kept, below.files, _origins(series, below.files))
        except Conflict as conflict:
            with new_folder(self.folder) as repository:
                state = self._start(repository, below, commits, series)
                done = git.commit(repository, state.base, [(change.header, change.after) for change in changes])
                extra = {"names": tuple(patch.name for patch in kept), "done": tuple(done), "drops": drops}
                self._show(repository, state.model_copy(update=extra), conflict)
            raise self._stopped(conflict) from conflict
        return self._write(changes, below.files, drops)

    def _drop_in_conflict(self, name: str, why: str) -> list[Path]:
        before, below, on_disk = self._opened()
        names = tuple(each for each in before.names if each != name)
        state = before.model_copy(update={"names": names, "drops": {**before.drops, name: why}})
        changes = self._done(state, {patch.name: patch for patch in on_disk})
        return self._go_on(before, state, below, on_disk, changes)

    def _find(self, series: Sequence[Patch], name: str) -> int:
        names = [patch.name for patch in series]
        if _file_name(name) not in names:
            raise ComposeError(
                f"patch {name!r}", expected=f"one of {self.series / 'series'}", found=", ".join(names) or "none there"
            )
        return names.index(_file_name(name))

    def _layers(self, count: int) -> tuple[Draft, list[tuple[bytes, Mapping[str, bytes]]]]:
        """The tree below the patch number ``count`` (from 0), and message and files of the commits that lead to it."""
        layers = self.line.release.layers
        before = next((number for number, layer in enumerate(layers) if isinstance(layer, PatchesLayer)), None)
        if before is None:
            raise ComposeError(f"{self.line.folder / 'release.yaml'}: layers", expected="- patches: series")
        headers = {f"patch:{patch.name}": patch.split[0] for patch in patches.read_series(self.series)}
        draft, seen = Draft(), dict[str, bytes]()
        commits: list[tuple[bytes, Mapping[str, bytes]]] = []
        with step("Layers and patches below"):
            for name in islice(grow(draft, self.line, self.build, self.overlays, self.series), before + count):
                changed = {path: data for path, data in draft.files.items() if seen.get(path) is not data}
                commits.append((headers.get(name, name.encode()), changed))
                seen = dict(draft.files)
        return draft, commits

    def _write(
        self, changes: Iterable[Change], files: Mapping[str, bytes], drops: Mapping[str, str] = MappingProxyType({})
    ) -> list[Path]:
        """Prove that the patches apply one after the other; only then write what differs from the files on disk."""
        tree, wanted = dict(files), dict[Path, bytes | None]()
        for change in changes:
            patch = patches.parse_patch(change.name, change.data, change.name)
            for path, result in patches.apply(patch, tree).items():
                if result != change.after[path]:
                    raise ComposeError(f"{patch.name}: {path}: is not what the work tree holds", do="report this")
            tree.update(change.after)
            wanted[self.series / patch.name] = patch.data
        series = self.series / "series"
        wanted[series] = _series(
            series.read_text(encoding="utf-8"), [change.name for change in changes], drops
        ).encode()
        if drops:
            log = self.series / "CHANGELOG.md"
            wanted |= {self.series / name: None for name in drops}
            wanted[log] = _changelog(log.read_text(encoding="utf-8") if log.exists() else "", drops).encode()
        old = {path: path.read_bytes() if path.exists() else None for path in wanted}
        changed = {path: data for path, data in wanted.items() if data != old[path]}
        try:
            _put(changed)
        except BaseException:
            _put({path: old[path] for path in changed})
            raise
        return list(changed)

    def _require_no_work(self) -> None:
        if not self.folder.exists():
            return
        state = self._load()
        if state.resolving or git.status(self.folder) or git.head(self.folder) != state.made:
            raise ComposeError(
                f"{self.folder}: holds work on {state.name} that is not exported",
                do="build.py patch export, or remove that folder",
            )

    def _load(self) -> State:
        try:
            return State.model_validate_json((self.folder / ".git" / "series.json").read_bytes())
        except (FileNotFoundError, ValueError) as error:
            made = self.folder.exists()
            raise ComposeError(
                str(self.folder),
                expected="a work tree made by build.py patch edit",
                found="another folder" if made else "none",
                do="remove it" if made else "build.py patch edit NAME makes one",
            ) from error

    def _start(
        self,
        repository: Path,
        below: Draft,
        commits: list[tuple[bytes, Mapping[str, bytes]]],
        series: Sequence[Patch],
    ) -> State:
        """A fresh repository with the commits below a patch."""
        git.text(repository, "init", "--quiet", "--initial-branch=series", "--template=")
        for key, value in SETTINGS.items():
            git.text(repository, "config", key, value)
        (repository / ".git" / "info").mkdir()
        (repository / ".git" / "info" / "attributes").write_text(ATTRIBUTES)
        (repository / ".git" / "info" / "exclude").write_text("__pycache__/\n")
        base = git.commit(repository, None, commits)[-1]
        names = tuple(patch.name for patch in series)
        return State(names=names, base=base, made=base, inputs=_digest(below, series))

    def _work(self, state: State, on_disk: Patch | None) -> Change:
        """What the work tree makes of the patch that is worked on.

        Raises:
            ComposeError: work that is not committed (not added, after a conflict), or that no patch may hold.
        """
        where = f"{self.folder}: {state.name}"
        for code, path in git.status(self.folder):
            if code in UNMERGED:
                raise ComposeError(f"{where}: {path} is still in conflict", do=f"there: {RESUME}")
            if not state.resolving:
                raise ComposeError(
                    f"{where}: {path} is not committed", do="there: git commit --all --amend, or undo it"
                )
            if code[1] != " ":
                raise ComposeError(f"{where}: {path} is changed but not added", do="there: `git add` it, or undo it")
        tree = git.text(self.folder, "write-tree")
        if git.run(self.folder, "merge-base", "--is-ancestor", state.below, "HEAD").returncode:
            raise ComposeError(
                f"{where}: HEAD {git.head(self.folder)[:12]}",
                expected=f"commits on top of {state.below[:12]}",
                do="what lies below is edited by a `patch edit` of its own; go back by git reflog",
            )
        header = self._header(state, on_disk)
        change = self._change(state.name, header, state.below, tree)
        if WHY in header.decode("utf-8", "replace"):
            raise ComposeError(f"{where}: the header does not say why", do="there: git commit --amend, fill it in")
        if marked := leftover_markers(change):
            raise ComposeError(f"{where}: {marked[0]} has conflict markers", do=f"there: {RESUME}")
        return change

    def _header(self, state: State, on_disk: Patch | None) -> bytes:
        """The header on disk, byte for byte, unless the message of the patch's own commit was changed."""
        made = git.message(self.folder, state.made)
        own = git.text(self.folder, "rev-list", "--first-parent", "--reverse", f"{state.below}..HEAD").split()
        message = git.message(self.folder, own[0]) if own else made
        if on_disk and (state.resolving or message == made):
            return on_disk.split[0]
        return message + b"\n\n"

    def _kept(self, on_disk: Patch, commit: str) -> bytes:
        """The header of a patch that is replayed already: with its bytes on disk, where it says the same."""
        words = git.message(self.folder, commit)
        return on_disk.split[0] if git.clean(on_disk.split[0]) == words else words + b"\n\n"

    def _change(self, name: str, header: bytes, below: str, above: str) -> Change:
        """The difference of two commits or trees; text files may change, and nothing else."""
        rows = git.text(self.folder, "diff-tree", "-r", "-z", "--raw", "--no-renames", below, above).split("\0")[:-1]
        before, after = dict[str, bytes](), dict[str, bytes]()
        for row, path in zip(rows[::2], rows[1::2], strict=True):
            old_mode, new_mode, old, new, _ = row.lstrip(":").split(" ")
            where = f"{name}: {path}"
            if not int(old, 16):
                raise ComposeError(f"{where}: is a new file", do="put it into overlays/<set>/, named in release.yaml")
            if not int(new, 16):
                raise ComposeError(f"{where}: is deleted", expected="changes inside existing text files")
            if new_mode != old_mode:
                raise ComposeError(f"{where}: mode", expected=old_mode, found=new_mode, do="there: chmod it back")
            before[path], after[path] = (git.blob(self.folder, object_id) for object_id in (old, new))
        return Change(name, header, before, after)

    def _show(self, repository: Path, state: State, conflict: Conflict) -> None:
        """Leave a conflict as git leaves one: markers in the files, three versions in the index."""
        state = state.model_copy(update={"resolving": True, "made": state.below})
        _save(repository, state)  # first: if this is cut off, export sees that HEAD does not belong to it
        git.text(repository, "reset", "--quiet", "--hard", state.below)
        rows = [f"100644 {git.store(repository, data)} 0\t{path}\n" for path, data in conflict.merged.items()]
        for path, file in conflict.files.items():
            rows.append(f"0 {'0' * 40}\t{path}\n")
            versions = (file.base, file.ours, file.theirs)
            rows += [
                f"100644 {git.store(repository, data)} {stage}\t{path}\n"
                for stage, data in enumerate(versions, 1)
                if data is not None
            ]
        git.text(repository, "update-index", "--index-info", data="".join(rows).encode())
        shown = dict(conflict.merged) | {path: file.marked for path, file in conflict.files.items()}
        for path, data in shown.items():
            (repository / path).parent.mkdir(parents=True, exist_ok=True)  # the folder may be gone with the file
            (repository / path).write_bytes(data)

    def _stopped(self, conflict: Conflict) -> ComposeError:
        for problem in conflict.problems:
            warn(problem)
        count = len(conflict.problems)
        places = "1 place" if count == 1 else f"{count} places"
        return ComposeError(f"{conflict.patch.name}: conflict in {places}", do=f"in {self.folder}: {RESUME}")


def _file_name(name: str) -> str:
    return name if name.endswith(".patch") else f"{name}.patch"


def _digest(below: Draft, series: Sequence[Patch]) -> str:
    digest = hashlib.sha256(tree_digest(below.hashes).encode())
    for patch in series:
        digest.update(patch.name.encode() + b"\n" + hashlib.sha256(patch.split[1]).digest())
    return digest.hexdigest()


def _origins(series: Iterable[Patch], files: Mapping[str, bytes]) -> dict[str, Change]:
    """The patches on disk as changes of the files for which they were written, as far as they still apply."""
    tree, origins = dict(files), dict[str, Change]()
    for patch in series:
        try:
            change = apply(patch, tree)
        except ComposeError:
            break
        if is_made_for(patch, tree):  # it may fit others by chance
            origins[patch.name] = change
        tree.update(change.after)
    return origins


def _replay(
    changes: list[Change], rest: Iterable[Patch], files: Mapping[str, bytes], origins: Mapping[str, Change]
) -> None:
    """Append ``rest`` to ``changes``, which start on ``files``."""
    tree = dict(files)
    for change in changes:
        tree.update(change.after)
    for patch in rest:
        changes.append(replay(patch, tree, origins.get(patch.name), files))
        tree.update(changes[-1].after)


def _series(text: str, names: Iterable[str], drops: Collection[str]) -> str:
    """The series with its comments, without the dropped lines, with new names at its end."""
    lines = text.splitlines()
    listed = [line.split("#")[0].strip() for line in lines]
    kept = [line for line, name in zip(lines, listed, strict=True) if name not in drops or not name]
    return "".join(f"{line}\n" for line in [*kept, *(name for name in names if name not in listed)])


def _changelog(text: str, drops: Mapping[str, str]) -> str:
    title = "# Patches that were dropped, and why\n"
    today = datetime.date.today().isoformat()
    entries = [f"\n## {today}: {name}\n\n{why.strip()}\n" for name, why in drops.items()]
    return title + "".join(entries) + text.removeprefix(title)


def _put(files: Mapping[Path, bytes | None]) -> None:
    for path, data in files.items():
        if data is None:
            path.unlink(missing_ok=True)
        else:
            write_atomic(path, data)


def _difference(patch: Patch, data: bytes) -> str:
    old, new = ([line.decode("utf-8", "replace") for line in patches.split_lines(text)] for text in (patch.data, data))
    return "".join(difflib.unified_diff(old, new, f"a/{patch.name}", f"b/{patch.name}", n=1))


def _save(repository: Path, state: State) -> None:
    write_atomic(repository / ".git" / "series.json", state.model_dump_json(indent=2).encode() + b"\n")
