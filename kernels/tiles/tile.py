"""How a kernel of a fused decode step is cut, and what cuts a model of some sizes can have."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from kernels.hopper.limits import CLUSTER_SIZES, MOST_SHARED_BYTES, MULTIPROCESSORS

ROLES = ("attention_in", "attention_out", "feed_forward_in", "feed_forward_out", "head")
"""The linear maps of a step, in the order in which a layer needs them."""
LEAST_PLAIN_ROWS = 16
"""Rows of the smallest tile that plain Triton multiplies."""
LEAST_HOPPER_ROWS = 8
"""Rows of the smallest tile, and of the smallest share of one, that the Hopper kernel makes."""
LEFT_OPERAND_ROWS = 64
"""Rows of the left operand of Hopper's tensor cores: features of a map, sequences of the head."""
HEAD_ROWS = (64, 128)
"""Rows of a tile of the Hopper head, a warp for every 16: with more warps, each has too few
registers."""
HEAD_PART = 128
"""Tokens that the Hopper head multiplies at once: a tile of it is one or more such parts."""
MOST_HEAD_PARTS = 3
"""More would leave a thread no registers beside their logits."""
LEAST_STAGES = 2
LEAST_CHUNK = 256
"""Columns of the smallest chunk of a row; tiles of one row and fewer columns hold whole rows."""
FP8_GROUP = 128
"""Columns of a weight of eight bits that share a scale, where not all of a row do."""
_MOST_FP8_ROWS = 64
WIDE_CHUNKS = 4
"""Chunks that the Hopper kernel multiplies in turn where a tile in eight bits has more than 64
features; of another number it makes a slow tile."""
_MOST_NARROW = 1 << 24
"""Weights of a map beyond which wide tiles of rows in eight bits are the faster."""
_MOST_FP8_COLUMNS = 4096
"""Of a row of eight bits that a program holds whole."""
_MOST_DOUBLED = 8
# Beside operands: barriers, and what the compiler reduces and exchanges in.
_SMALL_BYTES = 1024


@dataclass(frozen=True, slots=True)
class StepShapes:
    """Rows and columns, (N, K), of the weights of a step's five linear maps."""

    attention_in: tuple[int, int]
    attention_out: tuple[int, int]
    feed_forward_in: tuple[int, int]
    feed_forward_out: tuple[int, int]
    head: tuple[int, int]

    @property
    def most_weights(self) -> int:
        """Weights of the largest map of a block."""
        maps: list[tuple[int, int]] = [getattr(self, role) for role in ROLES[:-1]]
        return max(rows * columns for rows, columns in maps)


@dataclass(frozen=True, slots=True)
class LinearTile:
    """One linear map: a program makes `block_m` rows by `block_n` columns, `block_k` at a time.

    With a `block_m` of 1 it uses no tensor cores, and holds whole rows of weights; of the other
    fields only `block_n` and `warps` then mean anything. But where `block_k` is 256 or more and
    divides K it holds so much of a row at a time, with `stages` chunks on their way.

    Attributes
    ----------
    split_k
        Programs that share a tile, each with its part of K. Those of the Hopper kernel are a
        cluster, and each finishes its share of the tile's rows.
    stages
        Depth of the load pipeline: chunks of `block_k` that are on their way at once.
    prefetch
        Ask L2 for the weights before waiting for the previous kernel.
    tma
        Use the Hopper kernel, which ignores `warps` and `prefetch`.
    library
        Leave the product to cuBLAS. Of the other fields only `block_n` then means anything: columns
        of the tiles that statistics are of. Not for the head.
    """

    block_m: int
    block_n: int
    block_k: int
    split_k: int = 1
    stages: int = 3
    warps: int = 4
    prefetch: bool = True
    tma: bool = False
    library: bool = False

    @property
    def is_possible(self) -> bool:
        """Whether the Hopper kernel can make such tiles; the plain kernel can make all of them."""
        return not self.tma or (
            self.split_k in CLUSTER_SIZES
            and self.block_m // self.split_k >= LEAST_HOPPER_ROWS
            and self.block_n % LEFT_OPERAND_ROWS == 0
        )

    def chunk(self, in_features: int) -> int | None:
        """Of a tile of one row: columns of weights that it holds at a time; None for whole rows.

        Chunks that do not divide a row would read beyond it.
        """
        in_chunks = LEAST_CHUNK <= self.block_k < in_features and in_features % self.block_k == 0
        return self.block_k if in_chunks else None

    def portable(self) -> LinearTile:
        """The same tile in less than 64 KB of shared memory and without the Hopper kernel."""
        return replace(
            self,
            block_m=max(self.block_m, LEAST_PLAIN_ROWS) if self.tma else self.block_m,
            block_n=min(self.block_n, 128 if self.block_m < 64 else 64),
            block_k=min(self.block_k, 64),
            stages=min(self.stages, 3 if self.block_m < 128 else 2),
            tma=False,
        )

    def in_fp8(
        self,
        rows: int,
        out_features: int,
        in_features: int,
        *,
        streams: bool,
        rounds_rows: bool,
    ) -> LinearTile:
        """The tile of a map of eight bits for so many rows, measured with the maps of an 8B model.

        One of a single row stays one. `streams`: of the Hopper kernel. Of the plain one a program
        takes as many columns as share a scale at most, and as many features as a warpgroup's tensor
        cores. Where it `rounds_rows`, which it streams, too, one of a large map has twice as many.
        """
        if self.block_m == 1 and not self.library:
            if in_features <= _MOST_FP8_COLUMNS:
                return LinearTile(1, 8, 16)
            return LinearTile(1, 16, 1024, stages=4)
        least = LEAST_HOPPER_ROWS if streams else LEAST_PLAIN_ROWS
        block_m = min(max(1 << (rows - 1).bit_length(), least), _MOST_FP8_ROWS)
        if rounds_rows and block_m == _MOST_FP8_ROWS:
            return _tile_of_rounded_rows(rows, out_features, in_features)
        if not streams:
            return LinearTile(block_m, 64, FP8_GROUP, split_k=self.split_k, stages=4)
        tile = LinearTile(block_m, 64, 256, stages=6 if block_m <= 16 else 4, tma=True)
        if block_m < _MOST_FP8_ROWS:
            return tile
        # Where two programs share a multiprocessor each has half of its memory.
        are_many = 2 * (out_features // tile.block_n) > MULTIPROCESSORS
        return replace(tile, split_k=2, stages=2 if are_many else 4)

    def fitted(self, out_features: int, in_features: int) -> LinearTile:
        """The same tile, cut down until it divides a weight [out_features, in_features].

        A tile with too few columns for the Hopper kernel becomes the plain kernel's.
        """
        block_n = _largest_divisor(self.block_n, out_features)
        if self.tma and block_n % LEFT_OPERAND_ROWS:
            return self.portable().fitted(out_features, in_features)
        split_k = self.split_k if in_features % (64 * self.split_k) == 0 else 1
        block_k = _largest_divisor(self.block_k, in_features // split_k)
        # Smaller chunks, as many bytes on their way.
        stages = self.stages * (self.block_k // block_k) if self.tma else self.stages
        return replace(self, block_n=block_n, block_k=block_k, split_k=split_k, stages=stages)

    def fitted_head(self, head_rows: int, hidden_size: int) -> LinearTile:
        """As `fitted`, for the LM head, whose Hopper kernel makes tiles of one or more parts.

        The tile is as wide as divides the head. A tile that the Hopper kernel cannot make, or that
        does not fit into shared memory, becomes the plain kernel's.
        """
        if not self.tma:
            return self.fitted(head_rows, hidden_size)
        most = min(self.block_n // HEAD_PART, MOST_HEAD_PARTS)
        widths = (HEAD_PART * parts for parts in range(most, 0, -1))
        width = next((width for width in widths if head_rows % width == 0), None)
        if width and self.block_m in HEAD_ROWS:
            tile = replace(self, block_n=width).fitted(head_rows, hidden_size)
            chunk_bytes = 2 * (tile.block_m + tile.block_n) * tile.block_k
            room = (MOST_SHARED_BYTES - _SMALL_BYTES) // chunk_bytes
            stages = min(tile.stages, room, hidden_size // tile.block_k)
            if stages >= LEAST_STAGES:
                return replace(tile, stages=stages)
        return self.portable().fitted(head_rows, hidden_size)


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

    def in_fp8(
        self,
        roles: Collection[str],
        rows: int,
        shapes: StepShapes,
        *,
        streams: bool,
        rounds_rows: bool = False,
    ) -> StepTiles:
        """The same tiles, those of these maps for weights of eight bits and so many rows.

        `streams`: by the Hopper kernel, which takes weights with a scale for each row.
        `rounds_rows`: of rows in eight bits.
        """
        if not roles:
            return self
        cut: dict[str, LinearTile] = {}
        for role in roles:
            tile: LinearTile = getattr(self, role)
            cut[role] = tile.in_fp8(
                rows,
                *getattr(shapes, role),
                streams=streams,
                rounds_rows=rounds_rows,
            )
        return replace(self, **cut)

    def fitted(self, shapes: StepShapes) -> StepTiles:
        """The same tiles, cut down for a model of other sizes."""
        return StepTiles(
            self.attention_in.fitted(*shapes.attention_in),
            self.attention_out.fitted(*shapes.attention_out),
            self.feed_forward_in.fitted(*shapes.feed_forward_in),
            self.feed_forward_out.fitted(*shapes.feed_forward_out),
            self.head.fitted_head(*shapes.head),
        )


@dataclass(frozen=True, slots=True)
class RingTile:
    """How the Hopper attention kernel streams a context.

    Attributes
    ----------
    block_n
        Tokens of one stage of the ring.
    tail
        Tokens of the pieces in which a tile is copied that the context ends in; `block_n` where
        pieces of a stage do not stand one after another in shared memory.
    split
        Tokens of one split, or more in long tables (`kernels.tiles.launch.split_tokens`). Short
        ones cost nothing in a full batch, and let more programs share a single context.
    depths
        Stages of the ring by programs for each multiprocessor: (most programs, stages), ascending,
        the last for any number. No result depends on them.
    cluster_depths
        The same for launches in clusters that share the splits of a head; empty: as `depths` has
        it. All programs of a cluster must find room at once, so they may take less.
    alone
        Stages where the launch begins only when the kernel before it has ended, as attention over
        cached tokens does: a deep ring has no time to fill meanwhile, and takes the room of other
        programs.
    even
        Whether a launch in which each program walks a whole context leaves shared memory unused, so
        that no multiprocessor takes more programs than its share: the early ones would crowd where
        the kernel before has none.
    late_append
        Programs for each multiprocessor beyond which the new token is written when its context has
        been attended to, not before. Where programs are few, their ends are waited for.
    """

    block_n: int
    tail: int
    split: int
    depths: tuple[tuple[float, int], ...]
    cluster_depths: tuple[tuple[float, int], ...] = ()
    alone: int = 2
    even: bool = False
    late_append: float = math.inf

    def stages(self, per_multiprocessor: float, *, in_clusters: bool = False) -> int:
        """Stages of the ring for so many programs on each multiprocessor."""
        depths = self.cluster_depths if in_clusters and self.cluster_depths else self.depths
        return next(stages for most, stages in depths if per_multiprocessor <= most)

    def appends_late(self, per_multiprocessor: float) -> bool:
        """Whether so many programs on each multiprocessor write their new tokens last."""
        return per_multiprocessor > self.late_append

    def in_eight_bits(self) -> RingTile:
        """The same ring for keys and values of one byte: twice the stages, of half the bytes.

        But in the fullest launches, in which more programs take the room instead. As long as a
        program has registers for their pages.
        """
        return replace(
            self, depths=_doubled(self.depths), cluster_depths=_doubled(self.cluster_depths)
        )

    def stage_bytes(self, width: int) -> int:
        """Shared memory of a stage: keys and values of so many two-byte words, and their barrier.

        The width is the head's dimension, or half of it in a cache of eight bits.
        """
        return 2 * self.block_n * width * 2 + 8


def _doubled(depths: tuple[tuple[float, int], ...]) -> tuple[tuple[float, int], ...]:
    """Twice the stages, but as many for the fullest launches."""
    return tuple(
        (most, stages if most == math.inf else max(stages, min(2 * stages, _MOST_DOUBLED)))
        for most, stages in depths
    )


def _tile_of_rounded_rows(rows: int, out_features: int, in_features: int) -> LinearTile:
    """Of more than 32 rows in eight bits, one for each."""
    block_m = 64 if rows <= 64 else 128
    wide_tiles = -(-rows // block_m) * (out_features // 128)
    split_k = 2 if 2 * wide_tiles <= MULTIPROCESSORS else 1
    block_k, stages = (256, 4) if block_m == 64 else (128, 5)
    is_large = out_features * in_features > _MOST_NARROW
    fills_all = rows > 128 or wide_tiles > MULTIPROCESSORS
    if is_large and fills_all and in_features % (WIDE_CHUNKS * block_k * split_k) == 0:
        return LinearTile(block_m, 128, block_k, split_k=split_k, stages=stages, tma=True)
    are_many = 2 * (out_features // 64) > MULTIPROCESSORS
    split_k = 1 if are_many else 2
    if block_m == 64:
        return LinearTile(64, 64, 256, split_k=split_k, stages=6, tma=True)
    if rows <= 128:
        return LinearTile(128, 64, 256, split_k=split_k, stages=4 if are_many else 3, tma=True)
    # Two programs share a multiprocessor, and each has half of its memory.
    block_k, stages = (256, 2) if are_many else (128, 3)
    return LinearTile(128, 64, block_k, split_k=split_k, stages=stages, tma=True)


def _largest_divisor(block: int, size: int) -> int:
    while size % block:
        block //= 2
    return block
