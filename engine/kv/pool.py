"""The pool of KV blocks: who holds each one and how many tokens it carries.

One pool serves all layers: block ``b`` means ``k_cache[layer, b]`` and ``v_cache[layer, b]`` of
every layer. Metadata lives in arrays indexed by block id, so that the append of a whole batch is a
handful of numpy calls.

A *holder* is a sequence or the prefix cache; ``refcounts[b]`` is the number of holders of ``b``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from engine.errors import ConfigError, IntegrityError, OutOfBlocksError
from engine.kv.integrity import IndexArray, Int32Array, check_holders, check_length, check_pool

EMPTY = -1
"""What stands for the last block of a sequence that has none yet."""


class BlockPool:
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
    num_releases
        Counts up whenever blocks lose holders.

    Raises
    ------
    ConfigError
        If `num_blocks` or `block_size` is not a positive integer.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = checked_integer("num_blocks", num_blocks, 1, ConfigError)
        self.block_size = checked_integer("block_size", block_size, 1, ConfigError)
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
        self.num_releases = 0

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
        count = checked_integer("count", count, 0)
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

    def incref_held_blocks(self, block_ids: Sequence[int]) -> None:
        """`incref_blocks` where each is listed once and known to be held: nothing is checked.

        It costs a fifth.
        """
        self._refcounts[block_ids] += 1

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
        ids, counts = _counted(self._checked_block_ids(block_ids))
        refcounts = self._refcounts[ids] - counts
        if np.count_nonzero(refcounts < 0):
            place = np.flatnonzero(refcounts < 0)[0]
            block = ids[place]
            raise IntegrityError(
                f"Block {block} has {self._refcounts[block]} holders, but was to lose "
                f"{counts[place]}: a holder may free a block only once."
            )
        self.num_releases += 1
        self._refcounts[ids] = refcounts
        freed = ids[refcounts == 0]
        self._fill_levels[freed] = 0
        self._free_stack[self._num_free : self._num_free + len(freed)] = freed
        self._num_free += len(freed)
        return len(freed)

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

    def _checked_block_ids(self, block_ids: ArrayLike, lowest: int = 0) -> IndexArray:
        given = np.asarray(block_ids)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise ValueError(
                "Block ids must be integers in one dimension, not "
                f"{given.dtype} of shape {given.shape}."
            )
        # numpy indexes several times faster with its own index type than with int32.
        ids = given.astype(np.intp)
        beyond = (ids < lowest) | (ids >= self.num_blocks)
        if np.count_nonzero(beyond):
            raise ValueError(
                f"Block {ids[beyond][0]} does not exist: ids run from 0 to {self.num_blocks - 1}"
                + (f", and {EMPTY} stands for an empty sequence." if lowest == EMPTY else ".")
            )
        return ids


def _counted(ids: IndexArray) -> tuple[IndexArray, Int32Array]:
    """Each of the ids once, ascending, and how often it is among them.

    Most often no two are the same, and `np.unique` takes three times as long to say so.
    """
    ascending = np.sort(ids)
    if np.count_nonzero(ascending[1:] == ascending[:-1]):
        ids, counts = np.unique(ascending, return_counts=True)
        return ids, counts.astype(np.int32)
    return ascending, np.ones(len(ascending), np.int32)


def checked_integer(
    name: str, value: SupportsIndex, lowest: int, error: type[ValueError] = ValueError
) -> int:
    """`value` as an int; raises `error` where it is none, or below `lowest`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = lowest - 1
    if number < lowest or isinstance(value, bool):
        raise error(f"{name} must be an integer of {lowest} or more, not {value!r}.")
    return number
