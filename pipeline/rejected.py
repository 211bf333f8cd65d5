"""Experiments that were tried and dropped, as a page: so that nobody repeats one, or switches one on unknowingly."""

from pydantic import Field, RootModel, model_validator

from pipeline.manifest import Line, Strict, read_yaml
from pipeline.templates import render

FILE = "rejected.yaml"


class Back(Strict):
    """What would bring an experiment back."""

    flag: str | None = Field(default=None, pattern=r"^--[a-z]")
    variable: str | None = Field(default=None, pattern=r"^[A-Z][A-Z0-9_]*=\S+$")
    words: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> "Back":
        if not (self.flag or self.variable or self.words):
            raise ValueError("says nothing: name a flag, a variable, or that there is no switch")
        return self

    def __str__(self) -> str:
        named = " or ".join(f"`{name}`" for name in (self.flag, self.variable) if name)
        return " ".join(part for part in (self.words, named) if part)


class Experiment(Strict):
    """A row."""

    what: str
    seen: str
    disposition: str
    back: Back


class Rejected(RootModel[tuple[Experiment, ...]]):
    """``rejected.yaml``."""


def read(line: Line) -> Rejected:
    """The line's experiments; a line without the file has none of its own.

    Raises:
        ManifestError: the file is malformed.
    """
    path = line.folder / FILE
    return read_yaml(path, Rejected) if path.is_file() else Rejected(())


def pages(line: Line) -> dict[str, str]:
    """The page, by its path below the project, where the line has experiments."""
    rows = read(line).root
    name = "docs/rejected.md" if line.is_main else f"docs/recipes/{line.name}/rejected.md"
    return {name: render("rejected.md.j2", line=line, experiments=rows)} if rows else {}
