from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.kv.blocks import BlockCopy, KVBlockManager
from engine.kv.prefix_cache import PrefixCache, PrefixMatch

SIZE = 4


class Pool:
    """A cache over a small pool, and the sequences that hold its blocks."""

    def __init__(self, num_blocks: int = 16) -> None:
        self.blocks = KVBlockManager(num_blocks, SIZE)
        self.cache = PrefixCache(self.blocks)

    def run(self, token_ids: list[int]) -> list[int]:
        """Compute a sequence from its first token, without the cache, and insert it."""
        ids: list[int] = []
        self.blocks.extend(ids, len(token_ids))
        self.insert(token_ids, ids)
        return ids

    def finish(self, token_ids: list[int]) -> list[int]:
        ids = self.run(token_ids)
        self.blocks.free_blocks(ids)
        return ids

    def insert(self, token_ids: list[int], block_ids: list[int]) -> None:
        self.cache.insert(np.array(token_ids, dtype=np.int32), block_ids)

    def match(self, token_ids: list[int]) -> PrefixMatch:
        return self.cache.match(np.array(token_ids, dtype=np.int32))

    def check(self, *sequences: list[int]) -> None:
        self.blocks.check_integrity([*sequences, self.cache.held_blocks()])


@pytest.fixture
def pool() -> Pool:
    return Pool()


class TestMatch:
    def test_an_empty_cache_matches_nothing(self, pool: Pool) -> None:
        assert pool.match([1, 2, 3]) == ([], 0, [])

    def test_whole_blocks_are_shared(self, pool: Pool) -> None:
        ids = pool.finish([1, 2, 3, 4, 5, 6, 7, 8])
        match = pool.match([1, 2, 3, 4, 5, 6, 7, 8, 9])
        assert match == PrefixMatch(ids, 8, [])
        assert pool.blocks.refcounts[ids].tolist() == [2, 2]
        pool.check(match.block_ids)

    def test_a_diverging_block_is_forked_up_to_where_it_diverges(self, pool: Pool) -> None:
        ids = pool.finish([1, 2, 3, 4, 5, 6, 7, 8])
        match = pool.match([1, 2, 3, 4, 5, 6, 9, 9, 9])
        assert match.num_tokens == 6
        assert match.block_ids[0] == ids[0]
        assert match.copies == [BlockCopy(ids[1], match.block_ids[1])]
        assert pool.blocks.fill_levels[match.block_ids[1]] == 2
        pool.check(match.block_ids)
        pool.blocks.check_integrity([match.block_ids, ids], [6, 8])

    def test_one_common_token_is_enough(self, pool: Pool) -> None:
        ids = pool.finish([1, 2, 3, 4])
        match = pool.match([1, 9])
        assert match.num_tokens == 1
        assert match.copies[0].source == ids[0]

    def test_the_longest_of_many_continuations(self, pool: Pool) -> None:
        # 255 and 256 lie the other way round as little-endian bytes.
        pool.finish([1, 2, 3, 4, 255, 1, 1, 1])
        longest = pool.finish([1, 2, 3, 4, 256, 7, 7, 7])
        pool.finish([1, 2, 3, 4, 256, 8, 8, 8])
        pool.finish([1, 2, 3, 4, 65536, 7, 7, 1])
        match = pool.match([1, 2, 3, 4, 256, 7, 7, 1, 1])
        assert match.num_tokens == 7
        assert match.copies[0].source == longest[1]

    def test_the_same_tokens_elsewhere_do_not_match(self, pool: Pool) -> None:
        pool.finish([1, 2, 3, 4, 5, 6, 7, 8])
        assert pool.match([5, 6, 7, 8, 9]).num_tokens == 0
        assert pool.match([9, 2, 3, 4, 5, 6, 7, 8]).num_tokens == 0

    def test_a_finished_tail_is_shared_and_copied_when_appended_to(self, pool: Pool) -> None:
        ids = pool.finish([1, 2, 3, 4, 5, 6])
        match = pool.match([1, 2, 3, 4, 5, 6, 7])
        assert match == PrefixMatch(ids, 6, [])
        grown = list(match.block_ids)
        assert pool.blocks.extend(grown, 1) == [BlockCopy(ids[1], grown[1])]
        pool.check(grown)
        pool.blocks.check_integrity([grown, ids], [7, 6])

    def test_part_of_a_tail_is_forked(self, pool: Pool) -> None:
        ids = pool.finish([1, 2, 3, 4, 5, 6, 7])
        match = pool.match([1, 2, 3, 4, 5, 6, 9])
        assert match.num_tokens == 6
        assert match.copies[0].source == ids[1]

    @pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8])
    def test_a_token_is_left_to_compute(self, pool: Pool, length: int) -> None:
        token_ids = [1, 2, 3, 4, 5, 6, 7, 8][:length]
        pool.finish(token_ids)
        match = pool.match(token_ids)
        assert match.num_tokens == length - 1
        pool.blocks.extend(match.block_ids, 1)
        pool.check(match.block_ids)

    def test_no_prompt_matches_nothing(self, pool: Pool) -> None:
        pool.finish([1, 2, 3, 4])
        assert pool.match([]) == pool.match([1]) == ([], 0, [])

    def test_without_a_free_block_only_what_is_shared(self) -> None:
        pool = Pool(num_blocks=2)
        ids = pool.finish([1, 2, 3, 4, 5, 6, 7])
        match = pool.match([1, 2, 3, 4, 5, 6, 9])
        assert match == PrefixMatch(ids[:1], 4, [])
        assert pool.match([1, 2, 9]) == ([], 0, [])
        assert pool.match([1, 2, 3, 4, 5, 6, 7, 8]) == (ids, 7, [])

    def test_tokens_of_any_integer_type(self, pool: Pool) -> None:
        ids = pool.finish([1, 2, 3, 4])
        assert pool.cache.match([1, 2, 3, 4, 5]).block_ids == ids
        strided = np.array([1, 0, 2, 0, 3, 0, 4, 0, 5], dtype=np.int64)[::2]
        assert pool.cache.match(strided).block_ids == ids

    @pytest.mark.parametrize("wrong", [[1.0, 2.0], ["1"], [[1, 2]], [True], 3])
    def test_tokens_must_be_integers_in_one_dimension(self, pool: Pool, wrong: Any) -> None:
        with pytest.raises(ValueError, match="Token ids must be integers in one dimension"):
            pool.cache.match(wrong)

    def test_tokens_beyond_int32_never_pass_for_others(self, pool: Pool) -> None:
        pool.finish([1, 2, 3, 4])
        with pytest.raises(ValueError, match="must be int32"):
            pool.cache.match([2**32 + 1, 2, 3, 4, 5])


class TestInsert:
    def test_the_cache_holds_what_is_inserted(self, pool: Pool) -> None:
        ids = pool.run([1, 2, 3, 4, 5, 6])
        assert sorted(pool.cache.held_blocks()) == sorted(ids)
        pool.check(ids)

    def test_only_whole_blocks_of_a_sequence_that_goes_on(self, pool: Pool) -> None:
        ids: list[int] = []
        pool.blocks.extend(ids, 6)
        pool.insert([1, 2, 3, 4], ids)
        assert pool.cache.held_blocks() == ids[:1]
        assert pool.blocks.append_token(ids).copy is None
        pool.check(ids)

    def test_an_equal_block_is_kept_the_first_time_only(self, pool: Pool) -> None:
        first = pool.finish([1, 2, 3, 4, 5, 6])
        second = pool.run([1, 2, 3, 4, 5, 6])
        assert sorted(pool.cache.held_blocks()) == sorted(first)
        pool.check(second)

    def test_a_continuation_hangs_below_the_block_that_was_kept(self, pool: Pool) -> None:
        first = pool.finish([1, 2, 3, 4])
        second = pool.finish([1, 2, 3, 4, 5, 6, 7, 8])
        assert pool.match([1, 2, 3, 4, 5, 6, 7, 8, 9]).block_ids == [first[0], second[1]]
        assert pool.blocks.refcounts[second[0]] == 0

    def test_a_longer_tail_replaces_its_beginning(self, pool: Pool) -> None:
        short = pool.finish([1, 2, 3, 4, 5])
        longer = pool.finish([1, 2, 3, 4, 5, 6])
        assert sorted(pool.cache.held_blocks()) == sorted([short[0], longer[1]])
        whole = pool.finish([1, 2, 3, 4, 5, 6, 7, 8, 9])
        assert sorted(pool.cache.held_blocks()) == sorted([short[0], whole[1], whole[2]])
        pool.check()

    def test_a_replaced_tail_stays_with_those_who_hold_it(self, pool: Pool) -> None:
        ids = pool.run([1, 2])
        pool.finish([1, 2, 3])
        assert pool.blocks.refcounts[ids].tolist() == [1]
        pool.check(ids)

    def test_a_beginning_of_a_cached_block_adds_nothing(self, pool: Pool) -> None:
        ids = pool.finish([1, 2, 3, 4])
        pool.finish([1, 2])
        pool.finish([1, 2, 3])
        assert pool.cache.held_blocks() == ids
        pool.check()

    def test_tails_that_differ_are_all_kept(self, pool: Pool) -> None:
        tails = [pool.finish([1, 2, last])[0] for last in (3, 1, 2)]
        assert sorted(pool.cache.held_blocks()) == sorted(tails)
        for last, tail in zip((3, 1, 2), tails, strict=True):
            assert pool.match([1, 2, last, 9]).block_ids == [tail]

    def test_tokens_written_beyond_those_inserted_are_not_offered(self, pool: Pool) -> None:
        ids: list[int] = []
        pool.blocks.extend(ids, 3)
        pool.insert([1, 2], ids)
        pool.blocks.free_blocks(ids)
        match = pool.match([1, 2, 3, 4])
        assert match.num_tokens == 2
        assert match.copies == [BlockCopy(ids[0], match.block_ids[0])]
        pool.blocks.check_integrity([match.block_ids, ids], [2, 3])

    def test_the_same_block_may_be_inserted_again_when_it_has_grown(self, pool: Pool) -> None:
        ids: list[int] = []
        pool.blocks.extend(ids, 3)
        pool.insert([1, 2], ids)
        pool.insert([1, 2, 3], ids)
        assert pool.cache.held_blocks() == ids
        assert pool.blocks.refcounts[ids].tolist() == [2]
        pool.check(ids)

    def test_what_does_not_fit_is_refused(self, pool: Pool) -> None:
        ids: list[int] = []
        pool.blocks.extend(ids, 6)
        for tokens, block_ids, message in [
            (range(7), ids, f"Block {ids[1]} holds 2 tokens, but 3 are to be cached"),
            (range(9), ids, "9 tokens do not fit into 2 blocks of 4"),
            (range(6), ids[::-1], f"Block {ids[1]} holds 2 tokens, but 4 are to be cached"),
            (range(8), [ids[0]] * 2, "holds each of its blocks once"),
            (range(2), [-1], "Block ids run from 0 to 15"),
            (range(2), [16], "Block ids run from 0 to 15"),
            (range(2), [9], "Block 9 holds 0 tokens"),
        ]:
            with pytest.raises(ValueError, match=message):
                pool.insert(list(tokens), block_ids)
        assert pool.cache.held_blocks() == []
        pool.check(ids)

    def test_a_block_cannot_be_cached_for_two_contents(self, pool: Pool) -> None:
        ids = pool.run([1, 2, 3, 4])
        with pytest.raises(ValueError, match=f"Block {ids[0]} is already cached"):
            pool.insert([1, 2, 3, 5], ids)
        pool.check(ids)


class TestEvict:
    def test_least_recently_used_first(self, pool: Pool) -> None:
        first, second, third = (pool.finish([n, n, n, n]) for n in (1, 2, 3))
        pool.blocks.free_blocks(pool.match([1, 1, 1, 1, 1]).block_ids)
        assert pool.cache.evict(1) == 1
        assert sorted(pool.cache.held_blocks()) == sorted(first + third)
        pool.insert([3, 3, 3, 3], third)
        assert pool.cache.evict(1) == 1
        assert pool.cache.held_blocks() == third
        assert pool.blocks.refcounts[second].tolist() == [0]
        pool.check()

    def test_a_fork_is_a_use(self, pool: Pool) -> None:
        first = pool.finish([1, 1, 1, 1])
        pool.finish([2, 2, 2, 2])
        pool.blocks.free_blocks(pool.match([1, 1, 9]).block_ids)
        pool.cache.evict(1)
        assert pool.cache.held_blocks() == first

    def test_leaves_before_parents(self, pool: Pool) -> None:
        ids = pool.finish([1] * 12)
        for left in (2, 1, 0):
            assert pool.cache.evict(1) == 1
            assert sorted(pool.cache.held_blocks()) == sorted(ids[:left])
            assert pool.match([1] * 13).num_tokens == left * SIZE
            pool.blocks.free_blocks(ids[:left])

    def test_what_a_sequence_holds_stays(self, pool: Pool) -> None:
        ids = pool.finish([1, 2, 3, 4, 5, 6, 7, 8])
        held = pool.match([1, 2, 3, 4, 9]).block_ids
        assert pool.cache.num_evictable == 1
        assert pool.cache.evict(5) == 1
        assert pool.cache.held_blocks() == held == ids[:1]
        pool.check(held)

    def test_the_parents_of_a_held_block_stay(self, pool: Pool) -> None:
        # The second sequence computed blocks of its own, of which the cache kept only the last
        # two, under the first sequence's.
        first = pool.finish([1, 2, 3, 4, 5, 6, 7, 8])
        second = pool.run([1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9, 8])
        other = pool.finish([7, 7])
        assert pool.cache.num_evictable == 1
        assert pool.cache.evict(9) == 1
        assert sorted(pool.cache.held_blocks()) == sorted(first + second[2:])
        assert pool.blocks.refcounts[other].tolist() == [0]
        pool.blocks.free_blocks(second)
        assert pool.cache.num_evictable == 4
        assert pool.cache.evict(9) == 4
        assert pool.blocks.num_free_blocks == 16

    def test_returns_how_many_were_freed(self, pool: Pool) -> None:
        pool.finish([1] * 12)
        assert pool.cache.evict(0) == 0
        assert pool.cache.num_evictable == 3
        assert pool.cache.evict(2) == 2
        assert pool.cache.evict(2) == 1
        assert pool.cache.evict(2) == 0
        with pytest.raises(ValueError, match="count must be an integer of 0 or more"):
            pool.cache.evict(-1)

    def test_an_evicted_prefix_can_come_back(self, pool: Pool) -> None:
        pool.finish([1, 2, 3, 4, 5])
        pool.cache.evict(9)
        assert pool.match([1, 2, 3, 4, 5, 6]).num_tokens == 0
        ids = pool.finish([1, 2, 3, 4, 5])
        assert pool.match([1, 2, 3, 4, 5, 6]).block_ids == ids


def test_clear_gives_back_every_reference(pool: Pool) -> None:
    ids = pool.run([1, 2, 3, 4, 5])
    pool.finish([2, 2])
    pool.cache.clear()
    assert pool.cache.held_blocks() == []
    assert pool.cache.num_evictable == 0
    assert pool.match([1, 2, 3, 4, 5]).num_tokens == 0
    pool.check(ids)
    assert pool.blocks.num_free_blocks == 14
