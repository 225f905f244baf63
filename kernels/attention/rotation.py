"""How heads of queries and keys are normed and turned by their positions, and the same in torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class Turn:
    """Cosines and signed sines [T, 1, D] of the positions of T tokens, float32."""

    cosines: torch.Tensor
    sines: torch.Tensor

    @classmethod
    def at(cls, positions: torch.Tensor, table: torch.Tensor) -> Turn:
        """Of `positions` [T], from a table [P, D] as `Rotation` has it."""
        cosines, sines = F.embedding(positions, table)[:, None].chunk(2, dim=2)
        return cls(torch.cat((cosines, cosines), 2), torch.cat((sines.neg(), sines), 2))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Turn every head of x [T, H, D]; the result is float32."""
        halves_swapped = x.roll(x.shape[2] // 2, dims=2)
        return torch.addcmul(x * self.cosines, halves_swapped, self.sines)


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
        """Heads of queries and keys [B, H_q + H_kv, D] at `positions` [B], in their own dtype.

        In float32 from the norm on, so that they are rounded once.
        """
        normed = heads.float()
        if self.norm is not None:
            normed = F.rms_norm(normed, heads.shape[2:], None, self.epsilon) * self.norm
        return Turn.at(positions, self.table)(normed).to(heads.dtype)
