"""RoPE settings of a config, in the spelling of transformers 4 or 5."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

COMPARED = (
    "rope_type",
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
)
"""What draft and target have to share; how many dimensions rotate depends on the head and is each model's own."""
MAX_POSITIONS = 1 << 40


@dataclass(frozen=True)
class Rope:
    """What positions a model was made for."""

    settings: Mapping[str, Any]
    positions: int
    """``max_position_embeddings``."""

    @property
    def kind(self) -> str:
        return str(self.settings.get("rope_type", "default"))

    @property
    def factor(self) -> float:
        """By how much positions are stretched; 1 for native RoPE."""
        return float(self.settings.get("factor", 1)) if self.kind != "default" else 1.0

    @property
    def native_positions(self) -> int:
        """Positions before they are stretched."""
        original = self.settings.get("original_max_position_embeddings", self.positions)
        return int(original) if self.factor != 1 else self.positions

    @property
    def reach(self) -> float:
        """Positions after they are stretched."""
        return self.native_positions * self.factor if self.factor != 1 else self.positions

    def __str__(self) -> str:
        if self.factor == 1:
            return f"native RoPE of {self.positions} positions"
        return f"{self.kind} with factor {self.factor:g} on {self.native_positions} positions"


def read(config: Mapping[str, Any]) -> Rope | None:
    """RoPE of a language model's config; None when positions or factor are no sane numbers."""
    positions = config.get("max_position_embeddings")
    nested = config.get("rope_parameters") or config.get("rope_scaling")
    settings = dict(nested) if isinstance(nested, dict) else {}
    if "rope_type" not in settings and "type" in settings:
        settings["rope_type"] = settings["type"]
    settings.setdefault("rope_type", "default")
    settings.setdefault("rope_theta", config.get("rope_theta", 10000))
    numbers = (positions, settings.get("factor", 1), settings.get("original_max_position_embeddings", 1))
    sane = all(isinstance(row, int | float) and 0 < row <= MAX_POSITIONS for row in numbers)
    return Rope(settings, positions) if sane and isinstance(positions, int) else None


def profile_problems(found: Rope, context: int) -> Iterator[str]:
    """Why a context of so many tokens is not what these settings were made for."""
    if context > found.reach:
        yield f"{found}; the profile needs {context}"
    elif context <= found.native_positions and found.factor != 1:
        yield f"{found}; the profile's {context} need native RoPE"


def differences(one: Rope, other: Rope) -> list[str]:
    """Settings that are not the same, as ``key a, b``."""
    found = []
    for key in COMPARED:
        a, b = one.settings.get(key), other.settings.get(key)
        if a != b:
            found.append(f"{key} {a} and {b}")
    return found
