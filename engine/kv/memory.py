"""The KV cache's memory: keys and values of every layer, in fixed blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.errors import ConfigError
from engine.kv.blocks import BlockCopy
from engine.memory import available_bytes, in_words
from engine.transport.staging import StagingBuffers
from kernels.attention.eight_bits import as_bytes
from kernels.linear.fp8 import FP8

_MEMORY_SHARE = {"cuda": 0.95, "cpu": 0.85}
"""What a cache may take of the memory that is left: some of it is in pieces, or soon another's."""

_MOST_CPU_BYTES = 2 << 30


class KVCache:
    """Keys and values, each [num_layers, num_blocks, H_kv, block_size, D].

    One (block, head) of a layer is one run of memory. On a GPU every value stands behind its key:
    what a step appends for a head then goes to one place, which disturbs reading less than two. On
    a CPU they lie apart, as attention there reads all keys before the values.

    Memory starts as zeros, never as whatever was there: a masked-off value that is NaN would still
    poison a product with 0.

    With `scales`, float32 [num_layers, 2, H_kv], they are of eight bits, and what is stored times
    its head's scale is the key or the value (`kernels.attention.eight_bits`).
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
        scales: torch.Tensor | None = None,
    ) -> None:
        slots = (num_layers, num_blocks, num_kv_heads, block_size)
        self.scales = scales
        if scales is not None:
            dtype = FP8
        if device.type == "cuda":
            side_by_side = torch.zeros((*slots, 2, head_dim), device=device, dtype=dtype)
            self.keys, self.values = side_by_side[..., 0, :], side_by_side[..., 1, :]
        else:
            self.keys = torch.zeros((*slots, head_dim), device=device, dtype=dtype)
            self.values = torch.zeros((*slots, head_dim), device=device, dtype=dtype)

    def layer(self, number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Keys, values and, where they are of eight bits, scales [2, H_kv] of one layer."""
        scales = None if self.scales is None else self.scales[number]
        return self.keys[number], self.values[number], scales

    @property
    def num_bytes(self) -> int:
        """What it takes."""
        return self.keys.nbytes + self.values.nbytes

    def copy_blocks(self, copies: Sequence[BlockCopy], staging: StagingBuffers) -> None:
        """Copy whole blocks, all layers, in stream order.

        No destination may be a source of the same call: all sources are read first.
        """
        pairs = np.array(copies, np.int64).reshape(-1, 2).T
        source, destination = staging.to_device(np.ascontiguousarray(pairs))
        for cache in (as_bytes(self.keys), as_bytes(self.values)):
            cache.index_copy_(1, destination, cache.index_select(1, source))


def choose_num_blocks(
    *,
    bytes_per_block: int,
    blocks_per_sequence: int,
    max_batch_size: int,
    device: torch.device,
    reserved_bytes: int = 0,
    num_caches: int = 1,
) -> int:
    """Blocks to allocate when the user names no number.

    Two full batches of longest sequences: one that runs, and as much again for the prefix cache,
    unless memory holds less beside the `reserved_bytes` of what steps work with. Where several
    ranks share the device, so many caches share its memory.

    Raises
    ------
    ConfigError
        When not even one longest sequence fits.
    """
    wanted = 2 * max_batch_size * blocks_per_sequence
    left = max(0, available_bytes(device) // num_caches - reserved_bytes)
    budget = int(left * _MEMORY_SHARE[device.type])
    if device.type != "cuda":
        budget = min(budget, _MOST_CPU_BYTES)
    affordable = budget // bytes_per_block
    if affordable < blocks_per_sequence:
        raise ConfigError(
            f"The KV cache of one longest sequence takes {blocks_per_sequence} blocks of "
            f"{in_words(bytes_per_block)}, but {device} has room for {affordable} in the "
            f"{in_words(budget)} that a cache may take of it, beside {in_words(reserved_bytes)} "
            "for activations, logits and graphs: lower max_model_len, max_batch_size, "
            "prefill_max_tokens or block_size, or set num_kv_blocks."
        )
    return min(wanted, affordable)
