"""Ways to bring the block tables of a step to the device: [B, width] int32 for each layer.

A table names blocks within the layer. What a row holds beyond its sequence is never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

UNUSED = 0

LayerTables: TypeAlias = list[Tensor] | Tensor
"""[B, width] for each layer, apart or in one tensor."""


@dataclass(slots=True, eq=False)
class LadderSequence:
    """One sequence: its blocks' global ids for each layer, and its tokens.

    `rows` is where `CachedRows` keeps a row for each layer with the key that it was made under.
    """

    block_ids: list[list[int]]
    length: int = 0
    rows: dict[int, tuple[tuple[int, int], Tensor]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableShape:
    """Sizes of the tables: layers, rows at most, entries in a row, and blocks in a layer."""

    num_layers: int
    max_rows: int
    width: int
    max_blocks: int


class RungTables(Protocol):
    """How the tables of a step are made."""

    def __init__(self, shape: TableShape, device: torch.device) -> None: ...

    def build(self, sequences: Sequence[LadderSequence]) -> LayerTables:
        """The table of each layer, on the device."""
        ...


class RebuiltTables:
    """Rows made from lists in every step and layer, and a copy for each layer."""

    def __init__(self, shape: TableShape, device: torch.device) -> None:
        self._shape = shape
        self._device = device

    def build(self, sequences: Sequence[LadderSequence]) -> list[Tensor]:
        """See `RungTables`."""
        return [self._layer(layer, sequences) for layer in range(self._shape.num_layers)]

    def _layer(self, layer: int, sequences: Sequence[LadderSequence]) -> Tensor:
        rows = [row_of(sequence, layer, self._shape) for sequence in sequences]
        return torch.tensor(rows, dtype=torch.int32).to(self._device)


class CachedRows:
    """Rows kept until their sequence gets another last block, stacked into one pinned buffer.

    A row is kept under the number of blocks and the last of them: it changes at a block boundary
    and on copy-on-write, and at no other time.
    """

    def __init__(self, shape: TableShape, device: torch.device) -> None:
        self._shape = shape
        self._device = device
        # Rewritten by the next step, which begins when this one's tokens are on the host: by then
        # the copy has run.
        self._buffer = torch.empty(
            shape.num_layers * shape.max_rows * shape.width,
            dtype=torch.int32,
            pin_memory=device.type == "cuda",
        )

    def build(self, sequences: Sequence[LadderSequence]) -> Tensor:
        """See `RungTables`."""
        layers, width = self._shape.num_layers, self._shape.width
        used = self._buffer[: layers * len(sequences) * width]
        tables = used.view(layers, len(sequences), width)
        for layer in range(layers):
            rows = [self._row(sequence, layer) for sequence in sequences]
            torch.stack(rows, out=tables[layer])
        return tables.to(self._device, non_blocking=True)

    def _row(self, sequence: LadderSequence, layer: int) -> Tensor:
        block_ids = sequence.block_ids[layer]
        key = (len(block_ids), block_ids[-1])
        kept = sequence.rows.get(layer)
        if kept is None or kept[0] != key:
            row = torch.tensor(row_of(sequence, layer, self._shape), dtype=torch.int32)
            kept = sequence.rows[layer] = (key, row)
        return kept[1]


def row_of(sequence: LadderSequence, layer: int, shape: TableShape) -> list[int]:
    """One row of a layer's table, as long as the table is wide."""
    first = layer * shape.max_blocks
    row = [block_id - first for block_id in sequence.block_ids[layer]]
    return row + [UNUSED] * (shape.width - len(row))
