"""The gate of a feed-forward layer: an activation of half of the features times the others."""

from __future__ import annotations

import torch

from kernels.backend import device_of, uses_triton
from kernels.errors import KernelArgumentError
from kernels.linear.epilogue import activate
from kernels.linear.folded import GATE_GROUP, packed_halves


def gate(mapped: torch.Tensor, activation: int, *, is_packed: bool) -> torch.Tensor:
    """The activated gate times what it gates.

    Parameters
    ----------
    mapped : torch.Tensor
        ``[T, 2 F]``, contiguous: the gate and, behind it, what it gates.
    activation : int
        `GELU` or `SILU` of `kernels.linear.epilogue`.
    is_packed : bool
        The two lie by turns instead, as `kernels.linear.folded.pack_gate` packs them.

    Returns
    -------
    torch.Tensor
        ``[T, F]``, the dtype of `mapped`; rounded once where this is a Triton kernel.

    Raises
    ------
    KernelArgumentError
        `mapped` is not contiguous, or its features do not halve.
    """
    group = 2 * GATE_GROUP if is_packed else 2
    if mapped.dim() != 2 or not mapped.is_contiguous() or mapped.shape[1] % group:
        raise KernelArgumentError(
            f"mapped must be [tokens, features], contiguous, with a multiple of {group} features; "
            f"it is {list(mapped.shape)} with strides {mapped.stride()}."
        )
    if not uses_triton(mapped):
        own, other = packed_halves(mapped) if is_packed else mapped.chunk(2, dim=1)
        return (activate(own, activation) * other).flatten(1)
    from kernels.linear.gate_kernel import launch_gate

    made = torch.empty(
        mapped.shape[0], mapped.shape[1] // 2, dtype=mapped.dtype, device=mapped.device
    )
    with device_of(mapped):
        launch_gate(mapped, made, activation, is_packed=is_packed)
    return made
