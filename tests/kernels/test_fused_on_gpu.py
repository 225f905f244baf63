"""The Hopper linear maps against the plain ones, and what only a GPU shows of both."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fused_cases import NAN, poisoned_rows, random_tensor, within_torch_error

from kernels.dependent_launch import is_hopper
from kernels.errors import KernelArgumentError
from kernels.linear.epilogue import GELU, PLAIN, RESIDUAL, SILU, Epilogue, activate
from kernels.linear.folded import (
    FoldedLinear,
    SplitWorkspace,
    fold_linear,
    fold_rms_norm,
    pack_gate,
)
from kernels.linear.head import best_of_tiles
from kernels.linear.projections import fused_linear
from kernels.linear.reference import reference_linear, reference_statistics
from kernels.tiles.table import committed_table
from kernels.tiles.tile import LinearTile

HALVES = [torch.float16, torch.bfloat16]
EPSILON = 1e-5


def _tensor(*shape: int, seed: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return random_tensor(*shape, seed=seed).to(device=device, dtype=dtype)


def _skip_unless_hopper(gpu: torch.device) -> None:
    if not is_hopper(torch.empty(0, device=gpu)):
        pytest.skip("needs a GPU of compute capability 9.0")


def _run(
    x: torch.Tensor, linear: FoldedLinear, tile: LinearTile, start: torch.Tensor, epilogue: Epilogue
) -> tuple[torch.Tensor, torch.Tensor]:
    y = poisoned_rows(start)
    stats = poisoned_rows(
        torch.full((len(x), 2, linear.out_features // tile.block_n), NAN, device=x.device)
    )
    x_stats = None
    if linear.norm:
        x_stats = reference_statistics(x, linear.in_features // 32).float()
    workspace = SplitWorkspace.for_tiles(len(x), [(linear.out_features, tile)], x.device)
    workspace.partials.fill_(NAN)
    fused_linear(x, linear, y, tile, workspace, epilogue=epilogue, x_stats=x_stats, y_stats=stats)
    assert not workspace.arrivals.any()
    for written in (y, stats):
        around = written._base
        assert around is not None
        assert around[len(x) + 1 :].isnan().all()
        assert around[0].isnan().all()
    return y, stats


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("rows", [1, 16, 37, 64, 130, 256])
@pytest.mark.parametrize(
    ("tile", "out_features", "in_features"),
    [
        (LinearTile(32, 64, 256, tma=True), 192, 768),
        (LinearTile(128, 64, 64, stages=2, tma=True), 128, 768),
        (LinearTile(64, 128, 128, tma=True), 128, 256),
        (LinearTile(8, 64, 64, tma=True), 192, 192),
        (LinearTile(64, 64, 256, split_k=4, tma=True), 128, 3072),
        (LinearTile(16, 64, 64, split_k=2, tma=True), 64, 384),
        (LinearTile(64, 128, 64, split_k=8, tma=True), 256, 1024),
        (LinearTile(128, 64, 64, split_k=4, tma=True), 192, 768),
        (LinearTile(64, 128, 64, split_k=4, stages=5, tma=True), 128, 3072),
        (LinearTile(32, 64, 64, stages=4, tma=True), 128, 2560),
    ],
    ids=[
        "gpt2",
        "stages",
        "wide",
        "few-rows",
        "split-4",
        "split-2",
        "split-8",
        "split-tall",
        "split-stages",
        "not-unrolled",
    ],
)
@pytest.mark.parametrize(
    "epilogue",
    [
        PLAIN,
        Epilogue(GELU),
        RESIDUAL,
        Epilogue(SILU, is_gated=True),
        Epilogue(GELU, is_gated=True),
        Epilogue(SILU),
    ],
    ids=["plain", "gelu", "residual", "gated", "gelu-gated", "silu"],
)
def test_the_hopper_kernel_computes_what_the_plain_one_does(
    gpu: torch.device,
    dtype: torch.dtype,
    rows: int,
    tile: LinearTile,
    out_features: int,
    in_features: int,
    epilogue: Epilogue,
) -> None:
    _skip_unless_hopper(gpu)
    make = {"dtype": dtype, "device": gpu}
    x = poisoned_rows(_tensor(rows, in_features, seed=1, **make))
    weight = _tensor(out_features, in_features, seed=2, **make) * in_features**-0.5
    bias = _tensor(out_features, seed=3, **make)
    made = out_features // 2 if epilogue.is_gated else out_features
    start = _tensor(rows, made, seed=6, **make)
    norm: dict[str, torch.Tensor | float] = {}
    linear, normal = fold_linear(weight, bias), x
    if epilogue.is_gated:
        gain = 1 + _tensor(in_features, seed=4, **make) * 0.3
        norm = {"gain": gain, "epsilon": EPSILON}
        linear = fold_rms_norm(pack_gate(weight), pack_gate(bias), gain, EPSILON)
        normal = F.rms_norm(x, (in_features,), gain, EPSILON)
    elif epilogue != RESIDUAL:
        gain = 1 + _tensor(in_features, seed=4, **make) * 0.3
        shift = _tensor(in_features, seed=5, **make) * 0.1
        norm = {"gain": gain, "shift": shift, "epsilon": EPSILON}
        linear = fold_linear(weight, bias, gain, shift, EPSILON)
        normal = F.layer_norm(x, (in_features,), gain, shift, EPSILON)
    theirs = F.linear(normal, weight, bias)
    if epilogue.is_gated:
        gate, gated = theirs.chunk(2, dim=1)
        theirs = activate(gate, epilogue.activation) * gated
    else:
        theirs = activate(theirs, epilogue.activation)
    if epilogue == RESIDUAL:
        theirs = start + theirs
    exact = reference_linear(
        x,
        weight,
        bias,
        activation=epilogue.activation,
        is_gated=epilogue.is_gated,
        residual=start if epilogue == RESIDUAL else None,
        **norm,  # type: ignore[arg-type]
    )
    y, stats = _run(x, linear, tile, start, epilogue)
    plain, plain_stats = _run(x, linear, tile.portable(), start, epilogue)
    within_torch_error(y, exact, theirs)
    within_torch_error(plain, exact, theirs)
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(y, plain, rtol=2 * unit, atol=4 * unit)
    if epilogue == RESIDUAL:
        expected = reference_statistics(y, out_features // tile.block_n)
        torch.testing.assert_close(stats.double(), expected, rtol=1e-5, atol=1e-4)
    else:
        assert stats.isnan().all()
        assert plain_stats.isnan().all()


@pytest.mark.parametrize("split_k", [4, 8])
def test_every_share_of_a_tile_is_added_in_one_order(gpu: torch.device, split_k: int) -> None:
    """From the first program to the last, whichever of them finishes a row.

    The first two parts are large and cancel: added later, they would have swallowed the others.
    """
    _skip_unless_hopper(gpu)
    make = {"dtype": torch.float16, "device": gpu}
    part = 1024 // split_k
    row = _tensor(1, 1024, seed=2, **make)
    row[:, :part], row[:, part : 2 * part] = 60_000.0, -60_000.0
    weight = row.expand(128, -1).contiguous()
    x, y = torch.full((64, 1024), 100.0, **make), torch.empty(64, 128, **make)
    tile = LinearTile(64, 128, 64, split_k=split_k, tma=True)
    workspace = SplitWorkspace.for_tiles(64, [(128, tile)], gpu)
    fused_linear(x, fold_linear(weight, None), y, tile, workspace)
    expected = (100 * row[:, 2 * part :].double()).sum()
    torch.testing.assert_close(y.double(), expected.expand_as(y), rtol=2e-3, atol=1.0)


def test_a_tile_that_leaves_a_cluster_no_room_is_refused(gpu: torch.device) -> None:
    _skip_unless_hopper(gpu)
    make = {"dtype": torch.float16, "device": gpu}
    x, y = torch.zeros(64, 3072, **make), torch.zeros(64, 128, **make)
    tile = LinearTile(64, 128, 256, split_k=4, tma=True)
    workspace = SplitWorkspace.for_tiles(64, [(128, tile)], gpu)
    linear = fold_linear(torch.zeros(128, 3072, **make), None)
    with pytest.raises(KernelArgumentError, match="must leave 24592 bytes"):
        fused_linear(x, linear, y, tile, workspace)


def _head(rows: int, gpu: torch.device, dtype: torch.dtype) -> FoldedLinear:
    weight, norm, bias = (
        _tensor(*shape, seed=seed, dtype=dtype, device=gpu)
        for seed, shape in enumerate([(rows, 768), (768,), (768,)], start=2)
    )
    return fold_linear(weight * 0.1, None, 1 + norm * 0.3, bias * 0.1, EPSILON)


def _best_of(
    x: torch.Tensor, head: FoldedLinear, vocab_size: int, tile: LinearTile
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (x.shape[0], head.out_features // tile.block_n)
    best = torch.full(shape, 7.0, device=x.device)
    token = torch.full(shape, -7, dtype=torch.int32, device=x.device)
    stats = reference_statistics(x, 24).float()
    best_of_tiles(x, head, vocab_size, tile, best, token, x_stats=stats)
    return best, token


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("rows", [1, 37, 64, 128, 150])
@pytest.mark.parametrize(
    "tile",
    [
        LinearTile(64, 384, 64, stages=4, tma=True),
        LinearTile(128, 384, 64, tma=True),
        LinearTile(64, 256, 32, stages=8, tma=True),
        LinearTile(128, 128, 128, stages=2, tma=True),
    ],
    ids=["64x384", "128x384", "small-chunks", "two-stages"],
)
@pytest.mark.parametrize("head_rows", [19_968, 768], ids=["many-tiles", "few-tiles"])
def test_the_hopper_head_computes_what_the_plain_one_does(
    gpu: torch.device, dtype: torch.dtype, rows: int, tile: LinearTile, head_rows: int
) -> None:
    """With more rows and fewer than a tile has, and with tiles for all multiprocessors or few."""
    _skip_unless_hopper(gpu)
    assert tile.fitted_head(head_rows, 768) == tile
    vocab_size = head_rows - 60
    x = poisoned_rows(_tensor(rows, 768, seed=1, dtype=dtype, device=gpu))
    x[rows // 2, 5] = NAN
    head = _head(head_rows, gpu, dtype)
    assert head.column_sums is not None
    head.bias[vocab_size:] = 1e4
    # Tokens that tie: in one part of a tile, and in the next one.
    equals = [3, 7, 140]
    for copies in (head.weight, head.column_sums):
        copies[equals] = copies[3].clone()
    head.bias[equals] = 1e3
    best, token = _best_of(x, head, vocab_size, tile)
    again, token_again = _best_of(x, head, vocab_size, tile)
    narrow = _best_of(x, head, vocab_size, tile.portable())
    plain, plain_token = _best_of_neighbours(*narrow, best.shape[1])
    assert torch.equal(best.nan_to_num(), again.nan_to_num())
    assert torch.equal(token, token_again)
    healthy = torch.arange(rows, device=gpu) != rows // 2
    assert best[~healthy].isnan().all()
    torch.testing.assert_close(best[healthy], plain[healthy], rtol=1e-4, atol=1e-4)
    # Sums in another order may decide between near equals, so seldom do the tokens differ.
    assert float((token != plain_token)[healthy].float().mean() if rows > 1 else 0.0) < 0.01
    if rows > 1:
        assert (token[healthy, 0] == 3).all()
        assert token[healthy].max() < vocab_size


def _best_of_neighbours(
    best: torch.Tensor, token: torch.Tensor, tiles: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fewer and wider tiles from these."""
    best, token = (one.unflatten(1, (tiles, -1)) for one in (best, token))
    widest = best.amax(dim=2)
    is_best = best == widest[:, :, None]
    return widest, torch.where(is_best, token, torch.iinfo(token.dtype).max).amin(dim=2)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_hopper_head_behind_an_rms_norm(gpu: torch.device, dtype: torch.dtype) -> None:
    _skip_unless_hopper(gpu)
    x = _tensor(70, 768, seed=1, dtype=dtype, device=gpu) + 1
    weight = _tensor(768, 768, seed=2, dtype=dtype, device=gpu) * 0.1
    gain = 1 + _tensor(768, seed=3, dtype=dtype, device=gpu) * 0.3
    head = fold_rms_norm(weight, None, gain, EPSILON)
    tile = LinearTile(64, 384, 64, tma=True)
    best, token = _best_of(x, head, 760, tile)
    plain, plain_token = _best_of_neighbours(*_best_of(x, head, 760, tile.portable()), 2)
    torch.testing.assert_close(best, plain, rtol=1e-4, atol=1e-4)
    assert float((token != plain_token).float().mean()) < 0.01


@pytest.mark.parametrize("block_m", [64, 128])
def test_the_hopper_head_loses_no_logit_that_is_no_number(gpu: torch.device, block_m: int) -> None:
    """One NaN among numbers, in every part of a tile."""
    _skip_unless_hopper(gpu)
    x = _tensor(70, 768, seed=1, dtype=torch.float16, device=gpu)
    for place in (0, 130, 383):
        head = _head(768, gpu, torch.float16)
        head.bias[place] = NAN
        best, _ = _best_of(x, head, 768, LinearTile(block_m, 384, 64, tma=True))
        assert best[:, 0].isnan().all()
        assert not best[:, 1].isnan().any()


@pytest.mark.parametrize("rows", [1, 8, 16, 32, 64, 128, 256])
@pytest.mark.parametrize("name", ["attention_out", "feed_forward_out"])
def test_the_tiles_in_use_repeat_bit_for_bit(gpu: torch.device, rows: int, name: str) -> None:
    """A map of a GPT-2 block, 200 times from a captured graph."""
    tiles = committed_table().tiles(rows)
    if not is_hopper(torch.empty(0, device=gpu)):
        tiles = tiles.portable()
    tile: LinearTile = getattr(tiles, name)
    out_features, in_features = 768, {"attention_out": 768, "feed_forward_out": 3072}[name]
    x = _tensor(rows, in_features, seed=1, dtype=torch.float16, device=gpu)
    weight = _tensor(out_features, in_features, seed=2, dtype=torch.float16, device=gpu)
    linear = fold_linear(weight * in_features**-0.5, None)
    workspace = SplitWorkspace.for_tiles(rows, [(out_features, tile)], gpu)
    y = torch.zeros(rows, out_features, dtype=torch.float16, device=gpu)
    stats = torch.zeros(rows, 2, out_features // tile.block_n, device=gpu)

    def call() -> None:
        y.zero_()
        fused_linear(x, linear, y, tile, workspace, epilogue=RESIDUAL, y_stats=stats)

    call()
    first = (y.clone(), stats.clone())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    differing = torch.zeros((), dtype=torch.int64, device=gpu)
    for _ in range(200):
        graph.replay()
        differing += (y != first[0]).sum() + (stats != first[1]).sum()
    assert int(differing) == 0


def test_no_row_is_scaled_by_what_a_barrier_holds(gpu: torch.device) -> None:
    """What the norm exchanges among threads must not lie where copies are still being counted."""
    _skip_unless_hopper(gpu)
    rows, out_features, in_features = 64, 6144, 4096
    tile = LinearTile(64, 64, 128, split_k=2, stages=3, tma=True)
    make = {"dtype": torch.bfloat16, "device": gpu}
    x = _tensor(rows, in_features, seed=1, **make)
    weight = _tensor(out_features, in_features, seed=2, **make) * in_features**-0.5
    linear = fold_rms_norm(weight, None, None, EPSILON)
    stats = reference_statistics(x, 64).float()
    workspace = SplitWorkspace.for_tiles(rows, [(out_features, tile)], gpu)
    y = torch.zeros(rows, out_features, **make)
    differing = torch.zeros((), dtype=torch.int64, device=gpu)
    first: torch.Tensor | None = None
    for _ in range(100):
        fused_linear(x, linear, y, tile, workspace, x_stats=stats)
        first = y.clone() if first is None else first
        differing += (y != first).sum()
    assert int(differing) == 0
    expected = F.rms_norm(x.double(), (in_features,), None, EPSILON) @ weight.double().t()
    assert float((y.double() - expected).norm() / expected.norm()) < 1e-2
