"""What three verdicts say of a regression, and how much of it is back."""

from __future__ import annotations

import pytest

from asv_bench.compare.repair import Repair, State
from asv_bench.compare.verdict import Comparison, Verdict

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
