"""What must hold of a rung's KV metadata between two steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from asv_bench.studies.ladder.block_managers import TupleBlocks
from asv_bench.studies.ladder.block_tables import LadderSequence
from engine import IntegrityError


def check_blocks(blocks: TupleBlocks, holders: Sequence[LadderSequence]) -> None:
    """Check a rung's metadata against all its holders, prefixes that are kept included.

    Refcounts equal the holders; free and held blocks are disjoint and complete; ids lie in their
    layer; the fill levels of every sequence add up to its length, and only its last block has room.

    Raises
    ------
    IntegrityError
        Naming the block at fault.
    """
    counted = Counter(
        block_id for holder in holders for ids in holder.block_ids for block_id in ids
    )
    held = {block_id: (info, refcount) for block_id, info, refcount in blocks.held()}
    for block_id in counted.keys() | held.keys():
        refcount = held[block_id][1] if block_id in held else 0
        if refcount != counted[block_id]:
            raise IntegrityError(
                f"Block {block_id} counts {refcount} holders, but has {counted[block_id]}."
            )
    for layer in range(blocks.num_layers):
        of_layer = sum(info.layer == layer for info, _ in held.values())
        if of_layer + blocks.num_free(layer) != blocks.max_blocks:
            raise IntegrityError(
                f"Layer {layer} has {of_layer} held and {blocks.num_free(layer)} free blocks, "
                f"which are not {blocks.max_blocks}."
            )
    for block_id, (info, _) in held.items():
        if block_id != info.layer * blocks.max_blocks + info.block_index:
            raise IntegrityError(f"Block {block_id} is not where its info says: {info}.")
    for number, holder in enumerate(holders):
        for layer, block_ids in enumerate(holder.block_ids):
            _check_length(blocks, number, layer, block_ids, holder.length)


def _check_length(
    blocks: TupleBlocks, number: int, layer: int, block_ids: Sequence[int], length: int
) -> None:
    start = 0
    for place, block_id in enumerate(block_ids):
        info = blocks.infos[block_id]
        is_last = place == len(block_ids) - 1
        expected = length - start if is_last else blocks.block_size
        if (info.layer, info.start, info.length) != (layer, start, expected):
            raise IntegrityError(
                f"Block {block_id} of sequence {number} must start at {start} of layer {layer} "
                f"and hold {expected} tokens, but is {info}."
            )
        start += info.length
    if start != length:
        raise IntegrityError(
            f"Sequence {number} has {length} tokens, but its blocks of layer {layer} hold {start}."
        )
    if block_ids and blocks.infos[block_ids[-1]].length == 0:
        raise IntegrityError(f"Block {block_ids[-1]} of sequence {number} holds no token.")
