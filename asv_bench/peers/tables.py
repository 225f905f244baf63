"""The tables and the drawing of `peers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asv_bench.output.table import Cell, Column, Table, digits, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

GIB = 2**30
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
    Column("peak_gpu_gib", "GPU", "GiB", digits(1)),
    Column("peak_rss_gib", "host", "GiB", digits(1)),
    Column("tokens", "likeliest in fp64", kind="text"),
    Column("settings", "settings", kind="text"),
)
CAPTION = (
    "A step is wall time over tokens of a sequence, prefill and host included: the median over "
    "lives, and beside it their range; of a single life, over its windows. Times kvtrail's: of the "
    "same round; its interval is that of Wilcoxon's test, or the whole range where there are too "
    "few rounds for 95 %. TTFT: all "
    "requests at once, one token each. Of floor: the bytes that a step must read, at the read "
    "bandwidth of this GPU."
)


def speed_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """How fast each engine is."""
    return Table(SPEED, [_speed(row) for row in rows], title, CAPTION, notes="beside")


def rest_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What else a reader needs: memory, start-up, whether tokens are right, and settings."""
    cells = [
        (
            row["workload"],
            row["engine"],
            row["startup_s"],
            row["peak_gpu_bytes"] and row["peak_gpu_bytes"] / GIB,
            row["peak_rss_bytes"] and row["peak_rss_bytes"] / GIB,
            _tokens(row["tokens"]),
            f"{row['settings']}; {_listed({**row.get('chosen', {}), **row['versions']})}",
        )
        for row in rows
    ]
    return Table(REST, cells, caption=TOKENS)


def _speed(row: Mapping[str, Any]) -> list[Any]:
    low, high = row["step_ms_range"]
    times = row["times"]
    return [
        row["workload"],
        row["engine"],
        Cell(row["step_ms"], note=f"{low:.3f}-{high:.3f}" if low < high else ""),
        times and Cell(times["estimate"], note=f"{times['low']:.2f}-{times['high']:.2f}"),
        *(row[column.key] for column in SPEED[4:]),
    ]


def _tokens(tokens: Mapping[str, Any] | None) -> str | None:
    # Older records tell how many were kvtrail's.
    if tokens is None or "argmax" not in tokens:
        return None
    return f"{tokens['argmax']:.1%} of {tokens['tokens']}, gap {tokens['largest_gap']:.2g}"


def _listed(facts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def draw_peers(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """Bars of step times by workload and engine, and the floor of each, as an SVG document."""
    # An extra's, and slow to load.
    from asv_bench.output.drawing import Palette

    palette = Palette(ours=("#1a7f37", "#3fb950"), theirs=("#8c959f", "#6e7681"))
    workloads = list(dict.fromkeys(row["workload"] for row in rows))

    def draw(canvas: Canvas) -> None:
        canvas.suptitle(title, fontsize=9)
        panels = canvas.subplots(len(workloads), 1, squeeze=False)[:, 0]
        for axes, workload in zip(panels, workloads, strict=True):
            own = [row for row in rows if row["workload"] == workload][::-1]
            places = range(len(own))
            colours = [palette["ours" if row["engine"] == "kvtrail" else "theirs"] for row in own]
            axes.barh(places, [row["step_ms"] for row in own], color=colours, height=0.7)
            axes.set_yticks(places, [row["engine"] for row in own])
            for place, row in zip(places, own, strict=True):
                axes.text(row["step_ms"], place, f" {row['step_ms']:.3g}", va="center")
            if own[0]["floor_ms"] is not None:
                axes.axvline(own[0]["floor_ms"], color=palette["ink"], linewidth=0.8)
            axes.set_title(f"{workload}, ms a step", loc="left", fontsize=8)
            axes.set_xlim(0, 1.15 * max(row["step_ms"] for row in own))
            palette.quieten(axes, grid="x")

    height = 0.6 + sum(
        0.45 + 0.24 * sum(row["workload"] == one for row in rows) for one in workloads
    )
    return palette.draw(draw, size=(7.5, height), font_size=8, salt="peers")
