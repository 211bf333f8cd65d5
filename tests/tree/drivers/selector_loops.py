"""The DFlash2 selector as plain loops over requests, slots and candidates, in FP64; and inputs for it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch  # type: ignore[import-not-found]  # in the base image, or on the machine with the device


@dataclass(frozen=True)
class Given:
    """What the selector gets: codebooks [vocab, rank], the rest per request (B), slot (S) and candidate (K)."""

    predecessor_table: torch.Tensor
    successor_table: torch.Tensor
    candidate_ids: torch.Tensor  # [B, S, K]
    unary_logits: torch.Tensor  # [B, S, K]
    hidden: torch.Tensor  # [B, S, rank]
    anchor_token_ids: torch.Tensor  # [B]
    uniforms: torch.Tensor  # [B, S]
    temperatures: torch.Tensor  # [B]
    greedy_mask: torch.Tensor  # [B]

    def arguments(self) -> dict[str, torch.Tensor]:
        """As keyword arguments of ``selector_propose_triton``."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def on(self, device: str) -> Given:
        """The same values on another device."""
        return replace(self, **{name: value.to(device) for name, value in self.arguments().items()})


def draw(
    batch: int, slots: int, top_k: int, rank: int, vocab: int, dtype: torch.dtype, seed: int, *, integers: bool = False
) -> Given:
    """Random inputs; every second request is greedy.

    With ``integers`` all factors are small whole numbers: each score is exact in every type and any order of
    summation, and equal scores are frequent.
    """
    random = torch.Generator().manual_seed(seed)

    def values(*shape: int) -> torch.Tensor:
        if integers:
            return torch.randint(-1, 2, shape, generator=random).float()
        return torch.randn(*shape, generator=random)

    ids = [torch.randperm(vocab, generator=random)[:top_k] for _ in range(batch * slots)]
    return Given(
        predecessor_table=(values(vocab, rank) * (1.0 if integers else 0.3)).to(dtype),
        successor_table=(values(vocab, rank) * (1.0 if integers else 0.3)).to(dtype),
        candidate_ids=torch.stack(ids).view(batch, slots, top_k),
        unary_logits=values(batch, slots, top_k) * 2,
        hidden=values(batch, slots, rank).to(dtype),
        anchor_token_ids=torch.randint(vocab, (batch,), generator=random),
        uniforms=torch.rand(batch, slots, generator=random),
        temperatures=0.5 + torch.rand(batch, generator=random),
        greedy_mask=torch.arange(batch) % 2 == 0,
    )


def tables(given: Given) -> torch.Tensor:
    """All transition scores [B, S, K before, K]: unary + <predecessor * hidden, successor>, one row at a time.

    Before slot 0 stands the anchor, whatever candidate index asks for it.
    """
    batch, slots, top_k = given.candidate_ids.shape
    scores = torch.empty(batch, slots, top_k, top_k, dtype=torch.float64)
    for b in range(batch):
        for s in range(slots):
            successors = given.successor_table[given.candidate_ids[b, s]].double()
            for before in range(top_k):
                token = given.candidate_ids[b, s - 1, before] if s else given.anchor_token_ids[b]
                state = given.predecessor_table[token].double() * given.hidden[b, s].double()
                scores[b, s, before] = given.unary_logits[b, s].double() + (successors * state).sum(-1)
    return scores


def greedy_pick(scores: list[float]) -> int:
    """The first NaN, as ``torch.argmax`` has it; without one the first of the greatest."""
    for index, score in enumerate(scores):
        if score != score:
            return index
    return scores.index(max(scores))


def walk(given: Given, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One path through ``tables``: tokens [B, S], the proposal distributions [B, S, K] and each choice's margin.

    The margin is how far the decision is from another one: the lead of the greatest score, or the distance of the
    uniform number from the nearest step of the cumulative distribution. 0 is an exact tie.
    """
    batch, slots, top_k = given.candidate_ids.shape
    tokens = torch.empty(batch, slots, dtype=torch.int64)
    q = torch.zeros(batch, slots, top_k, dtype=torch.float64)
    margin = torch.zeros(batch, slots, dtype=torch.float64)
    for b in range(batch):
        previous = 0
        for s in range(slots):
            row = scores[b, s, previous]
            if given.greedy_mask[b]:
                index = greedy_pick(row.tolist())
                q[b, s, index] = 1.0
                margin[b, s] = (row[index] - torch.cat([row[:index], row[index + 1 :]])).min() if top_k > 1 else 1.0
            else:
                q[b, s] = torch.softmax(row / given.temperatures[b].double(), dim=0)
                uniform, passed, index = float(given.uniforms[b, s]), 0.0, 0
                steps = []
                for probability in q[b, s].tolist():
                    passed += probability
                    steps.append(passed)
                    index += uniform >= passed
                index = min(index, top_k - 1)
                margin[b, s] = min((abs(uniform - step) for step in steps[:-1]), default=1.0)
            tokens[b, s] = given.candidate_ids[b, s, index]
            previous = index
    return tokens, q, margin
