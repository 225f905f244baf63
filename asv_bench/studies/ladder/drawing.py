"""Drawings by matplotlib as SVG documents, in colours that follow the reader's scheme."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas


class Palette:
    """Colours by name, each on light and on dark ground; "paper", "ink" and "faint" are given.

    matplotlib knows no CSS, so each name has a stand-in, a colour that is nowhere else, in place of
    which the drawing gets a variable of CSS.
    """

    def __init__(self, **colours: tuple[str, str]) -> None:
        self._colours = {
            "paper": ("#ffffff", "#0d1117"),
            "ink": ("#1f2328", "#e6edf3"),
            "faint": ("#8b949e", "#7d8590"),
            **colours,
        }
        self._stand_ins = {name: f"#01{place:02x}fe" for place, name in enumerate(self._colours)}

    def __getitem__(self, name: str) -> str:
        return self._stand_ins[name]

    def draw(
        self,
        draw: Callable[[Canvas], None],
        *,
        size: tuple[float, float],
        font_size: float,
        salt: str,
    ) -> str:
        """The SVG that `draw` makes of an empty canvas, with a style sheet of its own.

        Text is in "ink". `size` is in inches, `font_size` in points; `salt` becomes part of the
        ids, which must differ from those of other elements on a page.
        """
        options: dict[Any, Any] = {
            "svg.fonttype": "none",  # text stays text, in the reader's font
            "svg.hashsalt": salt,
            "font.size": font_size,
            "text.color": self["ink"],
            "axes.labelcolor": self["ink"],
        }
        with mpl.rc_context(options):
            canvas = Canvas(figsize=size, layout="constrained")
            FigureCanvasSVG(canvas)
            draw(canvas)
            buffer = io.StringIO()
            canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        document = buffer.getvalue()
        svg = document[document.index("<svg") :]
        for name, colour in self._stand_ins.items():
            svg = svg.replace(colour, f"var(--{name})")
        light, dark = (
            " ".join(f"--{name}: {pair[ground]};" for name, pair in self._colours.items())
            for ground in (0, 1)
        )
        style = (
            f"<style>\nsvg {{ background: var(--paper); font-family: system-ui, sans-serif;\n"
            f"  {light} }}\n"
            f"@media (prefers-color-scheme: dark) {{\n  svg {{ {dark} }}\n}}\n</style>"
        )
        return re.sub(r"(<svg\b[^>]*>)", lambda found: f"{found[1]}\n{style}", svg, count=1)

    def quieten(self, axes: Axes, *, grid: Literal["x", "y"]) -> None:
        """Remove of the frame all but what helps to read values along `grid`."""
        axes.tick_params(colors=self["ink"], length=2.5)
        axes.grid(axis=grid, color=self["faint"], alpha=0.3, linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            axes.spines[side].set_color(self["faint"])
