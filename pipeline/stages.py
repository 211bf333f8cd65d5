"""The stages of the line as the commands chain them, on the project's own folders."""

import contextlib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pipeline import base as bases
from pipeline import bootstrap, check, check_data, engine, git, inventory, patches, release_record
from pipeline import compose as composing
from pipeline import image as images
from pipeline import release as releases
from pipeline.base import BaseImage
from pipeline.compose import PATCHES, Composed
from pipeline.console import note, step, warn
from pipeline.documents import CheckReport, Inventory, Record, canonical_json
from pipeline.errors import EngineError, ImageError, ReleaseError
from pipeline.files import BUILD, PROJECT, write_atomic
from pipeline.gate import Candidate
from pipeline.manifest import CpuBase, DirPin, Line, OverlayLayer, PublishedBase, PypiPin, SourceLayer, load_line
from pipeline.oci import Image, digest_bytes, digest_file, digest_tree
from pipeline.pins import describe
from pipeline.registry import Repository
from pipeline.store import Engine

Model = TypeVar("Model", bound=BaseModel)


def require_space(line: Line, build: Path = BUILD) -> None:
    """Refuse to start what cannot end.

    Raises:
        HostError: too little space for the build folder.
    """
    bootstrap.require_space(build, bootstrap.SPACE_LATER if is_cached(line, build) else bootstrap.SPACE_FIRST)


def is_cached(line: Line, build: Path = BUILD) -> bool:
    """Whether the line's base is at hand."""
    return bases.cached(line, build)


def plan(line: Line, build: Path = BUILD) -> list[tuple[str, str, str]]:
    """Rows (stage, what, state) of everything that an image of this line goes through."""
    rows: list[tuple[str, str, str]] = []
    for name, pin in line.release.pins.items():
        rows.append(("pin", f"{name}: {describe(pin)}", _pin_state(pin, line, build)))
    for layer in line.release.layers:
        match layer:
            case SourceLayer():
                files = f"{len(layer.files)} files" if layer.files is not None else "whole"
                rows.append(("layer", f"source {layer.source}", files))
            case OverlayLayer():
                count = len(composing.read_overlay(layer.overlay))
                rows.append(("layer", f"overlay {layer.overlay}", f"{count} files"))
            case _:
                for patch in patches.read_series(PATCHES / line.name):
                    rows.append(("patch", patch.name, patch.summary))
    base = line.release.base
    what = base.reference if isinstance(base, PublishedBase) else f"cpu: Debian {base.suite}, {base.requirements}"
    rows.append(("base", what, "cached" if is_cached(line, build) else "to be made"))
    if line.lock and line.lock.xpu_base:
        rows.append(("base", f"xpu: {line.lock.xpu_base}", "pushed by base build xpu"))
    status = engine.status(build)
    rows.append(("engine", f"{status.kind}: {status.host}", "running" if status.running else "not running"))
    rows.append(("check", ", ".join(check.expected_checks(check.CHECKS)), "in the image, no network"))
    pinned, moving = releases.tags(line, base.kind)
    rows.append(("tags", f"{pinned}, then {moving}", "pushed by release only"))
    return rows


def _pin_state(pin: Any, line: Line, build: Path) -> str:
    if isinstance(pin, DirPin):
        return "work in progress: never releasable"
    if isinstance(pin, PypiPin):
        folder = build / "cache" / "sha256" / pin.sha256.get(line.release.base.python_tag, "none")
        return "cached" if any(folder.glob("*.whl")) else "to be fetched"
    return "from its repository"


def manifest_digest(line: Line, project: Path = PROJECT) -> str:
    """Digest of what the line is made from: its manifest folder with the lock, patches, overlays and recipes.

    A pin of kind ``dir`` enters by its path alone: its files may change unseen, which is why it is never released.
    """
    overlays = [layer.overlay for layer in line.release.layers if isinstance(layer, OverlayLayer)]
    folders = {f"manifests/{line.name}": line.folder}
    names = [f"patches/{line.name}", "recipes/cpu", *(f"overlays/{name}" for name in overlays)]
    return digest_tree(folders | {name: project / name for name in names})


def inputs(line: Line, project: Path = PROJECT) -> str | None:
    """Digest of every file that decides what an image of this line is and how it is judged.

    None when a pin is a folder of work in progress, which is too large to hash for this.
    """
    if any(isinstance(pin, DirPin) for pin in line.release.pins.values()):
        return None
    code = digest_tree({name: project / name for name in ("pipeline", "checks", "requirements.lock")})
    return digest_bytes(canonical_json([manifest_digest(line, project), code]))


def unchanged(line: Line, build: Path = BUILD, project: Path = PROJECT) -> CheckReport | None:
    """The passed report on the image that lies there, if nothing changed since that would make another of either."""
    out = build / line.name
    try:
        known = (out / "inputs").read_text()
        report = CheckReport.model_validate_json((out / "check-report.json").read_bytes())
        record = Record.model_validate_json((out / "record.json").read_bytes())
        image = Image.load(out / "image")
    except (OSError, ValueError, ImageError):
        return None
    same = known == inputs(line, project) and report.passed
    same = same and (image.digest, record.digest) == (report.image, report.tree)
    return report if same and is_cached(line, build) else None


def remember(line: Line, report: CheckReport, build: Path = BUILD, project: Path = PROJECT) -> None:
    """Keep what :func:`unchanged` compares with, if the report is one to stand by."""
    state = inputs(line, project)
    if report.passed and state is not None:
        write_atomic(build / line.name / "inputs", state.encode())


def compose_tree(line: Line, *, write_lock: bool = False, build: Path = BUILD) -> Composed:
    """Compose and write tree and record."""
    with step("Compose the tree") as state:
        if write_lock:
            composing.accept(line, build)
            line = load_line(line.name, line.folder.parent)
        composed = composing.compose(line, build)
        touched = sum(1 for entry in composed.record.files.values() if entry.patches)
        state.detail = f"{len(composed.files)} files, {touched} patched, {composed.record.digest[:19]}"
    for entry in composed.record.steps:
        if entry.note:
            note(f"  {entry.name}: {entry.note}")
    composing.write(composed, line, build)
    return composed


def get_base(line: Line, *, write_lock: bool = False, build: Path = BUILD) -> BaseImage:
    """The base, compared with the locked one: a rebuilt local base may differ, and then is used and reported."""
    base = bases.get(line, build)
    locked = line.lock.base if line.lock else None
    if write_lock:
        entry = {"digest": base.image.digest, "debian": base.inventory.debian, "python": base.inventory.python}
        composing.write_lock(line, base=entry)
    elif locked is None or locked.digest != base.image.digest:
        _report_difference(line, base, locked)
    return base


def _report_difference(line: Line, base: BaseImage, locked: Any) -> None:
    lock_file = line.folder / "lock.yaml"
    if locked is None:
        warn(f"{lock_file}: has no base; found {base.image.digest}; build.py base build --write-lock accepts it")
        return
    changes = inventory.difference(locked.debian, base.inventory.debian)
    changes += inventory.difference(locked.python, base.inventory.python)
    what = f"{len(changes)} packages differ: {'; '.join(changes[:20])}" if changes else "no package version differs"
    warn(f"{lock_file}: base: expected {locked.digest}, found {base.image.digest}; used all the same; {what}")


def take_inventory(line: Line, build: Path = BUILD) -> Inventory:
    """The inventory of the line's base; a published base's layers are streamed from its registry once."""
    base = line.release.base
    if isinstance(base, CpuBase):
        return bases.get(line, build).inventory
    digest = base.reference.rpartition("@")[2]
    return inventory.load(digest, build) or bases.read_inventory(base, build)


def build_image(line: Line, composed: Composed, base: BaseImage, build: Path = BUILD) -> Image:
    """Write the OCI layout."""
    return images.build(line, composed, base, build / line.name / "image")


def check_image(line: Line, composed: Composed, base: BaseImage, image: Image, build: Path = BUILD) -> CheckReport:
    """Load the image into an engine, run the checks in it, and write report and JUnit XML.

    Without an engine every check is ``not_run``; the report says why.
    """
    record = composed.record
    if image.labels.get("io.sglang-xpu.tree.digest") != record.digest:
        raise ImageError(
            f"{image.layout}: tree",
            expected=record.digest,
            found=image.labels.get("io.sglang-xpu.tree.digest"),
            do="the image is of other inputs: run build.py image",
        )
    out = build / line.name
    (out / "check-report.json").unlink(missing_ok=True)  # a verdict on another image must not survive this one
    given = images.facts(line, record, base, image) | check_data.input_parts(line)
    subject = check.Subject(base.kind, base.image.digest, record.digest, manifest_digest(line))
    try:
        with step("Container engine"):
            running = engine.find_or_start(build)
        with contextlib.closing(running.client):
            load(running, image, base)
            outcome = check.run_checks(
                running, image, given, composed.upstream, check.CHECKS, subject=subject, log=out / "check.log"
            )
    except EngineError as error:
        outcome = check.not_run(image, subject, error.line())
    check.write_outcome(outcome, out)
    return outcome.report


def load(running: Engine, image: Image, base: BaseImage) -> str:
    """Put the image into the engine, the base's blobs once, our layer each time; return its tag."""
    kept = load_base(running, base)
    tag = running.ensure_image(image, "image", base.image)
    running.remove_ours(keep=[kept, tag])
    return tag


def load_base(running: Engine, base: BaseImage) -> str:
    """Put a base into the engine, unless it is there; return its tag."""
    if base.kind == "published":
        return running.pull_base(base.image, base.name, "base")
    return running.ensure_base(base.image, "base")


def candidate(line: Line, build: Path = BUILD, project: Path = PROJECT) -> Candidate:
    """What lies in the build folder, with the state of the project's own folder beside it.

    Raises:
        ImageError, ReleaseError: there is no image, or a document of another version beside it.
    """
    out = build / line.name
    image = Image.load(out / "image")
    record = _document(out / "record.json", Record, "build.py image")
    if record is None:
        raise ReleaseError(f"{out / 'record.json'}: no such file", do="build.py image")
    # A record is an output of releases: one that is not committed yet says nothing about the image.
    commit, changed = git.checked_out(project)
    changed = tuple(path for path in changed if not path.startswith(f"{release_record.FOLDER}/"))
    return Candidate(
        line=line,
        image=image,
        record=record,
        report=_document(out / "check-report.json", CheckReport, "build.py check"),
        manifest=manifest_digest(line, project),
        checks_digest=check.checks_digest(project / "checks"),
        patches=_patch_hashes(project / "patches" / line.name),
        commit=commit,
        changed=changed,
    )


def _patch_hashes(folder: Path) -> dict[str, str]:
    names = [patch.name for patch in patches.read_series(folder)] if folder.is_dir() else []
    return {name: digest_file(folder / name).removeprefix("sha256:") for name in names}


def _document(path: Path, model: type[Model], again: str) -> Model | None:
    """A document of the build folder, None where there is none."""
    if not path.is_file():
        return None
    try:
        return model.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ReleaseError(f"{path}: of another version: {where}: {first['msg']}", do=again) from error


def release_image(
    line: Line, repository: str, *, allow_dirty: bool, dry_run: bool, build: Path = BUILD, project: Path = PROJECT
) -> tuple[releases.ReleaseResult, Path | None]:
    """Release what was built and checked, and keep the record; the record's file."""
    with contextlib.ExitStack() as stack:

        def find_engine() -> Engine:
            running = engine.find_or_start(build)
            stack.enter_context(contextlib.closing(running.client))
            return running

        result = releases.release(
            candidate(line, build, project), repository, find_engine, allow_dirty=allow_dirty, dry_run=dry_run
        )
    if result.record is None:
        return result, None
    is_loopback = Repository.parse(repository).is_loopback
    return result, release_record.write(result.record, release_record.folder(line.name, is_loopback, build, project))
