"""Every table and key of a `kvtrail.toml`, as Markdown.

It reads the types that check the file, so the page names the keys that there are.
"""

from __future__ import annotations

import ast
import inspect
import re
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from asv_bench.subjects import subject_file as tables
from asv_bench.subjects.metrics import CheckTable, MetricTable
from asv_bench.subjects.presets import PRESETS

TABLES = (
    tables.SubjectTable,
    MetricTable,
    CheckTable,
    tables.ServerTable,
    tables.ClientTable,
    tables.AxisTable,
    tables.LabelsTable,
    tables.TraceTable,
)
_NAMES: dict[Any, str] = {
    str: "string",
    float: "number",
    int: "whole number",
    bool: "true or false",
}


def markdown() -> str:
    """A section and a table for each table of the file."""
    return "\n".join(map(_section, TABLES))


def presets_markdown() -> str:
    """A table of the metrics of each preset, and of what it finds in a file of benchmarks."""
    rows = ["| preset | metric | place in the JSON | unit | better |"]
    rows.append("| --- | --- | --- | --- | --- |")
    for preset, known in PRESETS.items():
        for name, place in known.metrics.items():
            row = f"`{name}` | `{place.path}` | {place.unit} | {place.better}"
            rows.append(f"| `{preset}` | {row} |")
        for layout in known.layouts:
            name = "".join(f"{before}`{path}`" for before, path in layout.name.items())
            kind = f" where `{layout.only[0]}` is {layout.only[1]}" if layout.only[0] else ""
            each = f"each of `{layout.each}`" if layout.each else "each object"
            unit = f"`{layout.unit_at}`" if layout.unit_at else layout.unit
            places = " or ".join(f"`{path}`" for path in layout.values)
            row = f"{name} of {each}{kind} | {places} | {unit} | {layout.better}"
            rows.append(f"| `{preset}` | {row} |")
    return "\n".join(rows)


def meanings(table: type[Struct]) -> dict[str, str]:
    """What stands below each key of a table, in one line."""
    found: dict[str, str] = {}
    # Tables may have keys in common.
    for kind in [one for one in table.__mro__[::-1] if issubclass(one, Struct)][1:]:
        (of_table,) = ast.parse(inspect.getsource(kind)).body
        for key, said in pairwise(getattr(of_table, "body", ())):
            match key, said:
                case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    found[name] = " ".join(text.split())
    return found


def _section(table: type[Struct]) -> str:
    said = " ".join((table.__doc__ or "").split())
    title, sentence = re.fullmatch(r"`(.+?)`: (.+)", said).groups()  # type: ignore[union-attr]
    rows = ["| key | value | without it | meaning |", "| --- | --- | --- | --- |"]
    meaning, hints = meanings(table), get_type_hints(table)
    for field in fields(table):
        value = _type_name(hints[field.name])
        rows.append(f"| `{field.name}` | {value} | {_default(field)} | {meaning[field.name]} |")
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
    if isinstance(field.default, bool):
        return f"`{field.default}`".lower()
    return f'`"{field.default}"`' if isinstance(field.default, str) else f"`{field.default:g}`"
