"""Adding to the residual stream what ranks made of it, with the statistics of what is stored."""

from __future__ import annotations

import pytest
import torch

from kernels.backend import interpreting
from kernels.step.residual import add_ranks_to_rows, add_to_rows

ON_GPU = torch.cuda.is_available() and not interpreting()
DEVICE = "cuda" if ON_GPU else "cpu"

pytestmark = pytest.mark.skipif(
    not ON_GPU and not interpreting(),
    reason="needs a GPU or TRITON_INTERPRET=1: `nox -s kernels` sets what the machine has",
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("rows", "embed", "width"), [(1, 64, 64), (3, 192, 64), (5, 320, 32)])
def test_rows_and_their_statistics_are_of_the_sums_as_stored(rows, embed, width, dtype):
    generator = torch.Generator().manual_seed(1)
    # Rows beyond the batch, and their statistics, stay as they are.
    x = (2.0 + torch.randn(rows + 1, embed, generator=generator)).to(DEVICE, dtype)
    change = torch.randn(rows, embed, generator=generator).to(DEVICE, dtype)
    tiles = embed // width
    stats = torch.full((rows + 1, 2, tiles), torch.nan, device=DEVICE)
    before = x.clone()
    add_to_rows(change, x[:rows], stats[:rows])
    expected = (before[:rows].double() + change.double()).to(dtype)
    assert torch.equal(x[:rows], expected)
    assert torch.equal(x[rows], before[rows])
    tiled = expected.double().view(rows, tiles, width)
    squares = (tiled - tiled.mean(2, keepdim=True)).square().sum(2)
    torch.testing.assert_close(stats[:rows, 0].double(), tiled.sum(2), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(stats[:rows, 1].double(), squares, rtol=1e-4, atol=1e-4)
    assert stats[rows].isnan().all()


def test_statistics_that_nobody_reads_are_not_made():
    x, change = torch.ones(2, 64, device=DEVICE), torch.full((2, 64), 0.5, device=DEVICE)
    add_to_rows(change, x, None)
    assert (x == 1.5).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("embed", "width"), [(192, 64), (320, 32), (320, None)])
def test_parts_of_all_ranks_are_added_once_they_are_made(embed, width, dtype):
    """Of two ranks one is played here: it has said that its part is made."""
    generator = torch.Generator().manual_seed(1)
    rows, rank = 3, 1
    x, *parts = torch.randn(3, rows, embed, generator=generator).to(DEVICE, dtype)
    flags = torch.zeros(2, rows, 2, dtype=torch.int32, device=DEVICE)
    flags[rank, :, 0] = 1
    stats = None if width is None else torch.empty(rows, 2, embed // width, device=DEVICE)
    expected = (x.double() + parts[0].double() + parts[1].double()).to(dtype)
    places, words = (
        torch.tensor([one.data_ptr() for one in of_both], device=DEVICE)
        for of_both in (parts, flags)
    )
    add_ranks_to_rows(places, words, rank, x, stats)
    torch.testing.assert_close(x, expected)
    if stats is not None:
        tiled = x.double().view(rows, -1, width).sum(2)
        torch.testing.assert_close(stats[:, 0].double(), tiled, rtol=1e-4, atol=1e-3)
    assert (flags[rank] == 0).all()
    assert flags[0].tolist() == [[0, 1]] * rows
