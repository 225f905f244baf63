"""Whether a regression is fixed: what three comparisons of a parent, a culprit and a head say.

Each answer follows from verdicts that `compare` would give, with its errors:

- The three comparisons of a metric have an order, the culprit against the parent first, and do not
  divide its error: where these two differ, the head can be like one of them only, so that each of
  the other two comparisons has all of it (`stats.families.rejected_in_turns`). Holm's procedure
  shares `plan.alpha` among metrics. So the chance that any of "the culprit is slower", "the head is
  slower" or "a part is back" is said of two commits that do not differ is at most alpha, all looks
  together.
- "Wholly fixed" needs the head to be equivalent to the parent (or faster), and "not fixed" to be
  equivalent to the culprit (or slower). Where the true difference is the margin, an equivalence
  is wrong with at most `plan.equivalence_alpha`, as in `compare`.
- Where these do not suffice for an answer, it is inconclusive.

The share that is back is an estimate with an interval, and decides nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.output.table import interval, percentage
from asv_bench.stats.paired import Share

_LOST = (Verdict.FAILED, Verdict.VOID, Verdict.NOT_MEASURED)
"""Answers without which there is none, the worst first."""


class State(StrEnum):
    """What became of a regression; the worst first.

    `NOT_WHOLLY`: the head is slower than the parent, and whether less so than the culprit was not
    shown. `NO_REGRESSION`: the culprit is not slower than its parent.
    """

    NOT = "not fixed"
    NOT_WHOLLY = "not wholly fixed"
    PARTLY = "partly fixed"
    FAILED = "failed"
    VOID = "void"
    NOT_MEASURED = "not measured"
    INCONCLUSIVE = "inconclusive"
    NO_REGRESSION = "no regression to fix was found"
    WHOLLY = "wholly fixed"


@dataclass(frozen=True, slots=True)
class Repair:
    """The answer for one metric."""

    metric: str
    regression: Comparison  # the culprit against the parent
    remainder: Comparison  # the head against the parent
    repair: Comparison  # the head against the culprit
    # The part of the regression that the head takes back, as logarithms; None unless the culprit
    # is slower and the head faster than it.
    back: Share | None = None

    @property
    def state(self) -> State:
        """The answer in short."""
        return self._answer()[0]

    @property
    def is_slower(self) -> bool:
        """Whether something is left, of this regression or of another."""
        return self.remainder.verdict is Verdict.SLOWER

    def sentence(self) -> str:
        """The answer and what it rests on."""
        state, why = self._answer()
        return f"{self.metric}: {state}{why}."

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON-ready values; the comparisons are elsewhere in the record."""
        return {
            "metric": self.metric,
            "state": str(self.state),
            "slower": self.is_slower,
            "back": None if self.back is None else asdict(self.back),
            "sentence": self.sentence(),
        }

    def _answer(self) -> tuple[State, str]:
        """The state, and what it follows from."""
        regression, remainder, repair = self.regression, self.remainder, self.repair
        verdicts = regression.verdict, remainder.verdict, repair.verdict
        its_parent, the_culprit = _said(regression, "its parent"), _said(repair, "the culprit")
        before = f": the culprit is {its_parent}"
        now = f": the head is {_said(remainder, 'the parent')}"
        unclear = (one for one in (regression, remainder, repair) if not one.verdict.is_clear)
        reason = next((one.reason for one in unclear if one.reason), "")
        back = ""
        if self.back is not None:
            low, high = (percentage(bound, 0) for bound in self.back.interval)
            share = percentage(self.back.value, 0)
            back = f", {share} of the effect is back ({low} to {high})"
        match verdicts:
            # Commits that hold the same need no measuring: known as no regression, or as its end.
            case (Verdict.SAME, _, _):
                return State.NO_REGRESSION, before
            case (_, Verdict.SAME, _):
                return State.WHOLLY, now
            case _ if lost := [one for one in _LOST if one in verdicts]:
                return State(str(lost[0])), f": {reason}".rstrip(".")
            case (Verdict.EQUIVALENT | Verdict.FASTER, _, _):
                also = f", and{now[1:]}" if remainder.verdict is Verdict.SLOWER else ""
                return State.NO_REGRESSION, before + also
            case (Verdict.INCONCLUSIVE, _, _):
                return State.INCONCLUSIVE, before
            case (_, Verdict.SLOWER, Verdict.FASTER):
                return State.PARTLY, f"{back};{now[1:]}"
            case (_, Verdict.SLOWER, Verdict.INCONCLUSIVE):
                open_as = "and whether less so than the culprit was not shown"
                return State.NOT_WHOLLY, f"{now}, {open_as}"
            case (_, Verdict.SLOWER, _):
                return State.NOT, f": the head is {the_culprit}, which is {its_parent}"
            case (_, Verdict.EQUIVALENT | Verdict.FASTER, Verdict.FASTER | Verdict.INCONCLUSIVE):
                return State.WHOLLY, now
        # Verdicts that contradict each other; or a regression that is hardly wider than the margin,
        # after which the head may be like both ends.
        is_small = repair.verdict is Verdict.EQUIVALENT
        why = ", for the regression is hardly wider than the margin; a smaller one can tell"
        return State.INCONCLUSIVE, f"{now} and {the_culprit}{why if is_small else ''}"


def _said(comparison: Comparison, base: str) -> str:
    """A verdict against the base, with its effect."""
    words = {
        Verdict.SLOWER: f"{comparison.word} than {base}",
        Verdict.FASTER: f"{comparison.word} than {base}",
        Verdict.EQUIVALENT: f"equivalent to {base}",
        Verdict.SAME: f"the same as {base} in what is measured",
    }.get(comparison.verdict, f"neither shown to differ from {base} nor to equal it")
    if comparison.effect is None or comparison.interval is None:
        return words
    effect = percentage(comparison.effect, 2, signed=True)
    return f"{words} ({effect}, {interval(2)(comparison.interval)})"
