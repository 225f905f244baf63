"""What a token took in two processes that worked in turns, over the turns of a block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asv_bench.stats.paired import undisturbed
from asv_bench.studies.ladder.engine_in_turns import TURNS_OF_BLOCK


def paired_seconds(
    base: Sequence[Sequence[float]], head: Sequence[Sequence[float]]
) -> tuple[float, float] | None:
    """Seconds a token of both, from the turns that disturbed neither.

    A turn in which sequences need a new block does more than others, and that is part of what a
    token costs. So turns are sorted by their place in a block, and every place counts alike.

    Parameters
    ----------
    base, head
        For each run the seconds a token of its turns; those of all runs begin at the same place.
        Runs and turns that only one of them has are left out.

    Returns
    -------
    tuple of float, or None
        Of base and head; None where a place has no turn of both.
    """
    means = []
    for place in range(TURNS_OF_BLOCK):
        pairs = [
            pair
            for runs in zip(base, head, strict=False)
            for pair in zip(*(run[place::TURNS_OF_BLOCK] for run in runs), strict=False)
        ]
        if not pairs:
            return None
        means.append(undisturbed(*zip(*pairs, strict=True)))
    of_base, of_head = np.mean(means, axis=0)
    return float(of_base), float(of_head)
