"""What the checks are given beside the image's facts: the data files of ``checks/``, and the line's features.

A line's features are also the table of its page: README.md for the main line, else ``manifests/<line>/README.md``.
"""

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Discriminator, Field, RootModel, Tag, model_validator

from pipeline.errors import CheckError
from pipeline.files import PROJECT
from pipeline.manifest import Line, Strict, TreePath, read_yaml

CHECKS = Path(__file__).resolve().parent.parent / "checks"
BEGIN, END = "<!-- features:begin -->", "<!-- features:end -->"


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from error
    return pattern


Regex = Annotated[str, AfterValidator(_compiles)]
Origin = Annotated[str, Field(pattern=r"^(upstream|patch|overlay) \S+$")]


class Feature(Strict):
    """A row of ``features.yaml``; that file explains the keys."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    title: str
    why: str
    origin: Origin
    # For the table alone: the check in the image needs neither.
    also: Annotated[tuple[Annotated[str, Field(pattern=r"^[a-z]+$")], ...], Field(exclude=True)] = ()
    run: Annotated[
        tuple[Annotated[str, Field(pattern=r"^tests/(tree|e2e|gpu)/test_[a-z0-9_]+\.py$")], ...], Field(exclude=True)
    ] = ()
    file: TreePath
    scope: str | None = Field(default=None, alias="in")
    find: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


class NotCarried(Strict):
    """A row of ``features.yaml`` for people alone: what another release or line has, and this one does without."""

    title: str
    origin: Origin
    """Where it is to be had: a release of upstream, or a patch or overlay of another line."""
    not_carried: str
    """Why it is not here, and what is done instead."""


def _row_kind(value: Any) -> str:
    keys = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return "not_carried" if "not_carried" in keys else "feature"


Row = Annotated[
    Annotated[Feature, Tag("feature")] | Annotated[NotCarried, Tag("not_carried")], Discriminator(_row_kind)
]


class Features(RootModel[tuple[Row, ...]]):
    """``features.yaml``."""

    @property
    def carried(self) -> tuple[Feature, ...]:
        """What the image must hold."""
        return tuple(row for row in self.root if isinstance(row, Feature))

    @property
    def not_carried(self) -> tuple[NotCarried, ...]:
        """What it is said to do without."""
        return tuple(row for row in self.root if isinstance(row, NotCarried))

    @model_validator(mode="after")
    def _sound(self) -> "Features":
        seen: set[str] = set()
        for row in self.carried:
            if row.id in seen:
                raise ValueError(f"one row with the id {row.id!r}")
            if not row.find and not row.absent:
                raise ValueError(f"something to find or absent in {row.id!r}")
            seen.add(row.id)
        titles = [row.title for row in self.carried]
        for absent in self.not_carried:
            if absent.title in titles:
                raise ValueError(f"{absent.title!r} carried or not carried, not both")
            titles.append(absent.title)
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
    """``checks/quantization.yaml``; that file explains the keys."""

    config: dict[str, Any]
    quantised: Annotated[tuple[str, ...], Field(min_length=1)]
    mtp: Mtp


class LineQuantization(Strict):
    """``quantization.yaml`` of a line: what becomes of the weights there."""

    scheme: str | None = None
    refused: tuple[Refused, ...] = ()
    stops_with: str | None = None
    """In the place of both: the error that ends the start, where the line cannot serve such weights."""

    @model_validator(mode="after")
    def _sound(self) -> "LineQuantization":
        if self.scheme and self.refused and not self.stops_with:
            return self
        if self.stops_with and not self.scheme and not self.refused:
            return self
        raise ValueError("scheme with refused, or stops_with alone")


def features(line: Line) -> Features:
    """Read the line's ``features.yaml``.

    Raises:
        ManifestError: it is missing or malformed.
    """
    return read_yaml(line.folder / "features.yaml", Features)


def input_parts(line: Line, checks: Path = CHECKS) -> dict[str, Any]:
    """The keys ``features``, ``leftovers``, ``known_bad_environment`` and ``quantization`` of ``input.json``.

    Raises:
        ManifestError: a file is missing or malformed.
    """
    models = {
        "leftovers": read_yaml(checks / "leftovers.yaml", Leftovers),
        "known_bad_environment": read_yaml(checks / "environment.yaml", KnownBadEnvironment),
        "quantization": read_yaml(checks / "quantization.yaml", Quantization),
    }
    parts = {key: _dumped(model) for key, model in models.items()}
    parts["quantization"] |= _dumped(read_yaml(line.folder / "quantization.yaml", LineQuantization))
    return {"features": [_dumped(row) for row in features(line).carried], **parts}


def _dumped(model: BaseModel) -> Any:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def updated_page(line: Line, project: Path = PROJECT) -> str:
    """The line's page with the feature table in what stands between its two markers.

    Raises:
        CheckError: there is no page, or a marker is missing or stands twice.
    """
    path = project / line.page
    if not path.is_file():
        raise CheckError(str(path), expected="a page of the line", found="none", do=f"write one with {BEGIN} and {END}")
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise CheckError(str(path), expected=f"{BEGIN} and {END} once each, in this order", do="restore the markers")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    table = feature_table(features(line), "../" * line.page.count("/"))
    return f"{before}{BEGIN}\n{table}{END}{after}"


def feature_table(table: Features, up: str = "") -> str:
    """Markdown table with a line per title: feature, origin, where it lives, what proves it, which tests run it.

    Args:
        up: from the page's folder to the project's, as links need it.
    """
    titles: dict[str, list[Feature]] = {}
    for row in table.carried:
        titles.setdefault(row.title, []).append(row)
    lines = ["| Feature | From | Where | Proven by | Run by |", "|---|---|---|---|---|"]
    lines += [_line(title, rows, up) for title, rows in titles.items()]
    lines += [
        _cells(row.title, row.origin, f"**not carried**: {row.not_carried.strip()}", "", "")
        for row in table.not_carried
    ]
    return "\n".join(lines) + "\n"


def _line(title: str, rows: list[Feature], up: str) -> str:
    places: dict[str, list[str]] = {}
    for row in rows:
        places.setdefault(row.file, []).extend([f"`{row.scope}`"] if row.scope else [])
    origins = dict.fromkeys(row.origin for row in rows)
    where = [
        f"`{file}`" + (f": {', '.join(dict.fromkeys(scopes))}" if scopes else "") for file, scopes in places.items()
    ]
    proofs = [f"`features`: {', '.join(f'`{row.id}`' for row in rows)}"]
    proofs += [f"`{check}`" for check in dict.fromkeys(check for row in rows for check in row.also)]
    runs = [_module(path, up) for path in dict.fromkeys(path for row in rows for path in row.run)]
    return _cells(title, ", ".join(origins), "<br>".join(where), "<br>".join(proofs), "<br>".join(runs))


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _module(path: str, up: str) -> str:
    """A link to a module of tests, by tier and subject."""
    tier, _, name = path.removeprefix("tests/").removesuffix(".py").partition("/test_")
    return f"[{tier}: {name.replace('_', ' ')}]({up}{path})"
