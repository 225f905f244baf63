"""What two processes in turns took, by the windows in which nothing disturbed either."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_LEFT_OUT = 0.25
"""Of the windows, at either end of their ratios."""


def undisturbed(base: Sequence[float], head: Sequence[float]) -> tuple[float, float]:
    """Means of the windows of both, of those whose ratios are in the middle half.

    A window of the base is compared with the window of the head beside it, which met the same load
    of the machine. What disturbed one of the two shows in their ratio.

    Figures are above 0, at least one of each, in the order of their windows; windows that only one
    of them has are left out. The means are geometric: their ratio is the mean ratio of the windows.
    """
    logs = np.log(list(zip(base, head, strict=False)))
    logs = logs[np.argsort(logs[:, 1] - logs[:, 0])]
    left_out = int(len(logs) * _LEFT_OUT)
    of_base, of_head = np.exp(logs[left_out : len(logs) - left_out].mean(axis=0))
    return float(of_base), float(of_head)
