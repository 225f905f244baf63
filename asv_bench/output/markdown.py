"""Text of commits and commands within GitHub's Markdown, of which neither makes anything.

Only the standard library: `.ci/pull_request.py` runs it with whatever Python a runner has.
"""

from __future__ import annotations

import re

_MARKUP = re.compile(r"[\\`*\[\]<>|#~$&]|(?<![^\W_])_|_(?![^\W_])")
"""An underscore within a word is one in GitHub's Markdown, too."""
_CALLS = re.compile(r"@(?=\w)|#(?=\d)|\bGH-(?=\d)|:(?=//)|\bwww(?=\.)", re.IGNORECASE)
"""How a name, an issue or an address begins that GitHub makes a link of, and tells somebody of."""
_BREAK = "&#8203;"
"""A space of no width. GitHub looks for what it links after Markdown, so a backslash is no help."""


def inline(text: str) -> str:
    """Text in one line of which neither Markdown, HTML nor GitHub make anything."""
    line = _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))
    return _CALLS.sub(rf"\g<0>{_BREAK}", line)


def fenced(text: str, language: str = "") -> str:
    """Text as a block of code, between fences longer than any that it holds."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"
