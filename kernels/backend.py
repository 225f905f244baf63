"""Which implementation serves a call: torch, Triton, or Triton's kernel for Hopper."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch

from kernels.fused_configs import RingTile
from kernels.launch import ring_tile

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
) -> bool:
    """Whether the Hopper kernel attends over these caches, rather than the plain one.

    It takes half precision, dense pages that whole tiles divide, and the head shapes for which it
    is the faster. At B=128, context 257, with the append and without, us: 12 heads of 64 28.5 and
    28.8 to the plain kernels' 34.6 and 32.4; 32/8 heads of 64 21.4 and 21.7 to 25.9 and 26.1; 32/8
    heads of 128 with it 38.1 to 42.6. Without it heads of 128 went faster in the plain kernel at
    12 to 24 sequences and 34 to 50, by up to a fifth, while the ring's tiles had 32 tokens; with 64
    they have not been timed.
    """
    num_blocks, kv_heads, block_size, head_dim = k_cache.shape
    return (
        k_cache.is_cuda
        and capability(k_cache.device) == (9, 0)
        and k_cache.dtype in (torch.float16, torch.bfloat16)
        and (group <= 4 if head_dim == 64 else append and head_dim == 128 and group <= 16)
        and block_size % (ring or ring_tile(head_dim)).block_n == 0
        and k_cache.is_contiguous()
        and v_cache.is_contiguous()
        and k_cache.data_ptr() % 16 == 0
        and v_cache.data_ptr() % 16 == 0
        # The copy engine counts rows in 32 bits.
        and num_blocks * kv_heads * block_size < 2**31
    )


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
