"""What three verdicts say of a regression, and how much of it is back."""

from __future__ import annotations

import numpy as np
import pytest

from asv_bench.compare.repair import Repair, State
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.stats.paired import share_of

VERDICTS = {
    "+": Verdict.SLOWER,
    "-": Verdict.FASTER,
    "=": Verdict.EQUIVALENT,
    "?": Verdict.INCONCLUSIVE,
    "s": Verdict.SAME,
    "0": Verdict.NOT_MEASURED,
}


@pytest.mark.parametrize(
    ("verdicts", "state", "is_slower"),
    [
        ("+=-", State.WHOLLY, False),
        ("+=?", State.WHOLLY, False),
        ("+--", State.WHOLLY, False),
        ("++-", State.PARTLY, True),
        ("++=", State.NOT, True),
        ("+++", State.NOT, True),
        ("++?", State.NOT_WHOLLY, True),
        # Within the margin of both: too small a regression to tell.
        ("+==", State.INCONCLUSIVE, False),
        ("+?-", State.INCONCLUSIVE, False),
        ("+?=", State.INCONCLUSIVE, False),
        # Verdicts that contradict each other.
        ("+=+", State.INCONCLUSIVE, False),
        ("==?", State.NO_REGRESSION, False),
        ("-?-", State.NO_REGRESSION, False),
        ("=+?", State.NO_REGRESSION, True),
        ("?=?", State.INCONCLUSIVE, False),
        ("?+?", State.INCONCLUSIVE, True),
        # Two of the three hold the same: nobody is accused without a regression that was measured.
        ("++s", State.NOT, True),
        ("==s", State.NO_REGRESSION, False),
        ("--s", State.NO_REGRESSION, False),
        ("??s", State.INCONCLUSIVE, False),
        ("00s", State.NOT_MEASURED, False),
        ("s00", State.NO_REGRESSION, False),
        ("0s0", State.WHOLLY, False),
    ],
)
def test_the_state_follows_from_three_verdicts(
    verdicts: str, state: State, is_slower: bool
) -> None:
    answer = Repair("step", *(Comparison("step", "a", "b", VERDICTS[one]) for one in verdicts))
    assert (answer.state, answer.is_slower) == (state, is_slower)
    assert answer.sentence().startswith(f"step: {state}")


def test_the_interval_of_a_share_covers_the_truth_as_often_as_it_says() -> None:
    noise = np.random.default_rng(5)
    covered = 0
    for _ in range(300):
        # What both shifts have in common widens neither side of the ratio.
        common = noise.normal(0, 0.02, 12)
        whole = 0.2 + common + noise.normal(0, 0.01, 12)
        part = 0.1 + common / 2 + noise.normal(0, 0.01, 12)
        share = share_of(whole, part, 0.95)
        low, high = share.interval
        assert low <= share.value <= high
        covered += low <= 0.5 <= high
    assert 0.92 <= covered / 300 <= 0.99


def test_a_share_of_a_shift_that_may_be_none_has_no_bound() -> None:
    whole, part = np.array([0.01, 0.02, -0.001, 0.005]), np.array([0.1, 0.0, 0.05, -0.04])
    assert share_of(whole, part, 0.95).interval[1] == float("inf")
