"""Problems for the fused decode kernels, and how close is close enough."""

from __future__ import annotations

import torch

from kernels.backend import interpreting

NAN = float("nan")


def half_dtypes() -> list[torch.dtype]:
    """Half types that Triton computes rightly here: its interpreter gets bfloat16 wrong."""
    return [torch.float16] if interpreting() else [torch.float16, torch.bfloat16]


def random_tensor(*shape: int, seed: int) -> torch.Tensor:
    """Normal numbers, float32 on the CPU."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def poisoned_rows(values: torch.Tensor) -> torch.Tensor:
    """The same values as rows in the middle of a buffer of NaN."""
    rows = values.shape[0]
    buffer = torch.full(
        (rows + 66, *values.shape[1:]), NAN, dtype=values.dtype, device=values.device
    )
    inside = buffer[1 : rows + 1]
    inside.copy_(values)
    return inside


def outlier_rows(rows: int, width: int, kind: str) -> torch.Tensor:
    """Rows as trained models have them, or worse; float32 on the CPU."""
    values = random_tensor(rows, width, seed=17)
    if kind == "outliers":
        values[:, width // 5] = 500.0
        values[:, width // 2] = -180.0
    elif kind == "far mean":
        values += 64.0
    elif kind == "tiny":
        values *= 1e-4
    elif kind == "huge":
        values = values.sign() * 6e4
    elif kind == "constant":
        values[:] = 3.0
    return values


def within_torch_error(
    result: torch.Tensor, reference: torch.Tensor, torch_result: torch.Tensor
) -> None:
    """float32 within 1e-5 of the scale; half within twice torch's own error, also by norm."""
    assert torch.isfinite(result).all()
    error = (result.double() - reference).abs()
    scale = float(reference.abs().max())
    if result.dtype == torch.float32:
        assert float(error.max()) <= 1e-5 * max(scale, 1.0)
        return
    own_error = (torch_result.double() - reference).abs()
    unit = torch.finfo(result.dtype).eps
    assert float(error.max()) <= 2 * float(own_error.max()) + unit * max(scale, 1.0) / 2
    assert float(error.norm()) <= 2 * float(own_error.norm()) + unit * float(reference.norm())


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits, NaN included."""
    as_int = {2: torch.int16, 4: torch.int32}[left.element_size()]
    return left.shape == right.shape and torch.equal(
        left.contiguous().view(as_int), right.contiguous().view(as_int)
    )
