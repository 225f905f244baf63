"""Checks of shapes, dtypes, devices and strides: of the public operations' arguments.

What index tensors hold is checked by `kernels.attention.value_checks`.
"""

from __future__ import annotations

import math

import torch

from kernels.attention.arguments import FusedArguments
from kernels.attention.rotation import Rotation
from kernels.attention.value_checks import host_array, used_blocks
from kernels.backend import reads_values
from kernels.errors import KernelArgumentError
from kernels.linear.fp8 import FP8

MAX_HEAD_DIM = 256
_MOST_IN_BLOCK = 2**31 - 1
_FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16})
_EIGHT_BITS = frozenset({FP8})


def check_append(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    block_idx: torch.Tensor,
    pos: int | torch.Tensor,
    batch_idx: torch.Tensor | None,
    scales: torch.Tensor | None,
) -> None:
    """Refuse a `kv_append` call that cannot be carried out, naming the argument."""
    _, kv_heads, block_size, head_dim = _check_caches(k_cache, v_cache, scales)
    kind = k_cache.dtype if scales is None else _float_of("key", key)
    _check_rows("key", key, "[B, H_kv, D]", kv_heads, head_dim, k_cache, kind)
    _check_rows("value", value, "[B, H_kv, D]", kv_heads, head_dim, k_cache, kind)
    batch = key.shape[0]
    if value.shape[0] != batch:
        raise KernelArgumentError(
            f"value must have as many rows as key, {batch}, but has {value.shape[0]}"
        )
    rows = _check_indices("block_idx", block_idx, k_cache)
    if batch_idx is None:
        if rows != batch:
            raise KernelArgumentError(
                f"block_idx must have one entry per row of key, {batch}, but has {rows}; "
                "to append other rows give batch_idx"
            )
    elif _check_indices("batch_idx", batch_idx, k_cache) != rows:
        raise KernelArgumentError(
            f"batch_idx must have one entry per entry of block_idx, {rows}, "
            f"but has {batch_idx.shape[0]}"
        )
    _check_position(pos, rows, block_size, batch_idx is None, k_cache)


def check_decode(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float | None,
    out: torch.Tensor | None,
    scales: torch.Tensor | None,
    window: int | None,
) -> None:
    """Refuse a `paged_attention_decode` call that cannot be carried out."""
    _check_window(window)
    _check_attention(query, k_cache, v_cache, block_tables, context_lens, scale, out, scales)
    if query.shape[0] != context_lens.shape[0]:
        raise KernelArgumentError(
            f"query must have one row per sequence, {context_lens.shape[0]} by context_lens, "
            f"but has {query.shape[0]}"
        )


def check_prefill(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float | None,
    out: torch.Tensor | None,
    scales: torch.Tensor | None,
    window: int | None,
) -> None:
    """Refuse a `paged_attention_prefill` call that cannot be carried out."""
    _check_window(window)
    _check_attention(query, k_cache, v_cache, block_tables, context_lens, scale, out, scales)
    sequences = context_lens.shape[0]
    if _check_indices("query_start_loc", query_start_loc, k_cache) != sequences + 1:
        raise KernelArgumentError(
            f"query_start_loc must have one entry more than context_lens, {sequences + 1}, "
            f"but has {query_start_loc.shape[0]}"
        )


def check_fused_attention(arguments: FusedArguments) -> None:
    """Refuse a `fused_attention` call that cannot be carried out."""
    qkv, k_cache, v_cache, block_tables, positions, is_running, out = arguments[:7]
    scale, rotation, scales = arguments[7:]
    _, kv_heads, _, head_dim = _check_caches(k_cache, v_cache, scales)
    dtype = k_cache.dtype if scales is None else _float_of("qkv", qkv)
    rows = _check_indices("positions", positions, k_cache)
    kind = is_running.dtype if isinstance(is_running, torch.Tensor) else torch.bool
    if kind not in (torch.bool, torch.int32):
        raise KernelArgumentError(f"is_running must be torch.bool or torch.int32, but is {kind}")
    _check_tensor("is_running", is_running, 1, "[B]", kind, k_cache)
    _check_tensor("out", out, 2, "[B, H_q * D]", dtype, k_cache)
    _check_tensor("qkv", qkv, 2, "[B, (H_q + 2 * H_kv) * D]", dtype, k_cache)
    for name, tensor in (("is_running", is_running), ("out", out), ("qkv", qkv)):
        if tensor.shape[0] != rows:
            raise KernelArgumentError(
                f"{name} must have one row per entry of positions, {rows}, "
                f"but has {tensor.shape[0]}"
            )
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise KernelArgumentError(
                f"{name} must be contiguous along its last dimension, "
                f"but has strides {tensor.stride()}"
            )
    query_heads, rest = divmod(out.shape[1], head_dim)
    if rest or query_heads == 0 or query_heads % kv_heads:
        raise KernelArgumentError(
            f"out must have H_q * D columns, D the cache's {head_dim} and H_q a multiple of its "
            f"{kv_heads} heads, but has {out.shape[1]}"
        )
    columns = (query_heads + 2 * kv_heads) * head_dim
    if qkv.shape[1] != columns:
        raise KernelArgumentError(
            f"qkv must have (H_q + 2 * H_kv) * D columns, {columns} for {query_heads} query heads "
            f"by out and {kv_heads} KV heads of {head_dim}, but has {qkv.shape[1]}"
        )
    if rotation is not None:
        _check_rotation(rotation, query_heads + kv_heads, head_dim, k_cache, dtype)
    query = out.view(rows, query_heads, head_dim)
    _check_attention(
        query, k_cache, v_cache, block_tables, positions, scale, None, scales, per_row="positions"
    )
    if block_tables.shape[1] == 0:
        raise KernelArgumentError("block_tables must have a column for the new tokens, but has 0")
    if reads_values(k_cache):
        _check_new_tokens(k_cache, block_tables, positions, is_running)


def _check_rotation(
    rotation: Rotation,
    turned_heads: int,
    head_dim: int,
    k_cache: torch.Tensor,
    dtype: torch.dtype,
) -> None:
    """Refuse tables that kernels would read beyond, or as what they are not."""
    _check_tensor("rotation.table", rotation.table, 2, "[P, D]", torch.float32, k_cache)
    tensors = [("rotation.table", rotation.table, (rotation.table.shape[0], head_dim))]
    if rotation.norm is not None:
        _check_tensor("rotation.norm", rotation.norm, 2, "[H_q + H_kv, D]", dtype, k_cache)
        tensors.append(("rotation.norm", rotation.norm, (turned_heads, head_dim)))
    for name, tensor, shape in tensors:
        if tuple(tensor.shape) != shape or not tensor.is_contiguous():
            raise KernelArgumentError(
                f"{name} must be {list(shape)} and contiguous, but is {list(tensor.shape)} with "
                f"strides {tensor.stride()}"
            )
    if head_dim % 2:
        raise KernelArgumentError(f"rotation turns pairs, so D must be even, but is {head_dim}")


def _check_new_tokens(
    k_cache: torch.Tensor,
    block_tables: torch.Tensor,
    positions: torch.Tensor,
    is_running: torch.Tensor,
) -> None:
    """Refuse running rows whose table has no place for the new token, and two with one block."""
    num_blocks, _, block_size, _ = k_cache.shape
    places, runs = host_array(positions), host_array(is_running) > 0
    capacity = block_tables.shape[1] * block_size
    outside = places[runs & ((places < 0) | (places >= capacity))]
    if outside.size:
        raise KernelArgumentError(
            f"positions must lie between 0 and {capacity - 1} where a row is running, in "
            f"block_tables' {block_tables.shape[1]} columns of {block_size} tokens, but holds "
            f"{outside[0]}"
        )
    lengths = torch.where(is_running > 0, positions + 1, 0)
    used_blocks(num_blocks, block_size, block_tables, lengths)
    (rows,) = runs.nonzero()
    blocks = host_array(block_tables)[rows, places[rows] // block_size].tolist()
    if len(set(blocks)) != len(blocks):
        shared = next(block for block in blocks if blocks.count(block) > 1)
        raise KernelArgumentError(
            "block_tables must give every running row a block of its own for its new token, but "
            f"two rows append to block {shared}"
        )


def _check_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float | None,
    out: torch.Tensor | None,
    scales: torch.Tensor | None,
    *,
    per_row: str = "context_lens",
) -> None:
    """Refuse what no attention can take; `per_row` is what the caller calls `context_lens`."""
    _, kv_heads, _, head_dim = _check_caches(k_cache, v_cache, scales)
    kind = k_cache.dtype if scales is None else _float_of("query", query)
    if head_dim > MAX_HEAD_DIM:
        raise KernelArgumentError(
            f"k_cache must have a head dimension of at most {MAX_HEAD_DIM}, but has {head_dim}"
        )
    _check_rows("query", query, "[rows, H_q, D]", None, head_dim, k_cache, kind)
    query_heads = query.shape[1]
    if query_heads == 0 or query_heads % kv_heads:
        raise KernelArgumentError(
            f"query must have a multiple of the cache's {kv_heads} heads, but has {query_heads}"
        )
    _check_tensor("block_tables", block_tables, 2, "[B, max_blocks]", torch.int32, k_cache)
    if block_tables.shape[1] > 1 and block_tables.stride(1) != 1:
        raise KernelArgumentError(
            "block_tables must be contiguous along a row (stride 1 in its last dimension), "
            f"but has strides {block_tables.stride()}"
        )
    sequences = _check_indices(per_row, context_lens, k_cache)
    if block_tables.shape[0] != sequences:
        raise KernelArgumentError(
            f"block_tables must have one row per entry of {per_row}, {sequences}, "
            f"but has {block_tables.shape[0]}"
        )
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        raise KernelArgumentError(f"scale must be a finite number above zero, but is {scale}")
    if out is not None:
        if not isinstance(out, torch.Tensor) or out.shape != query.shape:
            shape = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
            raise KernelArgumentError(
                f"out must have query's shape, {tuple(query.shape)}, but is {shape}"
            )
        _check_rows("out", out, "[rows, H_q, D]", query_heads, head_dim, k_cache, kind)


def _check_window(window: int | None) -> None:
    is_whole = isinstance(window, int) and not isinstance(window, bool)
    if window is not None and not (is_whole and window >= 1):
        raise KernelArgumentError(
            f"window must be a whole number of tokens, at least 1, or None, but is {window!r}"
        )


def _check_caches(
    k_cache: torch.Tensor, v_cache: torch.Tensor, scales: torch.Tensor | None
) -> torch.Size:
    kinds = _FLOATS if scales is None else _EIGHT_BITS
    if not isinstance(k_cache, torch.Tensor) or k_cache.dtype not in kinds:
        kind = k_cache.dtype if isinstance(k_cache, torch.Tensor) else type(k_cache).__name__
        wanted = "a float32, float16 or bfloat16 tensor"
        if scales is not None:
            wanted = f"{FP8} where scales are given"
        remedy = ": give the scales of its heads" if kind == FP8 else ""
        raise KernelArgumentError(f"k_cache must be {wanted}, but is {kind}{remedy}")
    if k_cache.dim() != 4 or 0 in k_cache.shape:
        raise KernelArgumentError(
            "k_cache must have shape [num_blocks, H_kv, block_size, D], none of them zero, "
            f"but has {tuple(k_cache.shape)}"
        )
    if k_cache.stride(3) != 1:
        raise KernelArgumentError(
            "k_cache must be contiguous along a head (stride 1 in its last dimension), "
            f"but has strides {k_cache.stride()}"
        )
    _, heads, slots, head_dim = k_cache.shape
    reach = (heads - 1) * k_cache.stride(1) + (slots - 1) * k_cache.stride(2) + head_dim
    if reach > _MOST_IN_BLOCK:
        raise KernelArgumentError(
            f"k_cache must have each block within {_MOST_IN_BLOCK} elements, which the kernels "
            f"count in 32 bits, but has strides {k_cache.stride()}, with which one spans {reach}"
        )
    _check_tensor("v_cache", v_cache, 4, "k_cache's shape", k_cache.dtype, k_cache)
    if v_cache.shape != k_cache.shape or v_cache.stride() != k_cache.stride():
        raise KernelArgumentError(
            f"v_cache must have k_cache's shape {tuple(k_cache.shape)} and strides "
            f"{k_cache.stride()}, but has {tuple(v_cache.shape)} and {v_cache.stride()}"
        )
    if scales is not None:
        _check_scales(scales, k_cache)
    return k_cache.shape


def _check_scales(scales: torch.Tensor, k_cache: torch.Tensor) -> None:
    """Refuse scales that kernels would read beyond."""
    _check_tensor("scales", scales, 2, "[2, H_kv]", torch.float32, k_cache)
    shape = (2, k_cache.shape[1])
    if tuple(scales.shape) != shape or not scales.is_contiguous():
        raise KernelArgumentError(
            f"scales must be {list(shape)}, of keys and of values, and contiguous, but is "
            f"{list(scales.shape)} with strides {scales.stride()}"
        )


def _float_of(name: str, tensor: torch.Tensor) -> torch.dtype:
    """The dtype of what meets a cache of eight bits, which may be any of the others."""
    if not isinstance(tensor, torch.Tensor) or tensor.dtype not in _FLOATS:
        kind = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise KernelArgumentError(
            f"{name} must be a float32, float16 or bfloat16 tensor, but is {kind}"
        )
    return tensor.dtype


def _check_rows(
    name: str,
    rows: torch.Tensor,
    meaning: str,
    heads: int | None,
    head_dim: int,
    cache: torch.Tensor,
    dtype: torch.dtype,
) -> None:
    _check_tensor(name, rows, 3, meaning, dtype, cache)
    if rows.shape[2] != head_dim or (heads is not None and rows.shape[1] != heads):
        wanted = f"[*, {'*' if heads is None else heads}, {head_dim}]"
        raise KernelArgumentError(
            f"{name} must have shape {meaning}, here {wanted} to match the cache, "
            f"but has {tuple(rows.shape)}"
        )
    if rows.stride(2) != 1 and head_dim != 1:
        raise KernelArgumentError(
            f"{name} must be contiguous along a head (stride 1 in its last dimension), "
            f"but has strides {rows.stride()}"
        )


def _check_indices(name: str, indices: torch.Tensor, cache: torch.Tensor) -> int:
    _check_tensor(name, indices, 1, "[N]", torch.int32, cache)
    length = indices.shape[0]
    if length > 1 and indices.stride(0) != 1:
        raise KernelArgumentError(f"{name} must be contiguous, but has stride {indices.stride(0)}")
    return length


def _check_position(
    pos: int | torch.Tensor,
    rows: int,
    block_size: int,
    may_be_common: bool,
    cache: torch.Tensor,
) -> None:
    if isinstance(pos, int) and not isinstance(pos, bool):
        if not 0 <= pos < block_size:
            raise KernelArgumentError(
                f"pos must lie in a block, 0 to {block_size - 1}, but is {pos}"
            )
        is_common = True
    else:
        kind = "an int or an int32 tensor"
        if not isinstance(pos, torch.Tensor) or pos.dtype != torch.int32:
            found = pos.dtype if isinstance(pos, torch.Tensor) else type(pos).__name__
            raise KernelArgumentError(f"pos must be {kind}, but is {found}")
        if pos.device != cache.device:
            raise KernelArgumentError(
                f"pos must be on k_cache's device, {cache.device}, but is on {pos.device}"
            )
        is_common = pos.dim() == 0 or (pos.dim() == 1 and pos.shape[0] == 1 != rows)
        if not is_common and (
            pos.dim() != 1 or pos.shape[0] != rows or (rows > 1 and pos.stride(0) != 1)
        ):
            raise KernelArgumentError(
                "pos must be one position for all rows, or contiguous with one entry per entry "
                f"of block_idx, {rows}, but has shape {tuple(pos.shape)}"
            )
    if is_common and not may_be_common:
        raise KernelArgumentError(
            f"pos must be an int32 tensor with one entry per entry of batch_idx, {rows}, "
            "when batch_idx is given"
        )


def _check_tensor(
    name: str,
    tensor: torch.Tensor,
    dims: int,
    meaning: str,
    dtype: torch.dtype,
    cache: torch.Tensor,
) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise KernelArgumentError(f"{name} must be a tensor, but is {type(tensor).__name__}")
    if tensor.dim() != dims:
        raise KernelArgumentError(
            f"{name} must have {dims} dimension{'s' if dims > 1 else ''}, {meaning}, "
            f"but has shape {tuple(tensor.shape)}"
        )
    if tensor.dtype != dtype:
        reason = ", the cache's dtype" if dtype == cache.dtype else ""
        raise KernelArgumentError(f"{name} must be {dtype}{reason}, but is {tensor.dtype}")
    if tensor.device != cache.device:
        raise KernelArgumentError(
            f"{name} must be on k_cache's device, {cache.device}, but is on {tensor.device}"
        )
