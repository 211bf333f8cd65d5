"""Private rings of draft KV end to end: the same text, and the same drafts, as with KV that shares the target's slots.

Token ids alone prove nothing about a draft's cache, since the target corrects every wrong draft. The draft of these
models looks eleven tokens back, so a wrong row costs acceptance: what has to be equal is the histogram of accepted
drafts of each request. Overlap scheduling is on, as in the images.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.support.engines import Answer, Case, Engines, Step, dflash
from tests.e2e.support.prompts import prompt

if TYPE_CHECKING:
    from tests.e2e.support.reference import Reference
    from tests.e2e.support.tiny_models import Models

WINDOW, PAGE, TOKENS, SLOTS = 16, 16, 16, 2
STRIDE = 48  # 16 + 15 + a block of 8, in whole pages
CHUNK = 64  # longer than a ring
FLOOR = 0.35
"""Accepted of the proposed drafts, over all steps: without it, two equally wrong runs would be equal."""
# Prompt and answer of LONG go round a ring more than twice, those of SHORT once.
LONG, SHORT, OTHER = prompt(1, 100), prompt(2, 40), prompt(3, 25)
STEPS: dict[str, Step] = {
    # Three requests for two slots: one has to wait.
    "batch": {"do": "generate", "prompts": [LONG, SHORT, OTHER], "max_new_tokens": TOKENS},
    "radix hit": {"do": "generate", "prompts": [LONG], "max_new_tokens": TOKENS},
    "abort": {"do": "abort", "prompts": [OTHER, SHORT], "max_new_tokens": TOKENS, "after": 4},
    "after abort": {"do": "logprobs", "prompts": [SHORT], "max_new_tokens": TOKENS},
    "flush": {"do": "flush"},
    "after flush": {"do": "generate", "prompts": [LONG], "max_new_tokens": TOKENS},
}
# The profiles' pages: a ring is 128 rows, and this prompt goes round twice.
WHOLE_PAGE, WHOLE_STRIDE, VERY_LONG = 64, 128, prompt(4, 260)
AGAIN: Step = {"do": "generate", "prompts": [VERY_LONG], "max_new_tokens": 8}
# Room for both prompts and one answer: near the end of both, one request has to give way. The scheduler admits the
# second only if it counts on little of what the first may still generate, and on all where a text's end is ignored.
TIGHT: dict[str, Any] = {"max_total_tokens": 224, "schedule_conservativeness": 0.1}
FIRST, SECOND = prompt(5, 60), prompt(6, 56)
BOTH: Step = {"do": "generate", "prompts": [FIRST, SECOND], "max_new_tokens": 48, "ignore_eos": False}
# The first request decodes on while the third is prefilled in the slot that the second leaves.
MIXED: Step = {"do": "abort", "prompts": [OTHER, SHORT, LONG], "max_new_tokens": 8, "after": 32}
GENERATED = [name for name, step in STEPS.items() if step["do"] in ("generate", "logprobs")]


def case(
    models: Models, page: int = PAGE, chunk: int = CHUNK, steps: Sequence[Step] = tuple(STEPS.values()), **more: Any
) -> Case:
    arguments = {
        "model_path": str(models.target),
        "page_size": page,
        "chunked_prefill_size": chunk,
        "max_running_requests": SLOTS,
        "disable_overlap_schedule": False,
        **dflash(models.draft, speculative_draft_window_size=WINDOW),
        **more,
    }
    return Case(arguments, steps)


@pytest.fixture(scope="module")
def ring_engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    tree = Path(os.environ["SGX_TREE"]).resolve()
    with Engines(tree, tmp_path_factory.mktemp("rings"), {"SGLANG_DFLASH_PRIVATE_RING": "1"}) as found:
        yield found


@pytest.fixture(scope="module")
def runs(engines: Engines, ring_engines: Engines, models: Models) -> list[Answer]:
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda which: which.run(case(models)), (engines, ring_engines)))


@pytest.fixture(scope="module")
def shared(runs: list[Answer]) -> Answer:
    return runs[0]


@pytest.fixture(scope="module")
def ring(runs: list[Answer]) -> Answer:
    return runs[1]


def rows(run: Answer, step: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run.steps[list(STEPS).index(step)]
    return found


@pytest.mark.parametrize("step", GENERATED)
def test_ids_are_those_without_speculation(shared: Answer, ring: Answer, reference: Reference, step: str) -> None:
    expected = [reference.continued(text, TOKENS) for text in STEPS[step]["prompts"]]
    assert [row["ids"] for row in rows(shared, step)] == expected
    assert [row["ids"] for row in rows(ring, step)] == expected


@pytest.mark.parametrize("step", GENERATED)
def test_every_verification_accepts_as_with_shared_slots(shared: Answer, ring: Answer, step: str) -> None:
    for theirs, ours in zip(rows(shared, step), rows(ring, step), strict=True):
        assert ours["spec_correct_drafts_histogram"] == theirs["spec_correct_drafts_histogram"]


@pytest.mark.parametrize("which", [0, 1], ids=["shared", "ring"])
def test_drafts_are_accepted(runs: list[Answer], which: int) -> None:
    requests = [row for step in GENERATED for row in rows(runs[which], step)]
    accepted = sum(row["spec_num_correct_drafts"] for row in requests)
    proposed = sum(row["spec_num_proposed_drafts"] for row in requests)
    assert accepted / proposed > FLOOR, f"{accepted} of {proposed} drafts were accepted"


def test_the_drafts_pool_holds_rings_only(shared: Answer, ring: Answer) -> None:
    pools = [run.log.count(f"#tokens: {SLOTS * STRIDE},") for run in (shared, ring)]
    assert pools == [0, 1]


def test_a_radix_hit_leaves_the_visible_tail_out(ring: Answer) -> None:
    (hit,) = rows(ring, "radix hit")
    assert 0 < hit["cached_tokens"] <= len(LONG) - WINDOW
    assert rows(ring, "after flush")[0]["cached_tokens"] == 0


def test_an_aborted_request_gives_its_slot_back(ring: Answer) -> None:
    aborted, neighbour = rows(ring, "abort")
    assert aborted["finish_reason"]["type"] == "abort"
    assert neighbour["ids"] == rows(ring, "after abort")[0]["ids"]
    assert ring.steps[list(STEPS).index("flush")] == {"flushed": True}


def test_log_probabilities_are_the_targets(shared: Answer, ring: Answer, reference: Reference) -> None:
    (theirs,), (ours,) = (rows(run, "after abort") for run in (shared, ring))
    assert ours["logprobs"] == theirs["logprobs"]
    assert ours["logprobs"] == pytest.approx(reference.logprobs(SHORT, ours["ids"]), abs=1e-4)


def test_pages_of_64(engines: Engines, ring_engines: Engines, models: Models, reference: Reference) -> None:
    """A cold prompt in chunks longer than a ring, and a hit on it, whose tail is computed again."""
    paged = case(models, WHOLE_PAGE, 192, [AGAIN, AGAIN])
    with ThreadPoolExecutor() as pool:
        theirs, ours = pool.map(lambda which: which.run(paged), (engines, ring_engines))
    assert [run.log.count(f"#tokens: {SLOTS * WHOLE_STRIDE},") for run in (theirs, ours)] == [0, 1]
    expected = reference.continued(VERY_LONG, AGAIN["max_new_tokens"])
    for (shared,), (ring,) in zip(theirs.steps, ours.steps, strict=True):
        assert shared["ids"] == ring["ids"] == expected
        assert ring["spec_correct_drafts_histogram"] == shared["spec_correct_drafts_histogram"]
        assert ring["spec_num_correct_drafts"] > 0
    assert ours.steps[1][0]["cached_tokens"] == 192


def test_a_retracted_request_starts_over_in_a_ring(
    engines: Engines, ring_engines: Engines, models: Models, reference: Reference
) -> None:
    """Retracted and admitted again, it says and accepts what it should, and afterwards both slots are free.

    At which step it is retracted depends on when the second request arrives, so that histograms may differ.
    """
    steps = [BOTH, {**BOTH, "max_new_tokens": 8}, {"do": "flush"}]
    with ThreadPoolExecutor() as pool:
        theirs, ours = pool.map(lambda which: which.run(case(models, steps=steps, **TIGHT)), (engines, ring_engines))
    for step, shared, ring in zip(steps[:2], theirs.steps, ours.steps, strict=False):
        expected = [reference.continued(text, step["max_new_tokens"]) for text in step["prompts"]]
        assert [row["ids"] for row in shared] == [row["ids"] for row in ring] == expected
        assert sum(row["spec_num_correct_drafts"] for row in ring) > 0
    assert sum(row["num_retractions"] for row in ours.steps[0]) > 0
    assert ours.steps[2] == {"flushed": True}


def test_running_requests_ride_along_with_a_prefill(
    ring_engines: Engines, models: Models, reference: Reference
) -> None:
    """``--enable-mixed-chunk``, which upstream allows for DFLASH: they decode on, with drafts as good."""
    (rows,) = ring_engines.run(case(models, steps=[MIXED], enable_mixed_chunk=True)).steps
    for text, row in zip(MIXED["prompts"], rows, strict=True):
        assert row["ids"] == reference.continued(text, len(row["ids"]))
    first = rows[0]
    assert len(first["ids"]) >= MIXED["after"]
    assert first["spec_num_correct_drafts"] / first["spec_num_proposed_drafts"] > FLOOR
