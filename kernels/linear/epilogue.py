"""What follows the product of a linear map in the same kernel, besides its bias."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

NO_ACTIVATION, GELU, SILU = 0, 1, 2
"""What a kernel does to its product: the constant `ACTIVATION`. GELU by its tanh approximation."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The parts of an epilogue, in the order in which they follow.

    Attributes
    ----------
    activation
        `NO_ACTIVATION`, `GELU` or `SILU`, of all features or, gated, of those of the gate.
    is_gated
        The activation of one half of the features is multiplied with the other half, in a map as
        `kernels.linear.folded.pack_gate` packs it.
    is_added
        What is there already is added.
    """

    activation: int = NO_ACTIVATION
    is_gated: bool = False
    is_added: bool = False

    def constants(self) -> dict[str, int]:
        """What a kernel is specialised by."""
        return {"ACTIVATION": self.activation, "GATED": self.is_gated, "ADDED": self.is_added}


PLAIN, RESIDUAL = Epilogue(), Epilogue(is_added=True)


def activate(x: torch.Tensor, activation: int) -> torch.Tensor:
    """The activation of every value, in torch."""
    if activation == GELU:
        return F.gelu(x, approximate="tanh")
    return F.silu(x) if activation == SILU else x
