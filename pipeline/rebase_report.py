"""What ``build.py rebase`` finds out: what a new upstream release does to a series of patches.

The documents alone, so that the stages which fill or show them need not import each other.
"""

from enum import StrEnum
from typing import Literal

from pydantic import SerializeAsAny

from pipeline.documents import Document


def many(number: int, word: str, plural: str = "s") -> str:
    """A number of things in words."""
    return f"{number:,} {word}{'' if number == 1 else plural}"


class HunkStatus(StrEnum):
    """How a hunk meets the new release, from the best to the worst."""

    EXACT = "exact"
    """At its stated line, with all its context."""
    MOVED = "moved"
    """At another line, with all its context."""
    UPSTREAM = "upstream"
    """Its result is there already."""
    FUZZ = "fuzz"
    """Fits only with less context; never applied."""
    PARTLY = "partly"
    """Some of its changes are there already, or most lines of one, and others are not."""
    CONFLICT = "conflict"
    """Fits nowhere, or not in one place alone."""

    @property
    def rank(self) -> int:
        """The greater, the worse."""
        return list(HunkStatus).index(self)


class OracleStatus(StrEnum):
    """What the tests of a patch say on the new tree without it."""

    NEEDED = "still needed"
    """They fail without the patch."""
    DROPPABLE = "may be dropped"
    """They pass without the patch."""
    NO_ANSWER = "no answer"
    """Those that fail could not ask: code that they call is not there, or is another."""
    NOT_RUN = "not run"
    NONE = "none"
    """The patch has no test of its own."""


class Nearest(Document):
    """The lines of the new tree that look most like a hunk."""

    file: str
    line: int
    """In the tree with the patches before it, from 1."""
    of: Literal["old text", "result"]
    """Which text of the hunk they are compared with: the more similar one."""
    similarity: float
    """0 for nothing in common, 1 for equal."""
    diff: str
    """From that text to those lines, each with a space, ``-`` or ``+`` before it, without a header."""


class HunkVerdict(Document):
    """One hunk."""

    file: str
    header: str
    """The ``@@`` line with its scope; of a file that comes or goes whole, words that say so."""
    status: HunkStatus
    line: int | None = None
    """Where it stands in the new tree with the patches before it, from 1; if upstream, where its result does."""
    offset: int = 0
    """That line less the stated one."""
    fuzz: int = 0
    """Lines of context that had to be left out, on the side with more of them."""
    places: tuple[int, ...] = ()
    """Further lines at which it would fit as well."""
    cascading: bool = False
    """May be no verdict of its own: an earlier hunk that was not applied may be the cause."""
    pristine: HunkStatus | None = None
    """Against the new release without the patches before it; none where no hunk of that file missed before it."""
    nearest: Nearest | None = None
    note: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether nothing is to be said about it."""
        return self.status is HunkStatus.EXACT


class OracleVerdict(Document):
    """What the tests of one patch say."""

    status: OracleStatus
    detail: str = ""
    """Which tests, or why none was run."""


class PatchVerdict(Document):
    """One patch."""

    name: str
    summary: str
    """First line of its description; empty where it has none."""
    origin: str = ""
    """Its ``Origin`` field."""
    status: HunkStatus
    """The worst of its hunks; ``partly`` where some are upstream and no other is worse than that."""
    hunks: tuple[HunkVerdict, ...]
    oracle: OracleVerdict | None = None
    """None where no oracle was asked for: a foreign series has none."""

    def count(self, status: HunkStatus) -> int:
        """How many of its hunks have a status."""
        return sum(hunk.status is status for hunk in self.hunks)


class OverlayStatus(StrEnum):
    """How an overlay set meets the new release."""

    FITS = "fits"
    """Its files are new there, and what they import exists."""
    EXISTS = "exists upstream"
    IMPORTS = "imports missing"


class OverlayVerdict(Document):
    """One overlay set."""

    name: str
    status: OverlayStatus
    problems: tuple[str, ...] = ()
    """One line each."""


class RebaseReport(Document):
    """What a new release does to a series."""

    series: str
    """The line, or the folder of a foreign series."""
    onto: str
    """The new release: ``sglang==VERSION`` or a folder."""
    onto_sha256: str | None = None
    """Of the wheel that was fetched."""
    old: str
    """What the series was made for; empty for a foreign series."""
    patches: tuple[PatchVerdict, ...]
    overlays: tuple[OverlayVerdict, ...] = ()
    imports: tuple[str, ...] = ()
    """Imports that the new tree could not answer with the exact and moved hunks applied, one line each."""
    changes: SerializeAsAny[Document] | None = None
    """What vanished or changed upstream beside the series; none for a foreign one."""

    @property
    def exact(self) -> bool:
        """Whether every hunk is exact and every overlay fits: the exit status is 0 only then."""
        return (
            all(patch.status is HunkStatus.EXACT for patch in self.patches)
            and all(overlay.status is OverlayStatus.FITS for overlay in self.overlays)
            and not self.imports
        )
