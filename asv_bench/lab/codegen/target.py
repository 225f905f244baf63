"""What kernels are compiled for where there is no GPU to ask."""

from __future__ import annotations

from typing import Any

CAPABILITY = 90
WARP_SIZE = 32


def target() -> Any:
    """Triton's description of a Hopper GPU."""
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", CAPABILITY, WARP_SIZE)
