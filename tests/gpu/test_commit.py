"""Accept, bonus and commit on the device, against a sequential commit; and commits that never wait for the host."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch  # type: ignore[import-not-found]  # on the machine with the device

from tests.gpu.machine import DEVICE, HALF, captured, sized
from tests.tree.drivers.commit_loops import Cache, Functions, check_round

BLOCK, POSITIONS = 8, 64
WIDTH = (2, sized(128, 8))  # the draft's key heads on one of four ranks


@pytest.fixture(scope="module")
def functions(composed: Path) -> Functions:
    return Functions(composed)


@pytest.mark.parametrize("way", ["by_one_kernel", "by_torch", "by_leading_matches"])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_rounds_leave_what_sequential_commits_leave(functions: Functions, way: str, batch: int) -> None:
    random = torch.Generator().manual_seed(batch)

    def tokens(*shape: int) -> torch.Tensor:
        return torch.randint(0, 2, shape, generator=random).to(DEVICE)

    table = torch.randperm(batch * POSITIONS, generator=random).view(batch, POSITIONS).int().to(DEVICE)
    requests = torch.randperm(batch, generator=random).to(DEVICE)
    cache = Cache.empty(batch * POSITIONS, WIDTH, torch.float32, DEVICE)
    lengths, bonus = torch.arange(batch, device=DEVICE), tokens(batch)
    for number in range(4):
        lengths, bonus = check_round(
            functions,
            getattr(functions, way),
            cache,
            table,
            requests,
            lengths,
            bonus,
            tokens(batch, BLOCK - 1),
            tokens(batch, BLOCK),
            number,
        )


def inputs(batch: int) -> tuple[torch.Tensor, ...]:
    """(keys, values, locations, committed lengths) of one commit."""
    rows = torch.randn(2, batch * BLOCK, *WIDTH, device=DEVICE).to(HALF)
    locations = torch.randperm(batch * POSITIONS, device=DEVICE)[: batch * BLOCK].view(batch, BLOCK)
    return rows[0], rows[1], locations, torch.full((batch,), BLOCK, dtype=torch.int32, device=DEVICE)


@pytest.mark.cuda_graph
def test_a_captured_commit_follows_the_lengths_of_each_replay(functions: Functions) -> None:
    """Capture refuses whatever waits for the device, and a replay reads the lengths anew."""
    batch = 4
    keys, values, locations, committed = inputs(batch)
    cache = Cache.empty(batch * POSITIONS, WIDTH, HALF, DEVICE)
    graph = captured(
        [
            lambda: functions.write_rows(
                keys, values, cache.keys, cache.values, locations, committed, keys[0].numel(), HALF
            )
        ]
    )
    for lengths in ([1, 8, 3, 5], [8, 8, 8, 8], [1, 1, 1, 1]):
        committed.copy_(torch.tensor(lengths, dtype=torch.int32))
        for buffer in (cache.keys, cache.values, cache.expected_keys, cache.expected_values):
            buffer.fill_(-1)
        graph.replay()
        for row, length in enumerate(lengths):
            for slot in range(length):
                cache.expected_keys[locations[row, slot]] = keys[row * BLOCK + slot]
                cache.expected_values[locations[row, slot]] = values[row * BLOCK + slot]
        assert cache.equal()


@pytest.mark.cuda_graph
def test_selecting_rows_by_nonzero_cannot_be_captured() -> None:
    """What a device without this kernel does instead: the number of rows comes back to the host."""
    _, _, locations, committed = inputs(4)
    slots = torch.arange(BLOCK, device=DEVICE)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(RuntimeError), torch.cuda.graph(graph, stream=side):
            torch.nonzero((slots < committed[:, None]).flatten())
    torch.cuda.synchronize()
    assert locations.shape == (4, BLOCK)
