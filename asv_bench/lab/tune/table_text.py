"""A table of configurations as the TOML that the kernels read: a line a choice, made for diffs."""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from typing import Any

from kernels.tiles.table import Bucket, ConfigTable, Measured, Ring
from kernels.tiles.tile import ROLES, LinearTile

_HEADER = """\
# How the kernels of a fused decode step are cut, and the measurement that chose it.
# Written by `nox -s tune`; read by kernels/tiles, which says what each field means.
#
# step_us is the time of the whole captured step at `rows` sequences of `context` tokens, GPT-2 124M
# in half precision: of a bucket as it stood when its last choice was made, of a choice beside
# next_us, the best other one tried in its place. A choice without figures was made without `tune`,
# one tile varied at a time in the same way.
#
# Buckets without least_weights serve models with maps like those of a GPT-2. With it they are rules
# for larger ones, with shapes the buckets of one model; what was not measured has no step_us.
"""


def table_text(table: ConfigTable) -> str:
    """The table as TOML; `read_table` gives it back."""
    parts = [_HEADER, f"origin = {_value(table.origin)}\n"]
    parts += [_section("buckets", _bucket(bucket)) for bucket in table.buckets]
    parts += [_section("rings", _ring(ring)) for ring in table.rings]
    return "\n".join(parts)


def _section(name: str, values: dict[str, Any]) -> str:
    lines = [f"{key} = {_value(value)}" for key, value in _given(values).items()]
    return "\n".join([f"[[{name}]]", *lines]) + "\n"


def _bucket(bucket: Bucket) -> dict[str, Any]:
    names = ("most_rows", "rows", "context", "step_us")
    sizes: dict[str, Any] = {
        "shapes": None
        if bucket.shapes is None
        else {role: list(shape) for role, shape in asdict(bucket.shapes).items()},
        "least_weights": bucket.least_weights or None,
        **{name: getattr(bucket, name) for name in names},
    }
    tiles = {
        role: _changed(getattr(bucket.tiles, role)) | _figures(bucket.measured.get(role))
        for role in ROLES
    }
    return sizes | tiles


def _ring(ring: Ring) -> dict[str, Any]:
    tile = {field.name: getattr(ring.tile, field.name) for field in fields(ring.tile)}
    for depths in ("depths", "cluster_depths"):
        tile[depths] = [{"most_programs": most, "stages": stages} for most, stages in tile[depths]]
    figures = {f'measured."{point}"': _figures(one) for point, one in ring.measured.items()}
    return {"most_dim": ring.most_dim, "most_group": ring.most_group, **tile, **figures}


def _changed(tile: LinearTile) -> dict[str, Any]:
    """The fields of a tile that have no default or differ from it."""
    least = LinearTile(0, 0, 0)
    return {
        field.name: getattr(tile, field.name)
        for field in fields(tile)
        if getattr(tile, field.name) != getattr(least, field.name)
    }


def _figures(measured: Measured | None) -> dict[str, float | None]:
    return {} if measured is None else asdict(measured)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """Those that are in the file: no bound and no list stand for none at all."""
    return {name: value for name, value in values.items() if value not in (None, math.inf, [])}


def _value(value: Any) -> str:
    if isinstance(value, dict):
        pairs = [f"{name} = {_value(one)}" for name, one in _given(value).items()]
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(round(value, 2))
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)
