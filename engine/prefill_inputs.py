"""What a prefill reads: the plan's ragged chunks side by side, sent to the device in one copy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Generic, TypeVar

import numpy as np
import torch

from engine.kv_integrity import Int32Array
from engine.scheduler import PrefillPlan

Array = TypeVar("Array", Int32Array, torch.Tensor)

_NO_BLOCK = -1


@dataclass(frozen=True, slots=True)
class PrefillInputs(Generic[Array]):
    """A prefill's int32 arrays; T tokens of N sequences, in at most C blocks each.

    `token_ids`, `positions`, `block_index`, `block_offset` [T]; `block_tables` [N, C];
    `context_lens` [N]; `query_start_loc` [N + 1]; and, of the sequences whose prompt is completed,
    from the first place on, `sampled_tokens`, which of the T tokens is their last, `sampled_rows`,
    `sampled_positions` [N].
    """

    token_ids: Array
    positions: Array
    block_index: Array
    block_offset: Array
    block_tables: Array
    context_lens: Array
    query_start_loc: Array
    sampled_tokens: Array
    sampled_rows: Array
    sampled_positions: Array


@dataclass(frozen=True, slots=True)
class PrefillShape:
    """T, N and C of a prefill's arrays: its plan's own, or larger.

    What is left over is padding: tokens of no sequence, which are stored nowhere, and sequences
    without tokens.
    """

    num_tokens: int
    num_sequences: int
    num_columns: int

    @classmethod
    def of(cls, plan: PrefillPlan, block_size: int) -> PrefillShape:
        """The shape that holds the plan without padding."""
        longest = max(chunk.end for chunk in plan.chunks)
        return cls(plan.num_tokens, len(plan.chunks), -(-longest // block_size))

    @property
    def size(self) -> int:
        """Numbers in all arrays together."""
        return sum(self._sizes())

    def views(self, packed: Array) -> PrefillInputs[Array]:
        """The arrays that lie one after another in `packed`, int32 [size]."""
        ends = accumulate(self._sizes())
        arrays = [packed[end - size : end] for size, end in zip(self._sizes(), ends, strict=True)]
        arrays[4] = arrays[4].reshape(self.num_sequences, self.num_columns)
        return PrefillInputs(*arrays)

    def pack(self, plan: PrefillPlan, block_size: int) -> Int32Array:
        """The plan's arrays one after another, int32 [size]."""
        packed = np.zeros(self.size, np.int32)
        arrays = self.views(packed)
        chunks, num_chunks, num_tokens = plan.chunks, len(plan.chunks), plan.num_tokens
        starts = np.array([chunk.start for chunk in chunks], np.int32)
        ends = np.array([chunk.end for chunk in chunks], np.int32)
        query_start_loc = arrays.query_start_loc
        lengths = ends - starts
        np.cumsum(lengths, out=query_start_loc[1 : num_chunks + 1])
        query_start_loc[num_chunks + 1 :] = num_tokens
        arrays.context_lens[:num_chunks] = ends

        num_blocks = -(-ends // block_size)
        # Unused entries name no block: whoever reads one fails loudly rather than quietly.
        block_tables = arrays.block_tables
        block_tables.fill(_NO_BLOCK)
        block_tables[:num_chunks][np.arange(self.num_columns) < num_blocks[:, None]] = np.fromiter(
            chain.from_iterable(
                chunk.request.block_ids[:used]
                for chunk, used in zip(chunks, num_blocks.tolist(), strict=True)
            ),
            np.int32,
        )

        np.concatenate(
            [chunk.request.known_tokens[chunk.start : chunk.end] for chunk in chunks],
            out=arrays.token_ids[:num_tokens],
        )
        positions = np.arange(num_tokens, dtype=np.int32)
        positions += np.repeat(starts - query_start_loc[:num_chunks], lengths)
        column = positions // np.int32(block_size)
        arrays.positions[:num_tokens] = positions
        arrays.block_offset[:num_tokens] = positions - column * np.int32(block_size)
        column += np.repeat(np.arange(num_chunks, dtype=np.int32) * self.num_columns, lengths)
        arrays.block_index[:num_tokens] = block_tables.reshape(-1)[column]
        arrays.block_index[num_tokens:] = _NO_BLOCK

        completed = [index for index, chunk in enumerate(chunks) if chunk.completes_prompt]
        count = len(completed)
        arrays.sampled_tokens[:count] = query_start_loc[1:][completed] - 1
        rows = [chunks[index].request.row for index in completed]
        arrays.sampled_rows[:count] = np.array(rows, np.int32)
        arrays.sampled_positions[:count] = ends[completed]
        return packed

    def _sizes(self) -> tuple[int, ...]:
        tokens, sequences = self.num_tokens, self.num_sequences
        tables = sequences * self.num_columns
        return (*[tokens] * 4, tables, sequences, sequences + 1, *[sequences] * 3)
