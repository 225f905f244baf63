"""Ways to append one token of each sequence: the bookkeeping, then K and V into their slots.

In every class `reserve` is called for each layer before the forward pass, and `write` by the layer
itself. `keys` and `values` are one layer's cache, [max_blocks, H, block_size, D]; `key` and `value`
are the new token of each sequence, [B, H, D].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from asv_bench.studies.ladder.block_managers import BatchSlots, Slot, TupleBlocks
from kernels import kv_append

Slots = TypeVar("Slots")


class RungAppend(Protocol, Generic[Slots]):
    """How tokens are appended."""

    def reserve(self, blocks: TupleBlocks, layer: int, sequences: Sequence[list[int]]) -> Slots: ...

    def write(
        self, keys: Tensor, values: Tensor, slots: Slots, key: Tensor, value: Tensor
    ) -> None: ...


class PerTokenAppend:
    """A call for each sequence and layer: L x B of them a step."""

    def reserve(
        self, blocks: TupleBlocks, layer: int, sequences: Sequence[list[int]]
    ) -> list[Slot]:
        """Make room for one token of each sequence, one after the other."""
        return [blocks.append_token(layer, block_ids) for block_ids in sequences]

    def write(
        self, keys: Tensor, values: Tensor, slots: list[Slot], key: Tensor, value: Tensor
    ) -> None:
        """Write one token after the other."""
        for row, slot in enumerate(slots):
            write_token(keys, values, slot, key[row], value[row])


class IndexedAppend:
    """A call a layer: one indexed write for all sequences of the fast path."""

    def reserve(
        self, blocks: TupleBlocks, layer: int, sequences: Sequence[list[int]]
    ) -> BatchSlots:
        """Make room for one token of each sequence."""
        return blocks.append_token_batch(layer, sequences)

    def write(
        self, keys: Tensor, values: Tensor, slots: BatchSlots, key: Tensor, value: Tensor
    ) -> None:
        """Write the fast path's tokens together and the others one by one."""
        if slots.rows:
            self.write_fast(keys, values, slots, key, value)
        for row, slot in slots.slow:
            write_token(keys, values, slot, key[row], value[row])

    def write_fast(
        self, keys: Tensor, values: Tensor, slots: BatchSlots, key: Tensor, value: Tensor
    ) -> None:
        """Write the tokens of `slots.rows`."""
        block = torch.tensor(slots.blocks, device=keys.device)
        position = torch.tensor(slots.positions, device=keys.device)
        if slots.slow:
            rows = torch.tensor(slots.rows, device=keys.device)
            key, value = key[rows], value[rows]
        keys[block, :, position] = key
        values[block, :, position] = value


class GenericKernelAppend(IndexedAppend):
    """One kernel for the fast path, which is told row, block and position of each token."""

    def write_fast(
        self, keys: Tensor, values: Tensor, slots: BatchSlots, key: Tensor, value: Tensor
    ) -> None:
        """See `IndexedAppend.write_fast`."""
        kv_append(
            *(keys, values, key, value),
            _index(slots.blocks, keys),
            _index(slots.positions, keys),
            _index(slots.rows, keys),
        )


class NarrowestKernelAppend(GenericKernelAppend):
    """The narrowest kernel that serves: one common position, one a row, or the generic one."""

    def write_fast(
        self, keys: Tensor, values: Tensor, slots: BatchSlots, key: Tensor, value: Tensor
    ) -> None:
        """See `IndexedAppend.write_fast`."""
        if slots.slow:
            super().write_fast(keys, values, slots, key, value)
            return
        block = _index(slots.blocks, keys)
        common = slots.positions[0]
        if slots.positions.count(common) == len(slots.positions):
            kv_append(keys, values, key, value, block, common)
        else:
            kv_append(keys, values, key, value, block, _index(slots.positions, keys))


def write_token(keys: Tensor, values: Tensor, slot: Slot, key: Tensor, value: Tensor) -> None:
    """Write one token's key and value, [H, D] each."""
    keys.select(0, slot.block).select(1, slot.position).copy_(key)
    values.select(0, slot.block).select(1, slot.position).copy_(value)


def _index(values: list[int], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=like.device)
