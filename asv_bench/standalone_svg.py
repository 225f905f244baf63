"""SVG files that open by themselves, in colours that follow the reader's scheme."""

from __future__ import annotations

import re
from collections.abc import Mapping


def standalone(document: str, stand_ins: Mapping[str, str], style: str) -> str:
    """The `svg` element alone, with its own style sheet.

    Parameters
    ----------
    document
        As matplotlib writes it; it knows no CSS, so it drew in stand-ins for colours.
    stand_ins
        CSS variables by the stand-ins that they replace.
    style
        The style sheet, a `style` element, that defines the variables.
    """
    svg = document[document.index("<svg") :]
    for colour, variable in stand_ins.items():
        svg = svg.replace(colour, f"var(--{variable})")
    return re.sub(r"(<svg\b[^>]*>)", rf"\1\n{style}", svg, count=1)
