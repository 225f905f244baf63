"""Tiles of linear maps: how they are cut down, and which of them a kernel can make."""

from __future__ import annotations

import pytest

from kernels.tiles.tile import LinearTile


def test_tiles_are_cut_down_to_the_model() -> None:
    tile = LinearTile(64, 32, 256, split_k=3)
    assert tile.fitted(768, 3072) == tile
    cut = tile.fitted(1600, 6400)
    assert (cut.block_n, cut.block_k, cut.split_k) == (32, 256, 1)
    cut = LinearTile(64, 64, 256).fitted(800, 768)
    assert (cut.block_n, cut.block_k) == (32, 256)
    cut = tile.fitted(4800, 1600)
    assert (cut.block_n, cut.block_k, cut.split_k) == (32, 64, 1)


@pytest.mark.parametrize(
    ("tile", "is_possible"),
    [
        (LinearTile(64, 64, 256, split_k=4, tma=True), True),
        (LinearTile(64, 64, 256, split_k=8, tma=True), True),
        (LinearTile(32, 64, 256, split_k=8, tma=True), False),
        (LinearTile(64, 64, 256, split_k=3, tma=True), False),
        (LinearTile(128, 64, 256, split_k=16, tma=True), False),
        (LinearTile(32, 64, 256, split_k=8), True),
        (LinearTile(8, 64, 256, tma=True), True),
        (LinearTile(4, 64, 256, tma=True), False),
        (LinearTile(64, 32, 256, tma=True), False),
        (LinearTile(64, 32, 256), True),
    ],
    ids=[
        "16-rows-each",
        "8-rows-each",
        "4-rows-each",
        "three",
        "sixteen",
        "in-memory",
        "8-rows",
        "4-rows",
        "32-columns",
        "plain",
    ],
)
def test_what_the_hopper_kernel_can_make(tile: LinearTile, is_possible: bool) -> None:
    assert tile.is_possible == is_possible


def test_a_width_that_the_hopper_kernel_cannot_make_is_the_plain_kernels() -> None:
    tile = LinearTile(8, 64, 256, split_k=2, tma=True)
    assert tile.fitted(768, 3072) == tile
    cut = tile.fitted(96, 3072)
    assert not cut.tma
    assert (cut.block_m, cut.block_n, cut.block_k, cut.split_k) == (16, 32, 64, 2)
