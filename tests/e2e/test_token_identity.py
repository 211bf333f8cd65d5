"""Speculation changes no token: none, MTP and DFLASH give the same ids, and the drafts are accepted in part.

Acceptance is asserted beside the ids, since the target repairs whatever a draft gets wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.support.engines import MTP, Answer, Case, Engines, Step, dflash
from tests.e2e.support.prompts import prompt

if TYPE_CHECKING:
    from tests.e2e.support.reference import Reference
    from tests.e2e.support.tiny_models import Models

TOKENS = 20
PROMPTS = [prompt(0, 20), prompt(1, 26), prompt(2, 13)]
STEPS: dict[str, Step] = {
    "batch": {"do": "generate", "prompts": PROMPTS, "max_new_tokens": TOKENS},
    "abort": {"do": "abort", "prompts": PROMPTS[:2], "max_new_tokens": TOKENS, "after": 4},
    "conversation": {"do": "converse", "prompt": PROMPTS[0], "replies": [prompt(3, 7)], "max_new_tokens": TOKENS},
    "flush": {"do": "flush"},
    "after flush": {"do": "generate", "prompts": PROMPTS[1:2], "max_new_tokens": TOKENS},
}
FLOORS = {"MTP": 0.4, "DFLASH": 0.35, "DFLASH, window": 0.35}
"""Accepted of the proposed drafts, over all steps."""


WINDOW, PAGE = 16, 16
WINDOWED = "DFLASH, window"


@pytest.fixture(scope="module")
def runs(engines: Engines, models: Models) -> dict[str, Answer]:
    steps = list(STEPS.values())
    windowed = dflash(models.draft, speculative_draft_window_size=WINDOW, page_size=PAGE, disable_radix_cache=True)
    modes: dict[str, tuple[dict[str, Any], list[Step]]] = {
        "none": ({}, steps),
        "MTP": (MTP, steps),
        "DFLASH": (dflash(models.draft), steps),
        WINDOWED: (windowed, steps[:1]),
    }
    target = {"model_path": str(models.target)}
    return engines.run_all({name: Case(target | args, steps) for name, (args, steps) in modes.items()})


def rows(run: Answer, step: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run.steps[list(STEPS).index(step)]
    return found


def ids(run: Answer, step: str) -> list[list[int]]:
    return [row["ids"] for row in rows(run, step)]


def generated(run: Answer) -> list[dict[str, Any]]:
    """All requests that ran to their end."""
    ended = [step for step in list(STEPS)[: len(run.steps)] if step not in ("abort", "flush")]
    return [row for step in ended for row in rows(run, step)]


def test_without_speculation_ids_are_those_of_transformers(runs: dict[str, Answer], reference: Reference) -> None:
    assert ids(runs["none"], "batch") == [reference.continued(text, TOKENS) for text in PROMPTS]


def test_with_pages_and_a_draft_window_ids_are_those_without_speculation(runs: dict[str, Answer]) -> None:
    """The window ends inside the prompts, and starts inside a page of them."""
    assert runs[WINDOWED].server["page_size"] == PAGE
    assert ids(runs[WINDOWED], "batch") == ids(runs["none"], "batch")


@pytest.mark.parametrize("mode", ["MTP", "DFLASH"])
@pytest.mark.parametrize("step", ["batch", "conversation", "after flush"])
def test_ids_are_those_without_speculation(runs: dict[str, Answer], mode: str, step: str) -> None:
    assert ids(runs[mode], step) == ids(runs["none"], step)


@pytest.mark.parametrize("mode", ["none", "MTP", "DFLASH"])
def test_a_step_does_not_show_in_the_next(runs: dict[str, Answer], mode: str) -> None:
    """Alone, after an abort, and after a flush, a prompt is continued as it was in a batch."""
    run = runs[mode]
    assert ids(run, "conversation")[0] == ids(run, "batch")[0]
    assert run.steps[list(STEPS).index("flush")] == {"flushed": True}
    assert ids(run, "after flush") == ids(run, "batch")[1:2]
    assert rows(run, "after flush")[0]["cached_tokens"] == 0


@pytest.mark.parametrize("mode", ["none", "MTP", "DFLASH"])
def test_a_conversation_goes_on_from_the_cache(runs: dict[str, Answer], mode: str) -> None:
    first, second = rows(runs[mode], "conversation")
    assert second["prompt_tokens"] == first["prompt_tokens"] + TOKENS + 7
    assert second["cached_tokens"] >= first["prompt_tokens"]


@pytest.mark.parametrize("mode", ["none", "MTP", "DFLASH"])
def test_an_aborted_request_ends_early_and_its_neighbour_does_not(runs: dict[str, Answer], mode: str) -> None:
    aborted, neighbour = rows(runs[mode], "abort")
    whole = ids(runs[mode], "batch")
    assert aborted["finish_reason"]["type"] == "abort"
    assert len(aborted["ids"]) >= 4
    assert aborted["ids"][:TOKENS] == whole[0][: len(aborted["ids"])]
    assert neighbour["ids"] == whole[1]


@pytest.mark.parametrize("mode", FLOORS)
def test_drafts_are_accepted_in_part_on_many_distinct_tokens(runs: dict[str, Answer], mode: str) -> None:
    requests = generated(runs[mode])
    accepted = sum(row["spec_num_correct_drafts"] for row in requests)
    proposed = sum(row["spec_num_proposed_drafts"] for row in requests)
    assert FLOORS[mode] < accepted / proposed < 0.9, f"{accepted} of {proposed} drafts were accepted"
    depths = {depth for row in requests for depth, count in enumerate(row["spec_correct_drafts_histogram"]) if count}
    assert len(depths) >= 4, f"every verification accepted one of {sorted(depths)} drafts"
    for row in requests:
        assert len(set(row["ids"])) >= 0.7 * TOKENS, row["ids"]
