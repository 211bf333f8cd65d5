"""The draft's private ring on the device: rows written and read through its table, under graph replay."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch  # type: ignore[import-not-found]  # on the machine with the device

from tests.gpu.machine import DEVICE, HALF, captured, sized
from tests.tree.drivers.standalone import kernel_module

RING = "sglang/srt/speculative/dflash_ring.py"
WINDOW, PAGE, BLOCK = sized(2048, 40), sized(64, 8), 8
SLOTS = 8
WIDTH = (2, sized(128, 8))


class Rings:
    """Rings of ``SLOTS`` requests over one cache, and a dictionary of what each position must hold."""

    def __init__(self, root: Path) -> None:
        module = kernel_module(root, RING)
        layout = module.RingLayout(window=WINDOW, page_size=PAGE, block_size=BLOCK)
        self.stride: int = layout.stride
        self.ring: Any = module.DraftRing(layout, SimpleNamespace(size=SLOTS))
        self.layout = layout
        self.cache = torch.zeros(self.ring.rows + PAGE, *WIDTH, dtype=HALF, device=DEVICE)
        self.table = torch.zeros(SLOTS + 1, self.stride, dtype=torch.int32, device=DEVICE)
        self.requests = torch.arange(1, SLOTS + 1, device=DEVICE)
        self.start = torch.zeros(SLOTS, dtype=torch.long, device=DEVICE)  # of the visible window
        self.positions = torch.zeros(SLOTS, BLOCK, dtype=torch.long, device=DEVICE)
        self.rows = torch.zeros(SLOTS, BLOCK, *WIDTH, dtype=HALF, device=DEVICE)
        self.seen = torch.zeros(SLOTS, self.stride, *WIDTH, dtype=HALF, device=DEVICE)

    def step(self) -> None:
        """What a decode step does: scatter the block's rows, fill the compact table, gather through it."""
        self.cache[self.ring.block_locs(self.requests, self.positions)] = self.rows
        self.ring.write_table(self.table, self.requests, self.start)
        self.seen.copy_(self.cache[self.table[self.requests].long()])

    def set_lengths(self, lengths: list[int]) -> None:
        """The next block of each request; a row's value tells request and position."""
        for slot, length in enumerate(lengths):
            self.start[slot] = self.layout.visible_start(length)
            self.positions[slot] = length + torch.arange(BLOCK, device=DEVICE)
            self.rows[slot] = value(slot, self.positions[slot]).to(HALF)

    def check(self, lengths: list[int], first: list[int]) -> None:
        """Every visible position that was written holds its own value, for each request."""
        for slot, length in enumerate(lengths):
            start = int(self.start[slot])
            positions = torch.arange(max(start, first[slot]), length + BLOCK, device=DEVICE)
            got = self.seen[slot, positions - start]
            assert torch.equal(got, value(slot, positions).to(HALF).expand_as(got))


def value(slot: int, positions: torch.Tensor) -> torch.Tensor:
    """[positions, 2, 1]: the request by the first head and the position, round 251, by the second; exact in BF16."""
    return torch.stack([torch.full_like(positions, slot + 1), positions % 251 + 1], dim=1)[:, :, None].float()


def play(rings: Rings, step: Any) -> None:
    """Blocks all the way round the ring, requests at different places of theirs."""
    first = [PAGE * 3 * slot for slot in range(SLOTS)]
    lengths = list(first)
    for _ in range(2 * rings.stride // BLOCK):
        rings.set_lengths(lengths)
        step()
        rings.check(lengths, first)
        lengths = [length + 1 + slot % BLOCK for slot, length in enumerate(lengths)]


def test_values_tell_all_requests_apart() -> None:
    """Also after the rounding of the cache, and at the same position."""
    values = torch.stack([value(slot, torch.arange(251)).to(HALF) for slot in range(SLOTS)])
    assert len(torch.unique(values.flatten(0, 1), dim=0)) == SLOTS * 251


def test_rows_go_round_the_ring(composed: Path) -> None:
    rings = Rings(composed)
    play(rings, rings.step)


@pytest.mark.cuda_graph
def test_one_captured_step_serves_every_position(composed: Path) -> None:
    rings = Rings(composed)
    graph = captured([rings.step])
    rings.cache.zero_()
    play(rings, graph.replay)


def test_the_padding_page_is_never_written(composed: Path) -> None:
    rings = Rings(composed)
    play(rings, rings.step)
    assert (rings.cache[:PAGE] == 0).all()
