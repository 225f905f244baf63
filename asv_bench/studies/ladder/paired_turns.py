"""What two processes took that worked in turns, by the turns in which nothing disturbed either."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asv_bench.studies.ladder.engine_in_turns import TURNS_OF_BLOCK

_LEFT_OUT = 0.25
"""Of the turns at one place in a block, at either end of their ratios."""


def paired_seconds(
    base: Sequence[Sequence[float]], head: Sequence[Sequence[float]]
) -> tuple[float, float] | None:
    """Seconds a token of both, from the turns that they took right after each other.

    A turn in which sequences need a new block does more than others, and that is part of what a
    token costs. So turns are sorted by their place in a block. Of each place those count whose
    ratios are in the middle half, and every place counts alike.

    Parameters
    ----------
    base, head
        For each run the seconds a token of its turns; those of all runs begin at the same place.

    Returns
    -------
    tuple of float, or None
        Of base and head; None where a place has no turn of both.
    """
    means = []
    for place in range(TURNS_OF_BLOCK):
        pairs = [
            pair
            for runs in zip(base, head, strict=True)
            for pair in zip(*(run[place::TURNS_OF_BLOCK] for run in runs), strict=False)
        ]
        if not pairs:
            return None
        logs = np.log(pairs)
        logs = logs[np.argsort(logs[:, 1] - logs[:, 0])]
        left_out = int(len(logs) * _LEFT_OUT)
        means.append(np.exp(logs[left_out : len(logs) - left_out].mean(axis=0)))
    of_base, of_head = np.mean(means, axis=0)
    return float(of_base), float(of_head)
