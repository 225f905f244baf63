# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The first and the last kernel of a fused decode step: from the rows' tokens, and back to them.

`begin_step` embeds every row's last token; `finish_step` picks its next one, writes it into the
token's slot and advances the row. In between nothing but the KV cache and scratch is written.
"""

import torch
import triton
import triton.language as tl

from kernels.dependent_launch import (
    await_producers,
    launch_options,
    launches_early,
    release_consumers,
)
from kernels.tiles.launch import padded

MOST_TILES_AT_ONCE = 8192
"""Of the head, that `pick_tokens` takes without a loop: more would leave it no registers."""


@triton.jit
def embed_rows(
    last_token,
    position,
    remaining,
    token_embedding,
    position_embedding,
    x,
    x_stats,
    E: tl.constexpr,
    TILES: tl.constexpr,
    TILES_PAD: tl.constexpr,
    W: tl.constexpr,
    PDL: tl.constexpr,
):
    """One row: x [rows, E] and its statistics [rows, 2, TILES] in tiles of W columns.

    This kernel is launched without `launch_pdl`, so all that ran before is done when it starts.
    """
    row = tl.program_id(0)
    release_consumers(PDL)
    # A row that ended at the model's last position must not index beyond the embeddings.
    is_running = tl.load(remaining + row) > 0
    place = tl.where(is_running, tl.load(position + row), 0).to(tl.int64)
    token = tl.load(last_token + row).to(tl.int64)
    tile = tl.arange(0, TILES_PAD)
    column = tile[:, None] * W + tl.arange(0, W)[None, :]
    in_row = (tile < TILES)[:, None]
    embedded = tl.load(token_embedding + token * E + column, mask=in_row, other=0.0).to(tl.float32)
    if position_embedding is not None:
        embedded += tl.load(position_embedding + place * E + column, mask=in_row, other=0.0).to(
            tl.float32
        )
    rounded = embedded.to(x.dtype.element_ty)
    tl.store(x + row * E + column, rounded, mask=in_row)
    values = rounded.to(tl.float32)
    total = tl.sum(values, axis=1)
    centred = values - (total / W)[:, None]
    stats = x_stats + row * (2 * TILES) + tile
    tl.store(stats, total, mask=tile < TILES)
    tl.store(stats + TILES, tl.sum(centred * centred, axis=1), mask=tile < TILES)


@triton.jit
def _best_of(tile_max, tile_token, first, tile, TILES: tl.constexpr):
    """The best of a row's tiles `tile`, its token, and 1 if any is NaN."""
    in_row = tile < TILES
    maxima = tl.load(tile_max + first + tile, mask=in_row, other=float("-inf"))
    tokens = tl.load(tile_token + first + tile, mask=in_row, other=2147483647)
    best = tl.max(maxima, axis=0)
    token = tl.min(tl.where(maxima == best, tokens, 2147483647), axis=0)
    return best, token, tl.max((maxima != maxima).to(tl.int32), axis=0)


@triton.jit(do_not_specialize=["slot_stride"])
def pick_tokens(
    tile_max,
    tile_token,
    last_token,
    position,
    remaining,
    known_len,
    known_tail,
    slots,
    slot_stride,
    NUM_SLOTS: tl.constexpr,
    KNOWN_TAIL: tl.constexpr,
    TILES: tl.constexpr,
    TILES_PAD: tl.constexpr,
    PDL: tl.constexpr,
):
    """One row: the best of its tiles, the lowest id among equals, -1 where any logit was NaN.

    TILES_PAD of them at a time.
    """
    row = tl.program_id(0)
    release_consumers(PDL)
    tile = tl.arange(0, TILES_PAD)
    # What earlier steps left: only this kernel writes it.
    left = tl.load(remaining + row)
    place = tl.load(position + row) + 1
    known_left = tl.load(known_len + row) - place
    known = tl.load(
        known_tail + row * KNOWN_TAIL + KNOWN_TAIL - known_left,
        mask=(left > 0) & (known_left > 0),
        other=0,
    )
    await_producers(PDL)
    best, token, is_nan = _best_of(tile_max, tile_token, row * TILES, tile, TILES)
    if TILES_PAD < TILES:
        for start in tl.range(TILES_PAD, TILES, TILES_PAD):
            more, other, other_is_nan = _best_of(
                tile_max, tile_token, row * TILES, start + tile, TILES
            )
            # Of equals the lower id, which comes first.
            token = tl.where(more > best, other, token)
            best = tl.maximum(best, more)
            is_nan = tl.maximum(is_nan, other_is_nan)
    has_nan = is_nan > 0
    token = tl.where(has_nan, -1, token)
    if left > 0:
        tl.store(slots + place % NUM_SLOTS * slot_stride + row, token)
        # A row whose logits are not numbers goes on with any token that exists, until the host
        # sees the -1 and ends it.
        is_known = known_left > 0
        tl.store(last_token + row, tl.where(is_known, known, tl.maximum(token, 0)))
        tl.store(position + row, place)
        tl.store(remaining + row, tl.where(is_known, left, left - 1))


def begin_step(
    last_token: torch.Tensor,
    position: torch.Tensor,
    remaining: torch.Tensor,
    token_embedding: torch.Tensor,
    position_embedding: torch.Tensor | None,
    x: torch.Tensor,
    x_stats: torch.Tensor,
) -> None:
    """Embed the rows' last tokens.

    Parameters
    ----------
    last_token, position, remaining
        int32 [rows] or longer; a row runs while `remaining` is above 0. Others are embedded at
        position 0.
    token_embedding, position_embedding
        [V, E] and [P, E], contiguous, of one dtype; no positions are added where there are none.
    x
        [rows, E], contiguous, written.
    x_stats
        float32 [rows, 2, T], written; E / T is a power of two.
    """
    rows, embed = x.shape
    tiles = x_stats.shape[2]
    # The launch itself is not dependent; what follows may be.
    embed_rows[(rows,)](
        last_token,
        position,
        remaining,
        token_embedding,
        position_embedding,
        x,
        x_stats,
        E=embed,
        TILES=tiles,
        TILES_PAD=padded(tiles, 1),
        W=embed // tiles,
        PDL=launches_early(x),
        num_warps=4,
    )


def finish_step(
    tile_max: torch.Tensor,
    tile_token: torch.Tensor,
    last_token: torch.Tensor,
    position: torch.Tensor,
    remaining: torch.Tensor,
    known_len: torch.Tensor,
    known_tail: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Pick each running row's token, write it into its slot, advance the row.

    Parameters
    ----------
    tile_max, tile_token
        float32 and int32 [rows, T], from `kernels.linear.head.best_of_tiles`.
    last_token, position, remaining
        int32 [rows] or longer; changed where `remaining` is above 0.
    known_len, known_tail
        int32 [rows] or longer, and [rows or longer, K]: a row whose next position is below
        `known_len`, by at most K, goes on with that token of its tail, which ends with the last
        known one, instead of the one picked, and keeps its budget.
    slots
        int32 [S, R]: the token at position p of a row goes into slot p modulo S.
    """
    rows, tiles = tile_max.shape
    at_once = padded(tiles, 1)
    if at_once > MOST_TILES_AT_ONCE:
        at_once = MOST_TILES_AT_ONCE // 2
    pick_tokens[(rows,)](
        tile_max,
        tile_token,
        last_token,
        position,
        remaining,
        known_len,
        known_tail,
        slots,
        slots.stride(0),
        NUM_SLOTS=slots.shape[0],
        KNOWN_TAIL=known_tail.shape[1],
        TILES=tiles,
        TILES_PAD=at_once,
        num_warps=4,
        **launch_options(launches_early(tile_max)),
    )
