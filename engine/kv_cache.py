"""The KV cache's memory: keys and values of every layer, in fixed blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.errors import ConfigError
from engine.kv_blocks import BlockCopy
from engine.staging import StagingBuffers

_GPU_MEMORY_SHARE = 0.85
_CPU_BYTES = 2 << 30


class KVCache:
    """Keys and values, each [num_layers, num_blocks, H_kv, block_size, D].

    One (block, head) of a layer is one contiguous run. Memory starts as zeros, never as whatever
    was there: a masked-off value that is NaN would still poison a product with 0.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        num_kv_heads: int,
        block_size: int,
        head_dim: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        shape = (num_layers, num_blocks, num_kv_heads, block_size, head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)

    def copy_blocks(self, copies: Sequence[BlockCopy], staging: StagingBuffers) -> None:
        """Copy whole blocks, all layers, in stream order.

        No destination may be a source of the same call: all sources are read first.
        """
        pairs = np.array(copies, np.int64).reshape(-1, 2).T
        source, destination = staging.to_device(np.ascontiguousarray(pairs))
        for cache in (self.keys, self.values):
            cache.index_copy_(1, destination, cache.index_select(1, source))


def choose_num_blocks(
    *,
    bytes_per_block: int,
    blocks_per_sequence: int,
    max_batch_size: int,
    device: torch.device,
) -> int:
    """Blocks to allocate when the user names no number.

    Two full batches of longest sequences: one that runs, and as much again for the prefix cache,
    unless memory holds less.

    Raises
    ------
    ConfigError
        When not even one longest sequence fits.
    """
    wanted = 2 * max_batch_size * blocks_per_sequence
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        budget = int(free_bytes * _GPU_MEMORY_SHARE)
    else:
        budget = _CPU_BYTES
    affordable = budget // bytes_per_block
    if affordable < blocks_per_sequence:
        raise ConfigError(
            f"The KV cache of one longest sequence takes {blocks_per_sequence} blocks of "
            f"{bytes_per_block} bytes, but {device} has room for {affordable}: lower "
            "max_model_len, or set num_kv_blocks."
        )
    return min(wanted, affordable)
