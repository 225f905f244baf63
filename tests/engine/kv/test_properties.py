"""KV blocks and prefix cache against a model that stores the tokens themselves.

The device of the model is a dictionary from (block, position) to token. Whatever is shared,
forked, copied or evicted, every sequence must read back its own tokens, and so must every prefix
that the cache offers.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.errors import OutOfBlocksError
from engine.kv.blocks import BatchAppend, BlockCopy, KVBlockManager
from engine.kv.integrity import Int32Array
from engine.kv.pool import EMPTY
from engine.kv.prefix_cache import PrefixCache

# Few different tokens and a common beginning, so that prompts are often alike for a while.
tokens = st.integers(0, 1)
prompts = st.builds(
    lambda length, tail: [0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 1, 1][:length] + tail,
    st.integers(0, 12),
    st.lists(tokens, min_size=1, max_size=3),
)
picks = st.integers(0, 60)


class Sequence:
    def __init__(self, block_ids: list[int], token_ids: list[int]) -> None:
        self.block_ids = block_ids
        self.token_ids = token_ids


def common_length(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    length = 0
    while length < min(len(left), len(right)) and left[length] == right[length]:
        length += 1
    return length


class KVModel(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.sampled_from([5, 9, 14, 20]), block_size=st.sampled_from([1, 2, 3, 4])
    )
    def start(self, num_blocks: int, block_size: int) -> None:
        self.size = block_size
        self.blocks = KVBlockManager(num_blocks, block_size)
        self.cache = PrefixCache(self.blocks)
        self.device: dict[tuple[int, int], int] = {}
        self.sequences: list[Sequence] = []
        self.cached: dict[tuple[int, ...], int] = {}
        self.used: dict[tuple[int, ...], int] = {}
        self.now = 0

    # The device

    def copy_on_device(self, copies: list[BlockCopy]) -> None:
        for source, destination in copies:
            for position in range(self.size):
                self.device.pop((destination, position), None)
                if (source, position) in self.device:
                    self.device[destination, position] = self.device[source, position]

    def write(self, sequence: Sequence, token_ids: list[int]) -> None:
        for token in token_ids:
            position = len(sequence.token_ids)
            slot = sequence.block_ids[position // self.size], position % self.size
            self.device[slot] = token
            sequence.token_ids.append(token)

    def read(self, block_ids: list[int], num_tokens: int) -> list[int | None]:
        return [
            self.device.get((block_ids[position // self.size], position % self.size))
            for position in range(num_tokens)
        ]

    # The cache as a dictionary from all tokens up to a block's last to that block

    def block_number(self, key: tuple[int, ...]) -> int:
        return (len(key) - 1) // self.size

    def touch(self, token_ids: tuple[int, ...], also: tuple[int, ...] | None = None) -> None:
        self.now += 1
        for key in self.cached:
            if key == token_ids[: len(key)] or key == also:
                self.used[key] = self.now

    def insert(self, token_ids: list[int], block_ids: list[int]) -> None:
        self.cache.insert(np.array(token_ids, dtype=np.int32), block_ids)
        whole = tuple(token_ids)
        covering = None
        for number in range(-(-len(whole) // self.size)):
            key = whole[: (number + 1) * self.size]
            siblings = [other for other in self.cached if self.block_number(other) == number]
            covering = min((k for k in siblings if k[: len(key)] == key), default=None)
            if covering is None:
                for other in siblings:
                    if other == key[: len(other)]:
                        del self.cached[other], self.used[other]
                self.cached[key] = block_ids[number]
        self.touch(whole, also=covering)

    def evictable(self) -> set[tuple[int, ...]]:
        held = {block for sequence in self.sequences for block in sequence.block_ids}
        kept: set[tuple[int, ...]] = set()
        for key, block in self.cached.items():
            if block in held:
                kept.add(key)
                kept.update(key[:end] for end in range(self.size, len(key), self.size))
        return self.cached.keys() - kept

    def evict(self, count: int) -> int:
        evictable = self.evictable()
        assert self.cache.num_evictable == len(evictable)
        num_free = self.blocks.num_free_blocks
        num_evicted = self.cache.evict(count)
        assert num_evicted == min(count, len(evictable))
        assert self.blocks.num_free_blocks == num_free + num_evicted
        left = set(self.cache.held_blocks())
        gone = {key for key, block in self.cached.items() if block not in left}
        assert len(gone) == num_evicted
        assert gone <= evictable
        if gone and evictable - gone:
            assert max(self.used[key] for key in gone) <= min(
                self.used[key] for key in evictable - gone
            )
        for key in gone:
            del self.cached[key], self.used[key]
        return num_evicted

    # What an engine does

    def extend(self, sequence: Sequence, token_ids: list[int]) -> bool:
        needed = self.blocks.blocks_needed_to_extend(sequence.block_ids, len(token_ids))
        num_free = self.blocks.num_free_blocks
        before = list(sequence.block_ids), self.blocks.refcounts.copy()
        if needed > num_free:
            with pytest.raises(OutOfBlocksError):
                self.blocks.extend(sequence.block_ids, len(token_ids))
            assert sequence.block_ids == before[0]
            assert np.array_equal(self.blocks.refcounts, before[1])
            self.evict(needed - num_free)
            if needed > self.blocks.num_free_blocks:
                return False
            num_free = self.blocks.num_free_blocks
            needed = self.blocks.blocks_needed_to_extend(sequence.block_ids, len(token_ids))
        self.copy_on_device(self.blocks.extend(sequence.block_ids, len(token_ids)))
        assert self.blocks.num_free_blocks == num_free - needed
        self.write(sequence, token_ids)
        return True

    def update_tables(self, batch: list[Sequence], last: Int32Array, result: BatchAppend) -> None:
        destinations = {copy.destination for copy in result.copies}
        for row in np.flatnonzero(result.block_index != last).tolist():
            block = int(result.block_index[row])
            if block in destinations:
                batch[row].block_ids[-1] = block
            else:
                batch[row].block_ids.append(block)

    def release(self, sequence: Sequence) -> None:
        self.sequences.remove(sequence)
        self.blocks.free_blocks(sequence.block_ids)

    @rule(prompt=prompts, chunk=st.integers(1, 8))
    def admit(self, prompt: list[int], chunk: int) -> None:
        sought = tuple(prompt[:-1])
        shared = {key: common_length(sought, key) for key in self.cached}
        longest = max(shared.values(), default=0)
        is_whole_tail = any(
            shared[key] == longest
            and self.blocks.fill_levels[block] == longest - self.block_number(key) * self.size
            for key, block in self.cached.items()
        )
        if not (is_whole_tail or self.blocks.num_free_blocks):
            longest -= longest % self.size
        match = self.cache.match(np.array(prompt, dtype=np.int32))
        assert match.num_tokens == longest
        key_of = {block: key for key, block in self.cached.items()}
        self.touch(sought[:longest], also=key_of[match.copies[0].source] if match.copies else None)
        self.copy_on_device(match.copies)
        sequence = Sequence(match.block_ids, prompt[: match.num_tokens])
        self.sequences.append(sequence)
        for first in range(match.num_tokens, len(prompt), chunk):
            if not self.extend(sequence, prompt[first : first + chunk]):
                self.release(sequence)
                return

    @precondition(lambda self: self.sequences)
    @rule(
        pick=st.lists(picks, min_size=1, max_size=8),
        token=tokens,
        how=st.integers(0, 2),
        times=st.integers(1, 4),
    )
    def append(self, pick: list[int], token: int, how: int, times: int) -> None:
        for _ in range(times):
            self.append_once(pick, token, how)

    def append_once(self, pick: list[int], token: int, how: int) -> None:
        if not self.sequences:
            return
        order = list(dict.fromkeys(number % len(self.sequences) for number in pick))
        batch = [self.sequences[index] for index in order]
        if how == 0:
            batch = batch[:1]
        last = np.array([s.block_ids[-1] if s.block_ids else EMPTY for s in batch], dtype=np.int32)
        needed = self.blocks.blocks_needed_for_append(last)
        self.evict(max(0, needed - self.blocks.num_free_blocks))
        if needed > self.blocks.num_free_blocks:
            before = self.blocks.refcounts.copy(), self.blocks.fill_levels.copy()
            with pytest.raises(OutOfBlocksError):
                self.blocks.append_token_batch([s.block_ids for s in batch])
            assert np.array_equal(self.blocks.refcounts, before[0])
            assert np.array_equal(self.blocks.fill_levels, before[1])
            self.release(self.sequences[-1])
            return
        needed = self.blocks.blocks_needed_for_append(last)
        num_free = self.blocks.num_free_blocks
        if how == 0:
            slot = self.blocks.append_token(batch[0].block_ids)
            copies = [slot.copy] if slot.copy else []
            slots = [(slot.block_index, slot.position)]
        else:
            if how == 1:
                result = self.blocks.append_token_batch([s.block_ids for s in batch])
            else:
                result = self.blocks.append_to_last_blocks(last)
                self.update_tables(batch, last, result)
            copies = result.copies
            slots = [(int(b), int(p)) for b, p in zip(*result[:2], strict=True)]
        assert self.blocks.num_free_blocks == num_free - needed
        assert len(set(slots)) == len(slots)
        self.copy_on_device(copies)
        for sequence, place in zip(batch, slots, strict=True):
            position = len(sequence.token_ids)
            assert place == (sequence.block_ids[-1], position % self.size)
            self.write(sequence, [token])
            token = 1 - token

    @precondition(lambda self: self.sequences)
    @rule(pick=picks)
    def fork(self, pick: int) -> None:
        if len(self.sequences) > 8:
            return
        parent = self.sequences[pick % len(self.sequences)]
        self.blocks.incref_blocks(parent.block_ids)
        self.sequences.append(Sequence(list(parent.block_ids), list(parent.token_ids)))

    @precondition(lambda self: self.sequences)
    @rule(pick=picks, overrun=st.integers(0, 2))
    def finish(self, pick: int, overrun: int) -> None:
        sequence = self.sequences[pick % len(self.sequences)]
        known = max(0, len(sequence.token_ids) - overrun)
        if known:
            self.insert(sequence.token_ids[:known], sequence.block_ids)
        self.release(sequence)

    @precondition(lambda self: self.sequences)
    @rule(pick=picks, with_tail=st.booleans())
    def insert_running(self, pick: int, with_tail: bool) -> None:
        sequence = self.sequences[pick % len(self.sequences)]
        known = len(sequence.token_ids)
        known -= 0 if with_tail else known % self.size
        if known:
            self.insert(sequence.token_ids[:known], sequence.block_ids)

    @precondition(lambda self: self.sequences)
    @rule(pick=picks)
    def abort(self, pick: int) -> None:
        self.release(self.sequences[pick % len(self.sequences)])

    @precondition(lambda self: self.cached)
    @rule(count=st.integers(0, 6))
    def evict_some(self, count: int) -> None:
        self.evict(count)

    @precondition(lambda self: self.cached)
    @rule(is_meant=st.sampled_from([False] * 9 + [True]))
    def clear(self, is_meant: bool) -> None:
        if not is_meant:
            return
        self.cache.clear()
        self.cached.clear()
        self.used.clear()

    # What must hold after every step

    @invariant()
    def every_sequence_reads_its_own_tokens(self) -> None:
        for sequence in self.sequences:
            assert self.read(sequence.block_ids, len(sequence.token_ids)) == sequence.token_ids

    @invariant()
    def every_cached_block_holds_its_tokens(self) -> None:
        assert sorted(self.cache.held_blocks()) == sorted(self.cached.values())
        for key, block in self.cached.items():
            first = (len(key) - 1) // self.size * self.size
            assert self.read([block], len(key) - first) == list(key[first:])

    @invariant()
    def the_books_are_right(self) -> None:
        self.blocks.check_integrity(
            [*(s.block_ids for s in self.sequences), self.cache.held_blocks()],
            [*(len(s.token_ids) for s in self.sequences), None],
        )
        assert self.cache.num_evictable == len(self.evictable())

    @invariant()
    def free_blocks_hold_nothing(self) -> None:
        # Poison: whoever reads a block after it was freed reads nothing.
        refcounts = self.blocks.refcounts
        self.device = {slot: t for slot, t in self.device.items() if refcounts[slot[0]]}

    def teardown(self) -> None:
        if not hasattr(self, "blocks"):
            return
        for sequence in list(self.sequences):
            self.release(sequence)
        self.cache.clear()
        self.blocks.check_integrity([])
        assert self.blocks.num_free_blocks == self.blocks.num_blocks


TestKVModel = KVModel.TestCase
TestKVModel.settings = settings(
    deadline=None,
    derandomize=True,
    max_examples=80,
    stateful_step_count=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
