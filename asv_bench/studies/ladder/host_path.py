"""The KV side of a rung: a cache, and the three parts in which rungs differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asv_bench.studies.ladder.appends import RungAppend
from asv_bench.studies.ladder.block_managers import Slot, TupleBlocks
from asv_bench.studies.ladder.block_tables import (
    LadderSequence,
    LayerTables,
    RungTables,
    TableShape,
)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a rung is made of: one of each."""

    blocks: type[TupleBlocks]
    append: type[RungAppend[Any]]
    tables: type[RungTables]


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Sizes of the KV cache and of a step; `width` is the blocks of the longest sequence."""

    num_layers: int
    max_blocks: int
    num_heads: int
    block_size: int
    head_dim: int
    max_batch_size: int
    width: int


@dataclass(frozen=True, slots=True)
class RungStep:
    """What was settled before a decode step's forward pass: slots and block table of each layer."""

    slots: list[Any]
    tables: LayerTables


class HostPath:
    """Keys and values of all layers, [L, max_blocks, H, block_size, D] each, and who holds what.

    Parameters
    ----------
    shape
        Sizes.
    parts
        What the rung is made of.
    device, dtype
        Of the cache.
    """

    def __init__(
        self, shape: CacheShape, parts: Parts, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.shape = shape
        size = (
            *(shape.num_layers, shape.max_blocks),
            *(shape.num_heads, shape.block_size, shape.head_dim),
        )
        self.keys = torch.zeros(size, device=device, dtype=dtype)
        self.values = torch.zeros(size, device=device, dtype=dtype)
        # One view a layer, made once: making them is no part of any rung.
        self._layers = [(self.keys[layer], self.values[layer]) for layer in range(shape.num_layers)]
        self.blocks = parts.blocks(
            shape.num_layers, shape.max_blocks, shape.block_size, self._copy_block
        )
        self._append = parts.append()
        self.table_shape = TableShape(
            shape.num_layers, shape.max_batch_size, shape.width, shape.max_blocks
        )
        self._tables = parts.tables(self.table_shape, device)

    def new_sequence(self) -> LadderSequence:
        """A sequence without tokens."""
        return LadderSequence([[] for _ in range(self.shape.num_layers)])

    def share(self, sequence: LadderSequence) -> LadderSequence:
        """Another holder of a sequence's blocks, the partly filled last one included."""
        for block_ids in sequence.block_ids:
            self.blocks.incref_blocks(block_ids)
        return LadderSequence([list(ids) for ids in sequence.block_ids], sequence.length)

    def release(self, sequence: LadderSequence) -> None:
        """Give back what a sequence holds."""
        for block_ids in sequence.block_ids:
            self.blocks.free_blocks(block_ids)
            block_ids.clear()
        sequence.length = 0

    def extend(self, sequence: LadderSequence, count: int) -> list[list[Slot]]:
        """Make room for a prompt's `count` tokens: slots for each layer."""
        sequence.length += count
        return [
            self.blocks.extend(layer, block_ids, count)
            for layer, block_ids in enumerate(sequence.block_ids)
        ]

    def begin_step(self, sequences: Sequence[LadderSequence]) -> RungStep:
        """Make room for one more token of each sequence, and bring the tables to the device."""
        slots = [
            self._append.reserve(
                self.blocks, layer, [sequence.block_ids[layer] for sequence in sequences]
            )
            for layer in range(self.shape.num_layers)
        ]
        for sequence in sequences:
            sequence.length += 1
        return RungStep(slots, self._tables.build(sequences))

    def append(self, step: RungStep, layer: int, key: Tensor, value: Tensor) -> None:
        """Write a layer's new keys and values, [B, H, D] each."""
        keys, values = self._layers[layer]
        self._append.write(keys, values, step.slots[layer], key, value)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, [max_blocks, H, block_size, D] each."""
        return self._layers[layer]

    def _copy_block(self, layer: int, source: int, destination: int) -> None:
        for cache in self._layers[layer]:
            cache[destination] = cache[source]
