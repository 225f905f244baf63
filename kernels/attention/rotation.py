"""How heads of queries and keys are normed and turned by their positions, and the same in torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F

from kernels.backend import device_of, uses_triton
from kernels.errors import KernelArgumentError


@dataclass(frozen=True)
class HeadRotation:
    """How far every pair of a head turns at the positions [T] of T tokens.

    `table` float32 [P, D] has the cosines and sines of every position, as `Rotation` has it.
    """

    positions: torch.Tensor
    table: torch.Tensor

    def heads(
        self, heads: torch.Tensor, norm: torch.Tensor | None = None, epsilon: float = 0.0
    ) -> torch.Tensor:
        """Heads of queries and keys normed, where there is a `norm`, and turned.

        Parameters
        ----------
        heads : torch.Tensor
            ``[T, H, D]``; a row's heads one after another, rows may be strided. A Triton kernel
            leaves the result there.
        norm, epsilon
            As `Rotation` has them, for H heads.

        Returns
        -------
        torch.Tensor
            ``[T, H, D]``, the dtype of `heads`: in float32 from the norm on, so rounded once.

        Raises
        ------
        KernelArgumentError
            A row's heads do not lie one after another.
        """
        if heads.stride()[1:] != (heads.shape[2], 1):
            raise KernelArgumentError(
                f"the heads of a row must lie one after another; they are {list(heads.shape)} with "
                f"strides {heads.stride()}."
            )
        if uses_triton(heads):
            from kernels.attention.turn_kernel import launch_turn

            with device_of(heads):
                launch_turn(heads, self.positions, self.table, norm, epsilon)
            return heads
        normed = heads.float()
        if norm is not None:
            normed = F.rms_norm(normed, heads.shape[2:], None, epsilon) * norm
        cosines, sines = self._factors
        halves_swapped = normed.roll(normed.shape[2] // 2, dims=2)
        return torch.addcmul(normed * cosines, halves_swapped, sines).to(heads.dtype)

    @cached_property
    def _factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines [T, 1, D], float32."""
        cosines, sines = F.embedding(self.positions, self.table)[:, None].chunk(2, dim=2)
        return torch.cat((cosines, cosines), 2), torch.cat((sines.neg(), sines), 2)


@dataclass(frozen=True, slots=True)
class Rotation:
    """What happens to every head of a new token's queries and keys before they meet.

    Pair i of a head is (i, i + D / 2).

    Attributes
    ----------
    table : torch.Tensor
        float32 ``[P, D]``, contiguous: cosines of all pairs and, behind them, their sines, for
        every position that a running row can have.
    norm : torch.Tensor or None
        ``[H_q + H_kv, D]``, contiguous, the caches' dtype: weights of the RMS norm that each head
        passes first; None: none does.
    epsilon : float
        Added to the mean square.
    """

    table: torch.Tensor
    norm: torch.Tensor | None = None
    epsilon: float = 0.0

    def turned(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Heads of queries and keys [B, H_q + H_kv, D] at `positions` [B], in their own dtype."""
        return HeadRotation(positions, self.table).heads(heads, self.norm, self.epsilon)
