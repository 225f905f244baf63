"""The tables and the drawing of `peers`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from rich.console import Console

from asv_bench.output.table import Cell, Column, Table, digits, percent


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f}"


SPEED = (
    Column("workload", "workload", kind="name"),
    Column("engine", "engine", kind="name"),
    Column("step_ms", "step", "ms", digits(3)),
    Column("times", "times", "kvtrail's", digits(2)),
    Column("tokens_per_s", "tokens/s", show=digits(0)),
    Column("ttft_ms", "TTFT", "ms", digits(1)),
    Column("tpot_ms", "TPOT", "ms", digits(3)),
    Column("fraction_of_floor", "of floor", show=percent(0)),
)
TOKENS = (
    "Likeliest in fp64: the share of generated tokens that a model in double precision finds the "
    "likeliest after the very tokens before them, and the largest gap in score to its own choice. "
    "In half precision close scores go either way, and engines part from there on."
)
REST = (
    Column("workload", "workload", kind="name"),
    Column("engine", "engine", kind="name"),
    Column("startup_s", "start-up", "s", digits(1)),
    Column("peak_gpu_bytes", "GPU", "GiB", _gib),
    Column("peak_rss_bytes", "host", "GiB", _gib),
    Column("tokens", "likeliest in fp64", kind="text"),
    Column("settings", "settings", kind="text"),
)
CAPTION = (
    "A step is wall time over tokens of a sequence, prefill and host included: the median over "
    "lives, and beside it their range; of a single life, over its windows. Times kvtrail's: of the "
    "same round; its interval is that of Wilcoxon's test, or the whole range where there are too "
    "few rounds for 95 %. TTFT: all requests at once, one token each. Of floor: the bytes that a "
    "step must read, at the read bandwidth of this GPU."
)


def speed_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """How fast each engine is."""
    cells = []
    for row in rows:
        (low, high), times = row["step_ms_range"], row["times"]
        step_ms = Cell(row["step_ms"], note=f"{low:.3f}-{high:.3f}" if low < high else "")
        ratio = times and Cell(times["estimate"], note=f"{times['low']:.2f}-{times['high']:.2f}")
        shown = {**row, "step_ms": step_ms, "times": ratio}
        cells.append([shown[column.key] for column in SPEED])
    return Table(SPEED, cells, title, CAPTION, notes="beside")


def rest_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What else a reader needs: memory, start-up, whether tokens are right, and settings."""
    cells = []
    for row in rows:
        facts = {**row.get("chosen", {}), **row["versions"]}
        listed = ", ".join(f"{name} {value}" for name, value in facts.items())
        likeliest, told = None, row["tokens"] or {}
        if "argmax" in told:  # Older records tell how many were kvtrail's.
            likeliest = f"{told['argmax']:.1%} of {told['tokens']}, gap {told['largest_gap']:.2g}"
        shown = {**row, "tokens": likeliest, "settings": f"{row['settings']}; {listed}"}
        cells.append([shown[column.key] for column in REST])
    return Table(REST, cells, caption=TOKENS)


def drawn(table: Table) -> str:
    """The table as an SVG document."""
    console = Console(record=True, file=StringIO(), width=160)
    for part in (table.title, table.to_rich(notes_beside=True), table.caption):
        console.print(part, highlight=False)
    # Nothing is fetched from elsewhere: the reader's own fonts do.
    return re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="peers"), flags=re.DOTALL)
