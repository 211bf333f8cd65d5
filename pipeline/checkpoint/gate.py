"""The gate: a source, a question, a verdict."""

import time

from pipeline.checkpoint.checkpoint import CONFIG, Checkpoint, load
from pipeline.checkpoint.releases import Release, release
from pipeline.checkpoint.report import Report, Result, Status, judge
from pipeline.checkpoint.rule import DEFAULT_MODE, Case, Mode, Role
from pipeline.checkpoint.rules import RULES
from pipeline.checkpoint.source import Source, open_source
from pipeline.errors import CheckpointError
from pipeline.manifest import Line, Profile, PypiPin, SourceLayer


def check(
    source: Source | str,
    role: Role,
    pin: Release,
    *,
    mode: Mode | None = None,
    profile: tuple[str, Profile] | None = None,
    target: str | None = None,
    full: bool = False,
) -> Report:
    """Judge a checkpoint.

    Args:
        source: a folder, a Hub id ``owner/name[@revision]``, or an opened source.
        role: whether it is a target or a draft.
        pin: the SGLang release that shall serve it.
        mode: how it shall be served; by default ``mtp`` for a target and ``dflash2`` for a draft.
        profile: name and profile that it shall be served with.
        target: of a draft, the target to compare with; the profile's by default.
        full: read whole tensors, not samples.

    Raises:
        CheckpointError: a source cannot be read at all.
    """
    started = time.monotonic()
    opened = open_source(source) if isinstance(source, str) else source
    case = Case(
        load(opened),
        role,
        mode or DEFAULT_MODE[role],
        pin,
        profile[1] if profile else None,
        _target(role, target, profile[1] if profile else None),
        full,
    )
    return verdict(case, profile[0] if profile else None, started)


def verdict(case: Case, profile: str | None, started: float) -> Report:
    """Ask every rule; ``started`` is the time of ``time.monotonic()`` at which reading began."""
    results = _results(case)
    refusing = tuple(row.id for row in results if row.refuses)
    source = case.checkpoint.source
    return Report(
        source=source.name,
        revision=source.revision,
        role=case.role,
        mode=case.mode,
        pin=str(case.release),
        profile=profile,
        publishable_and_servable=not refusing,
        refused_by=refusing,
        results=tuple(results),
        bytes_read=source.bytes_read,
        requests=source.requests,
        seconds=round(time.monotonic() - started, 3),
    )


def _results(case: Case) -> list[Result]:
    results: list[Result] = []
    statuses: dict[str, Status] = {}
    for rule in RULES:
        if not rule.applies(case.role, case.mode):
            continue
        result = judge(rule, case, statuses)
        statuses[rule.id] = result.status
        results.append(result)
    return results


def _target(role: Role, named: str | None, profile: Profile | None) -> Checkpoint | None:
    """The target's config, for a draft."""
    if named is None and profile is not None:
        named = f"{profile.target}@{profile.target_revision}"
    if role != "draft" or named is None:
        return None
    source = open_source(named)
    found = load(source, config_only=True)
    if found.problems:
        raise CheckpointError(f"{source}: {found.problems['CFG-01'][0]}", do=f"name a target with a {CONFIG}")
    return found


def pinned_release(line: Line, pin: str | None = None) -> Release:
    """The release that ``pin`` names, else the one that the line's tree starts from.

    Raises:
        CheckpointError: its rules are not known, or the line pins no release.
    """
    if pin is not None:
        return release(pin)
    first = line.release.layers[0]
    found = line.release.pins[first.source] if isinstance(first, SourceLayer) else None
    if not isinstance(found, PypiPin):
        raise CheckpointError(f"line {line.name} is pinned to no release", do="say which rules hold: --pin sglang==…")
    return release(found.version)


def named_profile(line: Line, name: str | None) -> tuple[str, Profile] | None:
    """A profile of the line, with its name.

    Raises:
        ManifestError: the line has no such profile.
    """
    return None if name is None else (name, line.profiles.named(name))
