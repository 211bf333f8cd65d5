"""The hybrid target's prefix cache with pages of 64: hits, forks, chunked prefill, decode checkpoints, eviction.

Each engine has one running request and five state slots, so that two checkpoints at most survive beside a request.
What comes out is compared with an engine without radix cache and without speculation; what was reused, with the
page and checkpoint grid. Overlap scheduling is on, as in the images: the next batch is scheduled before the
result of the last one is looked at.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.support.engines import MTP, Answer, Case, Engines, dflash
from tests.e2e.support.prompts import prompt

if TYPE_CHECKING:
    from tests.e2e.support.tiny_models import Models

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
RUNS = tuple(product(("none", "MTP", "DFLASH"), STRATEGIES))

FIRST = prompt(30, 140)
FORK = FIRST[:130] + prompt(31, 12)
LONG = prompt(32, 200)
SESSION = prompt(33, PAGE - 6)
TURN = 16
"""Tokens of the session's first answer: a verification of eight tokens that passes the page's end is not its last."""
BRIEF = prompt(34, PAGE - 6)
BRIEF_TURN = 7
"""Tokens of the brief session's first answer: its last verification, and no other, fills the page."""
TOKENS, FEW = 8, 4
"""Lengths of answers; a kernel takes its time in Triton's interpreter."""


@dataclass(frozen=True)
class Step:
    """A request of its own: which text, how long its answer, and how much of it is in the cache."""

    text: str
    tokens: int
    cached: int


STEPS = {
    "cold": Step("first", TOKENS, 0),
    "hit": Step("first", TOKENS, 2 * PAGE),
    "fork": Step("fork", FEW, 2 * PAGE),
    # In chunks of 128 and 72 tokens: the second chunk's checkpoint is inside it.
    "chunked": Step("long", FEW, 0),
    "chunked hit": Step("long", FEW, 3 * PAGE),
    "session": Step("session", TURN, 0),
    "next turn": Step("next turn", FEW, PAGE),
    "brief session": Step("brief session", BRIEF_TURN, 0),
    "brief session's next turn": Step("brief session's next turn", FEW, PAGE),
    **{f"filler {number}": Step(f"filler {number}", 1, 0) for number in range(4)},
    "evicted": Step("first", TOKENS, 0),
    "hit again": Step("first", TOKENS, 2 * PAGE),
}
FILLERS = {f"filler {number}": prompt(40 + number, PAGE + 6) for number in range(4)}


def texts(session_answer: list[int], brief_answer: list[int]) -> dict[str, list[int]]:
    """Prompts by the name of their text; a session's next turn repeats what was answered in its first."""
    return {
        "first": FIRST,
        "fork": FORK,
        "long": LONG,
        "session": SESSION,
        "next turn": SESSION + session_answer[:TURN],
        "brief session": BRIEF,
        "brief session's next turn": BRIEF + brief_answer[:BRIEF_TURN],
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
    plain = {text: ids for text, ids in texts([], []).items() if not text.endswith("next turn")}
    lengths = {step.text: step.tokens for step in STEPS.values()}
    lengths |= {"session": TURN + FEW, "brief session": BRIEF_TURN + FEW}
    reference = engines.run(Case(target | OFF, [request(plain[text], lengths[text]) for text in plain]))
    expected = {text: answer[0]["ids"] for text, answer in zip(plain, reference.steps, strict=True)}
    # A session's second turn goes on where its first one stopped.
    expected["next turn"] = expected["session"][TURN:]
    expected["brief session's next turn"] = expected["brief session"][BRIEF_TURN:]
    known = texts(expected["session"], expected["brief session"])
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
    # The lazy strategy does not keep what a request's last verification wrote: with no free slot, as here, it was
    # written over the checkpoint that would be kept, and into a second slot it is given back (_mamba_lazy_spec_update).
    lost = run[0] != "none" and run[1] == "extra_buffer_lazy" and step == "brief session's next turn"
    assert runs.row(run, step)["cached_tokens"] == (0 if lost else STEPS[step].cached)


@pytest.mark.parametrize("run", [run for run in RUNS if run[0] != "none"], ids=" ".join)
def test_drafts_are_accepted_after_eviction_as_before(runs: Runs, run: tuple[str, str]) -> None:
    compared = ("cold", "hit", "evicted", "hit again")
    accepted = {step: runs.row(run, step)["spec_correct_drafts_histogram"] for step in compared}
    assert accepted["evicted"] == accepted["cold"]
    assert accepted["hit again"] == accepted["hit"]
    # A histogram by accepted drafts: the first entry counts verifications that accepted none.
    assert sum(accepted["hit again"][1:]) > 0


COPIES = """        if self._should_fuse_slot_ops():
            from sglang.srt.mem_cache.mamba_slot_fused import fused_copy_conv_slots
"""
"""Where a checkpoint is copied into the slot of the request that hit it, after the checks."""


def altered(tree: Path, folder: Path, file: str, old: str, new: str) -> Path:
    """A tree in ``folder`` that differs from ``tree`` in one place of one file; everything else is linked."""
    below = tree
    for name in Path(file).parts:
        folder.mkdir()
        for entry in below.iterdir():
            if entry.name not in (name, "__pycache__"):
                (folder / entry.name).symlink_to(entry)
        below, folder = below / name, folder / name
    source = below.read_text(encoding="utf-8")
    assert source.count(old) == 1, f"{file}: expected {old!r} once; read it again"
    folder.write_text(source.replace(old, new), encoding="utf-8")
    return folder.parents[len(Path(file).parts) - 1]


def test_a_state_that_is_not_restored_is_seen(runs: Runs, models: Models, tmp_path: Path) -> None:
    """Without the copy of a checkpoint into the request's slot a hit starts from an empty state."""
    pool = "sglang/srt/mem_cache/memory_pool.py"
    tree = altered(Path(os.environ["SGX_TREE"]).resolve(), tmp_path / "tree", pool, COPIES, f"        return\n{COPIES}")
    target = {"model_path": str(models.target), **COMMON, "mamba_radix_cache_strategy": "extra_buffer"}
    with Engines(tree, tmp_path) as broken:
        cold, hit = broken.run(Case(target, [request(FIRST, TOKENS)] * 2)).steps
    assert (cold[0]["cached_tokens"], hit[0]["cached_tokens"]) == (0, 2 * PAGE)
    assert cold[0]["ids"] == runs.expected["first"]
    assert hit[0]["ids"] != runs.expected["first"]
