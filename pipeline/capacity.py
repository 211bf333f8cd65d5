"""What a profile takes of a card's memory.

The formulas of :mod:`pipeline.model_weights` and :mod:`pipeline.pool_sizes`, for one profile and one card; dimensions
are those of the ``config.json`` that the line keeps of each model folder.
"""

from dataclasses import dataclass
from typing import Any

from rich.table import Table

from pipeline import model_weights, pool_sizes
from pipeline.errors import ManifestError
from pipeline.manifest import Line, Profile
from pipeline.model_weights import Weights
from pipeline.pool_sizes import Draft, Serving, Target

GIB = 1 << 30
RING = "SGLANG_DFLASH_PRIVATE_RING"
VERIFY_ROWS = "SGLANG_XPU_VERIFY_SINGLE_QUERY_ROWS"


@dataclass(frozen=True)
class Part:
    """One use of memory on each rank."""

    what: str
    rows: str
    """How many of what, for people."""
    bytes: int


@dataclass(frozen=True)
class Capacity:
    """Every use, against the card."""

    profile: str
    tp: int
    card: int
    """Bytes of one card."""
    parts: tuple[Part, ...]
    running: int
    slots_per_request: int
    fits: int
    """Tokens that the pool could have at most."""
    wanted: int

    @property
    def total(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def is_enough(self) -> bool:
        """Whether the pool gets the tokens that the profile asks for."""
        return self.fits >= self.wanted and self.total <= self.card


@dataclass(frozen=True)
class Models:
    """``config.json`` of what a profile loads."""

    target: dict[str, Any]
    draft: dict[str, Any] | None
    """None where the target's own MTP head drafts."""

    @classmethod
    def of(cls, line: Line, profile: Profile) -> "Models":
        flags, folders = profile.flags, profile.mounts
        target = line.config(folders[str(flags["model-path"])])
        own = flags.get("speculative-draft-model-path")
        return cls(target, line.config(folders[str(own)]) if own else None)

    def require_shares(self, tp: int) -> None:
        """Refuse a number of cards among which upstream's layers cannot share their heads.

        Each has the same number of them; only key heads are repeated where there are more cards (``divide`` in
        ``QKVParallelLinear``; ``Qwen3_5AttentionDecoderLayer``, ``Qwen3_5GatedDeltaNet``, ``DFlashAttention``).
        """
        text = self.target["text_config"]
        divided = {
            "query heads": text["num_attention_heads"],
            "linear key heads": text["linear_num_key_heads"],
            "linear value heads": text["linear_num_value_heads"],
        }
        repeated = {"key heads": text["num_key_value_heads"]}
        if self.draft:
            divided["query heads of the draft"] = self.draft["num_attention_heads"]
            repeated["key heads of the draft"] = self.draft["num_key_value_heads"]
        wrong = [f"a divisor of the {heads} {what}" for what, heads in divided.items() if heads % tp]
        wrong += [
            f"a divisor or a multiple of the {heads} {what}"
            for what, heads in repeated.items()
            if heads % tp and tp % heads
        ]
        if wrong:
            raise ManifestError(f"--tp {tp}", expected=wrong[0], do="take 4")

    def loaded(self, tp: int) -> list[Part]:
        """What is in a card's memory before any pool: its shares of the weights, what is whole, and rotary tables."""
        weights = {"target": model_weights.target(self.target, tp)}
        if self.draft:
            weights["draft"] = model_weights.draft(self.draft, tp)
        else:
            weights["MTP head"] = model_weights.mtp_head(self.target, tp)
        tables = [model_weights.rotary_table(model) for model in (self.target, self.draft) if model]
        return [
            Part("weights, shared out", _of_each(weights, "split"), sum(each.split for each in weights.values())),
            Part("weights, whole on each", _of_each(weights, "whole"), sum(each.whole for each in weights.values())),
            Part("rotary tables", "target, draft" if self.draft else "target", sum(tables)),
        ]


def _of_each(weights: dict[str, Weights], part: str) -> str:
    return ", ".join(f"{name} {getattr(each, part) / GIB:.2f} GiB" for name, each in weights.items())


def serving(profile: Profile, image: dict[str, str], tp: int | None = None) -> Serving:
    """The flags and variables of a profile that decide about memory.

    Args:
        image: variables that the image sets.
        tp: another number of cards than the profile's.
    """
    flags, environment = profile.flags, {**image, **profile.environment}
    window = flags.get("speculative-draft-window-size")
    return Serving(
        tp=tp or int(flags["tp-size"]),
        page=int(flags["page-size"]),
        context=profile.context_length,
        tokens=profile.max_total_tokens,
        slots=profile.max_mamba_cache_size,
        max_running=int(flags["max-running-requests"]),
        strategy=str(flags.get("mamba-radix-cache-strategy", "extra_buffer")),
        draft_tokens=int(flags["speculative-num-draft-tokens"]),
        steps=int(flags.get("speculative-num-steps", 1)),
        window=int(window) if window is not None else None,
        ring=environment.get(RING) == "1",
        graph_batch=max(profile.graph_batches, default=0),
        verify_rows=environment.get(VERIFY_ROWS) == "1",
        memory_fraction=float(flags["mem-fraction-static"]),
    )


def plan(line: Line, name: str, *, tp: int | None = None, memory_gib: float | None = None) -> Capacity:
    """What a profile takes of each card.

    Args:
        tp: number of cards; the profile's by default.
        memory_gib: memory of one card; the machine's by default.

    Raises:
        ManifestError: no such profile or one of somebody else's image, nothing known of a model or the machine, or
            a number of cards among which the heads cannot be shared.
    """
    profiles = line.profiles
    profile = profiles.named(name)
    if profile.image is not None:
        do = "name a profile that is served by an image of this line"
        raise ManifestError(f"profile {name} documents another image, whose pools are not known", do=do)
    if profiles.machine is None:
        raise ManifestError(f"{line.folder}/profiles.yaml: no machine", do="say on what it is served")
    wanted = serving(profile, line.release.variables, tp)
    models = Models.of(line, profile)
    models.require_shares(wanted.tp)
    target, draft = Target.of(models.target), Draft.of(models.draft) if models.draft else None
    card = int((memory_gib or profiles.machine.card_memory_gib) * GIB)
    loaded = models.loaded(wanted.tp)
    return Capacity(
        profile=name,
        tp=wanted.tp,
        card=card,
        parts=(*loaded, *_pools(target, draft, wanted), _reserve(wanted, card)),
        running=wanted.running,
        slots_per_request=pool_sizes.slots_per_request(wanted.strategy),
        fits=pool_sizes.tokens_that_fit(target, draft, wanted, card, card - sum(part.bytes for part in loaded)),
        wanted=wanted.tokens,
    )


def _pools(target: Target, draft: Draft | None, wanted: Serving) -> list[Part]:
    draft_row = pool_sizes.draft_row(target, draft, wanted.tp)
    rows = pool_sizes.draft_rows(wanted)
    if draft is None:
        whose = f"{rows:,} tokens, MTP head"
    elif wanted.ring:
        whose = f"{wanted.running} × {rows // wanted.running:,} rows"
    else:
        whose = f"{rows:,} tokens, the target's indices"
    target_row = pool_sizes.target_row(target, wanted.tp)
    return [
        Part("target KV", f"{wanted.tokens:,} tokens", pool_sizes.pool(wanted.tokens, wanted.page, target_row)),
        Part("draft KV", whose, pool_sizes.pool(rows, wanted.page, draft_row)),
        Part("recurrent states", f"{wanted.slots} slots", pool_sizes.slot_pool(target, wanted)),
        Part("states of a verification", f"running: {wanted.running}", pool_sizes.verify_pool(target, wanted)),
        Part("request tables", f"running: {wanted.running}", pool_sizes.request_tables(wanted)),
        Part("page tables of graphs", f"batches up to {wanted.graph_batch}", pool_sizes.graph_tables(wanted)),
    ]


def _reserve(wanted: Serving, card: int) -> Part:
    fraction = 1 - wanted.memory_fraction
    return Part("left to kernels and graphs", f"{fraction:.0%} of the card", int(fraction * card))


def table(capacity: Capacity) -> Table:
    """The parts for people."""
    result = Table("part", "of what", title=f"{capacity.profile}: each of {capacity.tp} cards")
    result.add_column("bytes", justify="right")
    result.add_column("GiB", justify="right")
    rows = [(part.what, part.rows, part.bytes) for part in capacity.parts]
    for what, of_what, size in (*rows, ("sum", "", capacity.total), ("card", "", capacity.card)):
        result.add_row(what, of_what, f"{size:,}", f"{size / GIB:.2f}", end_section=what == rows[-1][0])
    return result


def verdict(capacity: Capacity) -> str:
    """One line: does it fit, how much would, and how many requests run at a time."""
    fits = "fits" if capacity.is_enough else "does not fit"
    return (
        f"{capacity.wanted:,} tokens asked for: {fits}; {capacity.fits:,} would at most. Requests at a time: "
        f"{capacity.running}, each takes {capacity.slots_per_request} state slots; others wait"
    )


def as_json(capacity: Capacity) -> dict[str, object]:
    """The parts for programs; sizes in bytes per card."""
    return {
        "profile": capacity.profile,
        "tp": capacity.tp,
        "parts": [{"what": part.what, "of_what": part.rows, "bytes": part.bytes} for part in capacity.parts],
        "sum": capacity.total,
        "card": capacity.card,
        "tokens_wanted": capacity.wanted,
        "tokens_that_fit": capacity.fits,
        "fits": capacity.is_enough,
        "requests_at_a_time": capacity.running,
        "slots_per_request": capacity.slots_per_request,
    }
