"""Derive the draft of the 1M profile: the native draft's weights untouched, its RoPE settings those of the target.

The 1M revision of the target stretches its positions by YaRN. A draft that still has its native RoPE sees other angles
than the target; nothing fails, drafts are merely no longer accepted. Only ``config.json`` and the card differ from the
source; ``derived.json`` and ``README.md`` say what was made from which revision.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.checkpoint import rope
from pipeline.checkpoint.checkpoint import CARD, CONFIG, Checkpoint, config_text, dump, load
from pipeline.checkpoint.rules.card import CardError, front_matter
from pipeline.checkpoint.source import Source, hub_errors, open_folder, open_source
from pipeline.console import note, step, warn
from pipeline.documents import Document, Sha256
from pipeline.errors import CheckpointError
from pipeline.files import new_folder, write_atomic
from pipeline.manifest import HubRevision
from pipeline.templates import render

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

DRAFTS_OWN = frozenset({"rope_theta", "rope_dim", "partial_rotary_factor", "mrope_section", "mrope_interleaved"})
"""RoPE settings that belong to the trained attention of each model; all others say how positions are stretched."""
NOTE = "derived.json"
REPLACED = frozenset({CONFIG, CARD})
NEEDED = (".safetensors", ".json")
"""Endings of what a folder must hold of the pinned revision; a card or a licence may be missing."""


class Derived(Document):
    """``derived.json``: what a derived draft was made from."""

    source: HubRevision | None
    """None: a folder of unknown revision, allowed by ``--any-revision``."""
    target: HubRevision | None
    """None: a folder."""
    rope_before: dict[str, Any]
    rope_after: dict[str, Any]
    max_position_embeddings: int
    files: dict[str, Sha256]
    """SHA-256 of every file taken over unchanged."""


class _Origin(NamedTuple):
    """The native draft, on this machine."""

    folder: Path
    revision: HubRevision | None
    files: dict[str, str]
    """SHA-256 of what is taken over, the config and the card included."""


def derive(
    source: str,
    out: Path,
    *,
    pinned: HubRevision,
    target: str,
    any_revision: bool,
    check: Callable[[Path], object],
) -> Derived:
    """Write the 1M draft into ``out``, which must not exist; it appears whole and checked, or not at all.

    Args:
        source: folder or Hub id of the native draft.
        pinned: what ``source`` must be; a folder is compared with the Hub's list of that revision.
        target: folder or Hub id whose config holds the YaRN settings.
        any_revision: take any source; what is known of its revision is noted.
        check: called with the finished folder before it gets its name; what it raises stops the derivation.

    Raises:
        CheckpointError: ``source`` is not ``pinned``, ``target`` has no YaRN settings, or a file cannot be had.
    """
    if out.exists() or out.is_symlink():
        raise CheckpointError(f"{out} exists", do="remove it, or name another folder")
    stretched = open_source(target)
    with step(f"Compare {source} with its revision"):
        origin = _hub_origin(source, pinned, any_revision) or _folder_origin(Path(source), pinned, any_revision)
    native = _config(open_folder(origin.folder))
    config = with_rope_of(native, _config(stretched))
    derived = Derived(
        source=origin.revision,
        target=HubRevision(repository=stretched.name, revision=stretched.revision) if stretched.revision else None,
        rope_before=rope_settings(native.config)[1],
        rope_after=rope_settings(config)[1],
        max_position_embeddings=config["max_position_embeddings"],
        files={name: digest for name, digest in sorted(origin.files.items()) if name not in REPLACED},
    )
    with new_folder(out) as draft:
        linked = [
            name for name, digest in derived.files.items() if take_over(origin.folder / name, draft / name, digest)
        ]
        note(f"{len(linked)} of {len(derived.files)} files are hard links to the source, the others are equal copies")
        write_atomic(draft / CONFIG, dump(config, like=config_text(native.source)).encode())
        write_atomic(draft / NOTE, json.dumps(derived.model_dump(mode="json"), indent=2).encode() + b"\n")
        write_atomic(draft / CARD, _card(derived, origin.folder).encode())
        check(draft)
    return derived


def rope_settings(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The key that holds a language model's RoPE settings, and the settings.

    Raises:
        CheckpointError: settings per kind of layer, which no draft of this kind has.
    """
    key = next((key for key in ("rope_parameters", "rope_scaling") if config.get(key)), "rope_scaling")
    settings = config.get(key) or {}
    if not isinstance(settings, dict) or any(isinstance(value, dict) for value in settings.values()):
        raise CheckpointError(f"{CONFIG}: {key}", expected="one set of settings", found=json.dumps(settings)[:120])
    return key, settings


def with_rope_of(draft: Checkpoint, target: Checkpoint) -> dict[str, Any]:
    """The draft's config with the target's YaRN settings and number of positions; all else, and its order, stays.

    Raises:
        CheckpointError: the target is not stretched by YaRN, or the draft is stretched already.
    """
    native, stretched = rope.read(draft.config), rope.read(target.text_config)
    if native is None or native.kind != "default":
        raise CheckpointError(f"{draft.source}/{CONFIG}", expected="native RoPE", found=native or "no positions")
    if stretched is None or stretched.kind != "yarn":
        do = "name the long-context revision with --target"
        raise CheckpointError(f"{target.source}/{CONFIG}", expected="YaRN", found=stretched or "no positions", do=do)
    key, own = rope_settings(draft.config)
    wanted = rope_settings(target.text_config)[1]
    settings = {name: value for name, value in own.items() if name in DRAFTS_OWN}
    settings |= {name: value for name, value in wanted.items() if name not in DRAFTS_OWN}
    return {**draft.config, key: settings, "max_position_embeddings": stretched.positions}


def take_over(source: Path, target: Path, sha256: str) -> bool:
    """Link ``source`` as ``target``, or copy it where file systems do not share links; whether it is a link.

    Raises:
        CheckpointError: the copy is not what ``source`` was when it was compared.
    """
    real = source.resolve()
    try:
        os.link(real, target)
    except OSError:
        shutil.copyfile(real, target)
    if (found := file_sha256(target)) != sha256:
        raise CheckpointError(f"{source} changed while it was read", expected=sha256, found=found, do="start again")
    return target.samefile(real)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _config(source: Source) -> Checkpoint:
    found = load(source, config_only=True)
    if problems := [problem for problems in found.problems.values() for problem in problems]:
        raise CheckpointError(f"{source}: {problems[0]}", do="restore it")
    return found


def _hub_origin(source: str, pinned: HubRevision, any_revision: bool) -> _Origin | None:
    """Fetch a Hub repository's revision; None when ``source`` is a folder."""
    opened = open_source(source)
    if opened.revision is None:
        return None
    revision = HubRevision(repository=opened.name, revision=opened.revision)
    if revision != pinned and not any_revision:
        raise _not_pinned(str(opened), pinned)
    from huggingface_hub import snapshot_download

    with hub_errors(str(opened)):
        folder = Path(snapshot_download(opened.name, revision=opened.revision))
    return _Origin(folder, revision, _equal_files(folder, revision, str(opened)))


def _folder_origin(folder: Path, pinned: HubRevision, any_revision: bool) -> _Origin:
    if not any_revision:
        return _Origin(folder, pinned, _equal_files(folder, pinned, f"{folder}"))
    names = [name for name in open_folder(folder).sizes if not name.startswith(".") and name != NOTE]
    return _Origin(folder, None, {name: file_sha256(folder / name) for name in names})


def _equal_files(folder: Path, revision: HubRevision, what: str) -> dict[str, str]:
    """Hashes of the folder's files that the revision lists; each is compared with what the Hub says of it.

    Raises:
        CheckpointError: a weight or a JSON file is missing, or a file has other bytes.
    """
    found: dict[str, str] = {}
    for entry in _listed(revision):
        path = folder / entry.path
        if entry.path.startswith("."):
            continue
        if not path.is_file():
            if entry.path.endswith(NEEDED):
                raise _not_pinned(what, revision, f"no {entry.path}")
            continue
        found[entry.path] = file_sha256(path)
        if not _same(path, found[entry.path], entry):
            raise _not_pinned(what, revision, f"another {entry.path}")
    return found


def _listed(revision: HubRevision) -> list["RepoFile"]:
    """Files of the top folder with their hashes, from the Hub."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    with hub_errors(f"{revision.repository}@{revision.revision}"):
        entries = list(HfApi().list_repo_tree(revision.repository, revision=revision.revision))
    return [entry for entry in entries if isinstance(entry, RepoFile)]


def _same(path: Path, sha256: str, entry: "RepoFile") -> bool:
    """Whether a file is the listed one: by SHA-256 for LFS, else by git's own id."""
    if entry.lfs is not None:
        return sha256 == entry.lfs.sha256
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() == entry.blob_id


def _not_pinned(what: str, pinned: HubRevision, found: str | None = None) -> CheckpointError:
    return CheckpointError(
        f"{what}: not the pinned draft",
        expected=f"{pinned.repository}@{pinned.revision}",
        found=found,
        do="take that revision, or say --any-revision",
    )


def _card(derived: Derived, folder: Path) -> str:
    """The card: what it is and what it was made from, with licence and base model from the source's card."""
    try:
        data = front_matter((folder / CARD).read_text(encoding="utf-8")) if (folder / CARD).is_file() else {}
    except (CardError, UnicodeDecodeError) as error:
        warn(f"{folder / CARD}: {error}; no licence is taken over")
        data = {}
    about = {key: data[key] for key in ("license", "license_name", "license_link", "base_model") if key in data}
    if derived.source:
        about["base_model"] = derived.source.repository
    return render("draft-1m.md.j2", derived=derived, about=about)
