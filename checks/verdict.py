"""How a check says what it found: problems are gathered, then one conclusion is drawn."""

import pytest

PROBLEM, COUNT, PROOF, NOTHING, TABLE = "problem", "problems", "proof", "not_applicable", "table"
"""Names of the properties by which run.py reads a verdict from pytest's reports."""

SHOWN = 50
"""Problems that are written out; the others are only counted (a wrong base would make 20,000)."""


class Verdict:
    """Problems of one check, in the order in which they were found."""

    def __init__(self, properties: list[tuple[str, object]]) -> None:
        self._properties = properties
        self._problems: list[str] = []

    def problem(self, text: str) -> None:
        """Note one problem: what is wrong and where, what was expected, what was found."""
        self._problems.append(" ".join(text.split()))

    @property
    def failed(self) -> bool:
        """Whether a problem was noted."""
        return bool(self._problems)

    def table(self, rows: list[dict[str, str]]) -> None:
        """Add rows that the report keeps for people who look something up."""
        self._properties.append((TABLE, rows))

    def not_applicable(self, reason: str) -> None:
        """Say in one line why there is nothing for this check to judge in this image, and which image it judges."""
        self._properties.append((NOTHING, reason))

    def conclude(self, proof: str) -> None:
        """Fail with all problems, or else state in one line what was proven, with counts."""
        if not self._problems:
            self._properties.append((PROOF, proof))
            return
        self._properties.append((PROBLEM, self._problems[0]))
        self._properties.append((COUNT, len(self._problems)))
        hidden = len(self._problems) - SHOWN
        more = [f"... and {hidden} more"] if hidden > 0 else []
        pytest.fail("\n".join(self._problems[:SHOWN] + more), pytrace=False)
