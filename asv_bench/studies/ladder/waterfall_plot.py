"""The rungs' step times as one SVG that opens by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from asv_bench.studies.ladder.drawing import quieten, svg_of

WIDTH_INCHES = 7.6
INCHES_A_RUNG = 0.34

STEP, SAVED, LOST = "#0969da", "#cfe3fb", "#cf222e"


def waterfall_svg(rungs: Sequence[Mapping[str, Any]], title: str) -> str:
    """Draw a bar a rung: its step time, and beside it what it saves or loses to the one before.

    Parameters
    ----------
    rungs
        As `ladder_run.MeasuredRung.to_json` has them, in order.
    title
        Above the bars.
    """

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        _draw(axes, rungs)
        axes.set_title(title, loc="left", fontsize=9.5)

    size = WIDTH_INCHES, INCHES_A_RUNG * len(rungs) + 0.9
    return svg_of(draw, size=size, font_size=9, salt=title)


def _draw(axes: Axes, rungs: Sequence[Mapping[str, Any]]) -> None:
    times = [float(rung["step_ms"]) for rung in rungs]
    longest = max(times)
    before: float | None = None
    for place, time in enumerate(times):
        axes.barh(place, time, color=STEP, height=0.7)
        label, end = f"{time:.3g} ms", time
        if before is not None:
            if before > time:
                axes.barh(place, before - time, left=time, color=SAVED, height=0.7)
            else:
                axes.barh(place, time - before, left=before, color=LOST, height=0.7)
            end = max(time, before)
            label += f"  {100 * (time / before - 1):+.0f} %"
        axes.text(end + 0.01 * longest, place, label, va="center", fontsize=8)
        before = time
    axes.set_yticks(range(len(rungs)), [str(rung["rung"]).replace("-", " ", 1) for rung in rungs])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.22 * longest)
    axes.set_xlabel("ms of a decode step; pale: saved against the rung above, red: lost")
    quieten(axes, grid="x")
