"""The roofline of every workload as one SVG that opens by itself, in light or dark."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from asv_bench.lab.roofline.roofline import Roofline
from asv_bench.output.drawing import GROUND, Palette, draw_svg, quieten, standalone

PANEL_INCHES = (7.6, 3.1)

SCHEMES = {
    **GROUND,
    "floor": ("#0969da", "#58a6ff"),
    "rest": ("#a8cbf5", "#1f4b82"),
    "gap": ("#d1a054", "#9a6b1f"),
}
PALETTE = Palette(*SCHEMES)


def roofline_svg(results: Sequence[Roofline], title: str) -> str:
    """Draw a panel a workload: each role's own time a step, and the part that its bytes explain."""
    width, height = PANEL_INCHES

    def draw(canvas: Canvas) -> None:
        canvas.suptitle(title, fontsize=10)
        panels = canvas.subplots(len(results), 1, squeeze=False)[:, 0]
        for axes, result in zip(panels, results, strict=True):
            _draw(axes, result)

    size = width, height * len(results) + 0.4
    return standalone(draw_svg(draw, PALETTE, size=size, font_size=9, salt=title), SCHEMES)


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
        colour = PALETTE["gap"] if floor is None else PALETTE["rest"]
        axes.barh(place, time, color=colour, height=0.72)
        label = f"{time:.1f} µs"
        if floor is not None and fraction is not None:
            axes.barh(place, min(floor, time), color=PALETTE["floor"], height=0.72)
            label += f", {100 * fraction:.0f} %"
        axes.text(time + 0.01 * longest, place, label, va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), [name for name, _, _, _ in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * longest)
    axes.set_xlabel(
        "µs of a step; strong colour: what the bytes take at "
        f"{result.bytes_per_second / 1e12:.2f} TB/s, %: of that bandwidth"
    )
    axes.set_title(
        f"{result.workload}: B={result.batch}, context {result.context:.0f}, step "
        f"{result.step_us:.0f} µs, floor {result.floor_us:.0f} µs",
        loc="left",
        fontsize=9.5,
    )
    quieten(axes, PALETTE, grid="x")
