"""What the checks are given: ``input.json`` beside this file, typed, and the environment as the engine set it.

The image's interpreter may be any Python from 3.10 on and has no pydantic of ours, hence plain dataclasses.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ENVIRONMENT: Mapping[str, str] = dict(os.environ)
"""Variables at the start of the process: run.py imports this module before pytest or SGLang can add any."""


class InputError(Exception):
    """``input.json`` is missing or is not what the pipeline writes; every check then ends in an error."""


@dataclass(frozen=True)
class TreeFile:
    """One file of the composed tree, as the record states it."""

    sha256: str
    origin: str
    patches: tuple[str, ...]


@dataclass(frozen=True)
class BaseFile:
    """One file of the base below the package root; ``mode`` holds permission bits."""

    sha256: str
    mode: int


@dataclass(frozen=True)
class Default:
    """A variable that the manifest sets."""

    value: str
    read_by: str | None


@dataclass(frozen=True)
class Architecture:
    """Where a model class must come from."""

    file: str
    must_have: tuple[str, ...]


@dataclass(frozen=True)
class Feature:
    """A row of ``features.yaml``."""

    id: str
    title: str
    file: str
    scope: str | None
    find: tuple[str, ...]
    absent: tuple[str, ...]


@dataclass(frozen=True)
class Rule:
    """A row of ``leftovers.yaml`` or ``environment.yaml``: a pattern (or name), and why it is refused."""

    pattern: str
    reason: str
    value: str | None = None


@dataclass(frozen=True)
class Profile:
    """A way to serve: the words after ``launch_server``, and what start-up must make of them."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    mounts: dict[str, str]
    """Folder in the container to the model's name in :attr:`Given.configs`."""
    resolved: dict[str, Any]
    graphs: dict[str, str]
    draft_ring: dict[str, int]
    """``stride`` and ``rows``; empty where the draft has no rings of its own."""


@dataclass(frozen=True)
class FaultyList:
    """An ``ignore`` list that leaves these MTP modules quantised."""

    why: str
    ignore: tuple[str, ...]
    quantised: frozenset[str]


@dataclass(frozen=True)
class Quantization:
    """``quantization.yaml`` of the checks and of the line."""

    config: dict[str, Any]
    outcome: str
    """The scheme of a quantised layer, or the error that stops the start."""
    is_served: bool
    """Whether it is a scheme."""
    quantised: tuple[str, ...]
    refused: tuple[tuple[dict[str, Any], str], ...]
    """Changes of the weights, and the word that the refusal must hold."""
    mtp_model: str
    """``module:class``."""
    mtp_modules: tuple[str, ...]
    ignore: tuple[str, ...]
    faulty: tuple[FaultyList, ...]


@dataclass(frozen=True)
class Given:
    """Everything that the checks compare the image with."""

    base_kind: str
    """``cpu``, or ``published`` for a base from a registry."""
    package_root: Path
    record_path: Path
    record: dict[str, Any]
    """The record as it was written: parsed JSON."""
    files: dict[str, TreeFile]
    """The record's files."""
    first_source: str
    """Origin of files that are plain upstream's: the record's first step."""
    inventory: dict[str, BaseFile]
    allows: tuple[str, ...]
    removed: frozenset[str]
    layer_paths: tuple[str, ...]
    base_environment: dict[str, str]
    defaults: dict[str, Default]
    architectures: dict[str, Architecture]
    profiles: dict[str, Profile]
    configs: dict[str, dict[str, Any]]
    """``config.json`` of each model that a profile mounts."""
    features: tuple[Feature, ...]
    leftover_paths: tuple[Rule, ...]
    leftover_content: tuple[Rule, ...]
    known_bad_environment: tuple[Rule, ...]
    quantization: Quantization
    environment: Mapping[str, str]
    upstream: Path
    """Folder with the pristine bytes of the files that we changed."""

    @cached_property
    def tree_roots(self) -> frozenset[str]:
        """Top folders of the composed tree (``sglang``): below them the record alone decides."""
        return frozenset(path.split("/", 1)[0] for path in self.files)

    def ours(self, path: str) -> bool:
        """Whether the record says that a second source, an overlay or a patch made this file what it is."""
        entry = self.files.get(path)
        return entry is not None and (bool(entry.patches) or entry.origin != self.first_source)

    def exists_upstream(self, path: str) -> bool:
        """Whether the name of this file is upstream's own, patched or not."""
        return path in self.files and self.files[path].origin == self.first_source


def load(folder: Path) -> Given:
    """Read ``input.json`` of a folder.

    Raises:
        InputError: the file cannot be read, is not JSON, or lacks a key.
    """
    path = folder / "input.json"
    try:
        return _given(json.loads(path.read_text(encoding="utf-8")), folder / "upstream")
    except KeyError as error:
        raise InputError(f"{path}: expected the key {error}, found none; write it with build.py check") from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: {error}; write it with build.py check") from error


def _given(data: dict[str, Any], upstream: Path) -> Given:
    record, environment, leftovers = data["record"], data["environment"], data["leftovers"]
    return Given(
        base_kind=data["base_kind"],
        package_root=Path(data["package_root"]),
        record_path=Path(data["record_path"]),
        record=record,
        files={
            path: TreeFile(entry["sha256"], entry["origin"], tuple(entry.get("patches", ())))
            for path, entry in record["files"].items()
        },
        first_source=record["steps"][0]["name"],
        inventory={
            path: BaseFile(entry["sha256"], entry["mode"]) for path, entry in data["inventory"]["files"].items()
        },
        allows=tuple(data["allows"]),
        removed=frozenset(data["removed"]),
        layer_paths=tuple(data["layer_paths"]),
        base_environment=dict(environment["base"]),
        defaults={
            name: Default(entry["value"], entry.get("read_by")) for name, entry in environment["defaults"].items()
        },
        architectures={
            name: Architecture(entry["file"], tuple(entry.get("must_have", ())))
            for name, entry in data["architectures"].items()
        },
        profiles={
            name: Profile(
                tuple(row["argv"]),
                row["environment"],
                row["mounts"],
                row["resolved"],
                row["graphs"],
                row["draft_ring"],
            )
            for name, row in data["profiles"].items()
        },
        configs=data["configs"],
        features=tuple(feature(row) for row in data["features"]),
        leftover_paths=tuple(Rule(row["pattern"], row["reason"]) for row in leftovers["paths"]),
        leftover_content=tuple(Rule(row["pattern"], row["reason"]) for row in leftovers["content"]),
        known_bad_environment=tuple(
            Rule(row["name"], row["reason"], row.get("value")) for row in data["known_bad_environment"]
        ),
        quantization=quantization(data["quantization"]),
        environment=ENVIRONMENT,
        upstream=upstream,
    )


def feature(row: dict[str, Any]) -> Feature:
    """A row of ``features.yaml``, from JSON."""
    return Feature(
        id=row["id"],
        title=row["title"],
        file=row["file"],
        scope=row.get("in"),
        find=tuple(row.get("find", ())),
        absent=tuple(row.get("absent", ())),
    )


def quantization(data: dict[str, Any]) -> Quantization:
    """``quantization.yaml`` of the checks and of the line, from JSON."""
    mtp, scheme = data["mtp"], data.get("scheme")
    return Quantization(
        config=data["config"],
        outcome=scheme or data["stops_with"],
        is_served=scheme is not None,
        quantised=tuple(data["quantised"]),
        refused=tuple((row["change"], row["says"]) for row in data["refused"]),
        mtp_model=mtp["model"],
        mtp_modules=tuple(mtp["modules"]),
        ignore=tuple(mtp["ignore"]),
        faulty=tuple(
            FaultyList(row["why"], tuple(row["ignore"]), frozenset(row["quantised"])) for row in mtp["faulty"]
        ),
    )
