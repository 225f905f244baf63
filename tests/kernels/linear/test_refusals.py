"""What a linear map refuses to compute."""

from __future__ import annotations

import pytest
import torch
from fused_cases import random_tensor

from kernels.errors import KernelArgumentError
from kernels.linear.epilogue import RESIDUAL, SILU, Epilogue
from kernels.linear.folded import SplitWorkspace, fold_linear
from kernels.linear.projections import fused_linear
from kernels.linear.reference import reference_statistics
from kernels.tiles.tile import LinearTile


@pytest.mark.parametrize(
    "tile",
    [
        LinearTile(16, 64, 32),
        LinearTile(16, 32, 48),
        LinearTile(16, 32, 32, split_k=4),
        LinearTile(16, 192, 64, tma=True),
    ],
    ids=["features", "depth", "split", "portable"],
)
def test_a_tile_that_does_not_divide_the_weight_is_refused(
    triton_device: torch.device, tile: LinearTile
) -> None:
    """A grid of whole tiles would leave the rest of y as it is."""
    features = 192 if tile.tma else 96
    linear = fold_linear(random_tensor(features, 64, seed=2).to(triton_device), None)
    x, y = torch.zeros(5, 64, device=triton_device), torch.zeros(5, features, device=triton_device)
    workspace = SplitWorkspace.for_tiles(5, [(features, tile)], triton_device)
    with pytest.raises(KernelArgumentError, match="tile must divide a weight"):
        fused_linear(x, linear, y, tile, workspace)


def test_half_a_layer_norm_is_refused() -> None:
    weight, vector = random_tensor(8, 4, seed=1), random_tensor(4, seed=2)
    for one in ({"gain": vector}, {"shift": vector}):
        with pytest.raises(KernelArgumentError, match="gain and shift must both be given"):
            fold_linear(weight, None, **one)


def test_a_residual_without_a_place_for_its_statistics_is_refused(
    triton_device: torch.device,
) -> None:
    x = torch.zeros(5, 64, device=triton_device)
    linear = fold_linear(random_tensor(96, 64, seed=2).to(triton_device), None)
    y, tile = torch.zeros(5, 96, device=triton_device), LinearTile(16, 32, 32)
    workspace = SplitWorkspace.for_tiles(5, [(96, tile)], triton_device)
    with pytest.raises(KernelArgumentError, match="y_stats must be given with RESIDUAL"):
        fused_linear(x, linear, y, tile, workspace, epilogue=RESIDUAL)
    both = Epilogue(SILU, is_gated=True, is_added=True)
    with pytest.raises(KernelArgumentError, match="a residual must follow a plain product"):
        fused_linear(x, linear, y, tile, workspace, epilogue=both)


def test_a_workspace_too_small_for_the_split_is_refused(triton_device: torch.device) -> None:
    x = random_tensor(4, 128, seed=1).to(triton_device)
    linear = fold_linear(random_tensor(64, 128, seed=2).to(triton_device), None)
    y = torch.zeros(4, 64, device=triton_device)
    split = LinearTile(16, 32, 64, split_k=2)
    whole = SplitWorkspace.for_tiles(4, [(64, LinearTile(16, 32, 64))], triton_device)
    with pytest.raises(KernelArgumentError, match="workspace must hold 2048 partial products"):
        fused_linear(x, linear, y, split, whole)
    enough = torch.zeros(64, dtype=torch.int32, device=triton_device)
    for partials, arrivals in ((2047, enough), (2048, enough[:1])):
        small = SplitWorkspace(torch.empty(partials, device=triton_device), arrivals)
        with pytest.raises(KernelArgumentError, match="workspace must hold 2048 partial products"):
            fused_linear(x, linear, y, split, small)
    assert not y.any()
    both = SplitWorkspace.for_tiles(4, [(64, split), (32, split)], triton_device)
    fused_linear(x, linear, y, split, both)
    assert y.any()


def test_statistics_of_other_tiles_are_refused(triton_device: torch.device) -> None:
    """They would be written beyond their end. The plain kernel may cut what a Hopper tile was."""
    x = random_tensor(4, 128, seed=1).to(triton_device)
    linear = fold_linear(random_tensor(256, 128, seed=2).to(triton_device), None)
    y = torch.zeros(4, 256, device=triton_device)
    tile = LinearTile(64, 128, 64, tma=True)
    workspace = SplitWorkspace.for_tiles(4, [(256, tile)], triton_device)
    stats = torch.zeros(4, 2, 2, device=triton_device)
    with pytest.raises(KernelArgumentError, match="4 tiles of 64 features a row, but has 2"):
        fused_linear(x, linear, y, tile, workspace, epilogue=RESIDUAL, y_stats=stats)
    assert not y.any()
    stats = torch.zeros(4, 2, 4, device=triton_device)
    fused_linear(x, linear, y, tile, workspace, epilogue=RESIDUAL, y_stats=stats)
    torch.testing.assert_close(stats.double(), reference_statistics(y, 4), rtol=1e-5, atol=1e-4)
