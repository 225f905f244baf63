"""An activation of one half of the features times the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fused_cases import random_tensor

from kernels import KernelArgumentError
from kernels.linear.epilogue import GELU, SILU, activate
from kernels.linear.folded import pack_gate
from kernels.linear.gate import gate


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("features", [8, 200, 8192])
@pytest.mark.parametrize("activation", [SILU, GELU], ids=["silu", "gelu"])
def test_against_fp64(
    implementation: Any, dtype: torch.dtype, activation: int, features: int, is_packed: bool
) -> None:
    mapped = (4 * random_tensor(3, 2 * features, seed=features)).to(dtype)
    own, other = mapped.double().chunk(2, dim=1)
    expected = activate(own, activation) * other
    given = pack_gate(mapped.t()).t().contiguous() if is_packed else mapped
    made = gate(given.to(implementation.device), activation, is_packed=is_packed).cpu()
    # In torch the gate is rounded before it is multiplied, and GELU takes one from its tanh.
    torch.testing.assert_close(made.double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=1e-5)


def test_what_cannot_be_halved_is_refused(implementation: Any) -> None:
    mapped = torch.zeros(2, 24, device=implementation.device)
    assert gate(mapped, SILU, is_packed=False).shape == (2, 12)
    with pytest.raises(KernelArgumentError, match="multiple of 16 features"):
        gate(mapped, SILU, is_packed=True)
    with pytest.raises(KernelArgumentError, match="contiguous"):
        gate(mapped[:, ::2], SILU, is_packed=False)
