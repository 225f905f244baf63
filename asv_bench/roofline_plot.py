"""The roofline of every workload as one SVG that opens by itself, in light or dark."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas

from asv_bench.roofline import Roofline
from asv_bench.standalone_svg import standalone

PANEL_INCHES = (7.6, 3.1)

# matplotlib knows no CSS, so it draws in stand-ins that are replaced by variables, which follow
# the reader's scheme.
_INK, _FAINT, _FLOOR, _REST, _GAP = "#010203", "#040506", "#070809", "#0a0b0c", "#0d0e0f"
_VARIABLES = {_INK: "ink", _FAINT: "faint", _FLOOR: "floor", _REST: "rest", _GAP: "gap"}
_STYLE = """<style>
svg { background: var(--paper); --paper: #ffffff; --ink: #1f2328;
  --faint: #8b949e; --floor: #0969da; --rest: #a8cbf5; --gap: #d1a054;
  font-family: system-ui, sans-serif; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #0d1117; --ink: #e6edf3; --faint: #7d8590; --floor: #58a6ff; --rest: #1f4b82;
    --gap: #9a6b1f; }
}
</style>"""


def roofline_svg(results: Sequence[Roofline], title: str) -> str:
    """Draw a panel a workload: each role's own time a step, and the part that its bytes explain."""
    options: dict[Any, Any] = {
        "svg.fonttype": "none",  # text stays text, in the reader's font
        "svg.hashsalt": title,
        "font.size": 9,
        "text.color": _INK,
    }
    with mpl.rc_context(options):
        width, height = PANEL_INCHES
        canvas = Canvas(figsize=(width, height * len(results) + 0.4), layout="constrained")
        FigureCanvasSVG(canvas)
        canvas.suptitle(title, fontsize=10, color=_INK)
        panels = canvas.subplots(len(results), 1, squeeze=False)[:, 0]
        for axes, result in zip(panels, results, strict=True):
            _draw(axes, result)
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return standalone(buffer.getvalue(), _VARIABLES, _STYLE)


def _draw(axes: Axes, result: Roofline) -> None:
    bars: list[tuple[str, float, float | None, float | None]] = [
        (row.role, row.own_us, row.floor_us, row.fraction) for row in result.rows
    ]
    bars += [
        ("gaps between kernels", result.gaps_us, None, None),
        ("work between steps", result.work_between_us, None, None),
        ("gap between steps", result.idle_between_us, None, None),
    ]
    longest = max(time for _, time, _, _ in bars)
    for place, (_, time, floor, fraction) in enumerate(bars):
        axes.barh(place, time, color=_GAP if floor is None else _REST, height=0.72)
        label = f"{time:.1f} µs"
        if floor is not None and fraction is not None:
            axes.barh(place, min(floor, time), color=_FLOOR, height=0.72)
            label += f", {100 * fraction:.0f} %"
        axes.text(time + 0.01 * longest, place, label, va="center", color=_INK, fontsize=8)
    axes.set_yticks(range(len(bars)), [name for name, _, _, _ in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * longest)
    axes.set_xlabel(
        "µs of a step; strong colour: what the bytes take at "
        f"{result.bytes_per_second / 1e12:.2f} TB/s, %: of that bandwidth",
        color=_INK,
    )
    axes.set_title(
        f"{result.workload}: B={result.batch}, context {result.context:.0f}, step "
        f"{result.step_us:.0f} µs, floor {result.floor_us:.0f} µs",
        loc="left",
        fontsize=9.5,
        color=_INK,
    )
    axes.tick_params(colors=_INK, length=2.5)
    axes.grid(axis="x", color=_FAINT, alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_FAINT)
