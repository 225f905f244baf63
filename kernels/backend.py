"""Which implementation serves a call: torch, Triton, or Triton's kernel for Hopper."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch

from kernels.tiles.launch import ring_tile
from kernels.tiles.tile import RingTile

_TRUE = frozenset({"1", "true", "yes", "on", "y"})


@cache
def interpreting() -> bool:
    """Whether Triton's interpreter runs the kernels on the CPU (``TRITON_INTERPRET=1``).

    Read once: Triton itself decides when a kernel is defined, so a later change is half-applied.
    """
    return os.environ.get("TRITON_INTERPRET", "").lower() in _TRUE


@cache
def debug_checks() -> bool:
    """Whether ``KVTRAIL_CHECK_VALUES=1`` asks for checks that read device memory back."""
    return os.environ.get("KVTRAIL_CHECK_VALUES", "").lower() in _TRUE


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """A GPU's compute capability, asked for once: every launch wants to know it."""
    return torch.cuda.get_device_capability(device)


def uses_triton(tensor: torch.Tensor) -> bool:
    """Whether operations on `tensor` run as Triton kernels."""
    return tensor.is_cuda or interpreting()


def ring_serves(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    group: int,
    *,
    append: bool,
    ring: RingTile | None = None,
    dtype: torch.dtype | None = None,
    window: int | None = None,
) -> bool:
    """Whether the Hopper kernel attends over these caches, rather than the plain one.

    It takes half precision, evenly spaced slots in pages that whole tiles divide, and the head
    shapes for which it is the faster (reports/decode.md). It streams a context from its first token
    on, so it has no `window`. The queries' `dtype` must be told of caches of eight bits.
    """
    num_blocks, kv_heads, block_size, head_dim = k_cache.shape
    return (
        window is None
        and k_cache.is_cuda
        and capability(k_cache.device) == (9, 0)
        and (dtype or k_cache.dtype) in (torch.float16, torch.bfloat16)
        and k_cache.dtype in (dtype or k_cache.dtype, torch.float8_e4m3fn)
        and (group <= 4 if head_dim == 64 else append and head_dim == 128 and group <= 16)
        and block_size % (ring or ring_tile(head_dim, group)).block_n == 0
        and _can_be_copied(k_cache)
        and _can_be_copied(v_cache)
        # The copy engine counts rows in 32 bits.
        and num_blocks * kv_heads * block_size < 2**31
    )


def slot_stride(cache: torch.Tensor) -> int | None:
    """Elements from one slot of a cache to the next, None unless all lie that far apart.

    Of ``[num_blocks, H_kv, block_size, D]``: D where it is contiguous, 2 D where keys and values
    lie side by side.
    """
    _, kv_heads, block_size, head_dim = cache.shape
    stride = cache.stride(2)
    page = block_size * stride
    is_even = cache.stride() == (kv_heads * page, page, stride, 1) and stride >= head_dim
    return stride if is_even else None


def _can_be_copied(cache: torch.Tensor) -> bool:
    """Whether the bulk copy engine can take the slots as rows of one matrix."""
    stride = slot_stride(cache)
    # It counts in 16 bytes.
    is_even = stride is not None and stride * cache.dtype.itemsize % 16 == 0
    return is_even and cache.data_ptr() % 16 == 0


def reads_values(tensor: torch.Tensor) -> bool:
    """Whether a check may look at values: free on the CPU, a device sync elsewhere."""
    if not tensor.is_cuda:
        return True
    return debug_checks() and not torch.cuda.is_current_stream_capturing()


def device_of(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Make `tensor`'s GPU the current one: Triton launches on the current device only."""
    if tensor.is_cuda and tensor.get_device() != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return nullcontext()
