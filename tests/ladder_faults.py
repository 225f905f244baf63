"""Rungs that are broken on purpose: the ladder's tests must catch every one."""

from __future__ import annotations

from dataclasses import replace

from asv_bench.studies.ladder.appends import (
    GenericKernelAppend,
    IndexedAppend,
    NarrowestKernelAppend,
)
from asv_bench.studies.ladder.block_managers import (
    ArrayBlocks,
    BatchSlots,
    MutableBlocks,
    TupleBlocks,
)
from asv_bench.studies.ladder.block_tables import CachedRows, RebuiltTables
from asv_bench.studies.ladder.host_path import Parts
from asv_bench.studies.ladder.rung_build import PARTS
from asv_bench.studies.ladder.rungs import RUNGS


class WrongRowAfterBoundary(CachedRows):
    """Keeps a row for good: it lacks the block that a boundary brings."""

    def _row(self, sequence, layer):
        if layer in sequence.rows:
            return sequence.rows[layer][1]
        return super()._row(sequence, layer)


class WrongRowAfterCopy(CachedRows):
    """Keeps rows by their number of blocks alone, which copy-on-write leaves as it was."""

    def _row(self, sequence, layer):
        kept = sequence.rows.get(layer)
        if kept is not None and kept[0][0] == len(sequence.block_ids[layer]):
            return kept[1]
        return super()._row(sequence, layer)


class RowsOfLayerZero(RebuiltTables):
    """Gives every layer the first one's table."""

    def _layer(self, layer, sequences):
        return super()._layer(0, sequences)


class ForgottenCopyOnWrite(TupleBlocks):
    """Appends to a shared block in place."""

    def _copy_on_write(self, layer, block_ids):
        pass


class CopyWithoutContents(TupleBlocks):
    """Takes a block of its own on copy-on-write, and copies nothing into it."""

    def _copy_on_write(self, layer, block_ids):
        self._copy_block = lambda *_: None
        super()._copy_on_write(layer, block_ids)


class CopyKeepsItsHold(TupleBlocks):
    """Does not let go of the block that it copied."""

    def _copy_on_write(self, layer, block_ids):
        shared = block_ids[-1]
        super()._copy_on_write(layer, block_ids)
        self.refcounts[shared] += 1


class FastPathForgetsHolders(MutableBlocks):
    """Takes the fast path wherever there is room, whoever else holds the block."""

    def append_token_batch(self, layer, sequences):
        refcounts, self.refcounts = self.refcounts, dict.fromkeys(self.refcounts, 1)
        try:
            slots = BatchSlots()
            for row, block_ids in enumerate(sequences):
                info = self.infos[block_ids[-1]]
                if info.length == self.block_size:
                    continue
                slots.rows.append(row)
                slots.blocks.append(info.block_index)
                slots.positions.append(info.length)
                info.length += 1
        finally:
            self.refcounts = refcounts
        slow = [row for row in range(len(sequences)) if row not in slots.rows]
        slots.slow = [(row, self.append_token(layer, sequences[row])) for row in slow]
        return slots


class StaleLength(MutableBlocks):
    """Forgets to lengthen the blocks of the fast path."""

    def append_token_batch(self, layer, sequences):
        before = {ids[-1]: self.infos[ids[-1]].length for ids in sequences if ids}
        slots = super().append_token_batch(layer, sequences)
        for row in slots.rows:
            block_id = sequences[row][-1]
            self.infos[block_id].length = before[block_id]
        return slots


class StaleLengthOfTuples(TupleBlocks):
    """Forgets the second loop, which stores the lengthened infos."""

    def append_token_batch(self, layer, sequences):
        before = dict(self.infos)
        slots = super().append_token_batch(layer, sequences)
        for row in slots.rows:
            self.infos[sequences[row][-1]] = before[sequences[row][-1]]
        return slots


class FreedWithoutReturn(ArrayBlocks):
    """Forgets freed blocks instead of handing them out again."""

    def free_blocks(self, block_ids):
        free = [list(of_layer) for of_layer in self._free]
        super().free_blocks(block_ids)
        self._free = free


class FreedOnce(ArrayBlocks):
    """Frees a block with its first holder."""

    def free_blocks(self, block_ids):
        for block_id in block_ids:
            self.refcounts[block_id] = 1
        super().free_blocks(block_ids)


class RowsCountedFromZero(GenericKernelAppend):
    """Writes the first rows where those of the fast path belong."""

    def write_fast(self, keys, values, slots, key, value):
        first = replace(slots, rows=list(range(len(slots.rows))))
        super().write_fast(keys, values, first, key, value)


class PositionsTakenForCommon(NarrowestKernelAppend):
    """Writes every row at the first one's position."""

    def write_fast(self, keys, values, slots, key, value):
        common = replace(slots, positions=[slots.positions[0]] * len(slots.positions))
        super().write_fast(keys, values, common, key, value)


class SlowRowsUnwritten(IndexedAppend):
    """Writes the fast path only."""

    def write(self, keys, values, slots, key, value):
        if slots.rows:
            self.write_fast(keys, values, slots, key, value)


def parts_of(number: int) -> Parts:
    """What a rung is made of; its kernels run in torch on a CPU."""
    return PARTS[RUNGS[number].name]


BROKEN = {
    "wrong row after a boundary": replace(parts_of(1), tables=WrongRowAfterBoundary),
    "wrong row after copy-on-write": replace(parts_of(1), tables=WrongRowAfterCopy),
    "rows of layer 0": replace(parts_of(0), tables=RowsOfLayerZero),
    "forgotten copy-on-write": replace(parts_of(0), blocks=ForgottenCopyOnWrite),
    "copy without contents": replace(parts_of(0), blocks=CopyWithoutContents),
    "copy keeps its hold": replace(parts_of(2), blocks=CopyKeepsItsHold),
    "fast path forgets holders": replace(parts_of(5), blocks=FastPathForgetsHolders),
    "stale length": replace(parts_of(5), blocks=StaleLength),
    "stale length of tuples": replace(parts_of(2), blocks=StaleLengthOfTuples),
    "freed without return": replace(parts_of(6), blocks=FreedWithoutReturn),
    "freed once": replace(parts_of(6), blocks=FreedOnce),
    "rows counted from zero": replace(parts_of(3), append=RowsCountedFromZero),
    "positions taken for common": replace(parts_of(4), append=PositionsTakenForCommon),
    "slow rows unwritten": replace(parts_of(2), append=SlowRowsUnwritten),
}
"""By what is wrong with them."""

SAME_TOKENS = {
    "copy keeps its hold",  # blocks leak
    "freed without return",
    "rows of layer 0",  # an engine's layers hand out their blocks alike
    "wrong row after copy-on-write",  # an engine shares a sequence before it has rows
}
"""Faults that an engine's tokens do not show, and the metadata's test does."""
