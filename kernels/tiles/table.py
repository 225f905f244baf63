"""How the kernels of a fused decode step are cut, by batch size: the table and how it is read.

The figures are in `table.toml`, chosen by measurement inside the whole captured step, never alone,
since a kernel's best tile depends on what its neighbours leave in L2 and on how they overlap.
Nothing is tried at run time.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from kernels.hopper.limits import CLUSTER_SIZES
from kernels.tiles.tile import (
    LEAST_HOPPER_ROWS,
    LEFT_OPERAND_ROWS,
    ROLES,
    LinearTile,
    RingTile,
    StepShapes,
    StepTiles,
)

T = TypeVar("T")

TABLE_FILE = Path(__file__).with_name("table.toml")
MOST_HEAD_DIM = 256


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

    def with_tile(self, place: int, role: str, tile: LinearTile) -> ConfigTable:
        """The same table with another tile for one role of bucket number `place`."""
        bucket = self.buckets[place]
        changed = replace(bucket, tiles=replace(bucket.tiles, **{role: tile}))
        return replace(self, buckets=(*self.buckets[:place], changed, *self.buckets[place + 1 :]))


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
    """The table that every step uses by default: this package's, or $KVTRAIL_TILES."""
    return read_table(Path(os.environ.get("KVTRAIL_TILES", TABLE_FILE)).read_text("utf-8"))


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
