"""Which implementation serves a call: Triton or torch."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch

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


def uses_triton(tensor: torch.Tensor) -> bool:
    """Whether operations on `tensor` run as Triton kernels."""
    return tensor.is_cuda or interpreting()


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
