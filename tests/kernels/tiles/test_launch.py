"""Sizes of tiles: as small as the hardware takes, and following from shapes alone."""

from __future__ import annotations

import pytest

from kernels.tiles.launch import (
    append_tile,
    append_tiles,
    decode_tile,
    fused_attention_tile,
    padded,
    prefill_tile,
)


@pytest.mark.parametrize(
    ("size", "least", "expected"),
    [(1, 16, 16), (16, 16, 16), (17, 16, 32), (64, 16, 64), (65, 16, 128), (1, 1, 1), (12, 1, 16)],
)
def test_padding_is_to_the_next_power_of_two(size: int, least: int, expected: int) -> None:
    assert padded(size, least) == expected


@pytest.mark.parametrize("group", [1, 3, 7, 8, 17])
@pytest.mark.parametrize("element_bytes", [2, 4])
def test_a_prefill_tile_holds_whole_queries(element_bytes: int, group: int) -> None:
    constants = prefill_tile(element_bytes, 64, group).constants
    rows = constants["BLOCK_M"]
    assert rows - group < constants["BLOCK_Q"] * group <= rows


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 256])
@pytest.mark.parametrize("element_bytes", [2, 4])
def test_a_split_ends_where_a_tile_does(element_bytes: int, head_dim: int) -> None:
    for tile in (
        decode_tile(element_bytes, head_dim, 1),
        fused_attention_tile(element_bytes, head_dim, 1),
    ):
        assert tile.constants["SPLIT"] % tile.constants["BLOCK_N"] == 0
        assert tile.constants["D_PAD"] == padded(head_dim)


@pytest.mark.parametrize("head_dim", [16, 24, 64, 80, 128, 256])
@pytest.mark.parametrize("heads", [1, 3, 12, 25])
def test_an_append_is_cut_for_few_rows_and_for_many(heads: int, head_dim: int) -> None:
    whole, shared = append_tiles(heads, head_dim)
    assert [append_tile(heads, head_dim, rows) for rows in (1, 160, 161)] == [whole, whole, shared]
    assert whole.constants == {"ROWS": 1, "HEADS": padded(heads, 1), "D_PAD": padded(head_dim, 1)}
    assert shared.constants["ROWS"] == 4
    for tile in (whole, shared):
        pairs = tile.constants["ROWS"] * tile.constants["HEADS"]
        assert pairs * tile.constants["D_PAD"] <= 32 * (32 * tile.num_warps)
