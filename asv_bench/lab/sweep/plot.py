"""A sweep as one SVG that opens by itself, in light or dark."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure as Canvas

from asv_bench.lab.sweep.sweep import Swept
from asv_bench.output.drawing import GROUND, Palette, draw_svg, quieten, standalone

PANEL_INCHES = (7.6, 2.4)

SCHEMES = {
    **GROUND,
    "time": ("#0969da", "#58a6ff"),
    "floor": ("#a8cbf5", "#1f4b82"),
}
PALETTE = Palette(*SCHEMES)


def sweep_svg(results: Sequence[Swept], title: str) -> str:
    """Draw a panel a call: its time over the batch, and the time of its bytes."""
    width, height = PANEL_INCHES

    def draw(canvas: Canvas) -> None:
        canvas.suptitle(title, fontsize=10)
        panels = canvas.subplots(len(results), 1, squeeze=False)[:, 0]
        for axes, one in zip(panels, results, strict=True):
            seconds = one.seconds
            batches = list(seconds)
            floors = [1e6 * one.call.bytes_moved(b) / one.bytes_per_second for b in batches]
            times = [1e6 * each for each in seconds.values()]
            axes.fill_between(batches, floors, color=PALETTE["floor"], linewidth=0)
            axes.plot(batches, times, color=PALETTE["time"], linewidth=1.4)
            axes.set_xlim(0, batches[-1])
            axes.set_ylim(0, None)
            axes.set_ylabel("µs")
            axes.set_title(f"{one.call}: time, and that of its bytes", loc="left", fontsize=9.5)
            quieten(axes, PALETTE, grid="y")
        panels[-1].set_xlabel("sequences")

    size = width, height * len(results) + 0.4
    return standalone(draw_svg(draw, PALETTE, size=size, font_size=9, salt=title), SCHEMES)
