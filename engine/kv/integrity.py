"""What must hold of the KV blocks between steps, as checks that name the block at fault."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.errors import IntegrityError

Int32Array = NDArray[np.int32]
IndexArray = NDArray[np.intp]


def check_pool(
    refcounts: Int32Array, fill_levels: Int32Array, free_ids: Int32Array, block_size: int
) -> None:
    """Check that free and held blocks are disjoint and complete, and that fill levels can be.

    Parameters
    ----------
    refcounts, fill_levels : int32 array [num_blocks]
    free_ids : int32 array
        The free list.
    block_size : int
        Tokens that one block carries.

    Raises
    ------
    IntegrityError
        Naming the block at fault.
    """
    times_free = np.bincount(free_ids, minlength=len(refcounts))
    is_free = times_free == 1
    _refuse(times_free > 1, "is in the free list more than once")
    _refuse(is_free & (refcounts != 0), "is in the free list, but has holders")
    _refuse(~is_free & (refcounts < 1), "is neither free nor held")
    _refuse(is_free & (fill_levels != 0), "is free, but has tokens")
    out_of_block = (fill_levels < 0) | (fill_levels > block_size)
    _refuse(out_of_block, f"has a fill level outside 0 to {block_size}")


def check_holders(refcounts: Int32Array, holders: Sequence[IndexArray]) -> None:
    """Check that `refcounts` [num_blocks] count the `holders`, each an array of block ids.

    Since only a block with one holder is written in place, no block then has two writers.

    Raises
    ------
    IntegrityError
        Naming the block at fault.
    """
    counted = np.zeros(len(refcounts), dtype=np.int64)
    for index, ids in enumerate(holders):
        times_held = np.bincount(ids, minlength=len(refcounts))
        _refuse(times_held > 1, f"is listed more than once by holder {index}")
        counted += times_held
    wrong = np.flatnonzero(counted != refcounts)
    if wrong.size:
        block = wrong[0]
        raise IntegrityError(
            f"Block {block} has refcount {refcounts[block]}, but {counted[block]} holders hold it."
        )


def check_length(
    fill_levels: Int32Array, block_size: int, index: int, ids: IndexArray, length: int
) -> None:
    """Check that holder number `index` fills its blocks, `ids`, to exactly `length` tokens.

    Raises
    ------
    IntegrityError
        Naming the block at fault.
    """
    expected = np.full(-(-length // block_size), block_size, dtype=np.int32)
    if len(ids) != len(expected):
        raise IntegrityError(
            f"Holder {index} has {length} tokens, which fill {len(expected)} blocks of "
            f"{block_size}, but it holds {len(ids)} blocks: {ids.tolist()}."
        )
    if len(ids):
        expected[-1] -= len(ids) * block_size - length
    wrong = np.flatnonzero(fill_levels[ids] != expected)
    if wrong.size:
        block = ids[wrong[0]]
        raise IntegrityError(
            f"Block {block} has fill level {fill_levels[block]}, but holder {index} of {length} "
            f"tokens has {expected[wrong[0]]} in it."
        )


def _refuse(is_wrong: NDArray[np.bool_], fault: str) -> None:
    wrong = np.flatnonzero(is_wrong)
    if wrong.size:
        raise IntegrityError(f"Block {wrong[0]} {fault}.")
