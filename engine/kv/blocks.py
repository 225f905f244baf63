"""Where the tokens of sequences go in the KV blocks, one token or many at a time.

A sequence has one list of block ids for all layers. Only its last block may have room, and only a
block with one holder is written in place: a shared block with room is copied first
(copy-on-write). So no block has two writers.

Copies are instructions for the device. They must be carried out in the order in which they were
returned, and before the tokens of the same step are written; a destination may be the block that
an earlier copy read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from engine.errors import IntegrityError
from engine.kv.integrity import IndexArray, Int32Array
from engine.kv.pool import EMPTY, BlockPool, checked_integer


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


class KVBlockManager(BlockPool):
    """The pool of blocks, and how sequences grow in it.

    Parameters, attributes, errors: as for `BlockPool`.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._row_of_block = np.zeros(self.num_blocks + 1, dtype=np.int32)

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
        if not np.count_nonzero(has_room):
            # Sequences of a batch that began together reach their boundaries together.
            new_blocks = self.allocate_blocks(len(last))
            self._fill_levels[new_blocks] = 1
            return BatchAppend(new_blocks, np.zeros(len(last), np.int32), [])

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
            # Read again for each row: a copy made for an earlier row may have left this one alone.
            if self._refcounts[source] > 1:
                copy = BlockCopy(source, next(copy_blocks))
                self._refcounts[source] -= 1
                block_index[row] = copy.destination
                copies.append(copy)
        self._fill_levels[block_index] = position + 1
        return BatchAppend(block_index.astype(np.int32), position, copies)

    def append_in_place(self, last_blocks: IndexArray, counts: int | Int32Array = 1) -> None:
        """`append_to_last_blocks` where all of them have room and one holder: nothing is checked.

        For a batch of which that is known, because nobody else has come or gone since it was
        checked: it costs a tenth.

        Parameters
        ----------
        last_blocks : intp array [B]
            The last block of each sequence.
        counts : int32 array [B]
            Tokens of each.
        """
        self._fill_levels[last_blocks] += counts

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
                # Read again for each: a copy made for an earlier one may have left this one alone.
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
        count = checked_integer("count", count, 0)
        if not block_ids:
            return -(-count // self.block_size)
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
        if checked_integer("num_tokens", num_tokens, 1) > held:
            raise ValueError(
                f"{num_tokens} tokens of block {source} cannot be forked: it holds only {held}."
            )
        destination = int(self.allocate_blocks(1)[0])
        self._fill_levels[destination] = num_tokens
        return BlockCopy(source, destination)

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
        held = last[last != EMPTY]
        if not len(held):
            return
        blocks, num_rows = np.unique(held, return_counts=True)
        too_few = np.flatnonzero(self._refcounts[blocks] < num_rows)
        if too_few.size:
            block = blocks[too_few[0]]
            raise IntegrityError(
                f"Block {block} is the last of {num_rows[too_few[0]]} sequences to append to, but "
                f"has {self._refcounts[block]} holders: each sequence must hold its blocks."
            )
