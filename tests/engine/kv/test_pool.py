from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import KVBlockManager
from engine.errors import ConfigError, IntegrityError, OutOfBlocksError
from engine.kv.pool import BlockPool


def snapshot(blocks: BlockPool) -> tuple[list[int], list[int], int]:
    return blocks.refcounts.tolist(), blocks.fill_levels.tolist(), blocks.num_free_blocks


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "4", None, True])
def test_sizes_must_be_positive_integers(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="num_blocks must be an integer of 1 or more"):
        BlockPool(wrong, 4)
    with pytest.raises(ConfigError, match="block_size must be an integer of 1 or more"):
        BlockPool(4, wrong)


class TestAllocateAndFree:
    def test_allocated_blocks_have_one_holder_and_no_tokens(self) -> None:
        blocks = BlockPool(4, 8)
        ids = blocks.allocate_blocks(3)
        assert ids.dtype == np.int32
        assert len(set(ids.tolist())) == 3
        assert blocks.num_free_blocks == 1
        assert blocks.refcounts[ids].tolist() == [1, 1, 1]
        assert blocks.fill_levels[ids].tolist() == [0, 0, 0]
        blocks.check_integrity([ids.tolist()])

    def test_arrays_are_int32_by_block_id(self) -> None:
        blocks = BlockPool(5, 8)
        for array in (blocks.refcounts, blocks.fill_levels):
            assert array.dtype == np.int32
            assert array.shape == (5,)

    def test_too_many_change_nothing(self) -> None:
        blocks = BlockPool(4, 8)
        blocks.allocate_blocks(2)
        before = snapshot(blocks)
        with pytest.raises(OutOfBlocksError, match="3 KV blocks are needed, but only 2 of 4"):
            blocks.allocate_blocks(3)
        assert snapshot(blocks) == before

    def test_no_blocks_can_be_allocated_even_when_none_is_free(self) -> None:
        blocks = BlockPool(1, 8)
        blocks.allocate_blocks(1)
        assert blocks.allocate_blocks(0).tolist() == []

    @pytest.mark.parametrize("wrong", [-1, 1.0, "2"])
    def test_a_count_must_be_an_integer(self, wrong: Any) -> None:
        with pytest.raises(ValueError, match="count must be an integer of 0 or more"):
            BlockPool(4, 8).allocate_blocks(wrong)

    def test_a_block_is_free_when_its_last_holder_goes(self) -> None:
        blocks = KVBlockManager(3, 8)
        ids: list[int] = []
        blocks.extend(ids, 20)
        blocks.incref_blocks(ids[:2])
        assert blocks.free_blocks(ids) == 1
        assert blocks.num_free_blocks == 1
        assert blocks.fill_levels[ids].tolist() == [8, 8, 0]
        assert blocks.free_blocks(ids[:2]) == 2
        assert sorted(blocks.allocate_blocks(3).tolist()) == sorted(ids)

    def test_a_block_listed_twice_counts_twice(self) -> None:
        blocks = BlockPool(3, 8)
        first = int(blocks.allocate_blocks(1)[0])
        blocks.incref_blocks([first, first])
        assert blocks.refcounts[first] == 3
        assert blocks.free_blocks([first, first]) == 0
        with pytest.raises(IntegrityError, match="has 1 holders, but was to lose 2"):
            blocks.free_blocks([first, first])
        assert blocks.free_blocks([first]) == 1

    def test_a_free_block_can_be_neither_freed_nor_shared(self) -> None:
        blocks = BlockPool(3, 8)
        held = int(blocks.allocate_blocks(1)[0])
        free = (held + 1) % 3
        before = snapshot(blocks)
        with pytest.raises(IntegrityError, match=f"Block {free} has 0 holders"):
            blocks.free_blocks([held, free])
        with pytest.raises(IntegrityError, match=f"Block {free} is free"):
            blocks.incref_blocks([held, free])
        assert snapshot(blocks) == before


class TestIntegrity:
    @pytest.fixture
    def blocks(self) -> KVBlockManager:
        blocks = KVBlockManager(6, 4)
        blocks.extend([], 6)
        return blocks

    def fails(self, blocks: KVBlockManager, message: str, *holders: Any) -> None:
        with pytest.raises(IntegrityError, match=message):
            blocks.check_integrity(*holders)

    def test_a_sound_pool_passes(self, blocks: KVBlockManager) -> None:
        blocks.check_integrity()
        blocks.check_integrity([[0, 1]])
        blocks.check_integrity([[0, 1], []], [6, None])

    def test_a_lost_block(self, blocks: KVBlockManager) -> None:
        blocks.refcounts[1] = 0
        self.fails(blocks, "Block 1 is neither free nor held")

    def test_a_free_block_with_a_holder(self, blocks: KVBlockManager) -> None:
        blocks.refcounts[4] = 1
        self.fails(blocks, "Block 4 is in the free list, but has holders")

    def test_a_free_block_with_tokens(self, blocks: KVBlockManager) -> None:
        blocks.fill_levels[4] = 1
        self.fails(blocks, "Block 4 is free, but has tokens")

    @pytest.mark.parametrize("level", [-1, 5])
    def test_a_fill_level_out_of_the_block(self, blocks: KVBlockManager, level: int) -> None:
        blocks.fill_levels[0] = level
        self.fails(blocks, "Block 0 has a fill level outside 0 to 4")

    def test_a_block_freed_twice_behind_the_counters(self, blocks: KVBlockManager) -> None:
        blocks._free_stack[0] = blocks._free_stack[1]
        self.fails(blocks, "is in the free list more than once")

    def test_refcounts_that_differ_from_the_holders(self, blocks: KVBlockManager) -> None:
        self.fails(blocks, "Block 1 has refcount 1, but 0 holders", [[0]])
        self.fails(blocks, "Block 0 has refcount 1, but 2 holders", [[0, 1], [0]])
        self.fails(blocks, "Block 5 has refcount 0, but 1 holders", [[0, 1], [5]])

    def test_a_holder_that_lists_a_block_twice(self, blocks: KVBlockManager) -> None:
        blocks.incref_blocks([0])
        self.fails(blocks, "Block 0 is listed more than once by holder 1", [[1], [0, 0]])

    def test_lengths_that_differ_from_the_fill_levels(self, blocks: KVBlockManager) -> None:
        self.fails(blocks, "Block 1 has fill level 2, but holder 0 of 7 .* has 3", [[0, 1]], [7])
        self.fails(blocks, "Holder 0 has 9 tokens, which fill 3 blocks", [[0, 1]], [9])
        self.fails(blocks, "Holder 0 has 4 tokens, which fill 1 blocks", [[0, 1]], [4])
        self.fails(blocks, "Block 1 has fill level 2, but holder 0 of 6 .* has 4", [[1, 0]], [6])

    def test_lengths_need_their_holders(self, blocks: KVBlockManager) -> None:
        with pytest.raises(ValueError, match="only with the holders"):
            blocks.check_integrity(lengths=[6])
        with pytest.raises(ValueError, match="shorter"):
            blocks.check_integrity([[0, 1]], [])
