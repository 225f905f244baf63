"""The KV blocks of the cache: who holds each one and how many tokens it carries.

One pool serves all layers: a sequence has one list of block ids, and block ``b`` means
``k_cache[layer, b]`` and ``v_cache[layer, b]`` of every layer. Metadata lives in arrays indexed
by block id, so that the append of a whole batch is a handful of numpy calls.

Who owns what
-------------
A *holder* is a sequence or the prefix cache; ``refcounts[b]`` is the number of holders of ``b``.
Only the last block of a sequence may have room, and only a block with one holder is written in
place: a shared block with room is copied first (copy-on-write). So no block has two writers.

Copies are instructions for the device. They must be carried out in the order in which they were
returned, and before the tokens of the same step are written; a destination may be the block that
an earlier copy read.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from engine.errors import ConfigError, IntegrityError, OutOfBlocksError
from engine.kv_integrity import IndexArray, Int32Array, check_holders, check_length, check_pool

EMPTY = -1
"""What stands for the last block of a sequence that has none yet."""


class BlockCopy(NamedTuple):
    """The device must copy K and V of block `source` into `destination`, in every layer."""

    source: int
    destination: int


class AppendSlot(NamedTuple):
    """Where one token goes: its block, its position in it, and the copy to make before."""

    block_index: int
    position: int
    copy: BlockCopy | None


class BatchAppend(NamedTuple):
    """Where one token of each sequence goes, and the copies to make before.

    `block_index` and `position` are int32 arrays of shape [B].
    """

    block_index: Int32Array
    position: Int32Array
    copies: list[BlockCopy]


class KVBlockManager:
    """Hands out the blocks of the KV cache and counts their holders and their tokens.

    Parameters
    ----------
    num_blocks : int
        Blocks in the pool; ids run from 0 to ``num_blocks - 1``.
    block_size : int
        Tokens that one block carries.

    Attributes
    ----------
    refcounts : int32 array [num_blocks]
        Holders of each block; 0 means free.
    fill_levels : int32 array [num_blocks]
        Tokens written to each block; 0 where the block is free.

    Raises
    ------
    ConfigError
        If `num_blocks` or `block_size` is not a positive integer.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = _checked_integer("num_blocks", num_blocks, 1, ConfigError)
        self.block_size = _checked_integer("block_size", block_size, 1, ConfigError)
        # One entry more than there are blocks: index EMPTY reads it, and finds a full block with
        # one holder. An empty sequence so takes the same path as one at a block boundary.
        self._refcounts = np.zeros(self.num_blocks + 1, dtype=np.int32)
        self._fill_levels = np.zeros(self.num_blocks + 1, dtype=np.int32)
        self._refcounts[EMPTY] = 1
        self._fill_levels[EMPTY] = self.block_size
        self.refcounts = self._refcounts[: self.num_blocks]
        self.fill_levels = self._fill_levels[: self.num_blocks]
        # A stack whose top is the last entry. What is freed last is reused first: its memory is
        # the likeliest to be in the device's cache. The order does not matter to prefix reuse,
        # since the prefix cache holds references and never looks for content in free blocks.
        self._free_stack = np.arange(self.num_blocks - 1, -1, -1, dtype=np.int32)
        self._num_free = self.num_blocks
        self._row_of_block = np.zeros(self.num_blocks + 1, dtype=np.int32)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return self._num_free

    def allocate_blocks(self, count: int) -> Int32Array:
        """Take `count` free blocks, each with one holder and no tokens.

        Returns
        -------
        int32 array [count]

        Raises
        ------
        OutOfBlocksError
            If fewer than `count` blocks are free; nothing has changed then.
        """
        count = _checked_integer("count", count, 0)
        if count > self._num_free:
            raise OutOfBlocksError(
                f"{count} KV blocks are needed, but only {self._num_free} of {self.num_blocks} "
                "are free: evict cached blocks or preempt a sequence first."
            )
        top = self._num_free
        self._num_free = top - count
        taken = self._free_stack[top - count : top][::-1].copy()
        self._refcounts[taken] = 1
        return taken

    def incref_blocks(self, block_ids: ArrayLike) -> None:
        """Add one holder to each block, once for each time that it is listed.

        Raises
        ------
        IntegrityError
            If a block is free; nothing has changed then.
        """
        ids = self._checked_block_ids(block_ids)
        free = ids[self._refcounts[ids] < 1]
        if free.size:
            raise IntegrityError(
                f"Block {free[0]} is free, so it cannot gain a holder: allocate it instead."
            )
        np.add.at(self._refcounts, ids, 1)

    def free_blocks(self, block_ids: ArrayLike) -> int:
        """Take one holder from each block, once for each time that it is listed.

        Returns
        -------
        int
            How many blocks became free.

        Raises
        ------
        IntegrityError
            If a block has fewer holders than are to be taken; nothing has changed then.
        """
        ids, counts = np.unique(self._checked_block_ids(block_ids), return_counts=True)
        refcounts = self._refcounts[ids] - counts.astype(np.int32)
        overdrawn = np.flatnonzero(refcounts < 0)
        if overdrawn.size:
            block = ids[overdrawn[0]]
            raise IntegrityError(
                f"Block {block} has {self._refcounts[block]} holders, but was to lose "
                f"{counts[overdrawn[0]]}: a holder may free a block only once."
            )
        self._refcounts[ids] = refcounts
        freed = ids[refcounts == 0]
        self._fill_levels[freed] = 0
        self._free_stack[self._num_free : self._num_free + len(freed)] = freed
        self._num_free += len(freed)
        return len(freed)

    def append_token(self, block_ids: list[int]) -> AppendSlot:
        """Make room for one token at the end of a sequence: a batch of one.

        `block_ids`, errors: as for `append_token_batch`.
        """
        slots = self.append_token_batch([block_ids])
        copy = slots.copies[0] if slots.copies else None
        return AppendSlot(int(slots.block_index[0]), int(slots.position[0]), copy)

    def append_token_batch(self, sequences: Sequence[list[int]]) -> BatchAppend:
        """Make room for one token at the end of each sequence, all of them or none.

        Parameters
        ----------
        sequences : sequence of lists of int
            The blocks of each sequence, updated in place: a new block is added at a boundary, and
            a shared last block with room is replaced by its copy.

        Raises
        ------
        OutOfBlocksError, IntegrityError
            As for `append_to_last_blocks`; nothing has changed then.
        """
        last_blocks = np.array([ids[-1] if ids else EMPTY for ids in sequences])
        slots = self.append_to_last_blocks(last_blocks)
        destinations = {copy.destination for copy in slots.copies}
        for row in np.flatnonzero(slots.block_index != last_blocks).tolist():
            block = int(slots.block_index[row])
            if block in destinations:
                sequences[row][-1] = block
            else:
                sequences[row].append(block)
        return slots

    def append_to_last_blocks(self, last_blocks: ArrayLike) -> BatchAppend:
        """Make room for one token behind the last block of each row, all of them or none.

        Rows whose last block has room and no other holder are done together. Where several rows
        share a last block with room, the earlier ones get copies, and the last one keeps the
        original if nobody else holds it.

        Parameters
        ----------
        last_blocks : int32 array [B]
            The last block of each sequence, `EMPTY` (-1) for one without blocks. Not kept.

        Returns
        -------
        BatchAppend
            Where `block_index` differs from `last_blocks`, the sequence has a new last block: in
            the place of the old one if it is the destination of a copy, else behind it.

        Raises
        ------
        OutOfBlocksError
            If more blocks are needed than are free; nothing has changed then.
        IntegrityError
            If a block is free, or is the last of more rows than it has holders (they would write
            over each other); nothing has changed then.
        """
        last = self._checked_block_ids(last_blocks, lowest=EMPTY)
        position = self._fill_levels.take(last)
        refcounts = self._refcounts.take(last)
        has_room = position < self.block_size
        in_place = has_room & (refcounts == 1)
        self._refuse_rows_without_a_holder(last, refcounts)
        if np.count_nonzero(in_place) == len(last):
            self._fill_levels[last] = position + 1
            return BatchAppend(last.astype(np.int32), position, [])

        boundary_rows = np.flatnonzero(~has_room)
        shared_rows = np.flatnonzero(has_room & (refcounts > 1))
        num_copies = self._copies_needed(last[shared_rows]) if shared_rows.size else 0
        new_blocks = self.allocate_blocks(len(boundary_rows) + num_copies)
        copy_blocks = iter(new_blocks[len(boundary_rows) :].tolist())
        block_index = last.copy()
        block_index[boundary_rows] = new_blocks[: len(boundary_rows)]
        position[boundary_rows] = 0
        copies = []
        for row, source in zip(shared_rows.tolist(), last[shared_rows].tolist(), strict=True):
            # Read anew for each row: a copy made for an earlier row may have left this one alone.
            if self._refcounts[source] > 1:
                copy = BlockCopy(source, next(copy_blocks))
                self._refcounts[source] -= 1
                block_index[row] = copy.destination
                copies.append(copy)
        self._fill_levels[block_index] = position + 1
        return BatchAppend(block_index.astype(np.int32), position, copies)

    def append_in_place(self, last_blocks: IndexArray) -> None:
        """`append_to_last_blocks` where all of them have room and one holder: nothing is checked.

        For a batch of which that is known, because nobody else has come or gone since it was
        checked: it costs a tenth.

        Parameters
        ----------
        last_blocks : intp array [B]
            The last block of each sequence.
        """
        self._fill_levels[last_blocks] += 1

    def blocks_needed_for_append(self, last_blocks: ArrayLike) -> int:
        """Count the free blocks that `append_to_last_blocks` would take of the same array."""
        last = self._checked_block_ids(last_blocks, lowest=EMPTY)
        has_room = self._fill_levels.take(last) < self.block_size
        shared = has_room & (self._refcounts.take(last) > 1)
        num_boundary_rows = len(last) - int(np.count_nonzero(has_room))
        if not np.count_nonzero(shared):
            return num_boundary_rows
        return num_boundary_rows + self._copies_needed(last[shared])

    def extend(self, block_ids: list[int], count: int) -> list[BlockCopy]:
        """Make room for `count` tokens at the end of a sequence, all of them or none.

        Parameters
        ----------
        block_ids : list of int
            The blocks of the sequence, updated in place: a shared last block with room is
            replaced by its copy, and new blocks are added.
        count : int
            Tokens to append, 0 or more.

        Returns
        -------
        list of BlockCopy
            Empty, or the one copy of the shared last block.

        Raises
        ------
        OutOfBlocksError
            If more blocks are needed than are free; nothing has changed then.
        """
        return self.extend_batch([block_ids], [count])

    def extend_batch(
        self, sequences: Sequence[list[int]], counts: Sequence[int]
    ) -> list[BlockCopy]:
        """`extend` each sequence by its count of tokens, all of them or none.

        Raises
        ------
        OutOfBlocksError
            If more blocks are needed than are free; nothing has changed then.
        """
        num_needed = sum(
            self.blocks_needed_to_extend(block_ids, count)
            for block_ids, count in zip(sequences, counts, strict=True)
        )
        allocated = self.allocate_blocks(num_needed)
        self._fill_levels[allocated] = self.block_size
        new_blocks = iter(allocated.tolist())
        copies = []
        for block_ids, count in zip(sequences, counts, strict=True):
            room = self._room_in_last_block(block_ids) if count else 0
            if room:
                last = block_ids[-1]
                # Read anew for each: a copy made for an earlier one may have left this one alone.
                if self._refcounts[last] > 1:
                    copies.append(BlockCopy(last, next(new_blocks)))
                    self._refcounts[last] -= 1
                    block_ids[-1] = copies[-1].destination
                self._fill_levels[block_ids[-1]] = self.block_size - room + min(room, count)
            beyond = max(0, count - room)
            num_added = -(-beyond // self.block_size)
            if num_added:
                block_ids.extend(islice(new_blocks, num_added))
                self._fill_levels[block_ids[-1]] -= num_added * self.block_size - beyond
        unused = list(new_blocks)
        if unused:
            self.free_blocks(unused)
        return copies

    def blocks_needed_to_extend(self, block_ids: Sequence[int], count: int) -> int:
        """Count the free blocks that `extend` would take."""
        count = _checked_integer("count", count, 0)
        room = self._room_in_last_block(block_ids)
        if count == 0:
            return 0
        is_copied = room > 0 and self._refcounts[block_ids[-1]] > 1
        return int(is_copied) + -(-max(0, count - room) // self.block_size)

    def fork_block(self, source: int, num_tokens: int) -> BlockCopy:
        """Take a new block that holds the first `num_tokens` tokens of `source`.

        The caller becomes the holder of the new block; the holders of `source` stay as they are.

        Raises
        ------
        OutOfBlocksError
            If no block is free; nothing has changed then.
        ValueError
            If `source` does not hold that many tokens.
        """
        source = int(self._checked_block_ids([source])[0])
        held = int(self._fill_levels[source])
        if _checked_integer("num_tokens", num_tokens, 1) > held:
            raise ValueError(
                f"{num_tokens} tokens of block {source} cannot be forked: it holds only {held}."
            )
        destination = int(self.allocate_blocks(1)[0])
        self._fill_levels[destination] = num_tokens
        return BlockCopy(source, destination)

    def check_integrity(
        self,
        holders: Iterable[Sequence[int]] | None = None,
        lengths: Iterable[int | None] | None = None,
    ) -> None:
        """Check what must hold between steps; meant for tests and idle moments, O(num_blocks).

        Free and held blocks are disjoint and together all of them; fill levels lie within the
        block. With `holders`, refcounts equal the holders. With `lengths` too, every sequence
        fills its blocks to exactly its length, so that only its last block has room.

        Parameters
        ----------
        holders : iterable of sequences of int, optional
            The blocks of each sequence, and ``cache.held_blocks()`` of the prefix cache: all
            holders that there are.
        lengths : iterable of int or None, optional
            Tokens of each holder, in the same order; None for one that is no sequence.

        Raises
        ------
        IntegrityError
            Naming the block at fault.
        """
        free_ids = self._free_stack[: self._num_free]
        check_pool(self.refcounts, self.fill_levels, free_ids, self.block_size)
        if holders is None:
            if lengths is not None:
                raise ValueError("Lengths can be checked only with the holders that have them.")
            return
        holder_ids = [self._checked_block_ids(ids) for ids in holders]
        check_holders(self.refcounts, holder_ids)
        if lengths is None:
            return
        for index, (ids, length) in enumerate(zip(holder_ids, lengths, strict=True)):
            if length is not None:
                check_length(self.fill_levels, self.block_size, index, ids, length)

    def _room_in_last_block(self, block_ids: Sequence[int]) -> int:
        if not block_ids:
            return 0
        last = block_ids[-1]
        if not 0 <= last < self.num_blocks or self._refcounts[last] < 1:
            checked = self._checked_block_ids(block_ids[-1:])
            self._refuse_rows_without_a_holder(checked, self._refcounts[checked])
        return self.block_size - int(self._fill_levels[last])

    def _copies_needed(self, shared_blocks: IndexArray) -> int:
        """Count the copies for rows whose last blocks, with room, are shared.

        The rows of one block all need a copy while somebody outside the batch holds it too;
        otherwise the last row keeps the original.
        """
        blocks, num_rows = np.unique(shared_blocks, return_counts=True)
        return int(np.minimum(num_rows, self._refcounts[blocks] - 1).sum())

    def _refuse_rows_without_a_holder(self, last: IndexArray, refcounts: Int32Array) -> None:
        """Refuse free blocks, and blocks that are the last of more rows than they have holders."""
        rows = np.arange(len(last), dtype=np.int32)
        self._row_of_block[last] = rows
        all_differ = np.count_nonzero(self._row_of_block.take(last) == rows) == len(last)
        if all_differ and np.count_nonzero(refcounts) == len(last):
            return
        blocks, num_rows = np.unique(last[last != EMPTY], return_counts=True)
        too_few = np.flatnonzero(self._refcounts[blocks] < num_rows)
        if too_few.size:
            block = blocks[too_few[0]]
            raise IntegrityError(
                f"Block {block} is the last of {num_rows[too_few[0]]} sequences to append to, but "
                f"has {self._refcounts[block]} holders: each sequence must hold its blocks."
            )

    def _checked_block_ids(self, block_ids: ArrayLike, lowest: int = 0) -> IndexArray:
        given = np.asarray(block_ids)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise ValueError(
                "Block ids must be integers in one dimension, not "
                f"{given.dtype} of shape {given.shape}."
            )
        # numpy indexes several times faster with its own index type than with int32.
        ids = given.astype(np.intp)
        # As unsigned numbers, ids below the lowest are beyond every block: one comparison.
        beyond = (ids - lowest).view(np.uintp) >= self.num_blocks - lowest
        if np.count_nonzero(beyond):
            raise ValueError(
                f"Block {ids[beyond][0]} does not exist: ids run from 0 to {self.num_blocks - 1}"
                + (f", and {EMPTY} stands for an empty sequence." if lowest == EMPTY else ".")
            )
        return ids


def _checked_integer(
    name: str, value: SupportsIndex, lowest: int, error: type[ValueError] = ValueError
) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = lowest - 1
    if number < lowest or isinstance(value, bool):
        raise error(f"{name} must be an integer of {lowest} or more, not {value!r}.")
    return number
