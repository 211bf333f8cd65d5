"""Every way in which a stage can refuse, each with its own exit code.

A message is one line: what is wrong (naming the file or reference), what was expected, what was found, and
what to do. ``docs/exit-codes.md`` is checked against this module by a test.
"""

import re


class PipelineError(Exception):
    """Base of all expected failures; the command line prints :meth:`line` in red and exits with ``exit_code``."""

    exit_code = 1
    stage = "internal"

    def __init__(self, what: str, *, expected: object = None, found: object = None, do: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.expected = expected
        self.found = found
        self.do = do

    def __str__(self) -> str:
        return self.line()

    def line(self) -> str:
        """The message as one line, without colour and without the ``error:`` prefix."""
        text = self.what
        if self.expected is not None:
            text += f": expected {self.expected}"
        if self.found is not None:
            text += f"{',' if self.expected is not None else ':'} found {self.found}"
        if self.do is not None:
            text += f"; {self.do}"
        # Runs of spaces stay: the indentation of a quoted line may be all that differs.
        return re.sub(r" *[^\S ]\s*", " ", text).strip()


class HostError(PipelineError):
    """The machine lacks something: a Debian package, disk space, a right."""

    exit_code = 3
    stage = "set-up"


class ManifestError(PipelineError):
    """A file under ``manifests/`` is missing, malformed or contradictory."""

    exit_code = 4
    stage = "manifest"


class PinError(PipelineError):
    """A pinned input cannot be had, or is not what its hash says."""

    exit_code = 5
    stage = "pins"


class ComposeError(PipelineError):
    """The tree cannot be composed exactly as the manifest, the patches and the lock say."""

    exit_code = 6
    stage = "compose"


class BaseError(PipelineError):
    """The base image cannot be built, read or inventoried."""

    exit_code = 7
    stage = "base"


class ImageError(PipelineError):
    """The image cannot be written deterministically."""

    exit_code = 8
    stage = "image"


class EngineError(PipelineError):
    """No container engine can be had, or it failed to do its part; checks are then not run."""

    exit_code = 9
    stage = "engine"


class CheckError(PipelineError):
    """At least one check inside the image failed, erred or was not run."""

    exit_code = 10
    stage = "check"


class ReleaseError(PipelineError):
    """The gate is closed, or the registry did not do what was asked."""

    exit_code = 11
    stage = "release"


class BusyError(PipelineError):
    """Another run holds the lock of this build folder."""

    exit_code = 12
    stage = "lock"


class CheckpointError(PipelineError):
    """A checkpoint is refused by a rule, or it cannot be read at all."""

    exit_code = 13
    stage = "checkpoint"


class VerifyError(PipelineError):
    """A released image is not what its record says, or that could not be found out."""

    exit_code = 14
    stage = "verify"


class RebaseError(PipelineError):
    """A newer release takes the series, but not every hunk exactly as it is."""

    exit_code = 15
    stage = "rebase"
