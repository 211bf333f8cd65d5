"""Publish a checkpoint, or only its card and config, to the Hub: gated before, one commit, read back and gated again.

What is examined is what readers will get. For a whole checkpoint that is the folder; for ``--card-only`` it is the
published revision with the folder's card and config laid over it, so that a config is judged by the weights that it
will stand beside. The commit names its parent: where somebody else has committed since, the Hub refuses it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.table import Table

from pipeline.card import BEGIN, section, with_section
from pipeline.checkpoint.checkpoint import CARD, CONFIG, INDEX
from pipeline.checkpoint.source import HubSource, LocalSource, Source, hub_errors, open_folder, open_hub
from pipeline.console import note, step
from pipeline.documents import Document
from pipeline.errors import CheckpointError
from pipeline.files import write_atomic
from pipeline.manifest import Line
from pipeline.verdict import Question

CARD_ONLY = (CONFIG, CARD)
LOOK_FIRST = "look whether the repository has a new commit, then start again"
"""What to do when it is not known whether the commit was made."""


class Upload(Document):
    """A file of the folder that goes, or would go, into the commit."""

    path: str
    size: int
    """Bytes."""
    state: Literal["new", "replaced"]
    """Beside the published revision; the Hub itself skips what is equal."""


class Publication(Document):
    """What a publication did, or what a dry run would do."""

    repository: str
    revision: str
    """Branch that the commit goes to."""
    parent: str
    """Commit that was its head when the gate passed."""
    files: tuple[Upload, ...]
    commit: str | None
    """None: dry run."""

    @property
    def size(self) -> int:
        """Bytes of all files; the Hub's client sends less where it knows some of them."""
        return sum(file.size for file in self.files)


@dataclass
class Overlaid(Source):
    """A published revision as it will be once some of its files are exchanged."""

    below: Source = field(kw_only=True)
    above: Source = field(kw_only=True)

    def _read(self, file: str, start: int, stop: int) -> bytes:
        source = self.above if file in self.above.sizes else self.below
        return source.read(file, start, stop - start)


def publish(
    folder: Path,
    repository: str,
    line: Line,
    question: Question,
    *,
    revision: str = "main",
    card_only: bool = False,
    render_card: bool = False,
    push: bool = False,
) -> Publication:
    """Gate ``folder`` and, with ``push``, upload it to ``repository`` in one commit; nothing is ever deleted there.

    Args:
        question: what the gate is asked, before anything is sent and again of what was published.
        revision: branch to commit to; it and the repository must exist.
        render_card: write the rendered section into the folder's card first.

    Raises:
        CheckpointError: the gate refused, the card is not what is rendered, the branch has moved, or the Hub did not
            do what was asked.
    """
    published = open_hub(repository, revision)
    if published.revision is None:
        raise CheckpointError(f"{repository}@{revision}", expected="a commit", found="none")
    local = _local(folder, card_only)
    candidate = _candidate(local, published) if card_only else local
    if render_card:
        _write_section(folder, candidate, section(line, question.case(candidate), repository))
    question.require(candidate, full=not card_only)
    _section_is_current(folder, section(line, question.case(candidate), repository))
    if not card_only:
        _no_leftover_weights(published, local)
    result = Publication(
        repository=repository,
        revision=revision,
        parent=published.revision,
        files=tuple(_uploads(local, published)),
        commit=None,
    )
    if not push:
        return result
    commit = _push(folder, result, card_only)
    _read_back(result, commit, question)
    return result.model_copy(update={"commit": commit})


def _local(folder: Path, card_only: bool) -> LocalSource:
    """The files that would be uploaded.

    Raises:
        CheckpointError: none of them is there, or the folder cannot be listed.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}", expected="a folder", do="name the folder that holds the checkpoint")
    found = open_folder(folder)
    below = [path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    if below and not card_only:
        expected = "files in the top folder only, as the gate reads them"
        raise CheckpointError(f"{folder}", expected=expected, found=f"folder {min(below)}", do="move it elsewhere")
    wanted = CARD_ONLY if card_only else [name for name in found.sizes if not name.startswith(".")]
    found.sizes = {name: found.sizes[name] for name in wanted if name in found.sizes}
    if CARD not in found.sizes:
        raise CheckpointError(f"{folder}: no {CARD}", do="write one: front matter with license and base_model")
    return found


def _candidate(local: LocalSource, published: HubSource) -> Overlaid:
    sizes = {**published.sizes, **local.sizes}
    return Overlaid(f"{local.name} over {published.name}", published.revision, sizes, below=published, above=local)


def _write_section(folder: Path, candidate: Source, rendered: str) -> None:
    card = folder / CARD
    data = with_section(_card_text(card), rendered).encode()
    write_atomic(card, data)
    for source in (candidate, candidate.above) if isinstance(candidate, Overlaid) else (candidate,):
        source.sizes[CARD] = len(data)
    note(f"{card}: section written")


def _card_text(card: Path) -> str:
    try:
        return card.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{card}: not UTF-8", do="save it as UTF-8") from error


def _section_is_current(folder: Path, rendered: str) -> None:
    text = _card_text(folder / CARD)
    if with_section(text, rendered) != text:
        raise CheckpointError(
            f"{folder / CARD}",
            expected="the section that is rendered now",
            found="another" if BEGIN in text else "none",
            do="run it again with --render-card",
        )


def _no_leftover_weights(published: HubSource, local: LocalSource) -> None:
    """Weights that stay in the repository beside the new ones would be loaded, or would hide what is missing."""
    weights = {name for name in published.sizes if name.endswith(".safetensors") or name == INDEX}
    if left := sorted(weights - set(local.sizes)):
        raise CheckpointError(
            f"{published}",
            expected="no weights but those of the folder",
            found=f"{left[0]}" + (f" and {len(left) - 1} more" if left[1:] else ""),
            do="delete them there first, or publish to another branch",
        )


def _uploads(local: LocalSource, published: HubSource) -> Iterator[Upload]:
    for name, size in local.sizes.items():
        yield Upload(path=name, size=size, state="replaced" if name in published.sizes else "new")


def _push(folder: Path, planned: Publication, card_only: bool) -> str:
    """One commit on top of the parent that was examined; returns its id."""
    from huggingface_hub import CommitOperationAdd, HfApi

    message = "Update card and config" if card_only else "Publish checkpoint"
    operations = [CommitOperationAdd(file.path, str(folder / file.path)) for file in planned.files]
    note(f"uploading {len(operations)} files, {planned.size} bytes, to {planned.repository}@{planned.revision}")
    with _push_errors(planned):
        made = HfApi().create_commit(
            planned.repository,
            operations,
            commit_message=message,
            revision=planned.revision,
            parent_commit=planned.parent,
        )
    if made.oid == planned.parent:
        note("nothing differs from the published revision; no commit was made")
    return made.oid


@contextmanager
def _push_errors(planned: Publication) -> Iterator[None]:
    """What can go wrong with a commit, in one line each; the Hub's own texts stay out.

    Raises:
        CheckpointError: for any of it.
    """
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    where = f"{planned.repository}@{planned.revision}"
    with hub_errors(where):
        try:
            yield
        except RuntimeError as error:  # how huggingface_hub wraps whatever stopped an upload
            if isinstance(error.__cause__, HfHubHTTPError):
                raise CheckpointError(
                    f"{where}: the upload of a weight file stopped",
                    found=f"{error.__cause__.response.status_code} from the storage",
                    do="nothing was committed; start again",
                ) from error
            raise CheckpointError(f"{where}: the upload of a weight file stopped", do="start again") from error
        except HfHubHTTPError as error:
            if (refusal := _refusal(error.response.status_code, planned)) is None:
                raise
            raise refusal from error
        except httpx2.TransportError as error:
            raise CheckpointError(f"{where}: the connection broke", do=LOOK_FIRST) from error
        except ValueError as error:
            raise CheckpointError(f"{CARD}: the Hub refuses its front matter", do="correct the YAML") from error


def _refusal(status: int, planned: Publication) -> CheckpointError | None:
    where = f"{planned.repository}@{planned.revision}"
    if status in (409, 412):
        do = "look at what changed there, then start again; nothing was overwritten"
        return CheckpointError(f"{where}: somebody else has committed", expected=f"{planned.parent} as head", do=do)
    if status in (401, 403):
        return CheckpointError(f"{where}: no right to write", do="log in with a token that may write (hf auth login)")
    if status >= 500:
        return CheckpointError(f"{where}: the Hub answered {status} to the commit", do=LOOK_FIRST)
    return None


def _read_back(planned: Publication, commit: str, question: Question) -> None:
    """The published revision holds every file of the plan and passes the gate as well.

    Raises:
        CheckpointError: naming the commit, which stays.
    """
    with step(f"Read {planned.repository}@{commit} back"):
        published = open_hub(planned.repository, commit)
    for file in planned.files:
        if published.sizes.get(file.path) != file.size:
            raise CheckpointError(
                f"{published}/{file.path}",
                expected=f"{file.size} bytes",
                found=published.sizes.get(file.path, "no such file"),
                do=f"revert the commit {commit}",
            )
    try:
        question.require(published)
    except CheckpointError as error:
        raise CheckpointError(f"published as {commit}, which the gate refuses: {error}", do="revert it") from error


def table(result: Publication) -> Table:
    """The files, for people."""
    done = f"published as {result.commit}" if result.commit else "dry run: --push sends this"
    shown = Table("file", "bytes", "", title=f"{result.repository}@{result.revision}: {done}")
    for file in result.files:
        shown.add_row(file.path, f"{file.size:,}", file.state)
    shown.add_row("total", f"{result.size:,}", f"on top of {result.parent}")
    return shown
