"""How a comparison is decided: its errors, its looks, and what counts as a difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from asv_bench.errors import Refused
from asv_bench.stats import paired
from asv_bench.stats.families import look_levels
from asv_bench.stats.paired import POOL_SESSIONS

DEFAULT_MARGIN = 0.01
"""What matters where nobody says otherwise, as a fraction."""
QUICK_PAIRS = 12


class Criterion(StrEnum):
    """The one-sided test that a look applies (`stats.paired`)."""

    POOLED = "pooled ranks"
    SEPARATION = "separation"
    RANK_SUM = "rank sum"
    LOCATION = "signed ranks and signs"
    UNPAIRED = "ranks and Welch"

    def least_p(self, pairs: int) -> float:
        """The smallest p-value that so many pairs can give."""
        match self:
            case Criterion.POOLED:
                return float(paired.pooled_tails(pairs, paired.POOL_SIZE)[-1])
            case Criterion.SEPARATION:
                return 4.0**-pairs
            case Criterion.RANK_SUM:
                return float(paired.rank_sum_tails(pairs, pairs)[-1])
            case Criterion.LOCATION:
                return 2.0**-pairs
            case Criterion.UNPAIRED:
                return 0.0


@dataclass(frozen=True, slots=True)
class Look:
    """A number of pairs at which the evidence is judged, and by which test.

    It needs a pool that comes from so many `sessions` at least, where its test needs a pool.
    `share` and `equivalence_share` are the fractions of both errors that it may make. Looks at
    location have none of their own: what the others leave is spent over them together.
    """

    pairs: int
    test: Criterion
    share: float = 0.0
    equivalence_share: float = 0.0
    sessions: int = 1


EARLY_LOOKS = (
    Look(3, Criterion.POOLED, 0.05, sessions=POOL_SESSIONS),
    Look(4, Criterion.POOLED, 0.1, 0.09, sessions=POOL_SESSIONS),
    Look(5, Criterion.POOLED, 0.05, 0.09),
    Look(6, Criterion.SEPARATION, 0.25, 0.025),
    Look(8, Criterion.RANK_SUM, 0.08, 0.06),
    Look(10, Criterion.RANK_SUM, 0.07, 0.06),
)
"""Chosen by simulation: clear cases end at them, and the looks at location keep their power."""
LOCATION_LOOKS = (14, 18, 24, 30)
LEAST_CAP = 6
LEAST_FOR_LOCATION = 12


def looks_at(*location: int) -> tuple[Look, ...]:
    """The early looks, and looks at location at these numbers of pairs, ascending."""
    early = (look for look in EARLY_LOOKS if look.pairs < location[0])
    return (*early, *(Look(pairs, Criterion.LOCATION) for pairs in location))


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """What is settled before the first pair."""

    # Chance that a comparison, all its benchmarks and looks together, calls any benchmark slower
    # or faster that is neither.
    alpha: float = 0.002
    # Chance that a benchmark whose effect is the margin is called equivalent.
    equivalence_alpha: float = 0.01
    minimum_effect: float = DEFAULT_MARGIN  # the least, as a fraction, to be slower or faster
    margin: float = DEFAULT_MARGIN  # equivalent means within it, as a fraction
    looks: tuple[Look, ...] = looks_at(*LOCATION_LOOKS)  # the pairs of the last are the cap
    max_discarded: int = 12  # pairs that may be replaced before the comparison gives up
    confidence: float = 0.95  # of the interval that is shown

    @classmethod
    def with_cap(cls, pairs: int) -> ComparisonPlan:
        """The plan with another cap, and looks at location at the same fractions of it.

        Refused if so few pairs could never be significant.
        """
        if pairs < LEAST_CAP:
            # One more than the least, at which a narrow gap between the two commits tells nothing.
            raise Refused(
                f"{pairs} pairs can never be significant at {cls().alpha}; take at least "
                f"{LEAST_CAP + 1}."
            )
        if pairs < LEAST_FOR_LOCATION:
            # Signs alone cannot be significant: the last look has what the ones before it leave.
            early = [look for look in EARLY_LOOKS if look.pairs < pairs]
            test = Criterion.SEPARATION if pairs == LEAST_CAP else Criterion.RANK_SUM
            looks = (*early, Look(pairs, test, *_left(early)))
        else:
            # Even, so that at a look both orders of a pair are equally frequent.
            even = {2 * round(pairs * look / LOCATION_LOOKS[-1] / 2) for look in LOCATION_LOOKS}
            location = sorted(look for look in even if LOCATION_LOOKS[0] <= look < pairs)
            looks = looks_at(*location, pairs)
        return cls(looks=looks, max_discarded=max(4, pairs // 2))

    def with_margin(self, fraction: float) -> ComparisonPlan:
        """The plan for which so large a difference matters, and a smaller one does not."""
        return replace(self, minimum_effect=fraction, margin=fraction)

    def for_one(self, name: str, margins: Mapping[str, float]) -> ComparisonPlan:
        """The plan for one of several benchmarks, some of which have margins of their own."""
        return self.with_margin(margins[name]) if name in margins else self

    def can_differ(self, benchmarks: float) -> bool:
        """Whether the clearest pairs could call any of so many benchmarks slower or faster.

        The first that Holm's procedure rejects must meet the level for all of them. Looks that need
        the pool of earlier differences do not count: there may be none.
        """
        return any(
            look.test.least_p(look.pairs) <= self.difference_level(number, benchmarks)
            for number, look in enumerate(self.looks)
            if look.test is not Criterion.POOLED
        )

    @property
    def cap(self) -> int:
        """Pairs after which the answer is given as it is."""
        return self.looks[-1].pairs

    def difference_level(self, number: int, share: float) -> float:
        """One-sided level at a look, in either direction, where alpha is divided by `share`."""
        return self._level(number, self.alpha / share, 0) / 2

    def equivalence_level(self, number: int) -> float:
        """Level of each one-sided test of equivalence at a look."""
        # Half of a two-sided test of twice the error: a path that crosses both its bounds is too
        # rare to matter.
        return self._level(number, 2 * self.equivalence_alpha, 1) / 2

    def _level(self, number: int, alpha: float, error: int) -> float:
        """Two-sided level of a look, where all may err with alpha, in the first or second error."""
        look = self.looks[number]
        if look.test is not Criterion.LOCATION:
            return (look.share, look.equivalence_share)[error] * alpha
        # The last looks, all of them.
        pairs = tuple(one.pairs for one in self.looks if one.test is Criterion.LOCATION)
        levels = look_levels(pairs, _left(self.looks)[error] * alpha)
        return levels[number - len(self.looks)]

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON-ready values, with the levels of each look for a single benchmark."""
        looks = [
            {
                "pairs": look.pairs,
                "test": str(look.test),
                "level": self.difference_level(number, 1),
                "equivalence_level": self.equivalence_level(number),
            }
            for number, look in enumerate(self.looks)
        ]
        return {**asdict(self), "looks": looks}


def _left(looks: Sequence[Look]) -> tuple[float, float]:
    """What looks leave of both errors."""
    difference = 1 - sum(look.share for look in looks)
    return difference, 1 - sum(look.equivalence_share for look in looks)
