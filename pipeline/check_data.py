"""The data files of ``checks/`` as typed models, and the feature table that README.md gets from them."""

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, RootModel, model_validator

from pipeline.errors import CheckError
from pipeline.manifest import Strict, TreePath, read_yaml

CHECKS = Path(__file__).resolve().parent.parent / "checks"
BEGIN, END = "<!-- features:begin -->", "<!-- features:end -->"


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from error
    return pattern


Regex = Annotated[str, AfterValidator(_compiles)]


class Feature(Strict):
    """A row of ``features.yaml``; that file explains the keys."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    title: str
    why: str
    origin: Annotated[str, Field(pattern=r"^(upstream|patch|overlay) \S+$")]
    # For the table alone: the check in the image needs neither.
    also: Annotated[tuple[Annotated[str, Field(pattern=r"^[a-z]+$")], ...], Field(exclude=True)] = ()
    run: Annotated[
        tuple[Annotated[str, Field(pattern=r"^tests/(tree|e2e|gpu)/test_[a-z0-9_]+\.py$")], ...], Field(exclude=True)
    ] = ()
    file: TreePath
    scope: str | None = Field(default=None, alias="in")
    find: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


class Features(RootModel[tuple[Feature, ...]]):
    """``features.yaml``."""

    @model_validator(mode="after")
    def _sound(self) -> "Features":
        seen: set[str] = set()
        for row in self.root:
            if row.id in seen:
                raise ValueError(f"one row with the id {row.id!r}")
            if not row.find and not row.absent:
                raise ValueError(f"something to find or absent in {row.id!r}")
            seen.add(row.id)
        return self


class PathRule(Strict):
    """A shell pattern for paths; one that ends in ``/`` is for folders."""

    pattern: str
    reason: str


class ContentRule(Strict):
    """A regular expression for lines."""

    pattern: Regex
    reason: str


class Leftovers(Strict):
    """``leftovers.yaml``."""

    paths: tuple[PathRule, ...]
    content: tuple[ContentRule, ...]


class KnownBad(Strict):
    """A variable that must not be set, or not to such a value."""

    name: str
    value: Regex | None = None
    reason: str


class KnownBadEnvironment(RootModel[tuple[KnownBad, ...]]):
    """``environment.yaml``."""


class Refused(Strict):
    """Weights of another kind, and a word of the error that refuses them."""

    change: dict[str, Any]
    says: str


class FaultyList(Strict):
    """An ``ignore`` list that leaves modules quantised."""

    why: str
    ignore: tuple[str, ...]
    quantised: Annotated[tuple[str, ...], Field(min_length=1)]


class Mtp(Strict):
    """What the MTP head is built of, and the ``ignore`` list that keeps it plain."""

    model: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
    modules: Annotated[tuple[str, ...], Field(min_length=1)]
    ignore: tuple[str, ...]
    faulty: Annotated[tuple[FaultyList, ...], Field(min_length=1)]


class Quantization(Strict):
    """``quantization.yaml``; that file explains the keys."""

    config: dict[str, Any]
    scheme: str
    quantised: Annotated[tuple[str, ...], Field(min_length=1)]
    refused: Annotated[tuple[Refused, ...], Field(min_length=1)]
    mtp: Mtp


def features(checks: Path = CHECKS) -> Features:
    """Read ``features.yaml``.

    Raises:
        ManifestError: it is missing or malformed.
    """
    return read_yaml(checks / "features.yaml", Features)


def input_parts(checks: Path = CHECKS) -> dict[str, Any]:
    """The keys ``features``, ``leftovers``, ``known_bad_environment`` and ``quantization`` of ``input.json``.

    Raises:
        ManifestError: a file is missing or malformed.
    """
    models = {
        "features": features(checks),
        "leftovers": read_yaml(checks / "leftovers.yaml", Leftovers),
        "known_bad_environment": read_yaml(checks / "environment.yaml", KnownBadEnvironment),
        "quantization": read_yaml(checks / "quantization.yaml", Quantization),
    }
    return {key: model.model_dump(mode="json", by_alias=True, exclude_none=True) for key, model in models.items()}


def update_readme(text: str, checks: Path = CHECKS) -> str:
    """Replace what stands between the two markers in README.md with the feature table.

    Raises:
        CheckError: a marker is missing or stands twice.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise CheckError("README.md", expected=f"{BEGIN} and {END} once each, in this order", do="restore the markers")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{feature_table(features(checks))}{END}{after}"


def feature_table(table: Features) -> str:
    """Markdown table with a line per title: feature, origin, where it lives, what proves it, which tests run it."""
    titles: dict[str, list[Feature]] = {}
    for row in table.root:
        titles.setdefault(row.title, []).append(row)
    lines = ["| Feature | From | Where | Proven by | Run by |", "|---|---|---|---|---|"]
    lines += [_line(title, rows) for title, rows in titles.items()]
    return "\n".join(lines) + "\n"


def _line(title: str, rows: list[Feature]) -> str:
    places: dict[str, list[str]] = {}
    for row in rows:
        places.setdefault(row.file, []).extend([f"`{row.scope}`"] if row.scope else [])
    origins = dict.fromkeys(row.origin for row in rows)
    where = [
        f"`{file}`" + (f": {', '.join(dict.fromkeys(scopes))}" if scopes else "") for file, scopes in places.items()
    ]
    proofs = [f"`features`: {', '.join(f'`{row.id}`' for row in rows)}"]
    proofs += [f"`{check}`" for check in dict.fromkeys(check for row in rows for check in row.also)]
    runs = [_module(path) for path in dict.fromkeys(path for row in rows for path in row.run)]
    cells = [title, ", ".join(origins), "<br>".join(where), "<br>".join(proofs), "<br>".join(runs)]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _module(path: str) -> str:
    """A link to a module of tests, by tier and subject."""
    tier, _, name = path.removeprefix("tests/").removesuffix(".py").partition("/test_")
    return f"[{tier}: {name.replace('_', ' ')}]({path})"
