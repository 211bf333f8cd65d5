"""Prompts for the tiny models, in token ids."""

from __future__ import annotations

import random

from tests.e2e.support.tiny_models import Shape


def prompt(number: int, length: int, shape: Shape = Shape()) -> list[int]:
    """The prompt of that number: always the same ids, none of them a stop or mask token."""
    draw = random.Random(number)
    return [draw.randrange(shape.stop_token) for _ in range(length)]
