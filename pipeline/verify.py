"""Verification of a release: rebuilt here from what its record names, or read back from its registry.

A row says ``same`` only for what was really compared. A local base is one state of Debian's mirror: where another one
lies here, or none, base, config and manifest are ``not compared``, and that is no pass.
"""

import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from pipeline import base as bases
from pipeline import compose as composing
from pipeline import image as images
from pipeline import inventory, patches, published, release_record, stages
from pipeline.base import BaseImage
from pipeline.compose import Composed, ComposeLockError
from pipeline.console import note, step
from pipeline.documents import ComposeStep, Document, Record, ReleasedImage, ReleaseRecord
from pipeline.errors import VerifyError
from pipeline.files import BUILD
from pipeline.manifest import MANIFESTS, DirPin, GitPin, Line, Lock, Pin, PublishedBase, Release, lines, load_line
from pipeline.oci import Image, digest_bytes
from pipeline.published import Published, reading
from pipeline.registry import Registry

LISTED = 20
"""Files that a verification names; the rest is counted."""


class Outcome(StrEnum):
    """How one comparison ended."""

    SAME = "same"
    DIFFERS = "differs"
    NOT_COMPARED = "not compared"


class Comparison(Document):
    """One row: a part of the image, and whether it is the recorded one."""

    part: str
    outcome: Outcome
    detail: str


class Verification(Document):
    """The verdict on one record or reference."""

    of: str
    """File or reference as it was given."""
    image: str
    """Digest of the manifest that the verdict is on."""
    rows: tuple[Comparison, ...]
    files: tuple[str, ...] = ()
    """Files that differ, the first :data:`LISTED`."""

    @property
    def verified(self) -> bool:
        """Whether every part was compared and is the recorded one."""
        return all(row.outcome is Outcome.SAME for row in self.rows)

    def require(self) -> None:
        """Refuse anything but a verdict on every part.

        Raises:
            VerifyError: naming the parts that differ, or else those that were not compared.
        """
        if self.verified:
            return
        worst = Outcome.DIFFERS if any(row.outcome is Outcome.DIFFERS for row in self.rows) else Outcome.NOT_COMPARED
        parts = ", ".join(row.part for row in self.rows if row.outcome is worst)
        raise VerifyError(f"{self.of}: {parts}", expected="same", found=worst, do="docs/verify.md says what it means")


@dataclass(frozen=True)
class Claim:
    """What is to be proven, from a release record or from an image that has none."""

    line: str
    pins: dict[str, dict[str, Any]]
    steps: tuple[ComposeStep, ...]
    image: ReleasedImage
    release: ReleaseRecord | None
    published: Published | None
    """The image as its registry serves it, where the claim was read from there."""

    @property
    def commit(self) -> str:
        """Where to go for the same inputs."""
        if self.release is None or self.release.commit is None:
            return "check out the commit that it was released from"
        changed = ", from which the folder differed when it was released" if self.release.dirty else ""
        return f"check out commit {self.release.commit}{changed}"


def verify(target: str, build: Path = BUILD, manifests: Path = MANIFESTS) -> Verification:
    """Rebuild what ``target`` (a record's file, or a reference) names, and compare part by part.

    Raises:
        VerifyError: the record or the image cannot be read, or names what cannot be rebuilt.
        PipelineError: of a stage that cannot do its part here.
    """
    build.mkdir(parents=True, exist_ok=True)
    # Beside the base: the layout's blobs are linked, not copied.
    with tempfile.TemporaryDirectory(dir=build, prefix=".verify.") as scratch:
        claim = _claim(target, Path(scratch))
        line = _recorded_line(claim, manifests)
        rows, files = _compare(claim, line, build, Path(scratch))
        return Verification(of=target, image=claim.image.digest, rows=tuple(rows), files=tuple(files))


def verify_remote(reference: str) -> Verification:
    """Read back what a registry serves: tag, digest, release record, the record in our layer, the files beside it.

    Needs nothing of this project's history, and reads no base layer.

    Raises:
        VerifyError: the registry fails, or what it serves is no image of this pipeline.
    """
    repository, name = published.parse_reference(reference)
    with tempfile.TemporaryDirectory(prefix="verify.") as scratch, Registry(repository) as registry:
        with step(f"Read {reference}"):
            found = published.read(registry, name, Path(scratch))
            record = _release_record(registry, found)
        wrong = published.wrong_files(found)
        rows = [
            _row("digest", True, f"{name} is {found.image.digest}"),
            _record_row(found, record),
            _tree_row(found),
            _row("files", not wrong, f"{len(found.members)} entries of our layer" if not wrong else _count(wrong)),
        ]
    return Verification(of=reference, image=found.image.digest, rows=tuple(rows), files=tuple(wrong[:LISTED]))


def _row(part: str, same: bool, detail: str) -> Comparison:
    return Comparison(part=part, outcome=Outcome.SAME if same else Outcome.DIFFERS, detail=detail)


def _digest_row(part: str, recorded: str, found: str) -> Comparison:
    return _row(part, recorded == found, found if recorded == found else f"recorded {recorded}, here {found}")


def _not_compared(part: str, why: str) -> Comparison:
    return Comparison(part=part, outcome=Outcome.NOT_COMPARED, detail=why)


def _count(wrong: list[str]) -> str:
    return wrong[0] if len(wrong) == 1 else f"{wrong[0]} (and {len(wrong) - 1} more)"


# -- what a registry serves ------------------------------------------------------------------------------------


def _release_record(registry: Registry, found: Published) -> ReleaseRecord | None:
    """The newest release record that refers to the image."""
    with reading():
        records = release_record.fetch(registry, found.image.digest)
    return max(records, key=lambda record: record.recorded_at, default=None)


def _image_of(found: Published) -> ReleasedImage:
    """The objects of an image as its own manifest, config and record state them."""
    labels = found.image.labels
    try:
        return ReleasedImage(
            digest=found.image.digest,
            config=found.image.config_digest,
            layer=found.image.layers[-1].digest,
            tree=found.record.digest,
            base=labels["org.opencontainers.image.base.digest"],
            base_kind=labels[bases.LABEL_KIND],
            base_name=labels["org.opencontainers.image.base.name"],
        )
    except (KeyError, ValidationError):
        raise VerifyError(
            f"{found.reference}: labels",
            expected="base digest, name and kind",
            found="an image without them",
            do="name an image that this pipeline released",
        ) from None


def _record_row(found: Published, record: ReleaseRecord | None) -> Comparison:
    if record is None:
        return _not_compared("release record", "the registry has none for this digest")
    stated, served = (image.model_dump() for image in (record.image, _image_of(found)))
    wrong = [
        f"{name}: recorded {stated[name]}, served {served[name]}" for name in stated if stated[name] != served[name]
    ]
    if record.pins != found.record.sources:
        wrong.append("pins: not those of the record inside the image")
    if record.steps != found.record.steps:
        wrong.append("steps: not those of the record inside the image")
    commit = f"commit {record.commit}" if record.commit else "no commit"
    return _row("release record", not wrong, _count(wrong) if wrong else f"of {record.recorded_at}, {commit}")


def _tree_row(found: Published) -> Comparison:
    """The record inside the image lists the tree that it names, and so does the label."""
    listed = published.own_digest(found.record)
    for where, stated in (
        ("label", found.image.labels.get("io.sglang-xpu.tree.digest", "none")),
        ("last step", found.record.steps[-1].digest if found.record.steps else "none"),
        ("record", found.record.digest),
    ):
        if stated != listed:
            return _row("tree", False, f"{where}: expected {listed}, the digest of the files listed, found {stated}")
    return _row("tree", True, f"{listed}, {len(found.record.files)} files listed")


# -- what a rebuild gives --------------------------------------------------------------------------------------


def _claim(target: str, scratch: Path) -> Claim:
    if Path(target).is_file():
        with reading():
            record = release_record.read(Path(target))
        return Claim(record.line, record.pins, record.steps, record.image, record, None)
    repository, name = published.parse_reference(target)
    with step(f"Read {target}"), Registry(repository) as registry:
        found = published.read(registry, name, scratch)
        record_there = _release_record(registry, found)
    inside, image = found.record, _image_of(found)
    if record_there is not None and record_there.image != image:
        raise VerifyError(
            f"{found.reference}: release record",
            expected="that of this image",
            found=f"one of {record_there.image.digest}",
            do=f"build.py verify --remote {target} says where they part",
        )
    return Claim(inside.line, inside.sources, inside.steps, image, record_there, found)


def _recorded_line(claim: Claim, manifests: Path) -> Line:
    """The line of this checkout with the recorded pins, and with the recorded steps in the place of its lock."""
    if claim.line not in lines(manifests):  # the name may be anybody's: it must not lead out of the folder
        known = ", ".join(lines(manifests))
        raise VerifyError("recorded line", expected=known, found=repr(claim.line), do=claim.commit)
    line = load_line(claim.line, manifests)
    document = line.release.model_dump(exclude_none=True) | {"pins": claim.pins}
    try:
        release = Release.model_validate(document)
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise VerifyError(
            f"{line.folder / 'release.yaml'} with the recorded pins: {problem}", do=claim.commit
        ) from None
    known_urls = {pin.url for pin in line.release.pins.values() if isinstance(pin, GitPin)}
    for name, pin in release.pins.items():
        _require_fetchable(name, pin, known_urls)
    lock = Lock(steps={entry.name: entry.digest for entry in claim.steps})
    return line.model_copy(update={"release": release, "lock": lock})


def _require_fetchable(name: str, pin: Pin, known_urls: set[str]) -> None:
    """A recorded pin is fetched on a stranger's word: by https, or from a repository that the checkout names too."""
    if isinstance(pin, DirPin):
        raise VerifyError(
            f"pin {name}", expected="a version or a commit", found="work in progress (kind dir)", do="release it again"
        )
    if isinstance(pin, GitPin) and pin.url not in known_urls and not pin.url.startswith("https://"):
        raise VerifyError(f"pin {name}", expected="an https URL", found=pin.url, do="do not fetch from there")


def table(found: Verification) -> Table:
    """The verdict for people."""
    colours = {Outcome.SAME: "green", Outcome.DIFFERS: "red", Outcome.NOT_COMPARED: "yellow"}
    made = Table("part", "outcome")
    made.add_column("detail", overflow="fold")
    for row in found.rows:
        made.add_row(Text(row.part), f"[{colours[row.outcome]}]{row.outcome}[/]", Text(row.detail))
    return made


PARTS = ("tree", "base", "layer", "config", "manifest")


def _compare(claim: Claim, line: Line, build: Path, scratch: Path) -> tuple[list[Comparison], list[str]]:
    inputs = _inputs(claim, line)
    if inputs.outcome is Outcome.DIFFERS:
        return [inputs, *(_not_compared(part, "the inputs are not the recorded ones") for part in PARTS)], []
    with step("Compose the recorded tree"):
        composed, tree = _tree(claim, line, build)
    if not isinstance(composed, Composed):
        rest = (_not_compared(part, "the tree differs") for part in PARTS[1:])
        return [inputs, tree, *rest], _changed_files(composed, claim, scratch)
    base, base_row = _base(claim, line, build)
    if base is None:
        rest = (_not_compared(part, "needs the base") for part in PARTS[2:])
        return [inputs, tree, base_row, *rest], []
    image = images.build(line, composed, base, scratch / "image")
    rows = [_digest_row("layer", claim.image.layer, image.layers[-1].digest)]
    rows += [_digest_row("config", claim.image.config, image.config_digest)]
    rows += [_digest_row("manifest", claim.image.digest, image.digest)]
    if base_row.outcome is not Outcome.SAME:
        # A part that is equal all the same is proven; one that is not says nothing.
        rows = [row if row.outcome is Outcome.SAME else _not_compared(row.part, "the base is another") for row in rows]
    files = _changed_parts(image, claim, scratch) if any(row.outcome is Outcome.DIFFERS for row in rows) else []
    return [inputs, tree, base_row, *rows], files


def _inputs(claim: Claim, line: Line) -> Comparison:
    """Patches, and everything else that a line is made from, against what the record hashed."""
    series = patches.read_series(composing.PATCHES / line.name)
    here = {patch.name: digest_bytes(patch.data).removeprefix("sha256:") for patch in series}
    if claim.release is None:
        names = [entry.name.removeprefix("patch:") for entry in claim.steps if entry.name.startswith("patch:")]
        same = names == list(here)
        detail = "patches by name: no release record has hashes" if same else f"patches: {', '.join(names) or 'none'}"
        return _row("inputs", same, detail if same else f"recorded {detail}, here {', '.join(here) or 'none'}")
    recorded = claim.release.patches
    for name in {**recorded, **here}:
        if recorded.get(name) != here.get(name):
            what = f"recorded {recorded.get(name, 'none')}, here {here.get(name, 'none')}"
            return _row("inputs", False, f"patch {name}: {what}; {claim.commit}")
    found = stages.manifest_digest(load_line(line.name, line.folder.parent))
    if claim.release.manifest != found:
        detail = f"manifest of {line.name}: recorded {claim.release.manifest}, here {found}; {claim.commit}"
        return _row("inputs", False, detail)
    return _row("inputs", True, f"patches ({len(here)}) and the manifest")


def _tree(claim: Claim, line: Line, build: Path) -> tuple[Composed | Record, Comparison]:
    """The composed tree, or its record alone when it is not the recorded one."""
    try:
        composed = composing.compose(line, build, prove_files=False)
    except ComposeLockError as error:
        recorded = {entry.name: entry.digest for entry in claim.steps}
        for entry in error.record.steps:
            if recorded.get(entry.name) != entry.digest:
                detail = f"after {entry.name}: recorded {recorded.get(entry.name, 'no such step')}, here {entry.digest}"
                return error.record, _row("tree", False, detail)
        missing = list(recorded)[len(error.record.steps) :]
        return error.record, _row("tree", False, f"recorded steps that are none here: {', '.join(missing)}")
    detail = f"{len(composed.record.steps)} steps, {claim.image.tree}"
    same = composed.record.digest == claim.image.tree
    return composed, _row(
        "tree", same, detail if same else f"recorded {claim.image.tree}, here {composed.record.digest}"
    )


def _base(claim: Claim, line: Line, build: Path) -> tuple[BaseImage | None, Comparison]:
    """The base of this checkout, where it can be had without building one."""
    recorded, base = claim.image, line.release.base
    if isinstance(base, PublishedBase):
        if not base.reference.endswith(f"@{recorded.base}"):
            return None, _row("base", False, f"recorded {recorded.base}, the manifest names {base.reference}")
        if inventory.load(recorded.base, build) is None:
            bases.read_inventory(base, build)
        return bases.get(line, build), _row("base", True, f"{recorded.base}, by digest from its registry")
    if recorded.base_kind != base.kind:
        return None, _row("base", False, f"recorded a {recorded.base_kind} base, the manifest names a {base.kind} base")
    if not bases.cached(line, build):
        return None, _not_compared("base", "no local base lies here; build.py base build makes one")
    built = bases.get(line, build)
    if built.image.digest != recorded.base:
        why = "a local base is equal only on one state of Debian's mirror"
        return built, _not_compared("base", f"{why}: recorded {recorded.base}, here {built.image.digest}")
    return built, _row("base", True, f"{recorded.base}, built here")


# -- what differs ----------------------------------------------------------------------------------------------


def _served(claim: Claim, scratch: Path) -> Published | None:
    """The recorded image as its registry serves it; without it differences cannot be told by file."""
    if claim.published is not None or claim.release is None:
        return claim.published
    try:
        repository, digest = published.parse_reference(f"{claim.release.repository}@{claim.image.digest}")
        with Registry(repository) as registry:
            return published.read(registry, digest, scratch)
    except VerifyError as error:
        note(f"files are not listed: {error.line()}")
        return None


def _changed_files(record: Record, claim: Claim, scratch: Path) -> list[str]:
    """Files of the tree that are not the recorded ones, the first :data:`LISTED`."""
    served = _served(claim, scratch)
    if served is None:
        return []
    ours = {path: entry.sha256 for path, entry in record.files.items()}
    theirs = {path: entry.sha256 for path, entry in served.record.files.items()}
    return _first(_differences(theirs, ours))


def _changed_parts(image: Image, claim: Claim, scratch: Path) -> list[str]:
    """Files of our layer and keys of the config that are not the recorded ones, the first :data:`LISTED`."""
    served = _served(claim, scratch)
    if served is None:
        return []
    ours = published.read_members(image.blob(image.layers[-1].digest))
    found = [f"/{row}" for row in _differences(served.members, ours)]
    found += [f"config: {row}" for row in _differences(_flat(served.image.config), _flat(image.config))]
    return _first(found)


def _differences(recorded: dict[str, Any], here: dict[str, Any]) -> list[str]:
    words = {(True, False): "recorded only", (False, True): "here only", (True, True): "differs"}
    names = sorted(name for name in {**recorded, **here} if recorded.get(name) != here.get(name))
    return [f"{name}: {words[name in recorded, name in here]}" for name in names]


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """An image's config with its inner part's keys and labels beside the outer ones."""
    inner = config.get("config") or {}
    labels = {f"Labels.{name}": value for name, value in (inner.get("Labels") or {}).items()}
    rest = {name: json.dumps(value, sort_keys=True) for name, value in (config | inner).items()}
    return {name: value for name, value in rest.items() if name not in ("config", "Labels")} | labels


def _first(rows: Iterable[str]) -> list[str]:
    found = list(rows)
    if len(found) > LISTED:
        note(f"{len(found)} differences; the first {LISTED} are listed")
    return found[:LISTED]
