"""The selector's ways: one launch (ours), tables and Triton walk (CUDA), tables and torch walk (upstream's XPU)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]  # on the machine with the device

from tests.gpu.machine import sized
from tests.tree.drivers.selector_loops import Given
from tests.tree.drivers.standalone import function, interpreted, kernel_module

OURS = "sglang/kernels/ops/speculative/dflash_selector.py"
WALK = "sglang/kernels/ops/speculative/dflash.py"
MODEL = "sglang/srt/models/dflash.py"

# Of the Qwen3.8 draft: a block of eight has seven edges; the vocabulary's codebooks are replicated on every rank.
SLOTS, TOP_K, RANK, VOCAB = 7, 16, 256, sized(248_320, 512)


class Ways:
    """The functions of one tree."""

    def __init__(self, root: Path) -> None:
        self.one_launch = kernel_module(root, OURS).selector_propose_triton
        self.walk = kernel_module(root, WALK).selector_walk_triton
        self._tables = function(root, MODEL, "_score_edges", {"torch": torch})
        self.follow = function(root, MODEL, "_follow_maps", {"torch": torch})
        if not interpreted():
            self._tables = torch.compile(self._tables, dynamic=True)
            self.follow = torch.compile(self.follow, dynamic=True)

    def tables(self, given: Given) -> torch.Tensor:
        """All transitions [batch, slots, top_k, top_k], as ``build_lattice`` compiles them."""
        for tensor in (given.candidate_ids, given.unary_logits, given.hidden):
            torch._dynamo.mark_static(tensor, 1)
            torch._dynamo.mark_static(tensor, 2)
        scores: torch.Tensor = self._tables(
            predecessor_table=given.predecessor_table,
            successor_table=given.successor_table,
            candidate_ids=given.candidate_ids,
            unary_logits=given.unary_logits,
            hidden=given.hidden,
            anchor_token_ids=given.anchor_token_ids,
            top_k=given.candidate_ids.shape[2],
        )
        return scores

    def ours(self, given: Given) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and proposal distributions from one launch."""
        tokens, q = self.one_launch(**given.arguments())
        return tokens, q

    def triton_walk(self, given: Given, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The walk that CUDA takes."""
        tokens, q = self.walk(
            candidate_ids=given.candidate_ids,
            scores=scores,
            uniforms=given.uniforms,
            temperatures=given.temperatures,
            greedy_mask=given.greedy_mask,
        )
        return tokens, q

    def torch_walk(self, root: Path) -> Callable[[Given, torch.Tensor], Any]:
        """The walk that every other device takes: the tree's ``sample_path`` with its Triton branch out of reach."""
        names = {"torch": torch, "F": torch.nn.functional, "_follow_maps": self.follow}
        sample_path = function(root, MODEL, "CandidateSelector.sample_path", names, without=("scores.is_cuda",))
        selector = type("Selector", (), {"top_k": TOP_K})()
        return lambda given, scores: sample_path(
            selector,
            candidate_ids=given.candidate_ids,
            scores=scores,
            uniforms=given.uniforms,
            temperatures=given.temperatures,
            greedy_mask=given.greedy_mask,
        )
