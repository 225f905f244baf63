"""Fused maps of weights in eight bits, against float64 and the weights that they stand for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fused_cases import (
    NAN,
    half_dtypes,
    poisoned_rows,
    random_tensor,
    same_bits,
    within_torch_error,
)

from kernels.errors import KernelArgumentError
from kernels.linear.epilogue import PLAIN, RESIDUAL, SILU, Epilogue
from kernels.linear.folded import (
    FoldedLinear,
    SplitWorkspace,
    fold_fp8,
    pack_gate,
    packed_halves,
)
from kernels.linear.fp8 import FP8, GROUP, dequantized, quantize
from kernels.linear.gate import gate
from kernels.linear.halves import halves_of, rounded_gate, rounded_rows
from kernels.linear.projections import fused_linear, runs_stream
from kernels.linear.reference import reference_linear, reference_statistics
from kernels.tiles.tile import WIDE_CHUNKS, LinearTile

EPSILON = 1e-5
OUT_FEATURES = 64
GATED = Epilogue(SILU, is_gated=True)
TILES = [
    pytest.param(1, LinearTile(1, 8, 16), id="vector"),
    pytest.param(2, LinearTile(1, 4, 256), id="2-vectors-in-chunks"),
    pytest.param(1, LinearTile(1, 8, 512), id="vector-of-512"),
    pytest.param(2, LinearTile(1, 16, 1024), id="2-vectors-of-4608"),
    pytest.param(5, LinearTile(16, 32, 128), id="5-rows"),
    pytest.param(16, LinearTile(16, 64, 64, stages=1), id="16-rows-whole-tile"),
    pytest.param(7, LinearTile(16, 32, 128, split_k=2), id="7-rows-split-2"),
    pytest.param(37, LinearTile(32, 16, 32, split_k=3), id="37-rows-split-3"),
    pytest.param(3, LinearTile(8, 64, 128, tma=True), id="3-rows-hopper"),
    pytest.param(20, LinearTile(16, 64, 64, stages=2, tma=True), id="20-rows-hopper"),
    pytest.param(64, LinearTile(64, 64, 128, split_k=2, tma=True), id="64-rows-hopper-split-2"),
]


def _weight(out_features: int, in_features: int, in_blocks: bool) -> tuple[Any, Any]:
    """E4m3 of very different rows, and, in blocks, of very different columns."""
    weight = random_tensor(out_features, in_features, seed=2) * in_features**-0.5
    order = random_tensor(out_features, seed=7).argsort()
    weight *= torch.logspace(-2, 1, out_features)[order][:, None]
    if not in_blocks:
        return quantize(weight)
    groups = in_features // GROUP
    weight = weight.unflatten(1, (groups, GROUP)) * torch.logspace(-1, 1, groups)[:, None]
    values, scales = quantize(weight.flatten(0, 1))
    return values.view(out_features, in_features), scales.view(
        out_features, groups
    ).t().contiguous()


def _run(
    x: torch.Tensor,
    linear: FoldedLinear,
    tile: LinearTile,
    start: Any = None,
    **how: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, out_features = len(x), linear.out_features
    made = out_features // 2 if how.get("epilogue", PLAIN).is_gated else out_features
    y = poisoned_rows(torch.full((rows, made), NAN, dtype=x.dtype, device=x.device))
    if start is not None:
        y.copy_(start)
    stats = torch.full((rows, 2, out_features // tile.block_n), NAN, device=x.device)
    workspace = SplitWorkspace.for_tiles(rows, [(out_features, tile)], x.device)
    workspace.partials.fill_(NAN)
    fused_linear(x, linear, y, tile, workspace, y_stats=stats, **how)
    assert not workspace.arrivals.any()
    assert y._base is not None
    assert y._base[rows + 1 :].isnan().all()
    return y, stats


@pytest.mark.parametrize("dtype", [torch.float32, *half_dtypes()], ids=str)
@pytest.mark.parametrize("in_blocks", [False, True], ids=["rows", "blocks"])
@pytest.mark.parametrize("kind", ["plain", "residual", "layer", "rms", "rms-gated"])
@pytest.mark.parametrize(("rows", "tile"), TILES)
def test_maps_compute_what_their_weights_stand_for(
    triton_device: torch.device,
    rows: int,
    tile: LinearTile,
    kind: str,
    in_blocks: bool,
    dtype: torch.dtype,
) -> None:
    if tile.tma and in_blocks:
        tile = tile.portable()
    in_features = 768 if tile.split_k == 3 or tile.block_k == 256 else 256
    in_features = {512: 512, 1024: 4608}.get(tile.block_k, in_features)
    values, scales = (
        one.to(triton_device) for one in _weight(OUT_FEATURES, in_features, in_blocks)
    )
    exact = dequantized(values, scales, torch.float64)

    def make(*shape: int, seed: int, scale: float = 1.0, center: float = 0.0) -> torch.Tensor:
        numbers = random_tensor(*shape, seed=seed) * scale + center
        return numbers.to(device=triton_device, dtype=dtype)

    x, bias = poisoned_rows(make(rows, in_features, seed=1)), make(OUT_FEATURES, seed=3)
    gain = make(in_features, seed=4, scale=0.3, center=1.0) if kind[0] in "lr" else None
    gain = None if kind == "residual" else gain
    shift = make(in_features, seed=5, scale=0.1) if kind == "layer" else None
    epilogue = {"residual": RESIDUAL, "rms-gated": GATED}.get(kind, PLAIN)
    start = make(rows, OUT_FEATURES, seed=6) if kind == "residual" else None
    linear = fold_fp8(values, scales, bias, gain, shift, EPSILON)
    if epilogue.is_gated:
        packed = pack_gate(values.view(torch.uint8)).view(values.dtype)
        linear = fold_fp8(
            packed, pack_gate(scales.t()).t().contiguous(), pack_gate(bias), gain, None, EPSILON
        )
    tiles = 4 if tile.block_m > 1 and linear.norm else None
    stats = None if tiles is None else reference_statistics(x, tiles).float()
    y, y_stats = _run(x, linear, tile, start, epilogue=epilogue, x_stats=stats)
    reference = reference_linear(
        x, exact, bias, gain=gain, shift=shift, epsilon=EPSILON,
        activation=epilogue.activation, is_gated=epilogue.is_gated, residual=start,
    )  # fmt: skip
    normed = x
    if gain is not None:
        norm = F.rms_norm if shift is None else partial(F.layer_norm, bias=shift)
        normed = norm(x, (in_features,), weight=gain, eps=EPSILON)
    # The two halves of a row have as many bits as a bfloat16, whatever the row has; on Hopper
    # single rows are halved, too.
    in_halves = tile.tma or (tile.block_m == 1 and not in_blocks and runs_stream(x))
    kept = torch.bfloat16 if in_halves and dtype == torch.float16 else dtype
    theirs = F.linear(normed.to(kept), dequantized(values, scales, kept), bias.to(kept))
    if epilogue.is_gated:
        own, other = theirs.chunk(2, dim=1)
        theirs = F.silu(own) * other
    within_torch_error(y, reference, theirs if start is None else theirs + start)
    if kind == "residual" and tile.block_m > 1:
        expected = reference_statistics(y, OUT_FEATURES // tile.block_n).float()
        torch.testing.assert_close(y_stats, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("in_blocks", [False, True], ids=["rows", "blocks"])
@pytest.mark.parametrize("out_features", [3, 64])
def test_dequantized_weights_are_rounded_once(
    triton_device: torch.device, out_features: int, in_blocks: bool
) -> None:
    in_features = 1280
    values, scales = _weight(out_features, in_features, in_blocks)
    exact = dequantized(values, scales, torch.float64)
    for dtype in (torch.float32, *half_dtypes()):
        made = dequantized(values.to(triton_device), scales.to(triton_device), dtype)
        once = (values.double().unflatten(1, (len(scales), -1)) * scales.t()[:, :, None]).flatten(1)
        assert torch.equal(exact, once)
        # The product is made in float32 first.
        assert torch.equal(made.cpu(), once.float().to(dtype))


@pytest.mark.parametrize("dtype", half_dtypes(), ids=str)
@pytest.mark.parametrize("kind", ["plain", "layer", "rms"])
def test_two_halves_of_eight_bits_are_as_near_as_sixteen(
    triton_device: torch.device, kind: str, dtype: torch.dtype
) -> None:
    # Several numbers a thread.
    rows, in_features, tile_rows = 5, 3072, 4
    values, scales = (one.to(triton_device) for one in _weight(OUT_FEATURES, in_features, False))
    x = random_tensor(rows, in_features, seed=1) * torch.logspace(-3, 3, rows)[:, None]
    x = poisoned_rows(x.to(triton_device, dtype))
    gain = shift = None
    if kind != "plain":
        gain = (1 + random_tensor(in_features, seed=2) / 2).to(triton_device, dtype)
        shift = torch.zeros_like(gain) if kind == "layer" else None
    linear = fold_fp8(values, scales, None, gain, shift, EPSILON)
    halves, row_scales = halves_of(x, linear, tile_rows)
    both = halves.view(-1, 2, tile_rows, in_features).double()
    found = (both[:, 0] + both[:, 1] / 16).flatten(0, 1)[:rows] * row_scales.double()[:, None]
    exact = x.double()
    if gain is not None:
        norm = F.rms_norm if shift is None else F.layer_norm
        exact = norm(exact, (in_features,), eps=EPSILON) * linear.gain.double()
    # A half is off by 1/16 of itself at most, but for what is tiny beside the row's largest.
    most = exact.abs().amax(1, keepdim=True)
    assert ((found - exact).abs() <= exact.abs() / 200 + most / 1e6).all()


@pytest.mark.parametrize("dtype", half_dtypes(), ids=str)
@pytest.mark.parametrize("count", [5, 140])
def test_one_half_is_the_nearest_number_of_eight_bits(
    triton_device: torch.device, count: int, dtype: torch.dtype
) -> None:
    x = random_tensor(count, 3072, seed=1) * torch.logspace(-3, 3, count)[:, None]
    x = poisoned_rows(x.to(triton_device, dtype))
    rows, scales = rounded_rows(x)
    largest = x.float().abs().amax(1)
    torch.testing.assert_close(scales, largest / torch.finfo(FP8).max, rtol=1e-6, atol=0)
    nearest = (x.float().cpu() / scales.cpu()[:, None]).clamp(-448, 448).to(FP8)
    assert torch.equal(rows.cpu().float(), nearest.float())


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("dtype", half_dtypes(), ids=str)
@pytest.mark.parametrize("count", [5, 140])
def test_a_gate_is_rounded_as_its_rows_would_be(
    triton_device: torch.device, count: int, dtype: torch.dtype, is_packed: bool
) -> None:
    mapped = 4 * random_tensor(count, 2 * 3072, seed=1) * torch.logspace(-2, 1, count)[:, None]
    mapped = poisoned_rows(mapped.to(triton_device, dtype))
    rows, scales = rounded_gate(mapped, SILU, is_packed=is_packed)
    expected, of_each = rounded_rows(gate(mapped, SILU, is_packed=is_packed))
    assert torch.equal(scales, of_each)
    assert torch.equal(rows.float(), expected.float())


@pytest.mark.parametrize("kind", ["plain", "residual", "layer", "rms", "rms-gated"])
@pytest.mark.parametrize(
    ("rows", "tile"),
    [
        pytest.param(3, LinearTile(8, 64, 128, tma=True), id="3-rows"),
        pytest.param(20, LinearTile(16, 64, 64, stages=2, tma=True), id="20-rows"),
        pytest.param(64, LinearTile(64, 64, 128, split_k=2, tma=True), id="64-rows-split-2"),
        pytest.param(70, LinearTile(128, 64, 128, split_k=2, tma=True), id="70-rows-of-128"),
        # Wide tiles: in clusters and, of an odd number, in none; and of chunks not by fours.
        pytest.param(200, LinearTile(128, 128, 64, stages=5, tma=True), id="200-rows-wide"),
        pytest.param(300, LinearTile(128, 128, 64, stages=5, tma=True), id="300-rows-wide"),
        pytest.param(
            200,
            LinearTile(128, 128, 32, split_k=2, stages=12, tma=True),
            id="200-rows-wide-split-2",
        ),
        pytest.param(130, LinearTile(128, 128, 128, stages=2, tma=True), id="130-rows-wide-of-6"),
    ],
)
def test_rounded_rows_are_multiplied_as_they_are(
    hopper: torch.device, rows: int, tile: LinearTile, kind: str
) -> None:
    dtype, in_features, tiles = torch.bfloat16, 768, 4
    out_features = tiles * tile.block_n
    values, scales = (one.to(hopper) for one in _weight(out_features, in_features, False))
    x = poisoned_rows(random_tensor(rows, in_features, seed=1).to(hopper, dtype))
    bias = random_tensor(out_features, seed=3).to(hopper, dtype)
    gain = (1 + 0.3 * random_tensor(in_features, seed=4)).to(hopper, dtype)
    gain_of = gain if kind[0] in "lr" and kind != "residual" else None
    shift = gain / 10 if kind == "layer" else None
    epilogue = {"residual": RESIDUAL, "rms-gated": GATED}.get(kind, PLAIN)
    start = random_tensor(rows, out_features, seed=6).to(hopper, dtype)
    linear = replace(fold_fp8(values, scales, bias, gain_of, shift, EPSILON), halves=1)
    y, y_stats = _run(x, linear, tile, start if epilogue.is_added else None, epilogue=epilogue)
    halves, row_scales = halves_of(x, linear, 1)
    assert linear.scales is not None
    of_rows = halves.double() * row_scales.double()[:, None]
    reference = of_rows @ (linear.weight.double() * linear.scales.double().t()).t()
    reference += linear.bias.double()
    if epilogue.is_gated:
        own, other = packed_halves(reference)
        reference = (F.silu(own) * other).flatten(1)
    elif epilogue.is_added:
        reference += start.double()
    # As far as rounding the product, and then the result, takes it.
    error, size = (y.double() - reference).abs(), reference.abs().amax()
    assert float(error.max()) <= float(size) * torch.finfo(dtype).eps
    if epilogue.is_added:
        expected = reference_statistics(y, tiles).float()
        torch.testing.assert_close(y_stats, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", half_dtypes(), ids=str)
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize(("rows", "tile"), TILES)
def test_a_row_with_a_nan_makes_nan_and_stays_alone(
    triton_device: torch.device, rows: int, tile: LinearTile, place: int, dtype: torch.dtype
) -> None:
    in_features = {256: 768, 1024: 4608}.get(tile.block_k, 1024)
    in_features = 768 if tile.split_k == 3 else in_features
    values, scales = (one.to(triton_device) for one in _weight(OUT_FEATURES, in_features, False))
    x = random_tensor(rows, in_features, seed=1).to(triton_device, dtype)
    # The one that a GPU makes, whose bits are all ones.
    x[rows // 2, place] = torch.tensor(0x7FFF).short().view(dtype)
    y, _ = _run(x, fold_fp8(values, scales, None), tile)
    expected = [row == rows // 2 for row in range(rows)]
    assert y.isnan().all(dim=1).tolist() == expected
    assert y.isnan().any(dim=1).tolist() == expected


@pytest.mark.parametrize("num_halves", [1, 2])
def test_a_row_with_a_nan_has_no_scale(triton_device: torch.device, num_halves: int) -> None:
    values, scales = (one.to(triton_device) for one in _weight(OUT_FEATURES, 768, False))
    x = random_tensor(5, 768, seed=1).to(triton_device, torch.float16)
    x[2, 700] = NAN
    linear = replace(fold_fp8(values, scales, None), halves=num_halves)
    _, row_scales = halves_of(x, linear, 1)
    assert row_scales.isnan().tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("size", [2.0**-100, 2.0**100])
def test_single_rows_of_any_size_keep_their_bits(hopper: torch.device, size: float) -> None:
    """Numbers of eight bits would be zeros, or infinite."""
    values, scales = (one.to(hopper) for one in _weight(OUT_FEATURES, 1024, False))
    x = random_tensor(1, 1024, seed=1).to(hopper, torch.bfloat16)
    linear = fold_fp8(values, scales, None)
    usual, _ = _run(x, linear, LinearTile(1, 8, 16))
    made, _ = _run((x.double() * size).bfloat16(), linear, LinearTile(1, 8, 16))
    torch.testing.assert_close(made.double() / size, usual.double(), rtol=1e-2, atol=1e-6)
    nothing, _ = _run(torch.zeros_like(x), linear, LinearTile(1, 8, 16))
    assert not nothing.any()


def test_a_row_does_not_depend_on_those_beside_it(triton_device: torch.device) -> None:
    values, scales = (one.to(triton_device) for one in _weight(OUT_FEATURES, 256, True))
    x = random_tensor(20, 256, seed=1).to(triton_device, torch.float16)
    linear, tile = fold_fp8(values, scales, None), LinearTile(16, 32, 128, split_k=2)
    together, _ = _run(x, linear, tile)
    alone, _ = _run(x[3:4].contiguous(), linear, tile)
    assert same_bits(together[3:4], alone)


@pytest.mark.parametrize("largest", [1.0, 3.0, 200.0, 0.0])
def test_gains_are_kept_small_without_rounding(largest: float) -> None:
    values, scales = _weight(OUT_FEATURES, 256, True)
    gain = random_tensor(256, seed=1).clamp(-1, 1) * largest
    linear = fold_fp8(values, scales, None, gain, None, EPSILON)
    assert linear.gain is not None
    assert linear.scales is not None
    assert float(linear.gain.abs().max()) <= 1.0
    whole = linear.gain[None, None] * linear.scales[:, :, None]
    assert torch.equal(whole, gain[None, None] * scales[:, :, None])


@pytest.mark.parametrize(
    ("tile", "sentence"),
    [
        (LinearTile(64, 64, 64, library=True), "must be a plain kernel's for weights"),
        (LinearTile(8, 64, 128, tma=True), "must be a plain kernel's"),
        (LinearTile(16, 64, 256), "at most the 128 columns at a time that share a scale"),
    ],
    ids=str,
)
def test_tiles_that_no_kernel_has_are_refused(tile: LinearTile, sentence: str) -> None:
    linear = fold_fp8(*_weight(OUT_FEATURES, 256, True), None)
    x, y = torch.zeros(4, 256), torch.zeros(4, OUT_FEATURES)
    workspace = SplitWorkspace.for_tiles(4, [(OUT_FEATURES, tile)], x.device)
    with pytest.raises(KernelArgumentError, match=sentence):
        fused_linear(x, linear, y, tile, workspace)


@pytest.mark.parametrize("rows", [64, 128, 256])
@pytest.mark.parametrize("columns", [4096, 5504, 11008, 12288])
def test_wide_tiles_have_as_many_chunks_as_their_kernel_takes_at_once(
    rows: int, columns: int
) -> None:
    tile = LinearTile(64, 64, 64).in_fp8(rows, 24576, columns, streams=True, rounds_rows=True)
    is_wide = tile.block_n > 64
    assert is_wide == (columns in (4096, 12288))
    assert not is_wide or columns // tile.split_k // tile.block_k % WIDE_CHUNKS == 0


@pytest.mark.parametrize(("streams", "rounds_rows"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("rows", [1, 8, 64, 128, 256])
def test_tiles_for_eight_bits_serve_every_map(rows: int, streams: bool, rounds_rows: bool) -> None:
    """Whatever the table says of 16 bits, for models of any size."""
    from kernels.tiles.table import committed_table
    from kernels.tiles.tile import ROLES, StepShapes

    shapes = StepShapes((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (151936, 4096))
    table = committed_table()
    cut = table.tiles(rows, shapes).in_fp8(
        ROLES[:-1], rows, shapes, streams=streams, rounds_rows=rounds_rows
    )
    tiles = cut.fitted(shapes)
    assert tiles.head == committed_table().tiles(rows, shapes).fitted(shapes).head
    for role in ROLES[:-1]:
        tile, (_, columns) = getattr(tiles, role), getattr(shapes, role)
        assert not tile.library
        assert tile.tma == (streams and rows > 1)
        assert tile.is_possible
        assert tile.block_m == 1 or tile.tma or GROUP % tile.block_k == 0
        assert columns % (tile.block_k * tile.split_k) == 0
