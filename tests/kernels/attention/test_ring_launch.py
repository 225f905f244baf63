"""How the Hopper attention kernel is launched, by the numbers alone: on any machine."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest

from kernels.tiles.launch import (
    gathering_programs,
    inbox_spare,
    ring_spare,
    ring_stages,
    ring_tile,
    split_tokens,
)
from kernels.tiles.tile import RingTile


def test_a_batch_of_few_pairs_gathers_its_parts_in_clusters() -> None:
    """Parts of one head of 64, in tables of 16 splits: `words` of them a pair."""
    words = 16 * 80
    of = partial(gathering_programs, kv_heads=12, multiprocessors=132)
    programs = {rows: of(rows, words=words) for rows in (1, 2, 8, 9, 16)}
    assert programs == {1: 8, 2: 8, 8: 8, 9: 4, 16: 4}
    assert of(2, words=12 * 1024) == 8
    assert of(2, words=12 * 1024 + 80) == of(1, words=12 * 1024 + 80) == 1


def test_long_contexts_have_longer_splits_rather_than_many() -> None:
    """One program adds up all parts of a context, one after another."""
    ring = replace(ring_tile(64), split=64)
    contexts = (1, 64, 1024, 1025, 2048, 2049, 131072)
    assert [split_tokens(most, ring) for most in contexts] == [64, 64, 64, 128, 128, 256, 256]


def test_an_inbox_behind_a_ring_is_within_what_the_ring_asks_for() -> None:
    """A launch gets more than 48 KB only where the kernel itself, without its inbox, needs more."""
    for own in (1000, 33040, 49152, 49160):
        for inbox in (0, 8000, 41488):
            spare = inbox_spare(own, inbox)
            assert spare % 8 == 0
            assert own + spare + inbox <= 227 * 1024
            assert own + spare > 48 * 1024 or own + inbox <= 48 * 1024


def test_shallower_rings_let_more_programs_run_at_once() -> None:
    """Up to nine programs a multiprocessor all are there at once, in its 227 KB of shared memory.

    A program has stages of 32 keys and values of 64 two-byte elements, their barriers, and 1 KB
    that the device adds.
    """
    from kernels.attention.hopper.gather import gathered_bytes

    for in_clusters in (False, True):
        depths = [
            ring_stages(64, programs, 132, in_clusters=in_clusters) for programs in range(1, 4000)
        ]
        assert depths == sorted(depths, reverse=True)
        # Of those in clusters there are never more than six, and each has its inbox too.
        for programs in range(1, (6 if in_clusters else 9) * 132 + 1):
            together = -(-programs // 132)
            bytes_each = depths[programs - 1] * (2 * 32 * 64 * 2 + 8) + 1024
            bytes_each += gathered_bytes(16 * 80) if in_clusters else 0
            assert together * bytes_each <= 227 * 1024


@pytest.mark.parametrize("in_clusters", [False, True])
@pytest.mark.parametrize(("head_dim", "group"), [(64, 1), (64, 4), (128, 4)])
def test_rings_of_eight_bits_have_more_stages_or_more_programs_in_the_same_memory(
    head_dim: int, group: int, in_clusters: bool
) -> None:
    tile = ring_tile(head_dim, group)
    eight = tile.in_eight_bits()
    *others, _ = tile.cluster_depths if in_clusters else tile.depths
    fullest = others[-1][0] if others else 0.0
    for each in (halves / 2 for halves in range(1, 48)):
        stages, more = (one.stages(each, in_clusters=in_clusters) for one in (tile, eight))
        if each > fullest:
            assert more == stages
            continue
        assert stages < more <= 2 * stages
        barriers = 8 * (more - stages)
        together = more * eight.stage_bytes(head_dim // 2)
        assert together <= stages * tile.stage_bytes(head_dim) + barriers
    assert eight.alone == tile.alone
    assert (eight.block_n, eight.tail, eight.split) == (tile.block_n, tile.tail, tile.split)


def test_programs_that_walk_whole_contexts_spread_evenly() -> None:
    """Where the device holds them all, as many fit on a multiprocessor as its even share."""
    for programs in range(198, 4000):
        stages = ring_stages(64, programs, 132)
        spare = ring_spare(64, stages, programs, 132)
        bytes_each = stages * (2 * 32 * 64 * 2 + 8) + spare + 1024
        # Memory is given out in units of 128 bytes.
        fitting = 228 * 1024 // (-(-bytes_each // 128) * 128)
        assert spare >= 0
        assert spare % 8 == 0
        # Where two on each fill the device, a third of the next launch finds room.
        share = 3 if programs == 264 else -(-programs // 132)
        assert fitting == share or (spare == 0 and fitting < programs / 132)


def test_wide_heads_and_rings_that_are_not_even_leave_no_memory_unused() -> None:
    uneven = RingTile(32, 8, 64, ((math.inf, 2),))
    assert ring_spare(64, 2, 400, 132, replace(uneven, even=True)) > 0
    assert ring_spare(64, 2, 400, 132, uneven) == 0
    # Few programs of short contexts: what they left unused would keep linear maps away.
    assert ring_spare(64, 6, 132, 132) == 0
    assert ring_spare(64, 6, 133, 132) > 0
    assert not any(
        ring_spare(128, stages, programs, 132)
        for stages in (2, 3)
        for programs in range(71, 1000, 10)
    )


def test_tokens_are_written_late_where_many_programs_share_a_multiprocessor() -> None:
    heads = 12
    late = [rows for rows in range(1, 257) if ring_tile(64).appends_late(rows * heads / 132)]
    assert late == list(range(89, 257))
    assert not ring_tile(128).appends_late(1000.0)
