"""Card: what people read says the same as what the server reads."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import yaml

from pipeline.checkpoint import mtp_head
from pipeline.checkpoint.checkpoint import CARD
from pipeline.checkpoint.rule import Case, Rules, Severity, Skip

RULES = Rules()
NEEDS = ("CARD-01",)
FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
HEADING = re.compile(r"^(#{1,6})[ \t]+(.+?)[ \t#]*$", re.MULTILINE)
CODE = re.compile(r"```.*?\n(.*?)```|`([^`\n]+)`", re.DOTALL)
COMMIT = re.compile(r"\b[0-9a-f]{40}\b")


class CardError(Exception):
    """The front matter cannot be read; the text says why."""


def front_matter(card: str) -> dict[str, Any]:
    """The YAML between the two ``---`` at the start of a card.

    Raises:
        CardError: there is none, or it is no mapping.
    """
    match = FRONT_MATTER.match(card)
    if match is None:
        raise CardError(f"{CARD} does not start with YAML between two lines ---")
    try:
        found = yaml.safe_load(match[1])
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CardError(f"front matter: {error}") from None
    if not isinstance(found, dict):
        raise CardError("front matter: no mapping of keys to values")
    return found


def sections(card: str, word: str) -> str:
    """Text below every heading that holds ``word``, up to the next heading of its level or above."""
    found, level = [], 0
    headings = [*HEADING.finditer(_without_code(card)), None]
    for heading, following in pairwise(headings):
        assert heading is not None
        depth = len(heading[1])
        if level and depth <= level:
            level = 0
        if not level and word in heading[2].lower():
            level = depth
        if level:
            found.append(card[heading.end() : following.start() if following else len(card)])
    return "\n".join(found)


def _without_code(card: str) -> str:
    """The same text with code blocks blanked: a ``#`` in them starts no heading."""
    return re.sub(r"```.*?```", lambda match: " " * len(match[0]), card, flags=re.DOTALL)


def mtp_entries(text: str) -> set[str]:
    """Every word of the code in a text that speaks of MTP, without JSON's quotes and commas."""
    code = "\n".join(match[1] or match[2] for match in CODE.finditer(text))
    words = (word.strip("\"',;[]{}").replace("\\\\", "\\") for word in code.split())
    return {word for word in words if mtp_head.speaks_of_mtp(word)}


@RULES.add(
    "CARD-01",
    Severity.ERROR,
    "the card has valid YAML front matter",
    f"write {CARD} with front matter between two lines ---",
)
def front_matter_is_valid(case: Case) -> Iterator[str]:
    yield from case.checkpoint.problems.get("CARD-01", ())
    if case.checkpoint.card is None:
        if "CARD-01" not in case.checkpoint.problems:
            yield f"there is no {CARD}"
        return
    try:
        front_matter(case.checkpoint.card)
    except CardError as error:
        yield str(error)


@RULES.add(
    "CARD-02",
    Severity.ERROR,
    "the card names the base model",
    "add base_model: owner/name to the front matter",
    needs=NEEDS,
)
def base_model_is_named(case: Case) -> Iterator[str]:
    if not _base_models(case):
        yield "front matter has no base_model"


@RULES.add(
    "CARD-03",
    Severity.WARNING,
    "the card names the revision of the base model",
    "add base_model_revision to the front matter, or the commit to the text",
    needs=NEEDS,
)
def base_revision_is_named(case: Case) -> Iterator[str]:
    card = case.checkpoint.card or ""
    named = front_matter(card).get("base_model_revision") or COMMIT.search(card)
    if not named and not any(f"{model}@" in card for model in _base_models(case)):
        yield "neither base_model_revision, nor a commit, nor owner/name@revision"


@RULES.add(
    "CARD-04",
    Severity.ERROR,
    "the card's section on quantisation lists the MTP exclusions of the config",
    "list them, as code, below a heading with the word quantization; render the card anew",
    roles=("target",),
    modes=("mtp",),
    needs=("CFG-01", *NEEDS, "MTP-04"),
)
def exclusions_agree(case: Case) -> Iterator[str]:
    if case.quantisation is None:
        raise Skip("no quantization_config")
    configured = {entry for entry in mtp_head.entries(case.quantisation) if mtp_head.speaks_of_mtp(entry)}
    listed = mtp_entries(sections(case.checkpoint.card or "", "quanti"))
    known = {name for name in listed if name in configured or name in case.checkpoint.names or _is_entry(name)}
    for entry in sorted(configured - listed):
        yield f"{entry} is in the config and not in the card"
    for entry in sorted(known - configured):
        yield f"{entry} is in the card and not in the config"


def _is_entry(word: str) -> bool:
    """Whether a word is meant as an exclusion: it starts as one; ``--speculative-mtp`` or ``x.py`` does not."""
    return word.startswith(("mtp.", "re:", "model.mtp"))


def _base_models(case: Case) -> list[str]:
    found = front_matter(case.checkpoint.card or "").get("base_model")
    names = found if isinstance(found, list) else [found]
    return [name for name in names if isinstance(name, str) and name.strip()]
