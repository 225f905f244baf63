"""A residual connection and the norm behind it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from paged_cases import NAN, same_bits

from kernels import KernelArgumentError
from kernels.linear.norm import add_layer_norm, add_rms_norm

WIDTHS = [1, 16, 100, 768, 1600]
EPSILON = 1e-5


def _rows(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
    """x, change, weight and bias; rows far from zero, with columns that stand out."""
    generator = torch.Generator().manual_seed(width + rows)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    x = normal(rows, width) + 20.0 * normal(rows, 1)
    x[:, 0] *= 50.0
    values = [x, normal(rows, width), 1.0 + normal(width) / 4, normal(width)]
    return [value.to(dtype).to(device) for value in values]


def _assert_normed(
    total: torch.Tensor, normed: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> None:
    """Against fp64, within one rounding of the result and fp32's error in what leads to it.

    Without a bias the norm is by the root of the mean square.
    """
    values, scale = total.double(), weight.double()
    shift = torch.zeros_like(scale) if bias is None else bias.double()
    centred = values if bias is None else values - values.mean(1, keepdim=True)
    deviation = (centred.square().mean(1, keepdim=True) + EPSILON).sqrt()
    expected = centred / deviation * scale + shift
    # An error of the mean, relative to the largest value, is divided by the deviation.
    spread = values.abs().amax(1, keepdim=True) / deviation
    unit = torch.finfo(torch.float32).eps
    bound = 8 * unit * (1 + spread) * (1 + scale.abs()) + 8 * unit * shift.abs()
    bound += torch.finfo(total.dtype).eps * expected.abs() + torch.finfo(total.dtype).tiny
    worst = ((normed.double() - expected).abs() / bound).max()
    assert float(worst) <= 1.0, float(worst)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [1, 7])
def test_against_fp64(implementation: Any, dtype: torch.dtype, width: int, rows: int) -> None:
    x, change, weight, bias = _rows(rows, width, dtype, implementation.device)
    before = x.clone(), change.clone()
    total, normed = add_layer_norm(x, change, weight, bias, EPSILON)
    assert same_bits(total, (x.float() + change.float()).to(dtype))
    _assert_normed(total, normed, weight, bias)
    assert same_bits(x, before[0])
    assert same_bits(change, before[1])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [1, 7])
def test_rms_norm_against_fp64(
    implementation: Any, dtype: torch.dtype, width: int, rows: int
) -> None:
    x, change, weight, _ = _rows(rows, width, dtype, implementation.device)
    total, normed = add_rms_norm(x, change, weight, EPSILON)
    assert same_bits(total, (x.float() + change.float()).to(dtype))
    _assert_normed(total, normed, weight, None)
    _, unscaled = add_rms_norm(x, change, None, EPSILON)
    _assert_normed(total, unscaled, torch.ones_like(weight), None)


def test_the_root_of_the_mean_square_of_zeros(implementation: Any, dtype: torch.dtype) -> None:
    x = torch.zeros(2, 100, dtype=dtype, device=implementation.device)
    _, normed = add_rms_norm(x, x, torch.ones_like(x[0]), EPSILON)
    assert not normed.any()


def test_a_row_far_from_zero_keeps_its_variance(implementation: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    x = 300.0 + torch.randn(4, 768, generator=generator).to(implementation.device)
    weight, bias = torch.ones_like(x[0]), torch.zeros_like(x[0])
    total, normed = add_layer_norm(x, torch.zeros_like(x), weight, bias, EPSILON)
    centred = total.double() - total.double().mean(1, keepdim=True)
    expected = centred / (centred.square().mean(1, keepdim=True) + EPSILON).sqrt()
    # The mean errs by some 1e-4; squares of 300 subtracted from each other by 1e-2.
    assert float((normed.double() - expected).abs().max()) < 5e-4


def test_a_constant_row_is_its_bias(implementation: Any, dtype: torch.dtype) -> None:
    _, _, weight, bias = _rows(2, 100, dtype, implementation.device)
    x = torch.full((2, 100), 3.0, dtype=dtype, device=implementation.device)
    _, normed = add_layer_norm(x, x, weight, bias, EPSILON)
    # A mean that errs by one part in 1e7 is divided by the root of epsilon.
    assert torch.allclose(normed.float(), bias.float(), rtol=0.0, atol=4e-3)


def test_no_rows(implementation: Any, dtype: torch.dtype) -> None:
    x, change, weight, bias = _rows(0, 16, dtype, implementation.device)
    total, normed = add_layer_norm(x, change, weight, bias, EPSILON)
    assert total.shape == normed.shape == (0, 16)


@pytest.mark.parametrize("is_rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize("width", [1, 100])
def test_nothing_beyond_the_rows_is_written(
    triton_device: torch.device, width: int, is_rms: bool
) -> None:
    from kernels.linear.norm_kernel import launch_add_norm

    x, change, weight, bias = _rows(3, width, torch.float16, triton_device)
    buffers = torch.full((2, 3 * width + 2048), NAN, dtype=torch.float16, device=triton_device)
    total, normed = (buffer[: 3 * width].view(3, width) for buffer in buffers)
    launch_add_norm(x, change, weight, None if is_rms else bias, EPSILON, total, normed)
    assert not total.isnan().any()
    assert not normed.isnan().any()
    assert buffers[:, 3 * width :].isnan().all()


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("x", lambda x: x[0], "x must be [tokens, hidden size]"),
        ("x", lambda x: x.t(), "x must be [tokens, hidden size] and contiguous"),
        ("x", lambda x: x.double(), "x must be float32, float16 or bfloat16; it is torch.float64"),
        ("x", lambda x: x.int(), "x must be float32"),
        ("change", lambda x: x[:1], "change must be [4, 16] like x"),
        ("change", lambda x: x.double(), "change is torch.float64"),
        ("weight", lambda x: x[:3], "weight must be [16], one for each column of x"),
        ("bias", lambda x: x.repeat(2)[::2], "bias must be [16]"),
        ("bias", lambda x: x.half(), "bias is torch.float16"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, change: Any, sentence: str) -> None:
    names = ("x", "change", "weight", "bias")
    arguments = dict(zip(names, _rows(4, 16, torch.float32, torch.device("cpu")), strict=True))
    arguments[name] = change(arguments[name])
    with pytest.raises(KernelArgumentError) as refused:
        add_layer_norm(**arguments, epsilon=EPSILON)
    assert str(refused.value).startswith(sentence)
