"""Capacity arithmetic: published figures come out, and a card that is too small is said to be."""

import json

import pytest

from pipeline import capacity, cli, pool_sizes
from pipeline.manifest import DEFAULT_LINE, load_line

LINE = load_line(DEFAULT_LINE)
OURS = [name for name, profile in LINE.profiles.profiles.items() if profile.image is None]
GIB, MIB = 1 << 30, 1 << 20


def sizes(name: str, **card: float) -> dict[str, int]:
    return {part.what: part.bytes for part in capacity.plan(LINE, name, **card).parts}  # type: ignore[arg-type]


def test_row_of_the_target_is_what_one_layer_reads_at_262144_tokens() -> None:
    """268 MB were measured for one attention layer of one rank of four."""
    assert pool_sizes.kv_row(1, 4, 256, tp=4) * 262_144 == 268_435_456


def test_draft_of_a_million_tokens_needs_five_gib_and_eight_rings_85_mib() -> None:
    assert pool_sizes.ring_stride(window=2048, page=64, block=8) == 2176
    row = pool_sizes.kv_row(5, 8, 128, tp=4)
    assert row == 5120
    assert 1_048_576 * row == 5 * GIB
    assert 8 * 2176 * row == 85 * MIB


@pytest.mark.parametrize(("strategy", "slots"), [("extra_buffer", 5), ("extra_buffer_lazy", 4)])
def test_slots_of_a_request(strategy: str, slots: int) -> None:
    assert pool_sizes.slots_per_request(strategy) == slots


def test_strategy_without_pages_is_no_case() -> None:
    with pytest.raises(KeyError):
        pool_sizes.slots_per_request("no_buffer")


def test_ring_takes_rows_for_what_runs_and_shared_indices_one_for_each_token() -> None:
    million = LINE.profiles.profiles["1m-dflash2"]
    ring = capacity.serving(million, {})
    shared = capacity.serving(million.model_copy(update={"environment": {}}), {})
    assert pool_sizes.draft_rows(ring) == ring.running * 2176
    assert pool_sizes.draft_rows(shared) == 1_048_576


def test_switch_in_the_image_counts_like_one_of_the_profile() -> None:
    profile = LINE.profiles.profiles["1m-mtp"]
    assert capacity.serving(profile, {capacity.VERIFY_ROWS: "1"}).verify_rows
    assert not capacity.serving(profile, {}).verify_rows


def test_page_tables_of_verification_rows_are_4_mib_for_eight_requests() -> None:
    """64 rows of 16,386 pages, four bytes each; without graphs there is none."""
    profile = LINE.profiles.profiles["1m-mtp"].model_copy(update={"max_mamba_cache_size": 40})
    wanted = capacity.serving(profile, {capacity.VERIFY_ROWS: "1"})
    drafts = 7 * 8
    assert pool_sizes.graph_tables(wanted) == (8 * 8 + drafts) * 16_386 * 4
    arguments = {**profile.arguments, "cuda-graph-config": "{}"}
    eager = profile.model_copy(update={"arguments": arguments})
    assert pool_sizes.graph_tables(capacity.serving(eager, {})) == 0


@pytest.mark.parametrize("name", OURS)
def test_profile_fits_the_cards_that_it_was_made_for(name: str) -> None:
    plan = capacity.plan(LINE, name)
    assert plan.is_enough
    assert plan.total == sum(part.bytes for part in plan.parts) <= plan.card
    assert plan.fits >= plan.wanted


def test_smaller_card_or_fewer_cards_do_not_fit() -> None:
    assert not capacity.plan(LINE, "1m-mtp", memory_gib=24).is_enough
    assert not capacity.plan(LINE, "1m-mtp", tp=2).is_enough
    assert "does not fit" in capacity.verdict(capacity.plan(LINE, "1m-mtp", tp=2))


def test_two_cards_take_twice_what_four_take_of_each() -> None:
    four, two = sizes("1m-mtp"), sizes("1m-mtp", tp=2)
    assert two["target KV"] == 2 * four["target KV"]
    assert two["recurrent states"] == 2 * four["recurrent states"]
    assert two["request tables"] == four["request tables"]


def test_more_cards_than_key_heads_hold_each_key_head_more_than_once() -> None:
    assert pool_sizes.kv_row(1, 4, 256, tp=8) == pool_sizes.kv_row(1, 4, 256, tp=4)


def test_command_prints_a_table_or_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["capacity", "--profile", "1m-dflash2", "--tp", "4", "--memory-gib", "32"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert "1,048,576 tokens asked for: fits" in out
    assert cli.run(["capacity", "--profile", "1m-dflash2", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["sum"] == sum(part["bytes"] for part in document["parts"])
    assert document["requests_at_a_time"] == capacity.plan(LINE, "1m-dflash2").running
