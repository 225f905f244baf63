"""What Triton's interpreter hides of a GPU, or does otherwise.

The order of programs, accesses beyond a tensor, and rounding to eight bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

_TORCH_NAMES = {"fp16": "float16", "fp32": "float32"}


class BeyondBounds(AssertionError):
    """A program read or wrote beside every tensor that its kernel was given."""


def shuffled_programs(seed: int) -> Callable[[Any, int, int, int], None]:
    """For `InterpreterBuilder.set_grid_idx`: programs in another order than one after the other."""
    from triton.runtime.interpreter import InterpreterBuilder

    in_order = InterpreterBuilder.set_grid_idx

    def set_grid_idx(builder: Any, x: int, y: int, z: int) -> None:
        shape = builder.grid_dim
        order = np.random.default_rng(seed).permutation(math.prod(shape))
        program = order[np.ravel_multi_index((x, y, z), shape)]
        in_order(builder, *map(int, np.unravel_index(program, shape)))

    return set_grid_idx


@contextmanager
def rounding_to_eight_bits() -> Iterator[None]:
    """Have the interpreter convert to and from e4m3 as GPUs and torch do.

    Its own loses what rounding carries over, most of what is tiny, and NaN. What lies beyond the
    range becomes NaN, as not every converter cuts it: kernels do that themselves.
    """
    from triton import language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    own = InterpreterBuilder.create_fp_to_fp
    fp8 = torch.float8_e4m3fn

    def create_fp_to_fp(builder: Any, source: Any, kind: Any, rounding: Any) -> Any:
        if tl.float8e4nv not in (source.dtype.scalar, kind.scalar):
            return own(builder, source, kind, rounding)
        values = torch.from_numpy(np.array(source.data))
        if source.dtype.scalar == tl.float8e4nv:
            made = values.view(fp8).to(getattr(torch, _TORCH_NAMES[kind.scalar.name]))
        else:
            beyond = values.abs() > torch.finfo(fp8).max
            made = values.masked_fill(beyond, math.nan).to(fp8).view(torch.uint8)
        return TensorHandle(made.numpy(), kind.scalar)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_fp_to_fp", create_fp_to_fp)
        yield


@contextmanager
def within_bounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Raise `BeyondBounds` at any access outside the tensors of a launch, views as narrow as given.

    On a GPU such an access fails only where no memory happens to be.
    """
    from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

    ranges: npt.NDArray[np.uint64] = np.empty((0, 2), np.uint64)
    init_arguments = GridExecutor._init_args_hst
    masked_load = InterpreterBuilder.create_masked_load
    masked_store = InterpreterBuilder.create_masked_store
    atomic_update = InterpreterBuilder.create_atomic_rmw

    def noting(executor: Any, arguments: Any, options: Any) -> Any:
        nonlocal ranges
        held = init_arguments(executor, arguments, options)
        tensors = [one for one in held[0] if isinstance(one, torch.Tensor) and one.numel()]
        ranges = np.array(sorted(map(_extent, tensors)), np.uint64)
        return held

    def check(pointers: Any, mask: Any) -> None:
        size = np.uint64(max(1, pointers.get_element_ty().primitive_bitwidth // 8))
        # A tensor's mask that meets a scalar's comes as integers, which numpy takes for indices.
        taken = np.broadcast_to(np.asarray(mask.data, bool), np.shape(pointers.data))
        addresses = np.asarray(pointers.data)[taken]
        first = addresses[:, None].astype(np.uint64)
        inside = (first >= ranges[:, 0]) & (first + size <= ranges[:, 1])
        if not inside.any(axis=1).all():
            raise BeyondBounds("a program read or wrote beyond the tensors that it was given")

    def load(builder: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        check(pointers, mask)
        return masked_load(builder, pointers, mask, *others)

    def store(builder: Any, pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        check(pointers, mask)
        return masked_store(builder, pointers, value, mask, *others)

    def atomic(builder: Any, operation: Any, pointers: Any, value: Any, mask: Any, *o: Any) -> Any:
        check(pointers, mask)
        return atomic_update(builder, operation, pointers, value, mask, *o)

    with monkeypatch.context() as patched:
        patched.setattr(GridExecutor, "_init_args_hst", noting)
        patched.setattr(InterpreterBuilder, "create_masked_load", load)
        patched.setattr(InterpreterBuilder, "create_masked_store", store)
        patched.setattr(InterpreterBuilder, "create_atomic_rmw", atomic)
        yield


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte of a tensor, and the one after its last."""
    span = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    first = tensor.data_ptr()
    return first, first + (span + 1) * tensor.element_size()
