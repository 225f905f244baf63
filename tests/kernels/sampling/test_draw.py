"""Drawing by thresholds draws what sorting the vocabulary draws, token for token."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.backend import interpreting
from kernels.sampling.reference import INVALID_TOKEN, draw_tokens

INF = float("inf")
Logits = Callable[[int, int], Tensor]

CASES: dict[str, Logits] = {
    "scattered": lambda rows, size: torch.randn(rows, size) * 3,
    "peaked": lambda rows, size: torch.randn(rows, size) * 30,
    "tied": lambda rows, size: torch.randn(rows, size).round(),
    "equal": lambda rows, size: torch.full((rows, size), 1.5),
    "half impossible": lambda rows, size: torch.where(
        torch.rand(rows, size) < 0.5, -INF, torch.randn(rows, size)
    ),
    "half precision": lambda rows, size: torch.randn(rows, size).half(),
}


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tensor]:
    """The kernel; the interpreter's tiles are small, so that a small vocabulary has many."""
    from kernels.sampling import draw

    if interpreting():
        monkeypatch.setattr(draw, "_CAPACITY", 16)
        monkeypatch.setattr(draw, "_LANES", 32)
    return draw.launch_draw


def _settings(rows: int, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Temperatures, top-k, top-p and random numbers; of each kind also the extremes."""

    def mixed(values: Tensor, *extremes: float) -> Tensor:
        ends = torch.tensor(extremes, dtype=values.dtype)[torch.randint(len(extremes), (rows,))]
        return torch.where(torch.rand(rows) < 0.4, ends, values)

    return (
        mixed(torch.rand(rows) + 0.3, 0.0, 1e-30, 50.0),
        mixed(torch.randint(2, size, (rows,), dtype=torch.int32), 0, 1, size, 2**31 - 1),
        mixed(torch.rand(rows) * 0.9 + 0.1, 1.0, 1e-30, 0.999),
        mixed(torch.rand(rows, dtype=torch.float64), 0.0, 1 - 2**-53),
    )


@pytest.mark.parametrize("case", CASES)
def test_every_draw_is_that_of_a_sorted_vocabulary(
    case: str, launch: Callable[..., Tensor], triton_device: torch.device
) -> None:
    torch.manual_seed(7)
    rows, size = (3, 80) if interpreting() else (256, 151_936)
    settings = _settings(rows, size)
    whole = CASES[case](rows, size + 3)
    expected = draw_tokens(whole[:, :size], *settings)
    # The rows lie further apart than they are long, and what lies between is the largest of all.
    whole[:, size:] = 1e4
    drawn = launch(whole.to(triton_device)[:, :size], *(one.to(triton_device) for one in settings))
    differing = (drawn.cpu() != expected).nonzero().flatten().tolist()
    # So near the end of the sum its rounding decides, which depends on the order of its terms; each
    # term rounds by 2**-53 of the sum at most.
    largest_rounding = size * 2**-53
    for row in differing:
        assert float(settings[3][row]) == 1 - 2**-53
        weights = (whole[row, :size].double() / settings[0][row].double()).softmax(0)
        order = weights.argsort(descending=True, stable=True)
        first, last = sorted(int((order == one[row]).nonzero()) for one in (drawn.cpu(), expected))
        assert float(weights[order[first + 1 : last + 1]].sum()) <= largest_rounding
    assert len(differing) <= rows // 20


def test_rows_that_are_no_numbers_and_infinite_ones_disturb_no_other(
    launch: Callable[..., Tensor], triton_device: torch.device
) -> None:
    logits = torch.tensor(
        [[0.0, float("nan"), 2.0], [-INF, INF, INF], [-INF] * 3, [0.0, 1.0, 2.0], [0.0, 2.0, 2.0]],
        device=triton_device,
    )
    ones = torch.ones(5, device=triton_device)
    top_k = torch.zeros(5, dtype=torch.int32, device=triton_device)
    numbers = torch.tensor([0.5, 0.5, 0.5, 0.99, 0.0], dtype=torch.float64, device=triton_device)
    drawn = launch(logits, ones, top_k, ones, numbers)
    assert drawn.tolist() == [INVALID_TOKEN, 1, 0, 0, 1]


def test_a_row_draws_the_same_alone_as_in_any_batch(
    launch: Callable[..., Tensor], triton_device: torch.device
) -> None:
    torch.manual_seed(3)
    size = 70 if interpreting() else 128_256
    logits = torch.randn(4, size)
    settings = _settings(4, size)
    row = [logits, *settings]
    together = launch(*(one.to(triton_device) for one in row))
    alone = launch(*(one[2:3].to(triton_device) for one in row))
    assert alone.tolist() == together[2:3].tolist()
