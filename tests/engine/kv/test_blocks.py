from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.errors import IntegrityError, OutOfBlocksError
from engine.kv.blocks import BlockCopy, KVBlockManager
from engine.kv.pool import EMPTY


def snapshot(blocks: KVBlockManager) -> tuple[list[int], list[int], int]:
    return blocks.refcounts.tolist(), blocks.fill_levels.tolist(), blocks.num_free_blocks


def sequence_of(blocks: KVBlockManager, num_tokens: int) -> list[int]:
    ids: list[int] = []
    blocks.extend(ids, num_tokens)
    return ids


def last_blocks(*sequences: list[int]) -> np.ndarray:
    return np.array([ids[-1] if ids else EMPTY for ids in sequences], dtype=np.int32)


class TestBlockIds:
    @pytest.mark.parametrize("wrong", [-1, 3, -(2**31), 2**31, 2**40, -(2**63)])
    def test_ids_must_exist(self, wrong: int) -> None:
        blocks = KVBlockManager(3, 8)
        blocks.allocate_blocks(3)
        for call in (blocks.free_blocks, blocks.incref_blocks):
            with pytest.raises(ValueError, match=f"Block {wrong} does not exist: ids run from 0"):
                call([0, wrong])
        with pytest.raises(ValueError, match=f"Block {wrong} does not exist"):
            blocks.extend([wrong], 1)
        with pytest.raises(ValueError, match=f"Block {wrong} does not exist"):
            blocks.fork_block(wrong, 1)

    @pytest.mark.parametrize("wrong", [[0.0], ["0"], [[0]], [True], 0, [2**80]])
    def test_ids_must_be_integers_in_one_dimension(self, wrong: Any) -> None:
        blocks = KVBlockManager(3, 8)
        blocks.allocate_blocks(3)
        with pytest.raises(ValueError, match="must be integers in one dimension"):
            blocks.free_blocks(wrong)
        with pytest.raises(ValueError, match="must be integers in one dimension"):
            blocks.append_to_last_blocks(wrong)

    def test_empty_lists_are_fine(self) -> None:
        blocks = KVBlockManager(3, 8)
        blocks.incref_blocks([])
        assert blocks.free_blocks([]) == 0
        slots = blocks.append_token_batch([])
        assert slots.block_index.tolist() == slots.position.tolist() == slots.copies == []


class TestAppend:
    def test_one_sequence_walks_through_its_blocks(self) -> None:
        blocks = KVBlockManager(3, 2)
        ids: list[int] = []
        slots = [blocks.append_token(ids) for _ in range(5)]
        assert len(ids) == len(set(ids)) == 3
        assert [slot.block_index for slot in slots] == [ids[0], ids[0], ids[1], ids[1], ids[2]]
        assert [slot.position for slot in slots] == [0, 1, 0, 1, 0]
        assert all(slot.copy is None for slot in slots)
        blocks.check_integrity([ids], [5])

    def test_the_whole_batch_at_once(self) -> None:
        blocks = KVBlockManager(8, 8)
        sequences = [sequence_of(blocks, n) for n in (1, 7, 12)]
        last = last_blocks(*sequences)
        assert blocks.blocks_needed_for_append(last) == 0
        slots = blocks.append_to_last_blocks(last)
        assert slots.block_index.dtype == slots.position.dtype == np.int32
        assert slots.block_index.tolist() == last.tolist()
        assert slots.position.tolist() == [1, 7, 4]
        assert slots.copies == []
        blocks.check_integrity(sequences, [2, 8, 13])

    def test_the_answer_is_not_the_argument(self) -> None:
        blocks = KVBlockManager(4, 8)
        last = last_blocks(sequence_of(blocks, 3))
        slots = blocks.append_to_last_blocks(last)
        last[0] = 3
        assert slots.block_index.tolist() != [3]

    def test_rows_in_the_middle_at_a_boundary_and_empty(self) -> None:
        blocks = KVBlockManager(8, 4)
        sequences = [sequence_of(blocks, n) for n in (4, 2, 0, 0, 8)]
        before = [list(ids) for ids in sequences]
        assert blocks.blocks_needed_for_append(last_blocks(*sequences)) == 4
        slots = blocks.append_token_batch(sequences)
        assert slots.position.tolist() == [0, 2, 0, 0, 0]
        assert sequences[1] == before[1]
        for row in (0, 2, 3, 4):
            assert sequences[row] == [*before[row], slots.block_index[row]]
        blocks.check_integrity(sequences, [5, 3, 1, 1, 9])

    def test_a_shared_last_block_is_copied(self) -> None:
        blocks = KVBlockManager(4, 4)
        ids = sequence_of(blocks, 6)
        other = list(ids)
        blocks.incref_blocks(ids)
        slot = blocks.append_token(ids)
        assert slot.copy == BlockCopy(other[1], ids[1])
        assert slot[:2] == (ids[1], 2)
        assert ids[0] == other[0]
        assert ids[1] != other[1]
        blocks.check_integrity([ids, other], [7, 6])
        assert blocks.append_token(other).copy is None

    def test_a_shared_full_block_is_not_copied(self) -> None:
        blocks = KVBlockManager(4, 4)
        ids = sequence_of(blocks, 4)
        other = list(ids)
        blocks.incref_blocks(ids)
        slots = blocks.append_token_batch([ids, other])
        assert slots.copies == []
        assert ids[0] == other[0]
        blocks.check_integrity([ids, other], [5, 5])

    @pytest.mark.parametrize("held_elsewhere", [False, True])
    def test_sharers_in_one_batch(self, held_elsewhere: bool) -> None:
        blocks = KVBlockManager(8, 4)
        ids = sequence_of(blocks, 3)
        sequences = [list(ids) for _ in range(3)]
        blocks.incref_blocks(ids * (3 if held_elsewhere else 2))
        last = last_blocks(*sequences)
        num_copies = 3 if held_elsewhere else 2
        assert blocks.blocks_needed_for_append(last) == num_copies
        slots = blocks.append_token_batch(sequences)
        assert slots.position.tolist() == [3, 3, 3]
        assert [copy.source for copy in slots.copies] == ids * num_copies
        assert [copy.destination for copy in slots.copies] == slots.block_index[
            :num_copies
        ].tolist()
        assert len({row[0] for row in sequences}) == 3
        assert (sequences[2] == ids) is not held_elsewhere
        holders, lengths = [*sequences, ids], [4, 4, 4, 3]
        blocks.check_integrity(
            holders if held_elsewhere else holders[:3], lengths if held_elsewhere else lengths[:3]
        )

    def test_a_shared_block_that_fills_up_is_replaced_not_followed(self) -> None:
        blocks = KVBlockManager(4, 4)
        ids = sequence_of(blocks, 3)
        other = list(ids)
        blocks.incref_blocks(ids)
        blocks.append_token_batch([ids, other])
        assert len(ids) == len(other) == 1
        blocks.check_integrity([ids, other], [4, 4])

    def test_a_batch_that_does_not_fit_changes_nothing(self) -> None:
        blocks = KVBlockManager(5, 4)
        sequences = [sequence_of(blocks, n) for n in (4, 2, 0, 3)]
        sequences.append(list(sequences[1]))
        blocks.incref_blocks(sequences[1])
        blocks.allocate_blocks(1)
        before = snapshot(blocks), [list(ids) for ids in sequences]
        assert blocks.num_free_blocks == 1
        assert blocks.blocks_needed_for_append(last_blocks(*sequences)) == 3
        with pytest.raises(OutOfBlocksError, match="3 KV blocks are needed"):
            blocks.append_token_batch(sequences)
        assert (snapshot(blocks), sequences) == before

    def test_exactly_as_many_blocks_as_needed_are_enough(self) -> None:
        blocks = KVBlockManager(4, 4)
        sequences = [sequence_of(blocks, 4), sequence_of(blocks, 2)]
        sequences.append(list(sequences[1]))
        blocks.incref_blocks(sequences[1])
        blocks.append_token_batch(sequences)
        assert blocks.num_free_blocks == 0
        blocks.check_integrity(sequences, [5, 3, 3])

    @pytest.mark.parametrize("num_tokens", [3, 4])
    def test_two_writers_of_one_block_are_refused(self, num_tokens: int) -> None:
        blocks = KVBlockManager(8, 4)
        ids = sequence_of(blocks, num_tokens)
        other = sequence_of(blocks, 1)
        before = snapshot(blocks)
        with pytest.raises(IntegrityError, match=f"Block {ids[0]} is the last of 2 sequences"):
            blocks.append_to_last_blocks(last_blocks(ids, other, ids))
        blocks.incref_blocks(ids)
        with pytest.raises(IntegrityError, match="is the last of 3 sequences"):
            blocks.append_token_batch([ids, list(ids), list(ids)])
        blocks.free_blocks(ids)
        assert snapshot(blocks) == before

    def test_a_free_last_block_is_refused(self) -> None:
        blocks = KVBlockManager(4, 4)
        ids = sequence_of(blocks, 3)
        blocks.free_blocks(ids)
        before = snapshot(blocks)
        for append in (blocks.append_token, lambda ids: blocks.extend(ids, 1)):
            with pytest.raises(IntegrityError, match=f"Block {ids[0]} .* has 0 holders"):
                append(list(ids))
        assert snapshot(blocks) == before

    @pytest.mark.parametrize("wrong", [-2, 4, 2**31 - 1, -(2**31)])
    def test_last_blocks_must_exist_or_be_empty(self, wrong: int) -> None:
        blocks = KVBlockManager(4, 4)
        last = np.array([EMPTY, wrong], dtype=np.int32)
        for call in (blocks.append_to_last_blocks, blocks.blocks_needed_for_append):
            with pytest.raises(ValueError, match=rf"Block {wrong} .* 0 to 3, and -1 stands for"):
                call(last)
        assert blocks.num_free_blocks == 4

    def test_what_stands_for_empty_is_never_changed(self) -> None:
        blocks = KVBlockManager(9, 2)
        for _ in range(3):
            blocks.append_to_last_blocks(np.full(3, EMPTY, dtype=np.int32))
        assert blocks.fill_levels.tolist() == blocks.refcounts.tolist() == [1] * 9


class TestExtend:
    @pytest.mark.parametrize("start", range(6))
    @pytest.mark.parametrize("count", range(10))
    def test_fills_the_last_block_then_new_ones(self, start: int, count: int) -> None:
        blocks = KVBlockManager(8, 4)
        ids = sequence_of(blocks, start)
        before = list(ids)
        needed = blocks.blocks_needed_to_extend(ids, count)
        num_free = blocks.num_free_blocks
        assert blocks.extend(ids, count) == []
        assert num_free - blocks.num_free_blocks == needed
        assert ids[: len(before)] == before
        blocks.check_integrity([ids], [start + count])

    @pytest.mark.parametrize("count", [1, 2, 3, 7])
    def test_copies_a_shared_last_block(self, count: int) -> None:
        blocks = KVBlockManager(8, 4)
        ids = sequence_of(blocks, 6)
        other = list(ids)
        blocks.incref_blocks(ids)
        num_free = blocks.num_free_blocks
        needed = blocks.blocks_needed_to_extend(ids, count)
        copies = blocks.extend(ids, count)
        assert copies == [BlockCopy(other[1], ids[1])]
        assert ids[1] != other[1]
        assert num_free - blocks.num_free_blocks == needed
        blocks.check_integrity([ids, other], [6 + count, 6])

    def test_nothing_to_append_copies_nothing(self) -> None:
        blocks = KVBlockManager(8, 4)
        ids = sequence_of(blocks, 2)
        blocks.incref_blocks(ids)
        assert blocks.blocks_needed_to_extend(ids, 0) == 0
        assert blocks.extend(ids, 0) == []
        assert blocks.num_free_blocks == 7

    def test_all_or_nothing(self) -> None:
        blocks = KVBlockManager(4, 4)
        ids = sequence_of(blocks, 6)
        blocks.incref_blocks(ids)
        before = snapshot(blocks), list(ids)
        assert blocks.blocks_needed_to_extend(ids, 7) == 3
        with pytest.raises(OutOfBlocksError):
            blocks.extend(ids, 7)
        assert (snapshot(blocks), ids) == before
        blocks.extend(ids, 6)
        assert blocks.num_free_blocks == 0

    @pytest.mark.parametrize("wrong", [-1, 2.0])
    def test_count_must_be_an_integer(self, wrong: Any) -> None:
        with pytest.raises(ValueError, match="count must be an integer of 0 or more"):
            KVBlockManager(4, 4).extend([], wrong)


class TestExtendBatch:
    @pytest.mark.parametrize("seed", range(20))
    def test_as_one_after_another(self, seed: int) -> None:
        """Empty, full, open and shared sequences, in any order, by none to many tokens."""
        generator = np.random.default_rng(seed)
        starts = generator.integers(0, 10, 6).tolist()
        counts = generator.integers(0, 11, 6).tolist()
        is_shared = generator.random(6) < 0.4

        def made() -> tuple[KVBlockManager, list[list[int]], list[list[int]]]:
            blocks = KVBlockManager(64, 4)
            sequences = [sequence_of(blocks, start) for start in starts]
            others = [list(ids) for ids, one in zip(sequences, is_shared, strict=True) if one]
            for ids in others:
                blocks.incref_blocks(ids)
            return blocks, sequences, others

        alone, expected, _ = made()
        copies = [alone.extend(ids, count) for ids, count in zip(expected, counts, strict=True)]
        blocks, sequences, others = made()
        got = blocks.extend_batch(sequences, counts)
        assert [copy.source for copy in got] == [copy.source for one in copies for copy in one]
        assert blocks.num_free_blocks == alone.num_free_blocks
        assert [len(ids) for ids in sequences] == [len(ids) for ids in expected]
        lengths = [start + count for start, count in zip(starts, counts, strict=True)]
        held = [start for start, one in zip(starts, is_shared, strict=True) if one]
        blocks.check_integrity([*sequences, *others], [*lengths, *held])

    def test_all_or_nothing(self) -> None:
        blocks = KVBlockManager(6, 4)
        sequences: list[list[int]] = [sequence_of(blocks, 6), [], sequence_of(blocks, 4)]
        before = snapshot(blocks), [list(ids) for ids in sequences]
        # Three blocks are free, and each sequence alone would find its own.
        for counts, error in (
            ([3, 4, 5], OutOfBlocksError),
            ([3, 8, 1], OutOfBlocksError),
            ([1, 4, -1], ValueError),
        ):
            with pytest.raises(error):
                blocks.extend_batch(sequences, counts)
            assert (snapshot(blocks), sequences) == before
        assert blocks.extend_batch(sequences, [2, 4, 3]) == []
        assert blocks.num_free_blocks == 1
        assert blocks.extend_batch([], []) == []

    def test_the_last_of_those_that_share_a_block_keeps_it(self) -> None:
        blocks = KVBlockManager(8, 4)
        first = sequence_of(blocks, 6)
        second = list(first)
        blocks.incref_blocks(second)
        shared = first[1]
        copies = blocks.extend_batch([first, second], [1, 3])
        assert copies == [BlockCopy(shared, first[1])]
        assert second[1] == shared
        # In use: the full block, the shared one, its copy, and one that the second grows into.
        assert blocks.num_free_blocks == 4
        blocks.check_integrity([first, second], [7, 9])


class TestForkBlock:
    def test_a_fork_has_its_own_holder_and_the_first_tokens(self) -> None:
        blocks = KVBlockManager(4, 4)
        source = sequence_of(blocks, 4)
        copy = blocks.fork_block(source[0], 3)
        assert copy.source == source[0]
        assert copy.destination != source[0]
        blocks.check_integrity([source, [copy.destination]], [4, 3])

    @pytest.mark.parametrize("wrong", [-1, 0, 1.0])
    def test_at_least_one_token(self, wrong: Any) -> None:
        blocks = KVBlockManager(4, 4)
        source = sequence_of(blocks, 4)
        with pytest.raises(ValueError, match="num_tokens must be an integer of 1 or more"):
            blocks.fork_block(source[0], wrong)

    def test_no_more_tokens_than_are_written(self) -> None:
        blocks = KVBlockManager(4, 4)
        source = sequence_of(blocks, 2)
        with pytest.raises(ValueError, match=r"3 tokens of block 0 .* holds only 2"):
            blocks.fork_block(source[0], 3)
        with pytest.raises(ValueError, match="holds only 0"):
            blocks.fork_block(3, 1)
        assert blocks.num_free_blocks == 3

    def test_needs_a_free_block(self) -> None:
        blocks = KVBlockManager(1, 4)
        source = sequence_of(blocks, 2)
        with pytest.raises(OutOfBlocksError):
            blocks.fork_block(source[0], 1)
