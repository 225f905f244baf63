"""A table of configurations as the TOML that the kernels read: a line a choice, made for diffs."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from kernels.tiles.table import (
    ROLES,
    Bucket,
    ConfigTable,
    LinearTile,
    Measured,
    Ring,
)

_HEADER = """\
# How the kernels of a fused decode step are cut, and the measurement that chose it.
# Written by `nox -s tune`; read by kernels/tiles/table.py, which says what each field means.
#
# step_us is the time of the whole captured step at `rows` sequences of `context` tokens, GPT-2 124M
# in half precision: of a bucket as it stood when its last choice was made, of a choice beside
# next_us, the best other one tried in its place. A choice without figures was made without `tune`,
# one tile varied at a time in the same way.
"""


def table_text(table: ConfigTable) -> str:
    """The table as TOML; `read_table` gives it back."""
    parts = [_HEADER, f"origin = {_value(table.origin)}\n"]
    parts += [_bucket_text(bucket) for bucket in table.buckets]
    parts += [_ring_text(ring) for ring in table.rings]
    return "\n".join(parts)


def _bucket_text(bucket: Bucket) -> str:
    lines = ["[[buckets]]"]
    if bucket.most_rows != math.inf:
        lines.append(f"most_rows = {bucket.most_rows:.0f}")
    lines += [
        f"rows = {bucket.rows}",
        f"context = {bucket.context}",
        f"step_us = {_value(bucket.step_us)}",
    ]
    for role in ROLES:
        figures = _figures(bucket.measured.get(role))
        lines.append(f"{role} = {_inline(_changed(getattr(bucket.tiles, role)) | figures)}")
    return "\n".join(lines) + "\n"


def _ring_text(ring: Ring) -> str:
    lines = [
        "[[rings]]",
        f"most_dim = {ring.most_dim}",
        f"block_n = {ring.tile.block_n}",
        f"tail = {ring.tile.tail}",
        f"split = {ring.tile.split}",
        f"depths = {_depths(ring.tile.depths)}",
        *([f"cluster_depths = {_depths(shared)}"] if (shared := ring.tile.cluster_depths) else []),
        f"alone = {ring.tile.alone}",
        f"even = {str(ring.tile.even).lower()}",
        *([f"late_append = {late}"] if (late := ring.tile.late_append) != math.inf else []),
    ]
    lines += [
        f'measured."{point}" = {_inline(_figures(figure))}'
        for point, figure in ring.measured.items()
    ]
    return "\n".join(lines) + "\n"


def _depths(depths: tuple[tuple[float, int], ...]) -> str:
    bands = [
        _inline(({} if most == math.inf else {"most_programs": most}) | {"stages": stages})
        for most, stages in depths
    ]
    return f"[{', '.join(bands)}]"


def _changed(tile: LinearTile) -> dict[str, Any]:
    """The fields of a tile that have no default or differ from it."""
    least = LinearTile(0, 0, 0)
    return {
        field.name: getattr(tile, field.name)
        for field in fields(tile)
        if getattr(tile, field.name) != getattr(least, field.name)
    }


def _figures(measured: Measured | None) -> dict[str, float]:
    if measured is None:
        return {}
    figures = {"step_us": measured.step_us}
    return figures if measured.next_us is None else figures | {"next_us": measured.next_us}


def _inline(values: dict[str, Any]) -> str:
    return "{ " + ", ".join(f"{name} = {_value(value)}" for name, value in values.items()) + " }"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(round(value, 2))
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)
