"""What a comparison came to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """The answer for one benchmark.

    `SLOWER` and `FASTER` are significant and at least the minimum effect; `EQUIVALENT` is shown to
    lie within the margin; `INCONCLUSIVE` is none of these. `FAILED` began and gave no figures;
    `VOID` would be one of these, had no control of the session moved; `NOT_MEASURED` does not exist
    at one of the commits; `SAME` was not measured, as both commits hold the same in what is
    measured. Of a check the answer is `SAME`, `DIFFERS`, `UNSTABLE` where the base differs from
    itself, or `INCONCLUSIVE`.
    """

    SLOWER = "slower"
    FASTER = "faster"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"
    FAILED = "failed"
    VOID = "void"
    NOT_MEASURED = "not measured"
    SAME = "same"
    DIFFERS = "differs"
    UNSTABLE = "unstable"

    @property
    def is_clear(self) -> bool:
        """Whether more pairs would add nothing."""
        return self in (Verdict.SLOWER, Verdict.FASTER, Verdict.EQUIVALENT)


_TIME = r"[mµun]?s|(milli|micro|nano)?sec(ond)?s?|min(ute)?s?|hours?|h"
_SIZE = r"([kmgtp]i?)?b(ytes?)?|(kilo|mega|giga)bytes?"


def is_time(unit: str) -> bool:
    """Whether it is one of times or rates, or none; whole numbers of other units are counted."""
    parts = re.split(r" ?/ ?| per ", unit.strip().lower())
    return parts == [""] or any(re.fullmatch(_TIME, part) for part in parts)


def word_of(verdict: Verdict, unit: str, effect: float | None) -> str:
    """What people call a verdict on figures of this unit.

    Times and rates are slower or faster, and so is what has no unit; sizes, such as memory, are
    larger or smaller; all else is worse or better. `effect` is head / base - 1, where it is known.
    """
    if is_time(unit) or verdict not in (Verdict.SLOWER, Verdict.FASTER):
        return str(verdict)
    is_worse = verdict is Verdict.SLOWER
    if not re.match(rf"({_SIZE})( ?/| per |$)", unit.strip().lower()):
        return "worse" if is_worse else "better"
    # Of a size of which more is better, the worse is the smaller.
    return "larger" if (is_worse if effect is None else effect > 0) else "smaller"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One benchmark of two commits, compared."""

    benchmark: str  # with its parameters
    base: str  # a full hash
    head: str
    verdict: Verdict
    # head / base - 1, from the Hodges-Lehmann shift of the log-ratios; None without pairs.
    effect: float | None = None
    interval: tuple[float, float] | None = None  # of the effect
    confidence: float | None = None  # of the interval
    test: str = ""  # what gave the p-values: a name in `plan.Criterion`
    p: float | None = None  # exact and two-sided; not adjusted for other benchmarks
    equivalence_p: float | None = None  # the larger of two one-sided tests against the margin
    pairs_used: int = 0  # those that the verdict rests on
    starts_used: int | None = None  # of either end's server, where each lived through several pairs
    pairs_discarded: int = 0  # or that failed
    base_value: float | None = None  # the median over the processes used
    head_value: float | None = None
    reason: str = ""  # a sentence where the verdict needs one
    unit: str = ""  # of the figures; "" where it is not known
    files: tuple[int, int] | None = None  # of base and head, where nothing pairs them
    control: bool = False  # whether it is of a metric that no change can move

    @property
    def word(self) -> str:
        """What people call the verdict, see `word_of`."""
        return word_of(self.verdict, self.unit, self.effect)

    @classmethod
    def of_same(cls, benchmark: str, base: str, head: str, unit: str = "") -> Comparison:
        """The answer where both commits hold the same files, which are not measured."""
        reason = "what is measured is the same in both, nothing to measure; --anyway measures it"
        return cls(benchmark, base, head, Verdict.SAME, reason=reason, unit=unit)


class Standing(StrEnum):
    """What became of a suspicion.

    It is `REFUTED` if the difference has the other direction, is shown to be none, or is between
    commits that hold the same in what is measured.
    """

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    REFUTED = "refuted"
    UNRESOLVED = "unresolved"
    NOT_COMPARED = "not compared"
    CANDIDATE = "not confirmed yet"

    @classmethod
    def of(cls, answer: Comparison | None, *, is_worse: bool) -> Standing:
        """What may be said of a stored change for the worse, or the better, after this answer."""
        if answer is None:
            return cls.CANDIDATE
        if answer.verdict is Verdict.SLOWER:
            return cls.REGRESSION if is_worse else cls.REFUTED
        if answer.verdict is Verdict.FASTER:
            return cls.REFUTED if is_worse else cls.IMPROVEMENT
        if answer.verdict in (Verdict.EQUIVALENT, Verdict.SAME):
            return cls.REFUTED
        is_open = answer.verdict in (Verdict.INCONCLUSIVE, Verdict.VOID)
        return cls.UNRESOLVED if is_open else cls.NOT_COMPARED
