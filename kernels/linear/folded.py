"""Linear maps prepared for the fused kernels, and the scratch those share. Torch only.

A norm before a linear map is folded into it: its gain is multiplied into the weights. An RMS norm
then leaves one factor a row, 1 / rms(x), behind the product. A LayerNorm leaves more:

    LN(x) W^T + b  =  rstd * (x W'^T - mean * c1) + c2
    W' = W gain,  c1 = sum_k W',  c2 = W shift + b

so a kernel can multiply the raw row, and needs its statistics only at the end. What this
costs in accuracy: W' is rounded once more, as LN(x) would have been otherwise; and where a row's
mean is r times its deviation, the raw product is about r times what is left of it, and so is its
rounding error, in float32.

Into weights of eight bits (`kernels.linear.fp8`) no gain is multiplied, which would round them
anew. A kernel multiplies the row by it; what else a norm leaves is as above.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from kernels.errors import KernelArgumentError
from kernels.linear.fp8 import dequantized
from kernels.tiles.tile import LinearTile

NO_NORM, LAYER_NORM, RMS_NORM = 0, 1, 2
"""What a kernel does to its rows first: the constant `NORM`."""

GATE_GROUP = 8
"""Neighbouring features of a gate in a packed map: as many as tensor cores keep in one thread with
those that they gate."""


@dataclass(frozen=True, slots=True)
class FoldedLinear:
    """A linear map with the norm before it, if any, folded in.

    Attributes
    ----------
    weight : torch.Tensor
        [N, K], contiguous, the gain multiplied in; the dtype of activations, or e4m3.
    bias : torch.Tensor
        float32 [N], the shift's image added in.
    column_sums : torch.Tensor or None
        float32 [N], the sums over K of `weight` as rounded; None without a LayerNorm.
    epsilon : float
        The norm's.
    has_rms_norm : bool
        The norm divides by the root of the mean square.
    has_bias : bool
        `bias` is more than zeros.
    scales : torch.Tensor or None
        float32 [G, N], of a weight of e4m3, as `kernels.linear.fp8` has them; None for others.
    scaled_columns : int
        Columns whose products share a scale, K / G; 0 where there are none.
    gain : torch.Tensor or None
        float32 [K], what rows are multiplied by before a weight of e4m3, as their dtype has it;
        None for nothing. None of it is above 1, so that no row of halves becomes infinite.
    halves : int
        Rows of e4m3 that a row is for tensor cores that multiply eight bits by eight: 2, which are
        as exact as bfloat16, or 1.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    column_sums: torch.Tensor | None = None
    epsilon: float = 0.0
    has_rms_norm: bool = False
    has_bias: bool = True
    scales: torch.Tensor | None = None
    scaled_columns: int = 0
    gain: torch.Tensor | None = None
    halves: int = 2

    @property
    def norm(self) -> int:
        """`NO_NORM`, `LAYER_NORM` or `RMS_NORM`."""
        if self.has_rms_norm:
            return RMS_NORM
        return NO_NORM if self.column_sums is None else LAYER_NORM

    @property
    def has_row_scales(self) -> bool:
        """A weight of eight bits has one scale for each of its rows."""
        return self.scaled_columns == self.in_features

    @property
    def out_features(self) -> int:
        """N."""
        return self.weight.shape[0]

    @property
    def in_features(self) -> int:
        """K."""
        return self.weight.shape[1]


def fold_linear(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gain: torch.Tensor | None = None,
    shift: torch.Tensor | None = None,
    epsilon: float = 0.0,
) -> FoldedLinear:
    """Fold a LayerNorm of `gain` and `shift` [K] into a linear map, weight [N, K], bias [N].

    Computed in float64 and rounded once; the column sums are those of the rounded weights, so that
    the mean cancels as exactly as the product itself is computed. Without gain and shift nothing is
    folded in.

    Raises
    ------
    KernelArgumentError
        With one of `gain` and `shift` alone.
    """
    if (gain is None) != (shift is None):
        raise KernelArgumentError(
            "gain and shift must both be given, or neither: a LayerNorm without a shift has zeros"
        )
    exact_bias = torch.zeros(weight.shape[0], dtype=torch.float64, device=weight.device)
    if bias is not None:
        exact_bias += bias.double()
    if gain is None or shift is None:
        return FoldedLinear(weight.contiguous(), exact_bias.float(), has_bias=bias is not None)
    exact_weight = weight.double()
    folded = (exact_weight * gain.double()).to(weight.dtype)
    return FoldedLinear(
        folded.contiguous(),
        (exact_bias + exact_weight @ shift.double()).float(),
        folded.double().sum(dim=1).float(),
        epsilon,
    )


def fold_rms_norm(
    weight: torch.Tensor, bias: torch.Tensor | None, gain: torch.Tensor | None, epsilon: float
) -> FoldedLinear:
    """Fold an RMS norm of `gain` [K] into a linear map, weight [N, K], bias [N].

    The product with the gain is rounded once. Where `gain` is None the weight has it in already,
    and is shared.
    """
    plain = fold_linear(weight if gain is None else weight * gain, bias)
    return replace(plain, epsilon=epsilon, has_rms_norm=True)


def fold_fp8(
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    gain: torch.Tensor | None = None,
    shift: torch.Tensor | None = None,
    epsilon: float = 0.0,
) -> FoldedLinear:
    """Fold a norm, where it has a gain, into a map of e4m3 `weight` [N, K], which is shared.

    A LayerNorm has `gain` and `shift`, an RMS norm a gain alone.
    """
    shared = weight.shape[1] // len(scales)
    plain = replace(
        fold_linear(weight, bias), scales=scales, scaled_columns=shared, epsilon=epsilon
    )
    if gain is None:
        return plain
    exact = dequantized(weight, scales, torch.float64)
    if shift is None:
        plain = replace(plain, has_rms_norm=True)
    else:
        # The sums are of what the kernel multiplies, lest the mean leave a rest.
        sums = (exact @ gain.double()).float()
        shifted = (plain.bias.double() + exact @ shift.double()).float()
        plain = replace(plain, bias=shifted, column_sums=sums, has_bias=True)
    # A power of two, which nothing is rounded by.
    most = torch.exp2(gain.abs().amax().float().log2().ceil().nan_to_num(neginf=0.0))
    return replace(plain, gain=gain.float() / most, scales=scales * most)


def pack_gate(both: torch.Tensor) -> torch.Tensor:
    """A map's gate and, behind it, what it gates, [2 F, ...], as gated kernels take them.

    By turns `GATE_GROUP` features of the gate and the same of the other, so that every tile has
    both. F must be a multiple of that.
    """
    groups: torch.Tensor = both.unflatten(0, (2, -1, GATE_GROUP))
    return groups.transpose(0, 1).reshape(both.shape)


def packed_halves(mapped: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views [T, F / GATE_GROUP, GATE_GROUP] of the gate and of what it gates, of what a packed map
    made, [T, 2 F]."""
    gate, gated = mapped.unflatten(1, (-1, 2, GATE_GROUP)).unbind(2)
    return gate, gated


@dataclass(frozen=True, slots=True)
class SplitWorkspace:
    """Scratch of programs that share a tile: float32 partial products, int32 arrival counters.

    The counters are zero between launches. Launches that may overlap must not share a workspace.
    """

    partials: torch.Tensor
    arrivals: torch.Tensor

    @classmethod
    def for_tiles(
        cls, rows: int, cuts: Iterable[tuple[int, LinearTile]], device: torch.device
    ) -> SplitWorkspace:
        """Large enough for any y [rows, out_features] cut into tiles, of (out_features, tile).

        Hopper's clusters need none: for their tiles it holds what the plain kernel would need.
        """
        sizes = [
            _split_size(rows, out_features, tile.portable() if tile.tma else tile)
            for out_features, tile in cuts
        ]
        return cls(
            torch.empty(max(size[0] for size in sizes), dtype=torch.float32, device=device),
            torch.zeros(max(size[1] for size in sizes), dtype=torch.int32, device=device),
        )

    def require(self, rows: int, out_features: int, tile: LinearTile) -> None:
        """Raise KernelArgumentError where y [rows, out_features] cut so does not fit."""
        partials, arrivals = _split_size(rows, out_features, tile)
        if self.partials.numel() < partials or self.arrivals.numel() < arrivals:
            raise KernelArgumentError(
                f"workspace must hold {partials} partial products and {arrivals} arrivals for "
                f"{rows} rows of {out_features} features cut into {tile}, but holds "
                f"{self.partials.numel()} and {self.arrivals.numel()}"
            )


def _split_size(rows: int, out_features: int, tile: LinearTile) -> tuple[int, int]:
    """Partial products and arrivals of a map whose K is split; 1 each where it is not."""
    if tile.split_k == 1:
        return 1, 1
    count = -(-rows // tile.block_m) * (out_features // tile.block_n)
    return count * tile.split_k * tile.block_m * tile.block_n, count
