"""The tables and the drawing of `peers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asv_bench.output.table import Cell, Column, Table, digits, percent
from asv_bench.peers.lives.life import KVTRAIL

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
        cells.append(
            (
                row["workload"],
                row["engine"],
                row["startup_s"],
                *(row[peak] and row[peak] / GIB for peak in ("peak_gpu_bytes", "peak_rss_bytes")),
                _likeliest(row["tokens"] or {}),
                f"{row['settings']}; {listed}",
            )
        )
    return Table(REST, cells, caption=TOKENS)


def _likeliest(tokens: Mapping[str, Any]) -> str | None:
    if "argmax" not in tokens:  # Older records tell how many were kvtrail's.
        return None
    return f"{tokens['argmax']:.1%} of {tokens['tokens']}, gap {tokens['largest_gap']:.2g}"


def draw_peers(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """Bars of step times by workload and engine, and the floor of each, as an SVG document."""
    # An extra's, and slow to load.
    from asv_bench.output.drawing import Palette

    palette = Palette(ours=("#1a7f37", "#3fb950"), theirs=("#8c959f", "#6e7681"))
    workloads: dict[str, list[Mapping[str, Any]]] = {}
    for row in reversed(rows):
        workloads.setdefault(row["workload"], []).append(row)

    def draw(canvas: Canvas) -> None:
        canvas.suptitle(title, fontsize=9)
        panels = canvas.subplots(len(workloads), 1, squeeze=False)[:, 0]
        for axes, (workload, own) in zip(panels[::-1], workloads.items(), strict=True):
            steps = [row["step_ms"] for row in own]
            colours = [palette["ours" if row["engine"] == KVTRAIL else "theirs"] for row in own]
            bars = axes.barh(range(len(own)), steps, color=colours, height=0.7)
            axes.bar_label(bars, [f"{step:.3g}" for step in steps], padding=2)
            axes.set_yticks(range(len(own)), [row["engine"] for row in own])
            if own[0]["floor_ms"] is not None:
                axes.axvline(own[0]["floor_ms"], color=palette["ink"], linewidth=0.8)
            axes.set_title(f"{workload}, ms a step", loc="left", fontsize=8)
            axes.set_xlim(0, 1.15 * max(steps))
            palette.quieten(axes, grid="x")

    height = 0.6 + 0.45 * len(workloads) + 0.24 * len(rows)
    return palette.draw(draw, size=(7.5, height), font_size=8, salt="peers")
