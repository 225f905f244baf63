"""Drawings by matplotlib as SVG documents on white paper."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas


def svg_of(
    draw: Callable[[Canvas], None], *, size: tuple[float, float], font_size: float, salt: str
) -> str:
    """The SVG that `draw` makes of an empty canvas.

    `size` is in inches, `font_size` in points; `salt` becomes part of the ids, which must differ
    from those of other elements on a page.
    """
    options: dict[Any, Any] = {
        "svg.fonttype": "none",  # text stays text, in the reader's font
        "svg.hashsalt": salt,
        "font.size": font_size,
    }
    with mpl.rc_context(options):
        canvas = Canvas(figsize=size, layout="constrained")
        FigureCanvasSVG(canvas)
        draw(canvas)
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None})
    document = buffer.getvalue()
    return document[document.index("<svg") :]


def quieten(axes: Axes, *, grid: Literal["x", "y"]) -> None:
    """Remove of the frame all but what helps to read values along `grid`."""
    axes.grid(axis=grid, alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
