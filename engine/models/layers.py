"""The layers of a decoder in torch operations: what runs wherever the fused kernels do not.

Letters in shapes: T tokens of all sequences in a row, E hidden size, H heads, D head dimension,
F feed-forward size. None of them waits for the device or looks at a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.activations import KERNEL_ACTIVATIONS, Activation, gelu_tanh
from kernels.linear.folded import packed_halves
from kernels.linear.gate import gate
from kernels.linear.norm import add_layer_norm, add_rms_norm


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Weight and bias [E] of one layer norm."""

    weight: Tensor
    bias: Tensor
    epsilon: float

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise x [T, E] over E."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)

    def after(self, x: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """x + change, and that normalised, all [T, E]."""
        return add_layer_norm(x, change, self.weight, self.bias, self.epsilon)


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """Weight [E] of one norm by the root of the mean square; None where the next map has it in."""

    weight: Tensor | None
    epsilon: float

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise x [..., E] over E."""
        return F.rms_norm(x, x.shape[-1:], self.weight, self.epsilon)

    def after(self, x: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """x + change, and that normalised, all [T, E]."""
        return add_rms_norm(x, change, self.weight, self.epsilon)


Norm: TypeAlias = LayerNorm | RMSNorm


@dataclass(frozen=True, slots=True)
class Linear:
    """Weight [out, in], contiguous, and bias [out], where there is one."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [T, in] to [T, out]."""
        return F.linear(x, self.weight, self.bias)

    def activated(self, x: Tensor, activation: Activation) -> Tensor:
        """The activation of the mapped x."""
        if activation is gelu_tanh and x.is_cuda and self.bias is not None:
            # cuBLAS applies it to what it stores. On the CPU the same function has another GELU.
            return torch._addmm_activation(self.bias, x, self.weight.t(), use_gelu=True)
        return activation(self(x))


@dataclass(frozen=True, slots=True)
class FeedForward:
    """The two linear maps of a block, E to F or, gated, to 2 F, and F to E.

    Where `is_packed`, the gate and what it gates lie as `kernels.linear.folded.pack_gate` packs
    them.
    """

    into: Linear
    out: Linear
    activation: Activation
    is_gated: bool
    is_packed: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, E] mapped to [T, E]."""
        if not self.is_gated:
            return self.out(self.into.activated(x, self.activation))
        mapped = self.into(x)  # [T, 2 F]
        if self.activation in KERNEL_ACTIVATIONS:
            known = KERNEL_ACTIVATIONS[self.activation]
            return self.out(gate(mapped, known, is_packed=self.is_packed))
        own, other = packed_halves(mapped) if self.is_packed else mapped.chunk(2, dim=1)
        return self.out((self.activation(own) * other).flatten(1))
