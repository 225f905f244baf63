"""Checks of what index tensors hold: block numbers, positions, lengths.

They read the tensors, so on a GPU they would stop the device; `kernels.backend.reads_values` says
when they run. Index work is done in numpy, whose small-array operations cost a fraction of torch's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from kernels.errors import KernelArgumentError

Ints = npt.NDArray[np.int32]


def host_array(indices: torch.Tensor) -> Ints:
    """The values of an int32 tensor, without a copy where it is on the CPU."""
    array: Ints = indices.cpu().numpy() if indices.is_cuda else indices.numpy()
    return array


def check_append_values(
    num_blocks: int,
    block_size: int,
    batch: int,
    block_idx: torch.Tensor,
    pos: int | torch.Tensor,
    batch_idx: torch.Tensor | None,
) -> None:
    """Refuse blocks, positions or rows out of range and two rows bound for one slot."""
    blocks = host_array(block_idx).tolist()
    if not blocks:
        return
    if max(blocks) >= num_blocks:
        raise KernelArgumentError(
            f"block_idx must be below the cache's {num_blocks} blocks, but holds {max(blocks)}"
        )
    if isinstance(pos, int):
        positions = [pos] * len(blocks)
    else:
        positions = host_array(pos).reshape(-1).tolist()
        if len(positions) != len(blocks):
            positions *= len(blocks)
    kept = [(b, p) for b, p in zip(blocks, positions, strict=True) if b >= 0]
    for _, position in kept:
        if not 0 <= position < block_size:
            raise KernelArgumentError(
                f"pos must lie in a block, 0 to {block_size - 1}, but holds {position}"
            )
    if len(set(kept)) != len(kept):
        block, position = next(slot for slot in kept if kept.count(slot) > 1)
        raise KernelArgumentError(
            "block_idx and pos must name a different slot for every row, but two rows append to "
            f"block {block} position {position}"
        )
    if batch_idx is not None:
        rows = [r for r, b in zip(host_array(batch_idx).tolist(), blocks, strict=True) if b >= 0]
        if rows and not 0 <= min(rows) <= max(rows) < batch:
            raise KernelArgumentError(
                f"batch_idx must name rows of key, 0 to {batch - 1}, "
                f"but holds {min(rows)} to {max(rows)}"
            )


def used_blocks(
    num_blocks: int,
    block_size: int,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
) -> tuple[Ints, Ints]:
    """Lengths ``[B]`` and blocks ``[B, columns]`` of contexts, 0 where a context does not reach.

    `columns` is what the longest context needs. Refuses contexts that their tables cannot hold
    and used table entries out of range.
    """
    lengths = host_array(context_lens)
    if lengths.size == 0:
        return lengths, np.zeros((0, 0), dtype=np.int32)
    shortest, longest = int(lengths.min()), int(lengths.max())
    capacity = block_tables.shape[1] * block_size
    if shortest < 0 or longest > capacity:
        raise KernelArgumentError(
            f"context_lens must lie between 0 and {capacity}, which is block_tables' "
            f"{block_tables.shape[1]} columns of {block_size} tokens, "
            f"but holds {shortest if shortest < 0 else longest}"
        )
    columns = -(-longest // block_size)
    blocks = host_array(block_tables)[:, :columns]
    if (columns - 1) * block_size >= shortest:
        blocks = np.where(np.arange(columns) * block_size < lengths[:, None], blocks, 0)
    if columns:
        lowest, highest = int(blocks.min()), int(blocks.max())
        if lowest < 0 or highest >= num_blocks:
            raise KernelArgumentError(
                f"block_tables must name blocks 0 to {num_blocks - 1} wherever a context reaches, "
                f"but holds {lowest if lowest < 0 else highest}"
            )
    return lengths, blocks


def check_prefill_values(
    num_blocks: int,
    block_size: int,
    total_tokens: int,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
) -> None:
    """Refuse chunks that do not lie in query one after another, or exceed their context."""
    starts = host_array(query_start_loc)
    chunk_lens = np.diff(starts)
    if starts[0] != 0 or starts[-1] > total_tokens or (chunk_lens < 0).any():
        raise KernelArgumentError(
            f"query_start_loc must rise from 0 to at most query's {total_tokens} rows, "
            f"but is {starts.tolist()}"
        )
    used_blocks(num_blocks, block_size, block_tables, context_lens)
    too_short = host_array(context_lens) < chunk_lens
    if too_short.any():
        sequence = int(too_short.argmax())
        raise KernelArgumentError(
            "context_lens must count a sequence's queries too, but sequence "
            f"{sequence} has {chunk_lens[sequence]} queries and a context of "
            f"{int(context_lens[sequence])}"
        )
