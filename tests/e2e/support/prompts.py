"""Prompts for the tiny models, in token ids."""

from __future__ import annotations

import random

from tests.e2e.support.tiny_models import SHAPE


def prompt(number: int, length: int) -> list[int]:
    """The prompt of that number: always the same ids, none of them a stop or mask token."""
    draw = random.Random(number)
    return [draw.randrange(SHAPE.stop_token) for _ in range(length)]
