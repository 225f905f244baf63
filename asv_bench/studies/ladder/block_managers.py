"""KV metadata as the write-ups had it: blocks of each layer, their holders, and their tokens.

Every layer has blocks of its own. A block's global id is ``layer * max_blocks + block``, and a
sequence holds a list of global ids for each layer. Only a block with one holder is written in
place; the last block of a sequence that others hold too is copied when it is appended to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from asv_bench.errors import MeasurementFailed

CopyBlock: TypeAlias = Callable[[int, int, int], None]
"""copy_block(layer, source, destination): K and V of a whole block, within one layer."""


class Slot(NamedTuple):
    """Where a token goes: block within its layer, position within the block."""

    block: int
    position: int


@dataclass(slots=True)
class BatchSlots:
    """Where one token of each sequence goes, in one layer.

    Attributes
    ----------
    rows, blocks, positions
        The sequences of the fast path, and their slots.
    slow
        The others: row and slot.
    """

    rows: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slow: list[tuple[int, Slot]] = field(default_factory=list)


class Info(Protocol):
    """What is known of a held block."""

    @property
    def layer(self) -> int: ...
    @property
    def block_index(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def length(self) -> int: ...


class BlockInfo(NamedTuple):
    """A held block: its layer, its place there, its first token's position, and its tokens."""

    layer: int
    block_index: int
    start: int
    length: int


@dataclass(slots=True)
class MutableBlockInfo:
    """A held block whose `length` grows in place."""

    layer: int
    block_index: int
    start: int
    length: int


class TupleBlocks:
    """Dicts from global id to an immutable info and to a count of holders.

    Parameters
    ----------
    num_layers, max_blocks
        Layers, and blocks that each has.
    block_size
        Tokens in a block.
    copy_block
        Copies a block on the device, in stream order.
    """

    infos: MutableMapping[int, Any] | list[Any]
    refcounts: MutableMapping[int, int] | list[int]

    def __init__(
        self, num_layers: int, max_blocks: int, block_size: int, copy_block: CopyBlock
    ) -> None:
        self.num_layers = num_layers
        self.max_blocks = max_blocks
        self.block_size = block_size
        self._copy_block = copy_block
        self._free = [list(range(max_blocks - 1, -1, -1)) for _ in range(num_layers)]
        self._make_storage()

    def _make_storage(self) -> None:
        self.infos = {}
        self.refcounts = {}

    def num_free(self, layer: int) -> int:
        """Blocks of a layer that nobody holds."""
        return len(self._free[layer])

    def held(self) -> Iterator[tuple[int, Info, int]]:
        """Every held block: global id, info and holders."""
        for block_id in self._held_ids():
            yield block_id, self.infos[block_id], self.refcounts[block_id]

    def _held_ids(self) -> Iterable[int]:
        return tuple(self.infos)

    def append_token(self, layer: int, block_ids: list[int]) -> Slot:
        """Make room for one token at the end of a sequence, whose blocks are updated in place.

        Raises
        ------
        MeasurementFailed
            If the layer has no free block and one is needed.
        """
        block_id = self._writable_last(layer, block_ids)
        info = self.infos[block_id]
        slot = Slot(info.block_index, info.length)
        self._lengthen(block_id, 1)
        return slot

    def append_token_batch(self, layer: int, sequences: Sequence[list[int]]) -> BatchSlots:
        """Make room for one token at the end of each sequence.

        Fast path: the last block has room and no other holder. All others are appended to one by
        one.
        """
        infos, refcounts, block_size = self.infos, self.refcounts, self.block_size
        slots = BatchSlots()
        slow = []
        for row, block_ids in enumerate(sequences):
            info = infos[block_ids[-1]] if block_ids else None
            if info is None or info.length == block_size or refcounts[block_ids[-1]] > 1:
                slow.append(row)
                continue
            slots.rows.append(row)
            slots.blocks.append(info.block_index)
            slots.positions.append(info.length)
        for row in slots.rows:
            block_id = sequences[row][-1]
            _, block_index, start, length = infos[block_id]
            infos[block_id] = BlockInfo(layer, block_index, start, length + 1)
        slots.slow = [(row, self.append_token(layer, sequences[row])) for row in slow]
        return slots

    def extend(self, layer: int, block_ids: list[int], count: int) -> list[Slot]:
        """Make room for `count` tokens at the end of a sequence: where each of them goes."""
        slots: list[Slot] = []
        while len(slots) < count:
            block_id = self._writable_last(layer, block_ids)
            info = self.infos[block_id]
            first = info.length
            taken = min(self.block_size - first, count - len(slots))
            block = info.block_index
            self._lengthen(block_id, taken)
            slots += [Slot(block, position) for position in range(first, first + taken)]
        return slots

    def incref_blocks(self, block_ids: Sequence[int]) -> None:
        """Add a holder to each block."""
        for block_id in block_ids:
            self.refcounts[block_id] += 1

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """Take a holder from each block; one without holders is free."""
        for block_id in block_ids:
            self.refcounts[block_id] -= 1
            if self.refcounts[block_id] == 0:
                info = self.infos[block_id]
                self._free[info.layer].append(info.block_index)
                self._forget(block_id)

    def _writable_last(self, layer: int, block_ids: list[int]) -> int:
        """The last block, which has room and one holder: a new one or a copy where needed."""
        if not block_ids or self.infos[block_ids[-1]].length == self.block_size:
            block_ids.append(self._allocate(layer, len(block_ids) * self.block_size, 0))
        elif self.refcounts[block_ids[-1]] > 1:
            self._copy_on_write(layer, block_ids)
        return block_ids[-1]

    def _copy_on_write(self, layer: int, block_ids: list[int]) -> None:
        shared = block_ids[-1]
        info = self.infos[shared]
        block_ids[-1] = self._allocate(layer, info.start, info.length)
        self._copy_block(layer, info.block_index, self.infos[block_ids[-1]].block_index)
        self.refcounts[shared] -= 1

    def _allocate(self, layer: int, start: int, length: int) -> int:
        if not self._free[layer]:
            raise MeasurementFailed(
                f"layer {layer} has no free KV block left of {self.max_blocks}; give the rung "
                "more, or fewer requests at once."
            )
        block = self._free[layer].pop()
        block_id = layer * self.max_blocks + block
        self._remember(block_id, layer, block, start, length)
        return block_id

    def _remember(self, block_id: int, layer: int, block: int, start: int, length: int) -> None:
        self.infos[block_id] = BlockInfo(layer, block, start, length)
        self.refcounts[block_id] = 1

    def _forget(self, block_id: int) -> None:
        del self.infos[block_id], self.refcounts[block_id]

    def _lengthen(self, block_id: int, count: int) -> None:
        layer, block_index, start, length = self.infos[block_id]
        self.infos[block_id] = BlockInfo(layer, block_index, start, length + count)


class MutableBlocks(TupleBlocks):
    """Dicts as before, to an info that is lengthened in place: one loop over the batch, not two."""

    def append_token_batch(self, layer: int, sequences: Sequence[list[int]]) -> BatchSlots:
        """See `TupleBlocks.append_token_batch`."""
        infos, refcounts, block_size = self.infos, self.refcounts, self.block_size
        slots = BatchSlots()
        slow = []
        for row, block_ids in enumerate(sequences):
            info = infos[block_ids[-1]] if block_ids else None
            if info is None or info.length == block_size or refcounts[block_ids[-1]] > 1:
                slow.append(row)
                continue
            slots.rows.append(row)
            slots.blocks.append(info.block_index)
            slots.positions.append(info.length)
            info.length += 1
        slots.slow = [(row, self.append_token(layer, sequences[row])) for row in slow]
        return slots

    def _remember(self, block_id: int, layer: int, block: int, start: int, length: int) -> None:
        self.infos[block_id] = MutableBlockInfo(layer, block, start, length)
        self.refcounts[block_id] = 1

    def _lengthen(self, block_id: int, count: int) -> None:
        self.infos[block_id].length += count


class ArrayBlocks(MutableBlocks):
    """Lists indexed by global id: ids are dense and their number is known."""

    def _make_storage(self) -> None:
        count = self.num_layers * self.max_blocks
        self.infos = [None] * count
        self.refcounts = [0] * count

    def _held_ids(self) -> Iterable[int]:
        return (block_id for block_id, info in enumerate(self.infos) if info is not None)

    def _forget(self, block_id: int) -> None:
        self.infos[block_id] = None
