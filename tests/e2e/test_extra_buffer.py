"""The hybrid target's prefix cache with pages of 64: hits, forks, chunked prefill, decode checkpoints, eviction.

Each engine has one running request and five state slots, so that two checkpoints at most survive beside a request.
What comes out is compared with an engine without radix cache and without speculation; what was reused, with the
page and checkpoint grid. Overlap scheduling is on, as in the images: the next batch is scheduled before the
result of the last one is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.support.engines import MTP, Answer, Case, Engines, dflash
from tests.e2e.support.prompts import prompt

if TYPE_CHECKING:
    from tests.e2e.conftest import Models

PAGE = 64
SLOTS = 5
"""State slots of one running request under ``extra_buffer``; under ``extra_buffer_lazy`` it needs four."""
COMMON = {
    "page_size": PAGE,
    "max_running_requests": 1,
    "max_mamba_cache_size": SLOTS,
    "chunked_prefill_size": 2 * PAGE,
    # Checkpoints while decoding, at each page: the default, 256 tokens, would take too long to reach.
    "mamba_track_interval": PAGE,
    "disable_overlap_schedule": False,
}
OFF = {"disable_radix_cache": True}
STRATEGIES = ("extra_buffer", "extra_buffer_lazy")
RUNS = (
    *((mode, "extra_buffer") for mode in ("none", "MTP", "DFLASH")),
    *((mode, "extra_buffer_lazy") for mode in ("MTP", "DFLASH")),
)

FIRST = prompt(30, 140)
FORK = FIRST[:130] + prompt(31, 12)
LONG = prompt(32, 200)
SESSION = prompt(33, 50)
TURN = 20
"""Tokens of the session's first answer; with its prompt they reach beyond a page."""
TOKENS = 8


@dataclass(frozen=True)
class Step:
    """A request of its own: which text, how long its answer, and how much of it is in the cache."""

    text: str
    tokens: int
    cached: int


STEPS = {
    "cold": Step("first", TOKENS, 0),
    "hit": Step("first", TOKENS, 2 * PAGE),
    "fork": Step("fork", TOKENS, 2 * PAGE),
    # In chunks of 128 and 72 tokens: the second chunk's checkpoint is inside it.
    "chunked": Step("long", TOKENS, 0),
    "chunked hit": Step("long", TOKENS, 3 * PAGE),
    "session": Step("session", TURN, 0),
    "next turn": Step("next turn", TOKENS, PAGE),
    **{f"filler {number}": Step(f"filler {number}", 2, 0) for number in range(3)},
    "evicted": Step("first", TOKENS, 0),
    "hit again": Step("first", TOKENS, 2 * PAGE),
}
FILLERS = {f"filler {number}": prompt(40 + number, PAGE + 6) for number in range(3)}


def texts(session_answer: list[int]) -> dict[str, list[int]]:
    """Prompts by the name of their text; the session's next turn repeats what was answered in its first."""
    return {
        "first": FIRST,
        "fork": FORK,
        "long": LONG,
        "session": SESSION,
        "next turn": SESSION + session_answer[:TURN],
        **FILLERS,
    }


@dataclass(frozen=True)
class Runs:
    """What should come out, by text, and what came out, by mode and strategy."""

    expected: dict[str, list[int]]
    answers: dict[tuple[str, str], Answer]

    def row(self, run: tuple[str, str], step: str) -> dict[str, Any]:
        """The answer to a step of :data:`STEPS`."""
        (found,) = self.answers[run].steps[list(STEPS).index(step)]
        row: dict[str, Any] = found
        return row


def request(text: list[int], tokens: int) -> dict[str, Any]:
    return {"do": "generate", "prompts": [text], "max_new_tokens": tokens}


@pytest.fixture(scope="module")
def runs(engines: Engines, models: Models) -> Runs:
    target = {"model_path": str(models.target), **COMMON}
    plain = {text: ids for text, ids in texts([]).items() if text != "next turn"}
    lengths = {step.text: step.tokens for step in STEPS.values()} | {"session": TURN + TOKENS}
    reference = engines.run(Case(target | OFF, [request(plain[text], lengths[text]) for text in plain]))
    expected = {text: answer[0]["ids"] for text, answer in zip(plain, reference.steps, strict=True)}
    # The session's second turn goes on where its first one stopped.
    expected["next turn"] = expected["session"][TURN:]
    known = texts(expected["session"])
    steps = [request(known[step.text], step.tokens) for step in STEPS.values()]
    modes: dict[str, dict[str, Any]] = {"none": {}, "MTP": MTP, "DFLASH": dflash(models.draft)}
    cases = {
        f"{mode} {strategy}": Case(target | modes[mode] | {"mamba_radix_cache_strategy": strategy}, steps)
        for mode, strategy in RUNS
    }
    answers = engines.run_all(cases)
    return Runs(expected, {run: answers[" ".join(run)] for run in RUNS})


@pytest.mark.parametrize("run", RUNS, ids=" ".join)
def test_the_strategy_is_the_one_that_was_asked_for(runs: Runs, run: tuple[str, str]) -> None:
    server = runs.answers[run].server
    assert (server["mamba_radix_cache_strategy"], server["page_size"]) == (run[1], PAGE)
    assert server["max_mamba_cache_size"] == SLOTS


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("run", RUNS, ids=" ".join)
def test_ids_are_those_without_a_cache(runs: Runs, run: tuple[str, str], step: str) -> None:
    asked = STEPS[step]
    assert runs.row(run, step)["ids"] == runs.expected[asked.text][: asked.tokens]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("run", RUNS, ids=" ".join)
def test_what_is_reused_ends_at_a_checkpoint(runs: Runs, run: tuple[str, str], step: str) -> None:
    assert runs.row(run, step)["cached_tokens"] == STEPS[step].cached


@pytest.mark.parametrize("run", [run for run in RUNS if run[0] != "none"], ids=" ".join)
def test_drafts_are_accepted_after_eviction_as_before(runs: Runs, run: tuple[str, str]) -> None:
    accepted = {step: runs.row(run, step)["spec_correct_drafts_histogram"] for step in STEPS}
    assert accepted["evicted"] == accepted["cold"]
    assert accepted["hit again"] == accepted["hit"]
    # A histogram by accepted drafts: the first entry counts verifications that accepted none.
    assert sum(accepted["hit again"][1:]) > 0
