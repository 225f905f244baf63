"""What a prefill reads: the plan's ragged chunks side by side, sent to the device in one copy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch

from engine.kv.integrity import Int32Array
from engine.scheduling.plans import PrefillPlan

Array = TypeVar("Array", Int32Array, torch.Tensor)

NO_BLOCK = -1
"""Where a token is stored nowhere, or a block table has no entry."""

_TABLES = 4
"""Which of the arrays is `block_tables`, the only one of two dimensions."""


@dataclass(frozen=True, slots=True)
class PrefillInputs(Generic[Array]):
    """A prefill's int32 arrays; T tokens of N sequences, in at most C blocks each.

    `token_ids`, `positions`, `block_index`, `block_offset` [T]; `block_tables` [N, C];
    `context_lens` [N]; `query_start_loc` [N + 1]; and, of the sequences whose prompt is completed
    and then of rows that are fed, from the first place on, `sampled_tokens`, which of the T tokens
    is their last, `sampled_rows`, `sampled_positions` [N]; all further places repeat the first. The
    token of a row that is fed is -1 - row: the device has it. A row with a draft has a place for
    its token, and for each of the draft.
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


class PackedPrompts(NamedTuple):
    """A plan as it is sent to the device: its arrays one after another, and their shape.

    `num_sampled` are the tokens that are sampled after it.
    """

    shape: PrefillShape
    numbers: Int32Array
    num_sampled: int


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
        longest = max((chunk.end for chunk in plan.chunks), default=0)
        if plan.fed is not None:
            longest = max(longest, int((plan.fed.positions + plan.fed.counts).max()))
        sequences = max(len(plan.chunks) + plan.num_fed, plan.num_sampled)
        return cls(plan.num_tokens, sequences, -(-longest // block_size))

    @property
    def size(self) -> int:
        """Numbers in all arrays together."""
        return sum(self._sizes())

    def views(self, packed: Array) -> PrefillInputs[Array]:
        """The arrays that lie one after another in `packed`, int32 [size]."""
        ends = accumulate(self._sizes())
        arrays: list[Array] = [
            packed[end - size : end] for size, end in zip(self._sizes(), ends, strict=True)
        ]
        tables = arrays[_TABLES]
        arrays[_TABLES] = tables.reshape(self.num_sequences, self.num_columns)
        return PrefillInputs(*arrays)

    def packed(self, plan: PrefillPlan, block_size: int) -> PackedPrompts:
        """The plan in arrays of this shape."""
        return PackedPrompts(self, self.pack(plan, block_size), plan.num_sampled)

    def pack(self, plan: PrefillPlan, block_size: int) -> Int32Array:
        """The plan's arrays one after another, int32 [size]."""
        packed = np.zeros(self.size, np.int32)
        arrays = self.views(packed)
        _fill_sequences(arrays, plan, block_size)
        _fill_tokens(arrays, plan, block_size)
        _fill_sampled(arrays, plan)
        return packed

    def _sizes(self) -> tuple[int, ...]:
        """Of each array, in the order in which `PrefillInputs` has them."""
        tokens, sequences = self.num_tokens, self.num_sequences
        tables = sequences * self.num_columns
        return (*[tokens] * 4, tables, sequences, sequences + 1, *[sequences] * 3)


def _fill_sequences(arrays: PrefillInputs[Int32Array], plan: PrefillPlan, block_size: int) -> None:
    """Where each sequence's chunk and blocks are, and each fed row's token; others are empty."""
    chunks, fed = plan.chunks, plan.fed
    starts = np.array([chunk.start for chunk in chunks], np.int32)
    ends = np.array([chunk.end for chunk in chunks], np.int32)
    if fed is not None:
        starts = np.concatenate((starts, fed.positions))
        ends = np.concatenate((ends, fed.positions + fed.counts))
    count = len(ends)
    arrays.context_lens[:count] = ends
    np.cumsum(ends - starts, out=arrays.query_start_loc[1 : count + 1])
    arrays.query_start_loc[count + 1 :] = plan.num_tokens
    # Unused entries name no block, so that reading one fails.
    arrays.block_tables.fill(NO_BLOCK)
    num_blocks = -(-ends // block_size)
    is_used = np.arange(arrays.block_tables.shape[1]) < num_blocks[:, None]
    arrays.block_tables[: len(chunks)][is_used[: len(chunks)]] = np.fromiter(
        chain.from_iterable(
            chunk.request.block_ids[:used]
            for chunk, used in zip(chunks, num_blocks[: len(chunks)].tolist(), strict=True)
        ),
        np.int32,
    )
    if fed is not None:
        tables = fed.block_tables[:, : arrays.block_tables.shape[1]]
        arrays.block_tables[len(chunks) : count][is_used[len(chunks) :]] = tables[
            is_used[len(chunks) :, : tables.shape[1]]
        ]


def _fill_tokens(arrays: PrefillInputs[Int32Array], plan: PrefillPlan, block_size: int) -> None:
    """What each token is and where it is stored; `_fill_sequences` comes before."""
    count, num_columns = len(plan.chunks) + plan.num_fed, arrays.block_tables.shape[1]
    used = slice(plan.num_tokens)
    known = [chunk.request.known_tokens[chunk.start : chunk.end] for chunk in plan.chunks]
    if plan.fed is not None:
        last = (-1 - plan.fed.rows).astype(np.int32)
        if plan.fed.drafts is None:
            known.append(last)
        else:
            parts = zip(last.tolist(), plan.fed.drafts, strict=True)
            known += [np.array([token, *draft], np.int32) for token, draft in parts]
    np.concatenate(known, out=arrays.token_ids[used])
    first_tokens = arrays.query_start_loc[:count]
    lengths = arrays.query_start_loc[1 : count + 1] - first_tokens
    positions = np.arange(plan.num_tokens, dtype=np.int32)
    positions += np.repeat(arrays.context_lens[:count] - lengths - first_tokens, lengths)
    column = positions // np.int32(block_size)
    arrays.positions[used] = positions
    arrays.block_offset[used] = positions - column * np.int32(block_size)
    # Taken from the flat table: an index of two dimensions costs three times as much.
    place = column + np.repeat(np.arange(count, dtype=np.int32) * num_columns, lengths)
    arrays.block_index.fill(NO_BLOCK)
    arrays.block_index[used] = arrays.block_tables.reshape(-1)[place]


def _fill_sampled(arrays: PrefillInputs[Int32Array], plan: PrefillPlan) -> None:
    """Whose next token is sampled; `_fill_sequences` comes before."""
    sampled = [index for index, chunk in enumerate(plan.chunks) if chunk.completes_prompt]
    rows = [plan.chunks[index].request.row for index in sampled]
    if plan.fed is not None:
        sampled += range(len(plan.chunks), len(plan.chunks) + plan.num_fed)
        rows += plan.fed.rows.tolist()
    if not sampled:
        return
    used = slice(plan.num_sampled)
    tokens = arrays.query_start_loc[1:][sampled] - 1
    positions = arrays.context_lens[sampled]
    which = np.array(rows, np.int32)
    if plan.fed is not None and plan.fed.drafts is not None:
        # Each token that is fed, from a row's last known one on.
        counts = np.ones(len(sampled), np.int32)
        counts[len(sampled) - plan.num_fed :] = plan.fed.counts
        before = np.repeat(counts.cumsum(dtype=np.int32), counts) - 1 - np.arange(counts.sum())
        tokens, positions, which = (np.repeat(one, counts) for one in (tokens, positions, which))
        tokens, positions = tokens - before, positions - before
    arrays.sampled_tokens[used] = tokens
    arrays.sampled_rows[used] = which
    arrays.sampled_positions[used] = positions
    for array in (arrays.sampled_tokens, arrays.sampled_rows, arrays.sampled_positions):
        array[plan.num_sampled :] = array[0]
