"""A checkpoint's card: its front matter, and the section that is rendered from manifest, config and headers.

The author writes the front matter (licence, base model) and whatever else the card shall say. What a reader acts on
(quantisation, MTP head, exclusions, how to serve it, limits) stands between two markers and is never written by hand:
a card whose section is not what is rendered now does not get published.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pipeline import recipe
from pipeline.checkpoint import mtp_head
from pipeline.checkpoint.naming import MTP_PREFIX, module_of, on_disk
from pipeline.checkpoint.rule import Case, Role, Undecided
from pipeline.errors import CheckpointError
from pipeline.manifest import Line
from pipeline.recipe import Recipe
from pipeline.templates import render

BEGIN, END = "<!-- serving:begin -->\n", "<!-- serving:end -->\n"
TOLD = (
    *("quant_method", "format", "num_bits", "bits", "type", "strategy", "group_size", "symmetric", "sym"),
    *("zero_point", "desc_act", "actorder", "weight_block_size", "targets"),
)
"""Keys of a quantisation config that a reader wants to know, in the order of the card."""


class Head(NamedTuple):
    """The MTP head as the card tells of it."""

    tensors: int
    dtypes: tuple[str, ...]
    packed: bool
    """Stored quantised, with scales."""


def section(line: Line, case: Case, repository: str) -> str:
    """The rendered section, markers included, for a checkpoint that lies (or will lie) in ``repository``.

    Raises:
        CheckpointError: the config's quantisation cannot be read, or is of a format that nothing is known about.
    """
    quantisation = case.quantisation
    try:
        if quantisation and (problems := list(mtp_head.malformed(quantisation))):
            raise CheckpointError(f"config.json: {problems[0]}", do="correct the quantisation config")
        text = render(
            "model-card.md.j2",
            sglang=case.release.version,
            rows=list(told(quantisation)) if quantisation else [],
            key=mtp_head.list_key(quantisation) if quantisation else None,
            exclusions=mtp_head.entries(quantisation) if quantisation else [],
            head=_head(case),
            role=case.role,
            line=line,
            served=served(line, repository, case.role),
            card=recipe.FORMATS["model-card"],
        )
    except Undecided as error:
        raise CheckpointError(f"config.json: {error}", do="publish in a format that the gate decides") from error
    return BEGIN + text.strip("\n") + "\n" + END


def with_section(card: str, rendered: str) -> str:
    """``card`` with its section exchanged, or with the section at its end when it has none.

    Raises:
        CheckpointError: only one of the two markers is there, or they are there more than once.
    """
    begins, ends = card.count(BEGIN), card.count(END)
    if (begins, ends) == (0, 0):
        return card.rstrip("\n") + "\n\n" + rendered
    if (begins, ends) != (1, 1) or card.index(BEGIN) > card.index(END):
        raise CheckpointError(
            "README.md: markers of the rendered section",
            expected=f"{BEGIN.strip()} before {END.strip()}, once each",
            found=f"{begins} and {ends}",
            do="remove them all, then --render-card",
        )
    return card[: card.index(BEGIN)] + rendered + card[card.index(END) + len(END) :]


def told(quantisation: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Rows of the card's table: keys of the config, then those of each group."""
    for key in TOLD:
        if key in quantisation:
            yield key, json.dumps(quantisation[key])
    groups = quantisation.get("config_groups")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        found = {**weights, "targets": group.get("targets")} if isinstance(weights, dict) else {}
        for key in TOLD:
            if found.get(key) is not None:
                yield f"{name}: {key}", json.dumps(found[key])


def served(line: Line, repository: str, role: Role) -> list[Recipe]:
    """Recipes of the line that use ``repository`` in this role."""
    rows = line.profiles.profiles.items()
    return [recipe.make(line, name) for name, row in rows if repository == getattr(row, role)]


def _head(case: Case) -> Head | None:
    found = case.checkpoint
    names = [name for name in found.tensors if name.startswith(MTP_PREFIX)]
    if case.role != "target" or not names:
        return None
    packed = any(on_disk(module_of(name), found.dtypes) == "packed" for name in names)
    return Head(len(names), tuple(sorted({found.tensors[name][1].dtype for name in names})), packed)
