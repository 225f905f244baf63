"""A residual connection and the norm behind it, in one pass over the rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.backend import device_of, uses_triton
from kernels.errors import KernelArgumentError


def add_layer_norm(
    x: torch.Tensor,
    change: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`x + change`, and its layer norm over the last dimension.

    The norm is of the sum as it is stored, rounded: as torch computes one after the other.

    Parameters
    ----------
    x, change : torch.Tensor
        ``[T, E]``, float32, float16 or bfloat16, contiguous.
    weight, bias : torch.Tensor
        ``[E]``, the dtype of `x`.
    epsilon : float
        Added to the variance.

    Returns
    -------
    total, normed : torch.Tensor
        ``[T, E]`` each, the dtype of `x`.

    Raises
    ------
    KernelArgumentError
        Shapes, dtypes or devices differ, or rows are not contiguous.
    """
    _check(x, change, weight=weight, bias=bias)
    if not uses_triton(x):
        total = x + change
        return total, F.layer_norm(total, weight.shape, weight, bias, epsilon)
    from kernels.linear.norm_kernel import launch_add_norm

    total, normed = torch.empty_like(x), torch.empty_like(x)
    with device_of(x):
        launch_add_norm(x, change, weight, bias, epsilon, total, normed)
    return total, normed


def add_rms_norm(
    x: torch.Tensor, change: torch.Tensor, weight: torch.Tensor | None, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`x + change`, and it divided by the root of its mean square over the last dimension.

    Parameters, results and errors are those of `add_layer_norm`; `epsilon` is added to the mean
    square, and nothing is multiplied by a `weight` of None.
    """
    _check(x, change, **({} if weight is None else {"weight": weight}))
    if not uses_triton(x):
        total = x + change
        return total, F.rms_norm(total, x.shape[1:], weight, epsilon)
    from kernels.linear.norm_kernel import launch_add_norm

    total, normed = torch.empty_like(x), torch.empty_like(x)
    with device_of(x):
        launch_add_norm(x, change, weight, None, epsilon, total, normed)
    return total, normed


def _check(x: torch.Tensor, change: torch.Tensor, **vectors: torch.Tensor) -> None:
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise KernelArgumentError(f"x must be float32, float16 or bfloat16; it is {x.dtype}.")
    if x.dim() != 2 or not x.is_contiguous():
        raise KernelArgumentError(
            f"x must be [tokens, hidden size] and contiguous; it is {list(x.shape)} with strides "
            f"{x.stride()}."
        )
    if change.shape != x.shape or not change.is_contiguous():
        raise KernelArgumentError(
            f"change must be {list(x.shape)} like x, and contiguous; it is {list(change.shape)} "
            f"with strides {change.stride()}."
        )
    for name, vector in vectors.items():
        if vector.shape != x.shape[1:] or not vector.is_contiguous():
            raise KernelArgumentError(
                f"{name} must be [{x.shape[1]}], one for each column of x, and contiguous; it is "
                f"{list(vector.shape)} with strides {vector.stride()}."
            )
    for name, tensor in {"change": change, **vectors}.items():
        if tensor.dtype != x.dtype or tensor.device != x.device:
            raise KernelArgumentError(
                f"{name} is {tensor.dtype} on {tensor.device}; like x it must be {x.dtype} on "
                f"{x.device}."
            )
