"""How the kernels of a fused decode step are cut, by batch size: the table and how it is read.

The figures are in `table.toml`, which `nox -s tune` writes: chosen by measurement inside
the whole captured step, never alone, since a kernel's best tile depends on what its neighbours
leave in L2 and on how they overlap. Nothing is tried at run time.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from kernels.hopper.limits import CLUSTER_SIZES, MOST_SHARED_BYTES

T = TypeVar("T")

TABLE_FILE = Path(__file__).with_name("table.toml")
ROLES = ("attention_in", "attention_out", "feed_forward_in", "feed_forward_out", "head")
"""The linear maps of a step, in the order in which a layer needs them."""
MOST_HEAD_DIM = 256
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
        of the tiles that statistics are of. Neither for LayerNorm nor GELU, nor for the head.
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
        Tokens of one split. Short ones cost nothing in a full batch, and let more programs share a
        single context.
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

    def stage_bytes(self, head_dim: int) -> int:
        """Shared memory of a stage: keys and values, of two bytes, and their barrier."""
        return 2 * self.block_n * head_dim * 2 + 8


@dataclass(frozen=True, slots=True)
class Measured:
    """Microseconds of the whole step with a choice, and with the best other candidate tried."""

    step_us: float
    next_us: float | None = None


@dataclass(frozen=True, slots=True)
class Bucket:
    """The tiles of steps of up to `most_rows` rows, of models of some sizes.

    Attributes
    ----------
    shapes
        Of the only steps that it serves; None for a rule.
    least_weights
        Of the largest map of a block, in steps that a rule serves. Where several rules would serve
        a step, that of the largest bound does.
    most_rows
        Infinite for the last bucket.
    rows, context
        What its figures were measured at: so many sequences of so many tokens.
    step_us
        Microseconds of that step; None where none was measured.
    tiles
        One tile a role.
    measured
        Figures by role, of those roles that were tuned.
    """

    most_rows: float
    rows: int
    context: int
    step_us: float | None
    tiles: StepTiles
    measured: Mapping[str, Measured]
    shapes: StepShapes | None = None
    least_weights: int = 0

    @property
    def group(self) -> tuple[StepShapes | None, int]:
        """What the buckets have alike that serve the same steps but for their rows."""
        return self.shapes, self.least_weights


@dataclass(frozen=True, slots=True)
class Ring:
    """The ring for heads of up to `most_dim`, of which up to `most_group` share keys and values.

    `measured` has figures by point, `B=rows`, once tuned.
    """

    most_dim: int
    tile: RingTile
    measured: Mapping[str, Measured]
    most_group: float = math.inf

    @property
    def most(self) -> tuple[int, float]:
        """The largest head and group that it serves."""
        return self.most_dim, self.most_group


@dataclass(frozen=True, slots=True)
class ConfigTable:
    """Everything about a fused decode step that was chosen by measurement, and on which machine."""

    origin: str
    buckets: tuple[Bucket, ...]
    rings: tuple[Ring, ...]

    def places(self, shapes: StepShapes | None = None) -> list[int]:
        """The numbers of the buckets for steps of such maps, by rows; None: of the smallest."""
        groups = [bucket.group for bucket in self.buckets]
        group = shapes, 0
        if group not in groups or shapes is None:
            weights = 0 if shapes is None else shapes.most_weights
            rules = (least for known, least in groups if known is None and least <= weights)
            group = None, max(rules)
        return [place for place, known in enumerate(groups) if known == group]

    def place(self, rows: int, shapes: StepShapes | None = None) -> int:
        """The number of the bucket that a step of `rows` rows and such maps belongs to."""
        places = self.places(shapes)
        return next(place for place in places if rows <= self.buckets[place].most_rows)

    def tiles(self, rows: int, shapes: StepShapes | None = None) -> StepTiles:
        """The tiles of a step of `rows` rows and such maps."""
        return self.buckets[self.place(rows, shapes)].tiles

    def with_own_buckets(self, shapes: StepShapes) -> ConfigTable:
        """The same table with buckets for steps of just these maps, which begin as a rule's.

        Their tiles are cut down to the maps, and have no figures.
        """
        served = [self.buckets[place] for place in self.places(shapes)]
        if served[0].shapes is not None:
            return self
        own = (
            replace(
                bucket,
                tiles=bucket.tiles.fitted(shapes),
                step_us=None,
                measured={},
                shapes=shapes,
                least_weights=0,
            )
            for bucket in served
        )
        return replace(self, buckets=(*self.buckets, *own))

    def ring_place(self, head_dim: int, group: int = 1) -> int:
        """The number of the ring for heads of `head_dim`, of which `group` share keys and values.

        It depends on nothing else.
        """
        return next(
            place
            for place, ring in enumerate(self.rings)
            if head_dim <= ring.most_dim and group <= ring.most_group
        )

    def ring(self, head_dim: int, group: int = 1) -> RingTile:
        """That ring."""
        return self.rings[self.ring_place(head_dim, group)].tile

    def with_tile(
        self, place: int, role: str, tile: LinearTile, measured: Measured | None = None
    ) -> ConfigTable:
        """The same table with another tile for one role of bucket number `place`.

        With figures, the bucket's step is theirs.
        """
        bucket = self.buckets[place]
        figures = dict(bucket.measured)
        step_us = bucket.step_us
        if measured is not None:
            figures[role], step_us = measured, measured.step_us
        changed = replace(
            bucket, tiles=replace(bucket.tiles, **{role: tile}), measured=figures, step_us=step_us
        )
        return replace(self, buckets=(*self.buckets[:place], changed, *self.buckets[place + 1 :]))

    def with_ring(
        self, place: int, tile: RingTile, measured: Mapping[str, Measured] | None = None
    ) -> ConfigTable:
        """The same table with another ring in entry number `place`."""
        ring = self.rings[place]
        changed = replace(ring, tile=tile, measured=measured or ring.measured)
        return replace(self, rings=(*self.rings[:place], changed, *self.rings[place + 1 :]))


def read_table(text: str) -> ConfigTable:
    """A table from TOML as `table.toml` has it.

    Raises
    ------
    ValueError
        A field is missing or unknown, entries are not in ascending order, or the last does not
        reach everything.
    """
    content = tomllib.loads(text)
    buckets = tuple(_read_bucket(entry) for entry in _taken(content, "buckets"))
    rings = tuple(_read_ring(entry) for entry in _taken(content, "rings"))
    groups = dict.fromkeys(bucket.group for bucket in buckets)
    if (None, 0) not in groups:
        raise ValueError("buckets must serve every step, some without shapes and least_weights.")
    bounds: list[tuple[str, list[Any], Any]] = [
        ("buckets", [one.most_rows for one in buckets if one.group == group], math.inf)
        for group in groups
    ]
    bounds.append(("rings", [ring.most for ring in rings], (MOST_HEAD_DIM, math.inf)))
    for what, limits, end in bounds:
        if limits != sorted(set(limits)) or limits[-1:] != [end]:
            raise ValueError(f"{what} must ascend and end at {end}; they reach {limits}.")
    return ConfigTable(_taken(content, "origin"), buckets, rings)


@cache
def committed_table() -> ConfigTable:
    """The table that comes with this package, which every step uses by default."""
    return read_table(TABLE_FILE.read_text("utf-8"))


def _read_bucket(entry: dict[str, Any]) -> Bucket:
    figures: dict[str, Measured] = {}
    tiles: dict[str, LinearTile] = {}
    for role in ROLES:
        choice = dict(_taken(entry, role))
        figure = _read_measured(choice)
        if figure is not None:
            figures[role] = figure
        tiles[role] = _made(LinearTile, choice, role)
    if tiles["head"].library:
        raise ValueError("the head cannot be the library's: its tiles leave maxima, not logits.")
    if tiles["head"].split_k != 1:
        raise ValueError("the head cannot split K: its tiles leave maxima, not sums.")
    for role, tile in tiles.items():
        if not tile.is_possible:
            raise ValueError(
                f"{role}: {tile.split_k} programs cannot share a Hopper tile of {tile.block_m} "
                f"rows by {tile.block_n} columns; programs must be one of {CLUSTER_SIZES}, with "
                f"{LEAST_HOPPER_ROWS} rows or more each, and columns a multiple of "
                f"{LEFT_OPERAND_ROWS}."
            )
    bucket = Bucket(
        most_rows=entry.pop("most_rows", math.inf),
        rows=_taken(entry, "rows"),
        context=_taken(entry, "context"),
        step_us=entry.pop("step_us", None),
        tiles=StepTiles(**tiles),
        measured=figures,
        shapes=_read_shapes(entry),
        least_weights=entry.pop("least_weights", 0),
    )
    if entry:
        raise ValueError(f"a bucket has fields that mean nothing: {', '.join(entry)}.")
    return bucket


def _read_shapes(entry: dict[str, Any]) -> StepShapes | None:
    shapes = entry.pop("shapes", None)
    if shapes is None:
        return None
    return _made(StepShapes, {role: tuple(shape) for role, shape in shapes.items()}, "shapes")


def _read_ring(entry: dict[str, Any]) -> Ring:
    most_dim, most_group = _taken(entry, "most_dim"), entry.pop("most_group", math.inf)
    figures = {
        point: Measured(**figure) for point, figure in dict(entry.pop("measured", {})).items()
    }
    depths = {"depths": _read_depths(_taken(entry, "depths"))}
    if "cluster_depths" in entry:
        depths["cluster_depths"] = _read_depths(entry.pop("cluster_depths"))
    return Ring(most_dim, _made(RingTile, entry | depths, "ring"), figures, most_group)


def _read_depths(bands: list[dict[str, Any]]) -> tuple[tuple[float, int], ...]:
    depths = tuple((band.get("most_programs", math.inf), band["stages"]) for band in bands)
    if depths[-1:] == () or depths[-1][0] != math.inf:
        raise ValueError("the last of a ring's depths must be for any number of programs.")
    return depths


def _read_measured(choice: dict[str, Any]) -> Measured | None:
    step_us, next_us = choice.pop("step_us", None), choice.pop("next_us", None)
    return None if step_us is None else Measured(step_us, next_us)


def _taken(entry: dict[str, Any], name: str) -> Any:
    if name not in entry:
        raise ValueError(f"an entry lacks {name!r}; it has {', '.join(entry)}.")
    return entry.pop(name)


def _made(kind: type[T], fields: dict[str, Any], what: str) -> T:
    try:
        return kind(**fields)
    except TypeError as error:
        raise ValueError(f"{what}: {error}.") from error


def _largest_divisor(block: int, size: int) -> int:
    while size % block:
        block //= 2
    return block
