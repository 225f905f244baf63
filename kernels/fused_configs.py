"""How the kernels of a fused decode step are cut into tiles, by batch size.

Chosen by measurement inside the whole captured step, never alone: a kernel's best tile depends on
what its neighbours leave in L2 and on how they overlap. Nothing is tried at run time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LinearTile:
    """One linear map: a program makes `block_m` rows by `block_n` columns, `block_k` at a time.

    With a `block_m` of 1 it holds whole rows of weights and uses no tensor cores; `block_k` and
    what follows it but `warps` then mean nothing.

    Attributes
    ----------
    split_k
        Programs that share a tile, each with its part of K.
    stages
        Depth of the load pipeline.
    prefetch
        Ask L2 for the weights before waiting for the previous kernel.
    tma
        Use the Hopper kernel. That of a linear map copies whole operands to shared memory at once
        and ignores `stages`; both ignore `warps` and `prefetch`.
    """

    block_m: int
    block_n: int
    block_k: int
    split_k: int = 1
    stages: int = 3
    warps: int = 4
    prefetch: bool = True
    tma: bool = False

    def portable(self) -> LinearTile:
        """The same tile in less than 64 KB of shared memory and without the Hopper kernel."""
        return replace(
            self,
            block_n=min(self.block_n, 128 if self.block_m < 64 else 64),
            block_k=min(self.block_k, 64),
            stages=min(self.stages, 3 if self.block_m < 128 else 2),
            tma=False,
        )

    def fitted(self, out_features: int, in_features: int) -> LinearTile:
        """The same tile, cut down until it divides a weight [out_features, in_features]."""
        block_n = _largest_divisor(self.block_n, out_features)
        split_k = self.split_k if in_features % (64 * self.split_k) == 0 else 1
        block_k = _largest_divisor(self.block_k, in_features // split_k)
        return replace(self, block_n=block_n, block_k=block_k, split_k=split_k)


@dataclass(frozen=True, slots=True)
class StepTiles:
    """Tiles of the five linear maps of a step."""

    attention_in: LinearTile
    attention_out: LinearTile
    feed_forward_in: LinearTile
    feed_forward_out: LinearTile
    head: LinearTile

    @property
    def keeps_statistics(self) -> bool:
        """Whether the residual's producers leave statistics, rather than consumers making them."""
        return self.attention_out.block_m > 1 and self.feed_forward_out.block_m > 1

    def portable(self) -> StepTiles:
        """The same tiles for devices other than Hopper's, on which none were measured."""
        return StepTiles(
            self.attention_in.portable(),
            self.attention_out.portable(),
            self.feed_forward_in.portable(),
            self.feed_forward_out.portable(),
            self.head.portable(),
        )

    def fitted(self, hidden_size: int, inner_size: int, head_rows: int) -> StepTiles:
        """The same tiles, cut down for a model of other sizes."""
        return StepTiles(
            self.attention_in.fitted(3 * hidden_size, hidden_size),
            self.attention_out.fitted(hidden_size, hidden_size),
            self.feed_forward_in.fitted(inner_size, hidden_size),
            self.feed_forward_out.fitted(hidden_size, inner_size),
            self.head.fitted(head_rows, hidden_size),
        )


def _tma(block_m: int, block_n: int, block_k: int, split_k: int = 1) -> LinearTile:
    return LinearTile(block_m, block_n, block_k, split_k=split_k, tma=True)


# Most rows -> tiles. GPT-2 124M in fp16 on one H200; each figure is the median time of the whole
# captured step, with `rows` sequences of `context` tokens, while one tile was varied at a time.
#
#   rows  context   ms     with plain Triton only   one kernel an operation
#      1      256   0.21                                            0.59
#      2      256   0.248
#      8      256   0.284
#     32      256   0.318
#     64      257   0.356                  0.399                  0.76-0.78
#    128       66   0.39
#    192      256   0.79
#    256      257   0.937-0.947                                1.28-1.32
#
# Tiles of the neighbouring entry were tried at 2, 4, 16, 32, 48, 80, 96, 112, 144 and 192 rows, and
# an entry reaches as far as it was the faster. Two runs of one step differ by up to 1 %.
_TABLE: tuple[tuple[int, StepTiles], ...] = (
    (
        2,
        StepTiles(
            attention_in=LinearTile(1, 8, 16),
            attention_out=LinearTile(1, 8, 16),
            feed_forward_in=LinearTile(1, 8, 16),
            feed_forward_out=LinearTile(1, 2, 16),
            head=LinearTile(16, 128, 128, stages=4, prefetch=False),
        ),
    ),
    (
        16,
        StepTiles(
            attention_in=_tma(64, 16, 256),
            attention_out=LinearTile(16, 16, 256),
            feed_forward_in=LinearTile(16, 32, 128, stages=5),
            feed_forward_out=LinearTile(16, 32, 128, split_k=4, stages=5),
            head=LinearTile(16, 128, 128, stages=4, prefetch=False),
        ),
    ),
    (
        64,
        StepTiles(
            attention_in=_tma(64, 32, 256),
            attention_out=_tma(64, 32, 256),
            feed_forward_in=_tma(64, 32, 128),
            feed_forward_out=_tma(64, 32, 256, split_k=3),
            head=LinearTile(64, 128, 128, tma=True),
        ),
    ),
    (
        128,
        StepTiles(
            attention_in=_tma(64, 64, 256),
            attention_out=_tma(64, 32, 256),
            feed_forward_in=_tma(64, 64, 256),
            feed_forward_out=LinearTile(64, 32, 128, split_k=2, stages=5),
            head=LinearTile(128, 128, 64, prefetch=False),
        ),
    ),
    (
        1 << 30,
        StepTiles(
            attention_in=LinearTile(64, 64, 64, stages=5),
            attention_out=_tma(64, 32, 128),
            feed_forward_in=LinearTile(128, 64, 64, stages=6, warps=8),
            feed_forward_out=LinearTile(64, 64, 128, split_k=2, stages=4),
            head=LinearTile(128, 128, 64, prefetch=False),
        ),
    ),
)


def step_tiles(rows: int) -> StepTiles:
    """The tiles of a step of `rows` rows."""
    return next(tiles for most, tiles in _TABLE if rows <= most)


def _largest_divisor(block: int, size: int) -> int:
    while size % block:
        block //= 2
    return block
