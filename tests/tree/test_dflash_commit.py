"""Accept, bonus and commit of DFLASH against a sequential, target-controlled commit: properties over random rounds.

The tree's own kernels run in Triton's interpreter, imported alone. Upstream has them as they are; these references
hold them while patches change what surrounds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch  # type: ignore[import-not-found]  # in the base image only
from drivers.commit_loops import Cache, Functions, check_round, one_by_one  # type: ignore[import-not-found]
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.tree.conftest import Tree

WAYS = ("by_one_kernel", "by_torch", "by_leading_matches")
POSITIONS = 40  # of each request's row in the table


@pytest.fixture(scope="module")
def functions(composed: Tree) -> Any:
    return Functions(composed.root)


# Two tokens only: drafts agree with the target half of the time, so every accepted length comes up.
ROUNDS = st.integers(1, 4).flatmap(
    lambda batch: st.tuples(
        st.just(batch),
        st.sampled_from([1, 2, 5, 8, 9]),  # slots of a block: the draft's eight, one alone, and no power of two
        st.lists(st.integers(0, 9), min_size=batch, max_size=batch),  # tokens ahead
        st.integers(1, 2),  # rounds
        st.integers(0, 2**32),  # of the tokens
    )
)


def play(functions: Any, accept: Callable[..., Any], drawn: tuple[int, int, list[int], int, int]) -> None:
    """Rounds over a shared cache whose rows are handed out in a random order."""
    batch, size, ahead, rounds, seed = drawn
    random = torch.Generator().manual_seed(seed)
    rows = batch * POSITIONS
    table = torch.randperm(rows, generator=random).view(batch, POSITIONS).to(torch.int32)
    requests = torch.randperm(batch, generator=random)
    cache = Cache.empty(rows, (2, 4), torch.float32, "cpu")
    lengths, bonus = torch.tensor(ahead), torch.randint(0, 2, (batch,), generator=random)
    for number in range(rounds):
        drafts = torch.randint(0, 2, (batch, size - 1), generator=random)
        target = torch.randint(0, 2, (batch, size), generator=random)
        lengths, bonus = check_round(functions, accept, cache, table, requests, lengths, bonus, drafts, target, number)


@pytest.mark.parametrize("way", WAYS)
def test_rounds_leave_what_sequential_commits_leave(functions: Any, way: str) -> None:
    @settings(max_examples=25, deadline=None, derandomize=True, database=None)
    @given(drawn=ROUNDS)
    def holds(drawn: tuple[int, int, list[int], int, int]) -> None:
        play(functions, getattr(functions, way), drawn)

    holds()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("agreeing", range(8))
def test_every_accepted_length_of_a_block_of_eight(functions: Any, way: str, agreeing: int) -> None:
    target = torch.arange(10, 18)[None]
    drafts = torch.where(torch.arange(7) < agreeing, target[:, :-1], 99)
    candidates = torch.cat([torch.tensor([[5]]), drafts], dim=1)
    accepted, committed, bonus, tokens, lengths = getattr(functions, way)(candidates, target, torch.tensor([100]))
    assert (int(accepted), int(committed), int(bonus)) == (agreeing, agreeing + 1, 10 + agreeing)
    assert tokens[0, : agreeing + 1].tolist() == list(range(10, 11 + agreeing))
    assert int(lengths) == 101 + agreeing


def test_a_later_agreement_does_not_count() -> None:
    """Drafts after the first rejected one are rejected, whatever they are."""
    committed = one_by_one([1, 2, 9, 4], [2, 3, 4, 5], [7, 6, 5, 4])
    assert (committed.accepted, committed.bonus, committed.tokens) == (1, 3, [2, 3])
    assert committed.rows == [(7, 0), (6, 1)]


FAULTS = {
    "bonus row written early": lambda a, c, b, t, n: (a, c + 1, b, t, n),
    "current token's row missing": lambda a, c, b, t, n: (a, c - 1, b, t, n),
    "bonus one slot late": lambda a, c, b, t, n: (a, c, b, t.roll(1, dims=1), n),
    "length without the bonus": lambda a, c, b, t, n: (a, c, b, t, n - 1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(functions: Any, fault: str) -> None:
    def faulty(*arguments: Any) -> Any:
        return FAULTS[fault](*functions.by_torch(*arguments))

    with pytest.raises(AssertionError):
        play(functions, faulty, (2, 8, [3, 0], 2, 1))
