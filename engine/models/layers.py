"""The layers of a decoder in torch operations: what runs wherever the fused kernels do not.

Letters in shapes: T tokens of all sequences in a row, E hidden size, H heads, D head dimension,
F feed-forward size. None of them waits for the device or looks at a value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.activations import KERNEL_ACTIVATIONS, Activation, gelu_tanh
from engine.parallel.group import Group
from kernels.attention.rotation import HeadRotation
from kernels.linear.folded import pack_gate, packed_halves
from kernels.linear.fp8 import dequantized
from kernels.linear.gate import gate
from kernels.linear.norm import add_layer_norm, add_rms_norm

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""attend(layer, q [T, H_q, D], k [T, H_kv, D], v [T, H_kv, D]) -> [T, H_q, D]: stores k and v of
the tokens and attends with q. The arguments may be strided views, contiguous in D only."""


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

    def folded_into(self, linear: Linear) -> LayerNorm:
        """The norm, of which nothing can be multiplied into the map behind it in place."""
        return self


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

    def folded_into(self, linear: Linear) -> RMSNorm:
        """The norm without its weight, which is multiplied into the map behind it, in place.

        It stays where that map is quantized: its weights would be rounded to eight bits again.
        """
        if isinstance(linear, QuantizedLinear):
            return self
        if self.weight is not None:
            linear.weight.mul_(self.weight)
        return replace(self, weight=None)


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
class SplitLinear(Linear):
    """A map of which each rank has the columns of what it reads; the bias is rank 0's."""

    group: Group

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [T, in], a part of the whole, to [T, out], the sum over all ranks."""
        return self.group.all_reduce(F.linear(x, self.weight, self.bias))


@dataclass(frozen=True, slots=True)
class QuantizedLinear(Linear):
    """A map whose weight is e4m3, with `scales` as `kernels.linear.fp8` has them.

    With a group, each rank has the columns of what it reads, as in `SplitLinear`. Where it
    `rounds_rows`, each row of what it reads is rounded to e4m3, too.
    """

    scales: Tensor
    group: Group | None
    rounds_rows: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [T, in] to [T, out]."""
        if self.rounds_rows:
            from kernels.linear.halves import rounded_rows

            return self._of_rounded(rounded_rows(x.contiguous()))
        # The weight is made in x's type for the time of the call.
        return self._of_all(F.linear(x, dequantized(self.weight, self.scales, x.dtype), self.bias))

    def of_gated(self, mapped: Tensor, activation: int, *, is_packed: bool) -> Tensor:
        """What a gate makes of `mapped` [T, 2 F], mapped to [T, out]; where it `rounds_rows`."""
        from kernels.linear.halves import rounded_gate

        return self._of_rounded(rounded_gate(mapped, activation, is_packed=is_packed))

    def _of_rounded(self, rows: tuple[Tensor, Tensor]) -> Tensor:
        from kernels.linear.library import rounded_product

        mapped = rounded_product(*rows, self.weight, self.scales)
        return self._of_all(mapped if self.bias is None else mapped.add_(self.bias))

    def _of_all(self, mapped: Tensor) -> Tensor:
        return mapped if self.group is None else self.group.all_reduce(mapped)

    def activated(self, x: Tensor, activation: Activation) -> Tensor:
        """The activation of the mapped x."""
        return activation(self(x))


@dataclass(frozen=True, slots=True)
class NormedLinear(Linear):
    """The map `linear`, whose weight and bias it has, with a norm behind it."""

    linear: Linear
    norm: Norm

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [T, in] to [T, out], and normalise that."""
        return self.norm(self.linear(x))


@dataclass(frozen=True, slots=True)
class Attention:
    """The part of a block in which tokens meet, with the norm before it.

    Where it `is_local` it attends to a window, and its heads are turned as those of such layers.
    `head_norm` is the weight [H_q + H_kv, D] of the norm of every head of queries and keys, where
    they have one, and `epsilon` that norm's.
    """

    norm: Norm
    into: Linear  # E -> (H_q + 2 H_kv) D: q, k and v side by side
    out: Linear  # H_q D -> E
    queries: int  # H_q
    keys: int  # H_kv
    head_dim: int
    head_norm: Tensor | None
    epsilon: float
    is_local: bool = False

    def attended(self, layer: int, x: Tensor, turn: HeadRotation | None, attend: Attend) -> Tensor:
        """What each head of x [T, E], which is normed, attended to: [T, H_q D]."""
        queries, keys = self.queries, self.keys
        heads = self.into(x).view(-1, queries + 2 * keys, self.head_dim)
        if turn is None:
            q, k, v = heads.split_with_sizes((queries, keys, keys), 1)  # [T, H, D] each
        else:
            turned, v = heads.split_with_sizes((queries + keys, keys), 1)
            turned = turn.heads(turned, self.head_norm, self.epsilon)
            q, k = turned.split_with_sizes((queries, keys), 1)
        return attend(layer, q, k, v).reshape(-1, queries * self.head_dim)

    def folded(self) -> Attention:
        """The same with its norm folded into its map, in place."""
        return replace(self, norm=self.norm.folded_into(self.into))


@dataclass(frozen=True, slots=True)
class FeedForward:
    """The part of a block with two linear maps, E to F or, gated, to 2 F, and F to E.

    The norm stands before it. Where `is_packed`, the gate and what it gates lie as
    `kernels.linear.folded.pack_gate` packs them.
    """

    norm: Norm
    into: Linear
    out: Linear
    activation: Activation
    is_gated: bool
    is_packed: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, E], which is normed, mapped to [T, E]."""
        if not self.is_gated:
            return self.out(self.into.activated(x, self.activation))
        mapped = self.into(x)  # [T, 2 F]
        if self.activation in KERNEL_ACTIVATIONS:
            known = KERNEL_ACTIVATIONS[self.activation]
            if isinstance(self.out, QuantizedLinear) and self.out.rounds_rows:
                return self.out.of_gated(mapped, known, is_packed=self.is_packed)
            return self.out(gate(mapped, known, is_packed=self.is_packed))
        own, other = packed_halves(mapped) if self.is_packed else mapped.chunk(2, dim=1)
        return self.out((self.activation(own) * other).flatten(1))

    def folded(self) -> FeedForward:
        """The same with its norm folded into its map and its gate packed, in place."""
        folded = replace(self, norm=self.norm.folded_into(self.into))
        if not self.is_gated or self.is_packed:
            return folded
        for both in (self.into.weight, self.into.bias):
            if both is not None:
                both.copy_(pack_gate(both))
        if isinstance(self.into, QuantizedLinear):
            scales = self.into.scales.t()  # [2 F, G]
            scales.copy_(pack_gate(scales))
        return replace(folded, is_packed=True)
