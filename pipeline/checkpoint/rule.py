"""What a rule is, what it is asked about, and what it can answer."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from typing import Any, Literal, get_args

from pipeline.checkpoint import payload
from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.naming import is_dflash2
from pipeline.checkpoint.payload import Look
from pipeline.checkpoint.releases import Release
from pipeline.checkpoint.safetensors_header import FLOATS, Tensor
from pipeline.manifest import Profile

Role = Literal["target", "draft"]
Mode = Literal["mtp", "dflash2", "plain"]
ROLES: tuple[Role, ...] = get_args(Role)
MODES: tuple[Mode, ...] = get_args(Mode)
DEFAULT_MODE: dict[Role, Mode] = {"target": "mtp", "draft": "dflash2"}


class Severity(StrEnum):
    """An error refuses the checkpoint; so does an error's rule that cannot be decided."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Undecided(Exception):
    """The rule cannot tell; the text says why. It is never a pass."""


class Skip(Exception):
    """The rule has nothing to look at; the text says why."""


@dataclass(frozen=True)
class Case:
    """One question: this checkpoint, in this role, served so, by this release."""

    checkpoint: Checkpoint
    role: Role
    mode: Mode
    release: Release
    profile: Profile | None = None
    target: Checkpoint | None = None
    """Of a draft: the target that it shall draft for, with its config only."""
    full: bool = False
    """Read whole tensors, not samples."""

    @cached_property
    def quantisation(self) -> dict[str, Any] | None:
        """The quantisation config where SGLang looks for it, in its order."""
        config = self.checkpoint.config
        for found in (
            config.get("quantization_config"),
            self.checkpoint.text_config.get("quantization_config"),
            config.get("compression_config"),
        ):
            if isinstance(found, dict):
                return found
        return None

    @cached_property
    def looks(self) -> dict[str, tuple[Tensor, Look]]:
        """What the payload of each DFlash2 tensor says, by name without ``model.``; read once, for several rules."""
        look = payload.scan if self.full else payload.sample
        return {
            name.removeprefix("model."): (tensor, look(tensor, partial(self.checkpoint.read, name)))
            for name, (_, tensor) in self.checkpoint.tensors.items()
            if is_dflash2(name) and tensor.dtype in FLOATS
        }

    def argument(self, name: str) -> Any:
        """A launch flag of the profile, or None."""
        return self.profile.arguments.get(name) if self.profile else None


Check = Callable[[Case], Iterator[str]]


@dataclass(frozen=True)
class Rule:
    """One thing that a checkpoint has to be."""

    id: str
    severity: Severity
    title: str
    """What holds of a good checkpoint."""
    remedy: str
    check: Check
    """Yields one line per violation; may raise :class:`Undecided` or :class:`Skip`."""
    roles: tuple[Role, ...] = ROLES
    modes: tuple[Mode, ...] = MODES
    needs: tuple[str, ...] = ()
    """Rules without whose passing this one has nothing sound to look at."""
    matches: bool = False
    """It runs the checkpoint's own regular expressions, so it gets a time limit."""

    def applies(self, role: Role, mode: Mode) -> bool:
        return role in self.roles and mode in self.modes


class Rules(list[Rule]):
    """The rules of one module, in order."""

    def add(
        self,
        id: str,
        severity: Severity,
        title: str,
        remedy: str,
        *,
        roles: tuple[Role, ...] = ROLES,
        modes: tuple[Mode, ...] = MODES,
        needs: tuple[str, ...] = (),
        matches: bool = False,
    ) -> Callable[[Check], Check]:
        """Register the decorated function as the rule's check."""

        def register(check: Check) -> Check:
            self.append(Rule(id, severity, title, remedy, check, roles, modes, needs, matches))
            return check

        return register
