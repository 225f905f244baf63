"""How a comparison is decided: its errors, its looks, and what counts as a difference."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from asv_bench.errors import Refused
from asv_bench.stats.paired import smallest_p
from asv_bench.stats.sequential import look_levels, one_sided_look_levels

LOOK_FRACTIONS = (1 / 2, 2 / 3, 5 / 6)
QUICK_PAIRS = 12
DEFAULT_MARGIN = 0.01
"""What matters where nobody says otherwise, as a fraction."""


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """What is settled before the first pair.

    Attributes
    ----------
    alpha
        Chance that a comparison, all its benchmarks and looks together, calls any benchmark slower
        or faster that is neither.
    equivalence_alpha
        Chance that a benchmark whose effect is the margin is called equivalent.
    minimum_effect
        The smallest difference, as a fraction, that is called slower or faster.
    margin
        Equivalent means within it, as a fraction.
    looks
        Numbers of pairs at which the evidence is judged; the last is the cap.
    max_discarded
        Pairs that may be discarded and replaced before the comparison gives up.
    confidence
        Of the interval that is shown.
    """

    alpha: float = 0.002
    equivalence_alpha: float = 0.01
    minimum_effect: float = DEFAULT_MARGIN
    margin: float = DEFAULT_MARGIN
    looks: tuple[int, ...] = (12, 16, 20, 24)
    max_discarded: int = 12
    confidence: float = 0.95

    @classmethod
    def with_cap(cls, pairs: int) -> ComparisonPlan:
        """The plan with another cap, and looks at the same fractions of it where they can decide.

        Refused if so few pairs could never be significant.
        """
        least = _pairs_of_one_sign(cls().alpha)
        if pairs < least:
            raise Refused(
                f"with {pairs} pairs nothing could be significant at {cls().alpha}: their smallest "
                f"p-value is {smallest_p(pairs):.2g}; take at least {least}."
            )
        # Even, so that at a look both orders of a pair are equally frequent.
        early = {2 * round(pairs * fraction / 2) for fraction in LOOK_FRACTIONS}
        looks = (*sorted(look for look in early if least <= look < pairs), pairs)
        while smallest_p(looks[0]) > look_levels(looks, cls().alpha)[0]:
            looks = looks[1:]
        return cls(looks=looks, max_discarded=max(4, pairs // 2))

    def with_margin(self, fraction: float) -> ComparisonPlan:
        """The plan for which so large a difference matters, and a smaller one does not."""
        return replace(self, minimum_effect=fraction, margin=fraction)

    @classmethod
    def least_cap(cls, benchmarks: int) -> int:
        """The smallest cap with which `can_differ` is true for so many benchmarks."""
        cap = _pairs_of_one_sign(cls().alpha / benchmarks)
        while not cls.with_cap(cap).can_differ(benchmarks):
            cap += 1
        return cap

    def can_differ(self, benchmarks: int) -> bool:
        """Whether pairs of one sign could call any of so many benchmarks slower or faster.

        The first that Holm's procedure rejects must meet the level for all of them, and a look has
        only what the looks before it left of alpha.
        """
        return any(
            smallest_p(pairs) <= self.difference_level(look, benchmarks)
            for look, pairs in enumerate(self.looks)
        )

    @property
    def cap(self) -> int:
        """Pairs after which the answer is given as it is."""
        return self.looks[-1]

    def difference_level(self, look: int, share: int) -> float:
        """Two-sided level at look number `look` where alpha is divided by `share`."""
        return look_levels(self.looks, self.alpha / share)[look]

    def equivalence_level(self, look: int) -> float:
        """Level of each one-sided test of equivalence at look number `look`."""
        return one_sided_look_levels(self.looks, self.equivalence_alpha)[look]

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON-ready values, with the level of each look for a single benchmark."""
        return {
            **asdict(self),
            "levels": [self.difference_level(look, 1) for look in range(len(self.looks))],
            "equivalence_levels": [self.equivalence_level(look) for look in range(len(self.looks))],
        }


def _pairs_of_one_sign(level: float) -> int:
    """The fewest pairs whose smallest p-value is at most `level`."""
    return math.ceil(1 - math.log2(level))
