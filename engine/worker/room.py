"""How many blocks a device has room for, and refusing in a sentence what it cannot hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.config import EngineConfig
from engine.fused.weights import can_fuse
from engine.kv.memory import choose_num_blocks
from engine.memory import allocating, require_bytes
from engine.models.decoder import Decoder
from engine.scheduling.scheduler import most_drafted_tokens, most_prefill_tokens
from engine.worker.working_memory import working_memory

_BYTES_PER_OUTPUT_TOKEN = 12
"""A row holds each token of its output, int32, and when it was seen, float64."""


def room_for_blocks(
    config: EngineConfig, model: Decoder, max_model_len: int, *, uses_graphs: bool
) -> int:
    """Blocks to allocate on the model's device when the user names no number."""
    device = model.device
    working = working_memory(
        model.config,
        dtype=model.dtype,
        max_batch_size=config.max_batch_size + most_drafted_tokens(config),
        max_model_len=max_model_len,
        prefill_max_tokens=most_prefill_tokens(config),
        uses_graphs=uses_graphs,
        fuses=config.fuse and can_fuse(model),
        is_quantized=bool(model.quantized),
    )
    return choose_num_blocks(
        bytes_per_block=_bytes_per_block(config, model),
        blocks_per_sequence=-(-max_model_len // config.block_size),
        max_batch_size=config.max_batch_size,
        device=device,
        # A CPU's cache leaves most of the memory free anyway.
        reserved_bytes=working.total if device.type == "cuda" else 0,
        # Each GPU has memory of its own.
        num_caches=1 if device.type == "cuda" else config.tensor_parallel_size,
    )


@contextmanager
def allocating_worker(
    config: EngineConfig,
    model: Decoder,
    max_model_len: int,
    num_kv_blocks: int,
    *,
    uses_graphs: bool,
) -> Iterator[None]:
    """Surround what makes a worker, once memory is known to hold what it allocates at least.

    Raises
    ------
    ConfigError
        As `engine.memory.allocating`.
    """
    rows, device = config.max_batch_size, model.device
    cache_bytes = num_kv_blocks * _bytes_per_block(config, model)
    cache = f"KV cache of {num_kv_blocks} blocks of {config.block_size} tokens"
    smaller_cache = "lower num_kv_blocks or block_size"
    require_bytes(f"The {cache}", cache_bytes, device, smaller_cache)
    batch = f"batch of max_batch_size={rows} sequences"
    smaller_batch = "lower max_batch_size or max_model_len"
    output_bytes = rows * max_model_len * _BYTES_PER_OUTPUT_TOKEN
    require_bytes(f"A {batch}", output_bytes, torch.device("cpu"), smaller_batch)
    batch_bytes = rows * model.config.vocab_size * model.dtype.itemsize
    if device.type != "cuda":
        batch_bytes += output_bytes
    remedy = f"{smaller_cache}, {smaller_batch.removeprefix('lower ')}"
    if uses_graphs:
        remedy += ", or set decode='eager'"
    all_bytes = cache_bytes + batch_bytes
    with allocating(f"The {cache} and a {batch}", all_bytes, device, remedy):
        yield


def _bytes_per_block(config: EngineConfig, model: Decoder) -> int:
    spec = model.config
    values_per_token = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim
    value_bytes = 1 if config.kv_cache_dtype == "fp8" else model.dtype.itemsize
    return values_per_token * value_bytes * config.block_size
