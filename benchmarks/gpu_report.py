"""Figures of ``benchmarks.gpu`` as JSON and as tables; needs no device and no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

SOURCE = "source.json"
"""The archive's file that says of which tree it was packed, and of which files."""


@dataclass(frozen=True)
class Figure:
    """One measured way to do something; ``bytes`` is what any way has to move at least."""

    topic: str
    case: str
    what: str
    time: dict[str, float] | None = None
    bytes: int | None = None
    error: float | None = None

    def as_json(self) -> dict[str, Any]:
        """What was measured, without what was not."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def markdown(document: Mapping[str, Any]) -> str:
    """A table for each topic, below a line that says on what it was measured."""
    machine = document["machine"]
    rate = document["bytes_per_second"]
    lines = [
        f"{document['date']}, {machine['device']}, driver {machine['driver']}, torch {machine['torch']}, "
        f"Triton {machine['triton']}; "
        f"an elementwise kernel over 8 GiB moves {rate / 1e12:.2f} TB/s.",
        f"Command `{document['command']}`, composed tree `{document['tree'][:19]}`, "
        f"archive `{document['archive'][:19]}`.",
    ]
    for topic, figures in groupby(document["figures"], key=lambda each: each["topic"]):
        lines += ["", f"### {topic}", "", *_table(list(figures), rate)]
    return "\n".join(lines)


def _table(figures: list[dict[str, Any]], rate: float) -> Iterator[str]:
    columns = ["case", "way"]
    columns += ["µs, median", "quartiles"] if any("time" in each for each in figures) else []
    columns += ["of the bandwidth limit"] if any("bytes" in each for each in figures) else []
    columns += ["relative error"] if any("error" in each for each in figures) else []
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for each in figures:
        time, least, error = each.get("time"), each.get("bytes"), each.get("error")
        cells = {
            "case": each["case"],
            "way": each["what"],
            "µs, median": f"{time['us']:,.1f}" if time else "",
            "quartiles": f"{time['low']:,.1f} to {time['high']:,.1f}" if time else "",
            "of the bandwidth limit": _percent(least / rate / (time["us"] * 1e-6)) if time and least else "",
            "relative error": f"{error:.1e}" if error is not None else "",
        }
        yield f"| {' | '.join(cells[column] for column in columns)} |"


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else "below 0.1%"
