"""Drawings by matplotlib as SVG elements, in colours that follow the reader's scheme."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas

GROUND = {
    "paper": ("#ffffff", "#0d1117"),
    "ink": ("#1f2328", "#e6edf3"),
    "faint": ("#8b949e", "#7d8590"),
}
"""Colours of what every drawing that opens by itself has, on light and on dark ground."""


class Palette:
    """CSS variables by name, as colours to draw in.

    matplotlib knows no CSS, so each variable has a stand-in, a colour that is nowhere else, which
    `in_css` replaces.
    """

    def __init__(self, *names: str) -> None:
        self._stand_ins = {name: f"#01{place:02x}fe" for place, name in enumerate(names)}

    def __getitem__(self, name: str) -> str:
        return self._stand_ins[name]

    def in_css(self, svg: str) -> str:
        """The drawing with variables in place of their stand-ins."""
        for name, colour in self._stand_ins.items():
            svg = svg.replace(colour, f"var(--{name})")
        return svg


def draw_svg(
    draw: Callable[[Canvas], None],
    palette: Palette,
    *,
    size: tuple[float, float],
    font_size: float,
    salt: str,
) -> str:
    """The `svg` element that `draw` makes of an empty canvas, in colours of `palette`.

    Text is in "ink". `size` is in inches, `font_size` in points; `salt` becomes part of the
    element's ids, which must differ from those of other elements on a page.
    """
    options: dict[Any, Any] = {
        "svg.fonttype": "none",  # text stays text, in the reader's font
        "svg.hashsalt": salt,
        "font.size": font_size,
        "text.color": palette["ink"],
        "axes.labelcolor": palette["ink"],
    }
    with mpl.rc_context(options):
        canvas = Canvas(figsize=size, layout="constrained")
        FigureCanvasSVG(canvas)
        draw(canvas)
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    document = buffer.getvalue()
    return palette.in_css(document[document.index("<svg") :])


def quieten(axes: Axes, palette: Palette, *, grid: Literal["x", "y"]) -> None:
    """Remove of the frame all but what helps to read values along `grid`."""
    axes.tick_params(colors=palette["ink"], length=2.5)
    axes.grid(axis=grid, color=palette["faint"], alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(palette["faint"])


def standalone(svg: str, schemes: Mapping[str, tuple[str, str]]) -> str:
    """The element with a style sheet of its own, so that it opens by itself.

    `schemes` are each variable's colours on light and dark ground; the ground itself is "paper".
    """
    light, dark = (
        " ".join(f"--{name}: {colours[scheme]};" for name, colours in schemes.items())
        for scheme in (0, 1)
    )
    style = (
        f"<style>\nsvg {{ background: var(--paper); font-family: system-ui, sans-serif;\n"
        f"  {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{\n  svg {{ {dark} }}\n}}\n</style>"
    )
    return re.sub(r"(<svg\b[^>]*>)", lambda found: f"{found[1]}\n{style}", svg, count=1)
