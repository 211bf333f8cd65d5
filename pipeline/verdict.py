"""The checkpoint gate as a stop: one question for everything that a command reads, and one line when it refuses."""

from dataclasses import dataclass

from pipeline.checkpoint import gate
from pipeline.checkpoint.checkpoint import load
from pipeline.checkpoint.naming import MTP_PREFIX
from pipeline.checkpoint.releases import Release
from pipeline.checkpoint.rule import DEFAULT_MODE, Case, Mode, Role
from pipeline.checkpoint.source import Source
from pipeline.console import note, step, warn
from pipeline.errors import CheckpointError
from pipeline.manifest import Profile


@dataclass(frozen=True)
class Question:
    """What a checkpoint shall be good for."""

    role: Role
    release: Release
    mode: Mode | None = None
    """None: ``mtp`` for a target, ``dflash2`` for a draft."""
    profile: tuple[str, Profile] | None = None
    target: str | None = None
    """Of a draft: the target to compare with, if not the profile's."""

    def case(self, source: Source) -> Case:
        """The checkpoint as the rules see it."""
        return Case(load(source), self.role, self.mode or DEFAULT_MODE[self.role], self.release)

    def _mode(self, source: Source) -> Mode:
        """A target with an MTP head is asked about it, whatever it shall be served for: its config is everybody's."""
        mode = self.mode or DEFAULT_MODE[self.role]
        if self.role == "target" and mode != "mtp" and any(n.startswith(MTP_PREFIX) for n in load(source).names):
            return "mtp"
        return mode

    def require(self, source: Source, *, full: bool = False) -> None:
        """Run every rule over ``source``; all that it finds is printed.

        Raises:
            CheckpointError: an error, or an error's rule that could not be decided.
        """
        with step(f"Checkpoint {source}"):
            report = gate.check(
                source,
                self.role,
                self.release,
                mode=self._mode(source),
                profile=self.profile,
                target=self.target,
                full=full,
            )
        rows = [row for row in report.results if row.findings and row.status in ("failed", "not decided")]
        refusing = [row for row in rows if row.refuses]
        for row in rows:
            say = note if row.refuses else warn
            for finding in row.findings:
                say(f"{row.id}: {finding}")
        if refusing:
            first = refusing[0]
            more = f" (and {', '.join(row.id for row in refusing[1:])})" if refusing[1:] else ""
            raise CheckpointError(
                f"{source} is refused by {first.id}{more}",
                expected=f"that {first.title}",
                found=first.findings[0],
                do=first.remedy or "see docs/checkpoint-rules.md",
            )
