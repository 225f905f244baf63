# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Linear maps of a decode step, at 1 to 256 rows, with what stands before and after each.

With so few rows a linear map is a read of its weights, and everything around it rides along: a
norm before it, folded in (`kernels.linear.folded`), and after it the bias, an activation, a gate or
the addition to the residual stream (`kernels.linear.epilogue`), whose row statistics for the next
norm are stored on the way (`kernels.linear.row_statistics`).

Where N gives too few tiles to fill the device, K is split: each program stores its partial product
and the last to arrive adds them, from the first to the last, so that results repeat bit for bit.
On Hopper they add them within a cluster (`kernels.hopper.cluster`).
"""

import torch
import triton
import triton.language as tl

from kernels.dependent_launch import (
    await_producers,
    is_hopper,
    launch_options,
    launches_early,
    prefetch_rows,
    release_consumers,
)
from kernels.errors import KernelArgumentError
from kernels.linear.epilogue import PLAIN, RESIDUAL, Epilogue
from kernels.linear.epilogue_kernel import activated, gated
from kernels.linear.folded import FoldedLinear, SplitWorkspace
from kernels.linear.library import launch_library
from kernels.linear.row_statistics import (
    combine_tile_statistics,
    load_tile_statistics,
    store_tile_statistics,
    whole_row_statistics,
)
from kernels.linear.vector import launch_rows, unpacked
from kernels.tiles.launch import padded
from kernels.tiles.tile import LinearTile


@triton.jit(do_not_specialize=["rows"])
def linear_tiles(
    x,
    weight,
    bias,
    column_sums,
    x_stats,
    y,
    y_stats,
    partials,
    arrivals,
    rows,
    epsilon,
    scales,
    gain,
    N: tl.constexpr,
    K: tl.constexpr,
    SCALED: tl.constexpr,
    NORM: tl.constexpr,
    X_TILES: tl.constexpr,
    X_TILES_PAD: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    ADDED: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    STAGES: tl.constexpr,
    PREFETCH: tl.constexpr,
    PDL: tl.constexpr,
):
    """One tile of y [rows, N], or one of its SPLIT_K parts. x [rows, K], weight [N, K].

    A weight of e4m3 has scales [K / SCALED, N] and, or None, the gain [K] of the norm before it.
    """
    tile_n = tl.program_id(0)
    tile_m = tl.program_id(1)
    part = tl.program_id(2)
    PART_K: tl.constexpr = K // SPLIT_K
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    k = part * PART_K + tl.arange(0, BLOCK_K)
    in_batch = m < rows

    # Before the wait: only what this step does not write.
    release_consumers(PDL)
    if PREFETCH and PDL:
        element_bytes: tl.constexpr = weight.dtype.element_ty.primitive_bitwidth // 8
        prefetch_rows(
            weight + tile_n * BLOCK_N * K + part * PART_K,
            BLOCK_N,
            PART_K * element_bytes,
            K * element_bytes,
        )
    shift = tl.load(bias + n)
    if NORM == 1:
        column_sum = tl.load(column_sums + n)
    if SCALED == K:
        scale = tl.load(scales + n)
    await_producers(PDL)

    # Read early, used after the loop: their latency hides behind it.
    if GATED:
        out_n = tile_n * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        y_tile = y + m.to(tl.int64)[:, None] * (N // 2) + out_n[None, :]
    else:
        y_tile = y + m.to(tl.int64)[:, None] * N + n[None, :]
    if ADDED:
        residual = tl.load(y_tile, mask=in_batch[:, None], other=0.0)
    if NORM > 0:
        if X_TILES > 0:
            sums, squares = load_tile_statistics(x_stats, m, in_batch, X_TILES, X_TILES_PAD)
            if BLOCK_M >= 128:
                # The statistics of so many rows would fill the registers that the loop needs.
                mean, rstd = combine_tile_statistics(
                    sums, squares, epsilon, K, X_TILES, X_TILES_PAD, NORM
                )
        else:
            mean, rstd = whole_row_statistics(x, m, in_batch, epsilon, K, X_TILES_PAD, NORM)

    x_tile = x + m[:, None] * K + k[None, :]
    if scales is None:
        accumulator = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        w_tile = weight + n[None, :] * K + k[:, None]
    else:
        # Weights are the left operand, which tensor cores take from registers, where they get the
        # type of x.
        accumulator = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        w_tile = weight + n[:, None] * K + k[None, :]
    for start in tl.range(0, PART_K, BLOCK_K, num_stages=STAGES):
        if EVEN:
            x_values = tl.load(x_tile + start)
        else:
            x_values = tl.load(x_tile + start, mask=in_batch[:, None], other=0.0)
        strip = tl.load(w_tile + start)
        if scales is None:
            accumulator = tl.dot(x_values, strip, accumulator, input_precision="ieee")
        else:
            if gain is not None:
                x_values *= tl.load(gain + k + start).to(x_values.dtype)[None, :]
            strip = unpacked(strip, x_values.dtype)
            # The products of one chunk are added by themselves, and then to the others'.
            products = tl.dot(strip, tl.trans(x_values), input_precision="ieee")
            if SCALED < K:
                group = (part * PART_K + start) // SCALED
                products *= tl.load(scales + group * N + n)[:, None]
            accumulator += products
    if scales is not None:
        if SCALED == K:
            accumulator *= scale[:, None]
        accumulator = tl.trans(accumulator)

    is_last = True
    if SPLIT_K > 1:
        tile = tile_m * tl.num_programs(0) + tile_n
        record = (
            tl.arange(0, BLOCK_M)[:, None] * BLOCK_N
            + tl.arange(0, BLOCK_N)[None, :]
            + partials
            + tile.to(tl.int64) * (SPLIT_K * BLOCK_M * BLOCK_N)
        )
        tl.store(record + part * (BLOCK_M * BLOCK_N), accumulator)
        # All threads must have written before thread 0 says so; the atomic makes the others' parts
        # visible to the last.
        tl.debug_barrier()
        is_last = tl.atomic_add(arrivals + tile, 1, sem="acq_rel") == SPLIT_K - 1
        if is_last:
            tl.debug_barrier()
            accumulator = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for other in tl.static_range(SPLIT_K):
                accumulator += tl.load(record + other * (BLOCK_M * BLOCK_N), cache_modifier=".cg")
            # Left as it was found, for the next launch.
            tl.store(arrivals + tile, 0)
    if is_last:
        if NORM > 0:
            if X_TILES > 0 and BLOCK_M < 128:
                mean, rstd = combine_tile_statistics(
                    sums, squares, epsilon, K, X_TILES, X_TILES_PAD, NORM
                )
            if NORM == 1:
                accumulator -= mean[:, None] * column_sum[None, :]
            accumulator = rstd[:, None] * accumulator
        accumulator += shift[None, :]
        if GATED:
            made = gated(accumulator, ACTIVATION, BLOCK_M, BLOCK_N)
        else:
            made = activated(accumulator, ACTIVATION)
        if ADDED:
            made += residual.to(tl.float32)
        rounded = made.to(y.dtype.element_ty)
        tl.store(y_tile, rounded, mask=in_batch[:, None])
        if ADDED:
            # Of the values as the next kernel will read them.
            store_tile_statistics(
                y_stats, m, in_batch, tile_n, rounded.to(tl.float32), N // BLOCK_N, BLOCK_N
            )


def runs_stream(x: torch.Tensor) -> bool:
    """Whether the Hopper kernel serves maps of `x`: half precision on sm_90."""
    return x.dtype != torch.float32 and is_hopper(x)


def fused_linear(
    x: torch.Tensor,
    linear: FoldedLinear,
    y: torch.Tensor,
    tile: LinearTile,
    workspace: SplitWorkspace,
    *,
    epilogue: Epilogue = PLAIN,
    x_stats: torch.Tensor | None = None,
    y_stats: torch.Tensor | None = None,
) -> None:
    """Write epilogue(norm(x) W^T + b) to y.

    Parameters
    ----------
    x
        [rows, K], contiguous.
    linear
        Normalises x first if it has a norm. Weights of eight bits with several scales a row are for
        the plain kernel alone (`LinearTile.in_fp8`).
    y
        [rows, N], contiguous; gated [rows, N / 2].
    tile
        Must divide N and K. A tile of one row is the matrix-vector kernel's, which neither takes
        nor leaves statistics. Where the Hopper kernel cannot serve, its tile is made `portable`.
    workspace
        Used by the plain kernel where `tile.split_k` is above 1.
    epilogue
        What follows the product; a residual only behind a plain one.
    x_stats
        float32 [rows, 2, T], statistics of x in T tiles; None to compute them from x, which is
        meant for at most 16 rows a tile. A library's tile always computes its own.
    y_stats
        float32 [rows, 2, N / block_n] of the tile that serves, written with `RESIDUAL`. Only a
        library's tile does without them: None where nobody reads them.

    Raises
    ------
    KernelArgumentError
        If the tile that serves does not divide N and K, if K is split and the workspace too small,
        if `y_stats` are of other tiles, or missing with `RESIDUAL`, if a residual is to follow
        an activation or a gate, or if weights of eight bits are cut otherwise than `in_fp8` has it.
    """
    if epilogue.is_added and epilogue != RESIDUAL:
        raise KernelArgumentError(
            "a residual must follow a plain product, not one of an activation"
        )
    if linear.scales is not None:
        _check_fp8(linear, tile)
    if tile.library:
        launch_library(x, linear, y, epilogue, y_stats)
        return
    if tile.block_m == 1:
        launch_rows(x, linear, y, tile, epilogue)
        return
    # Rows that are halved for weights of eight bits are normed before.
    has_statistics = not linear.norm or x_stats is not None or linear.scales is not None
    if tile.tma and not (has_statistics and runs_stream(x)):
        tile = tile.portable()
    _check(linear, tile, epilogue, y_stats)
    if tile.tma:
        from kernels.linear.hopper.projections import launch_linear_stream

        launch_linear_stream(
            x,
            linear,
            y,
            tile,
            epilogue=epilogue,
            x_stats=x_stats,
            y_stats=y_stats,
        )
        return
    workspace.require(len(x), linear.out_features, tile)
    rows, in_features = x.shape
    x_tiles, x_tiles_pad = 0, 1
    if linear.norm and x_stats is None:
        x_tiles_pad = padded(in_features)
    elif linear.norm and x_stats is not None:
        x_tiles = x_stats.shape[2]
        x_tiles_pad = padded(x_tiles, 1)
    grid = (
        linear.out_features // tile.block_n,
        -(-rows // tile.block_m),
        tile.split_k,
    )
    linear_tiles[grid](
        x,
        linear.weight,
        linear.bias,
        linear.bias if linear.column_sums is None else linear.column_sums,
        linear.bias if x_stats is None else x_stats,
        y,
        linear.bias if y_stats is None else y_stats,
        workspace.partials,
        workspace.arrivals,
        rows,
        linear.epsilon,
        linear.scales,
        linear.gain,
        N=linear.out_features,
        K=in_features,
        SCALED=linear.scaled_columns,
        NORM=linear.norm,
        X_TILES=x_tiles,
        X_TILES_PAD=x_tiles_pad,
        **epilogue.constants(),
        EVEN=rows % tile.block_m == 0,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        SPLIT_K=tile.split_k,
        STAGES=tile.stages,
        PREFETCH=tile.prefetch,
        num_warps=tile.warps,
        **launch_options(launches_early(x)),
    )


def _check_fp8(linear: FoldedLinear, tile: LinearTile) -> None:
    """Refuse tiles that no kernel has for such weights, or whose chunks would share scales."""
    columns = linear.scaled_columns
    if tile.library or (tile.tma and not linear.has_row_scales):
        raise KernelArgumentError(
            "tile must be a plain kernel's for weights of eight bits, or the Hopper kernel's where "
            f"each of their rows has one scale, but is {tile}"
        )
    if not tile.tma and tile.block_m > 1 and columns % tile.block_k:
        raise KernelArgumentError(
            f"tile must take at most the {columns} columns at a time that share a scale, but takes "
            f"{tile.block_k}"
        )


def _check(
    linear: FoldedLinear, tile: LinearTile, epilogue: Epilogue, y_stats: torch.Tensor | None
) -> None:
    """Refuse tiles that leave part of y unwritten, and missing or misshapen statistics."""
    tiles, rest = divmod(linear.out_features, tile.block_n)
    if rest or linear.in_features % (tile.split_k * tile.block_k):
        raise KernelArgumentError(
            f"tile must divide a weight of {linear.out_features} features by {linear.in_features}, "
            f"but makes {tile.block_n} features of {tile.split_k} x {tile.block_k} at a time"
        )
    if epilogue.is_added and y_stats is None:
        raise KernelArgumentError("y_stats must be given with RESIDUAL: the kernel writes them")
    if y_stats is not None and y_stats.shape[2] != tiles:
        raise KernelArgumentError(
            f"y_stats must have statistics of {tiles} tiles of {tile.block_n} features a row, "
            f"but has {y_stats.shape[2]}"
        )
