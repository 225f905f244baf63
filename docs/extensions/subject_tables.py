"""Every table and key of a `kvtrail.toml`, as Markdown.

It reads the types that check the file, so the page names the keys that there are.
"""

from __future__ import annotations

import re
from typing import Any, Literal, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from asv_bench.subjects import subject_file as tables

TABLES = (
    tables.SubjectTable,
    tables.MetricTable,
    tables.ServerTable,
    tables.ClientTable,
    tables.AxisTable,
    tables.TraceTable,
)
_NAMES: dict[Any, str] = {str: "string", float: "number", int: "whole number", dict: "table"}


def markdown() -> str:
    """A section and a table for each table of the file."""
    return "\n".join(map(_section, TABLES))


def presets_markdown() -> str:
    """A table of the metrics of each preset."""
    rows = ["| preset | metric | place in the client's JSON | unit | better |"]
    rows.append("| --- | --- | --- | --- | --- |")
    for preset, places in tables.PRESETS.items():
        for name, place in places.items():
            rows.append(
                f"| `{preset}` | `{name}` | `{place.path}` | {place.unit} | {place.better} |"
            )
    return "\n".join(rows)


def meanings(table: type[Struct]) -> dict[str, str]:
    """What a table's docstring says of each key, in one line."""
    found: dict[str, str] = {}
    listed = (table.__doc__ or "").partition("----------\n")[2]
    for names, text in re.findall(r"^ {4}(\w.*)\n((?: {8}.*\n|\n)+)", listed, re.MULTILINE):
        found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found


def _section(table: type[Struct]) -> str:
    first = (table.__doc__ or "").partition("\n")[0]
    title, sentence = re.fullmatch(r"`(\[.+?\])`: (.+)", first).groups()  # type: ignore[union-attr]
    rows = ["| key | value | without it | meaning |", "| --- | --- | --- | --- |"]
    said, hints = meanings(table), get_type_hints(table)
    for field in fields(table):
        value = _type_name(hints[field.name])
        rows.append(f"| `{field.name}` | {value} | {_default(field)} | {said[field.name]} |")
    return "\n".join([f"### `{title}`", "", sentence[0].upper() + sentence[1:], "", *rows, ""])


def _type_name(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(f'`"{value}"`' for value in inner)
    if origin is tuple:
        return f"array of {_type_name(inner[0])}s"
    if inner and origin is not dict:
        return " or ".join(_type_name(one) for one in inner if one is not type(None))
    return _NAMES.get(origin or kind, "table")


def _default(field: Any) -> str:
    if field.default_factory is not NODEFAULT:
        return "-"
    if field.default is NODEFAULT:
        return "required"
    if field.default in ("", (), None):
        return "-"
    return f'`"{field.default}"`' if isinstance(field.default, str) else f"`{field.default:g}`"
