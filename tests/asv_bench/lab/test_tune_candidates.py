"""What `tune` tries: slots of a table, and other choices for each that are possible."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asv_bench.cli.tune import chosen_slots
from asv_bench.lab.tune.candidates import TableSlot, candidates, slots_of
from kernels.tiles.tile import ROLES, LinearTile, RingTile
from tests.tuned_steps import BUCKETS, GPT2, HEAD, RING, SHAPES, SLOTS, TABLE


@pytest.mark.parametrize("slot", SLOTS, ids=str)
def test_candidates_fit_the_model_and_differ_from_what_is_there(slot: TableSlot) -> None:
    present = slot.choice(TABLE)
    found = candidates(slot, TABLE, SHAPES)
    assert len(found) == len(set(found)) >= 8
    assert present not in found
    for choice in found:
        changed = slot.with_choice(TABLE, choice)
        assert slot.choice(changed) == choice
        if isinstance(choice, RingTile):
            assert choice.split % choice.block_n == 0
            assert len(choice.depths) == len(TABLE.ring(64).depths)
            assert len(choice.cluster_depths) == len(TABLE.ring(64).cluster_depths)
            continue
        tiles = changed.tiles(slot.points[0].rows)
        assert tiles.fitted(SHAPES) == tiles
        assert not choice.tma or slot.role != "head" or choice.block_m % 64 == 0
        assert choice.is_possible
        assert slot.role != "head" or choice.split_k == 1


def test_every_band_of_a_ring_is_tried_with_other_depths() -> None:
    ring = SLOTS[-1].choice(TABLE)
    assert isinstance(ring, RingTile)
    found = [one for one in candidates(SLOTS[-1], TABLE, SHAPES) if isinstance(one, RingTile)]
    for name in ("depths", "cluster_depths"):
        for band, (most, stages) in enumerate(getattr(ring, name)):
            tried = {getattr(one, name)[band] for one in found}
            assert len(tried) > 3
            assert {limit for limit, _ in tried} == {most}
            assert (most, stages) in tried


def test_properties_that_only_pay_together_change_together() -> None:
    strip = next(slot for slot in SLOTS if slot.role == "attention_in" and slot.place == 0)
    assert LinearTile(1, 4, 16, warps=1) in candidates(strip, TABLE, SHAPES)
    split = next(
        slot for slot in SLOTS if slot.role == "feed_forward_out" and slot.points[0].rows == 64
    )
    present = split.choice(TABLE)
    assert isinstance(present, LinearTile)
    assert present.split_k > 1
    both = [
        tile
        for tile in candidates(split, TABLE, SHAPES)
        if isinstance(tile, LinearTile)
        and tile == replace(present, block_n=tile.block_n, split_k=tile.split_k)
        and tile.block_n != present.block_n
        and tile.split_k != present.split_k
    ]
    assert both
    # A narrower tile of the head leaves room for more stages.
    head = TABLE.tiles(64).head
    assert replace(head, block_n=128, stages=6) in candidates(HEAD, TABLE, SHAPES)


def test_what_the_other_buckets_have_is_tried() -> None:
    last = len(BUCKETS) - 1
    slot = next(slot for slot in SLOTS if slot.role == "attention_out" and slot.place == last)
    tile = replace(LinearTile(128, 32, 64), stages=6, warps=8)
    assert tile not in candidates(slot, TABLE, SHAPES)
    table = TABLE.with_tile(last - 1, "attention_out", tile)
    found = candidates(slot, table, SHAPES)
    assert tile in found
    # Single rows are for one or two.
    assert all(one.block_m > 1 for one in found if isinstance(one, LinearTile))


def test_what_a_kernel_ignores_makes_no_candidate() -> None:
    tile = LinearTile(64, 384, 64, tma=True)
    table = TABLE.with_tile(HEAD.place, "head", replace(tile, warps=8, prefetch=False))
    found = candidates(HEAD, table, SHAPES)
    assert tile not in found
    assert all(
        (one.warps, one.prefetch) == (4, True)
        for one in found
        if isinstance(one, LinearTile) and one.tma
    )


def test_a_pipeline_deeper_than_a_map_is_not_tried() -> None:
    widths = {"feed_forward_out": GPT2.inner_size}
    for slot in SLOTS[:-1]:
        tiles = [one for one in candidates(slot, TABLE, SHAPES) if isinstance(one, LinearTile)]
        streamed = [tile for tile in tiles if tile.tma and slot.role != "head"]
        for tile in streamed:
            width = widths.get(str(slot.role), GPT2.hidden_size)
            assert tile.stages * tile.block_k * tile.split_k <= width
        assert len(streamed) == len(set(streamed))


def test_slots_are_every_role_of_every_bucket_and_the_models_ring() -> None:
    assert len(SLOTS) == len(BUCKETS) * len(ROLES) + 1
    assert RING.role is None
    assert RING.choice(TABLE) == TABLE.ring(64)
    assert slots_of(TABLE, 128)[-1].choice(TABLE) == TABLE.ring(128)
    assert [str(slot) for slot in chosen_slots(TABLE, "head,ring", "64")] == [
        "head at B=64, context 257",
        "ring 0",
    ]
