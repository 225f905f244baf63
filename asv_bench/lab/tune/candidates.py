"""Candidates for a slot of the table: neighbours of the present choice, and other buckets' choices.

The search is coordinate descent: a pass goes over all slots, and the next pass starts from the
adopted choices. Candidates differ in one property, or in two that only pay together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Protocol, TypeAlias, TypeVar

from asv_bench.errors import BenchError
from kernels.hopper.limits import CLUSTER_SIZES
from kernels.tiles.table import ConfigTable, Measured
from kernels.tiles.tile import (
    HEAD_PART,
    HEAD_ROWS,
    LEAST_HOPPER_ROWS,
    LEAST_PLAIN_ROWS,
    MOST_HEAD_PARTS,
    ROLES,
    LinearTile,
    RingTile,
    StepShapes,
)

Choice: TypeAlias = LinearTile | RingTile
ChoiceT = TypeVar("ChoiceT", LinearTile, RingTile)
Timer: TypeAlias = Callable[[], float]
"""Microseconds of a step, measured again by each call."""


class Rejected(BenchError):
    """A candidate does not compile, does not fit, or computes something else."""


class Workbench(Protocol):
    """What turns a table into something that can be timed."""

    def prepare(self, table: ConfigTable, point: StepPoint) -> Timer:
        """A timer of the step cut as the table says; raises `Rejected`."""
        ...


_PLAIN = {
    "block_m": (16, 32, 64, 128),
    "block_n": (16, 32, 64, 128),
    "block_k": (32, 64, 128, 256),
    "split_k": (1, 2, 3, 4, 6),
    "stages": (2, 3, 4, 5, 6),
    "warps": (4, 8),
    "prefetch": (False, True),
}
_HOPPER = {
    "block_m": (8, 16, 32, 64, 128),
    "block_n": (64, 128, 256),
    "block_k": (64, 128, 256),
    "split_k": CLUSTER_SIZES,
    "stages": (2, 3, 4, 5, 6, 8),
}
_HOPPER_HEAD = {
    "block_m": HEAD_ROWS,
    "block_n": tuple(HEAD_PART * parts for parts in range(1, MOST_HEAD_PARTS + 1)),
    "block_k": (32, 64, 128),
    "stages": (2, 3, 4, 5, 6, 7, 8),
}
_ROWWISE = {
    "block_n": (1, 2, 4, 8, 16, 32),
    "block_k": (16, 512, 1024, 2048),
    "stages": (3, 4),
    "warps": (1, 2, 4, 8),
}
# Weights that a thread of a tile of one row holds.
_MOST_ROWWISE_WEIGHTS = 128
_MOST_ROWWISE_ROWS = 2
_RING = {"block_n": (16, 32, 64), "tail": (8, 16, 32, 64), "split": (64, 128, 256, 512)}
_RING_STAGES = (2, 3, 4, 5, 6, 8)
_LATE_APPENDS = (0.0, 4.0, 8.0, 12.0, math.inf)


@dataclass(frozen=True, slots=True)
class StepPoint:
    """A step to be timed: so many sequences of so many tokens."""

    rows: int
    context: int

    def __str__(self) -> str:
        return f"B={self.rows}, context {self.context}"


@dataclass(frozen=True, slots=True)
class TableSlot:
    """One choice of a table: a role of a bucket, or (role None) a ring, and where it shows."""

    place: int
    role: str | None
    points: tuple[StepPoint, ...]

    def __str__(self) -> str:
        if self.role is None:
            return f"ring {self.place}"
        return f"{self.role.replace('_', ' ')} at {self.points[0]}"

    def choice(self, table: ConfigTable) -> Choice:
        """What the table has here."""
        if self.role is None:
            return table.rings[self.place].tile
        tile: LinearTile = getattr(table.buckets[self.place].tiles, self.role)
        return tile

    def with_choice(
        self, table: ConfigTable, choice: Choice, measured: Mapping[str, Measured] | None = None
    ) -> ConfigTable:
        """The table with another choice here, and its figures by point."""
        if isinstance(choice, RingTile):
            return table.with_ring(self.place, choice, measured)
        figure = next(iter((measured or {}).values()), None)
        return table.with_tile(self.place, str(self.role), choice, figure)


def slots_of(
    table: ConfigTable, head_dim: int, shapes: StepShapes | None = None, group: int = 1
) -> list[TableSlot]:
    """Every slot that steps of a model with such heads and maps use; the ring comes last.

    All batches share the ring, so it is judged at the points of all their buckets.
    """
    buckets = {place: table.buckets[place] for place in table.places(shapes)}
    points = {place: StepPoint(bucket.rows, bucket.context) for place, bucket in buckets.items()}
    slots = [TableSlot(place, role, (point,)) for place, point in points.items() for role in ROLES]
    ring = table.ring_place(head_dim, group)
    return [*slots, TableSlot(ring, None, tuple(points.values()))]


def candidates(slot: TableSlot, table: ConfigTable, shapes: StepShapes) -> list[Choice]:
    """Everything to try in a slot, without what is there already and without repetition."""
    present = slot.choice(table)
    if isinstance(present, RingTile):
        return [ring for ring in dict.fromkeys(_rings(present)) if ring != present]
    role = str(slot.role)
    sizes: tuple[int, int] = getattr(shapes, role)
    tried = (*_tiles(present, role, slot.points[0].rows), *_elsewhere(slot, table))
    meant = dict.fromkeys(_meant(tile, role, sizes[1]) for tile in tried)
    present = _meant(present, role, sizes[1])
    return [tile for tile in meant if tile != present and _fits(tile, role, sizes)]


def _tiles(present: LinearTile, role: str, rows: int) -> Iterator[LinearTile]:
    if present.block_m == 1:
        for block_n, block_k, stages, warps in product(*_ROWWISE.values()):
            yield LinearTile(1, block_n, block_k, stages=stages, warps=warps)
        yield from (LinearTile(16, n, 128, stages=4) for n in (16, 32, 64))
        return
    hopper = _HOPPER_HEAD if role == "head" else _HOPPER
    ladders = hopper if present.tma else _PLAIN
    yield from _varied(present, ladders)
    if present.split_k > 1:
        for block_n, split_k in product(ladders["block_n"], ladders["split_k"]):
            yield replace(present, block_n=block_n, split_k=split_k)
    if present.tma and role == "head":
        for block_n, stages in product(ladders["block_n"], ladders["stages"]):
            yield replace(present, block_n=block_n, stages=stages)
    # The other kernel, at the same tile and at the heights and widths that it takes.
    other = replace(present, tma=not present.tma)
    least, widths = (
        (LEAST_HOPPER_ROWS, hopper["block_n"][:2])
        if other.tma
        else (LEAST_PLAIN_ROWS, (16, 32, 64))
    )
    heights = {max(least, other.block_m), max(least, min(64, 1 << (rows - 1).bit_length()))}
    for block_m, block_n in product(sorted(heights), widths):
        yield replace(other, block_m=block_m, block_n=block_n)
    if rows <= _MOST_ROWWISE_ROWS:
        yield from (LinearTile(1, n, 16) for n in (2, 4, 8, 16))


def _elsewhere(slot: TableSlot, table: ConfigTable) -> Iterator[LinearTile]:
    """What the other buckets have for the role, and the library for what it can do.

    Tiles of single rows only where they can be. Of GPT-2's maps the library lacks the norm and the
    activation.
    """
    own = table.buckets[slot.place].group
    for bucket in table.buckets:
        if bucket.group != own:
            continue
        tile: LinearTile = getattr(bucket.tiles, str(slot.role))
        if tile.block_m > 1 or slot.points[0].rows <= _MOST_ROWWISE_ROWS:
            yield tile
    if slot.role != "head" and own != (None, 0):
        yield LinearTile(64, 64, 64, library=True)


def _varied(present: ChoiceT, ladders: Mapping[str, Iterable[Any]]) -> Iterator[ChoiceT]:
    """The same with one property changed."""
    for name, values in ladders.items():
        for value in values:
            change: dict[str, Any] = {name: value}
            yield replace(present, **change)


def _fits(tile: LinearTile, role: str, sizes: tuple[int, int]) -> bool:
    if role == "head":
        return tile.split_k == 1 and tile.fitted_head(*sizes) == tile and _holds(tile, sizes[1])
    return _holds(tile, sizes[1]) and tile.is_possible and tile.fitted(*sizes) == tile


def _holds(tile: LinearTile, in_features: int) -> bool:
    """Whether the threads of a tile of one row have registers for the weights that it holds."""
    held = tile.block_n * (tile.chunk(in_features) or in_features)
    return tile.block_m > 1 or held <= _MOST_ROWWISE_WEIGHTS * 32 * tile.warps


def _meant(tile: LinearTile, role: str, in_features: int) -> LinearTile:
    """The same tile with what its kernel ignores at its default, so that equals are equal."""
    if tile.library:
        return LinearTile(64, tile.block_n, 64, library=True)
    if tile.block_m == 1:
        in_chunks = tile.chunk(in_features) is not None
        return tile if in_chunks else LinearTile(1, tile.block_n, 16, warps=tile.warps)
    if tile.tma and role == "head":
        return replace(tile, warps=4, prefetch=True)
    if tile.tma:
        chunks = max(1, in_features // tile.split_k // tile.block_k)
        return replace(tile, stages=min(tile.stages, chunks), warps=4, prefetch=True)
    return tile


def _rings(present: RingTile) -> Iterator[RingTile]:
    for ring in _varied(present, _RING):
        if ring.tail <= ring.block_n and ring.split % ring.block_n == 0:
            yield ring
    yield from _varied(present, {"late_append": _LATE_APPENDS})
    for name in ("depths", "cluster_depths"):
        depths: tuple[tuple[float, int], ...] = getattr(present, name)
        others = [
            (*depths[:band], (most, stages), *depths[band + 1 :])
            for band, (most, _) in enumerate(depths)
            for stages in _RING_STAGES
        ]
        yield from _varied(present, {name: others})
