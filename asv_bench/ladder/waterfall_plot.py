"""The rungs' step times as one SVG that opens by itself, in light or dark."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas

from asv_bench.standalone_svg import standalone

WIDTH_INCHES = 7.6
INCHES_A_RUNG = 0.34

# matplotlib knows no CSS, so it draws in stand-ins that are replaced by variables, which follow
# the reader's scheme.
_INK, _FAINT, _STEP, _SAVED, _LOST = "#010203", "#040506", "#070809", "#0a0b0c", "#0d0e0f"
_VARIABLES = {_INK: "ink", _FAINT: "faint", _STEP: "step", _SAVED: "saved", _LOST: "lost"}
_STYLE = """<style>
svg { background: var(--paper); --paper: #ffffff; --ink: #1f2328;
  --faint: #8b949e; --step: #0969da; --saved: #cfe3fb; --lost: #cf222e;
  font-family: system-ui, sans-serif; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #0d1117; --ink: #e6edf3; --faint: #7d8590; --step: #58a6ff; --saved: #173a66;
    --lost: #f85149; }
}
</style>"""


def waterfall_svg(rungs: Sequence[Mapping[str, Any]], title: str) -> str:
    """Draw a bar a rung: its step time, and beside it what it saves or loses to the one before.

    Parameters
    ----------
    rungs
        As `ladder_run.MeasuredRung.to_json` has them, in order.
    title
        Above the bars.
    """
    options: dict[Any, Any] = {
        "svg.fonttype": "none",  # text stays text, in the reader's font
        "svg.hashsalt": title,
        "font.size": 9,
        "text.color": _INK,
    }
    with mpl.rc_context(options):
        height = INCHES_A_RUNG * len(rungs) + 0.9
        canvas = Canvas(figsize=(WIDTH_INCHES, height), layout="constrained")
        FigureCanvasSVG(canvas)
        axes = canvas.add_subplot()
        _draw(axes, rungs)
        axes.set_title(title, loc="left", fontsize=9.5, color=_INK)
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return standalone(buffer.getvalue(), _VARIABLES, _STYLE)


def _draw(axes: Axes, rungs: Sequence[Mapping[str, Any]]) -> None:
    times = [float(rung["step_ms"]) for rung in rungs]
    longest = max(times)
    before: float | None = None
    for place, time in enumerate(times):
        axes.barh(place, time, color=_STEP, height=0.7)
        label, end = f"{time:.3g} ms", time
        if before is not None:
            if before > time:
                axes.barh(place, before - time, left=time, color=_SAVED, height=0.7)
            else:
                axes.barh(place, time - before, left=before, color=_LOST, height=0.7)
            end = max(time, before)
            label += f"  {100 * (time / before - 1):+.0f} %"
        axes.text(end + 0.01 * longest, place, label, va="center", color=_INK, fontsize=8)
        before = time
    axes.set_yticks(range(len(rungs)), [str(rung["rung"]).replace("-", " ", 1) for rung in rungs])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.22 * longest)
    axes.set_xlabel(
        "ms of a decode step; pale: saved against the rung above, red: lost", color=_INK
    )
    axes.tick_params(colors=_INK, length=2.5)
    axes.grid(axis="x", color=_FAINT, alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_FAINT)
