"""What a bisection came to, and the account of every pair on the way."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.process.samples import Pair
from asv_bench.stats.level_curve import Gap


class Direction(StrEnum):
    """Which change is looked for."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"

    @property
    def sign(self) -> int:
        """What turns log-ratios of this direction positive."""
        return 1 if self is Direction.REGRESSION else -1

    @property
    def phrase(self) -> str:
        """With its article."""
        return f"{'a' if self is Direction.REGRESSION else 'an'} {self}"

    @property
    def verdict(self) -> Verdict:
        """What a comparison of such a change says."""
        return Verdict.SLOWER if self is Direction.REGRESSION else Verdict.FASTER


class Outcome(StrEnum):
    """The answer of a bisection; `NONE`: the ends are equivalent, or differ the other way."""

    FOUND = "found"
    NONE = "none"
    INCONCLUSIVE = "inconclusive"


class Stage(StrEnum):
    """What a pair was measured for."""

    GATE = "gate"
    SEARCH = "search"
    CONFIRMATION = "confirmation"


class Shape(StrEnum):
    """How the range goes from its good end to its bad one; `SLOPE`: with no step at any commit."""

    NOTHING = "nothing"
    ONE_STEP = "one step"
    SEVERAL_STEPS = "several steps"
    SLOPE = "slope"
    UNRESOLVED = "unresolved"


@dataclass(frozen=True, slots=True)
class Step:
    """A change between one commit and the next that can be measured.

    Attributes
    ----------
    commits
        Full hashes, oldest first: one of them made it. Several where those before the last cannot
        be measured.
    effect, interval
        Of its confirmation, where there was one; else of the curve, without an interval.
    probability
        That there is a step, by the search alone.
    confirmed
        Whether the comparison with the commit before it shows it, of at least the margin.
    """

    commits: tuple[str, ...]
    effect: float
    interval: tuple[float, float] | None
    probability: float
    confirmed: bool

    @property
    def commit(self) -> str:
        """The last of the commits."""
        return self.commits[-1]

    def to_json(self) -> dict[str, Any]:
        """The step as JSON-ready values."""
        return {"commit": self.commit, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Commits at which a step seemed certain, and what comparing them came to."""

    gap: Gap
    comparison: Comparison
    is_confirmed: bool


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A measured commit against the good end, as the whole curve has it; the interval is of 95 %.

    `pairs` are those of this commit and the good end that counted.
    """

    commit: str
    effect: float
    interval: tuple[float, float]
    pairs: int


@dataclass(frozen=True, slots=True)
class Guess:
    """Where a step is most probable after a pair.

    Attributes
    ----------
    commits
        Full hashes, oldest first: the commits between two measured ones, the later included; the
        range in which the change of the ends must lie; or none.
    probability
        Of a step among them, or that there is none.
    pairs_left
        How many more pairs the search is expected to take; None where that is unknown.
    """

    commits: tuple[str, ...]
    probability: float
    pairs_left: int | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """One pair of a bisection.

    Attributes
    ----------
    reference, commit
        Full hashes of the pair's base and head.
    pair
        None where a process failed.
    failure
        A sentence where a process failed or the commit cannot be measured at all; else "".
    guess
        What was most probable then; None before the search.
    """

    stage: Stage
    reference: str
    commit: str
    pair: Pair | None
    failure: str = ""
    guess: Guess | None = None

    def to_json(self) -> dict[str, Any]:
        """The probe as JSON-ready values."""
        return {**asdict(self), "pair": None if self.pair is None else self.pair.to_json()}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a bisection came to.

    Attributes
    ----------
    reason
        A sentence that says why the outcome is what it is.
    gate
        The comparison of the two ends.
    suspects
        The commit of the largest step in this direction; several, oldest first, if those before the
        last cannot be measured. Where the search gave up, the commits among which a step is most
        probable, or must lie. Else empty.
    probability
        Of a step among them, by the search alone; None where there are none.
    posterior
        By hash of every candidate: how probable a step of it was at the end of the search.
    confirmations
        Comparisons of steps with the commit before them, in the order they were made.
    unmeasurable
        By hash of the candidates that were left out: why.
    remark
        A sentence where steps do not explain the range or something was not looked for, else "".
    shape, steps
        What the range is, and its steps, oldest first: the confirmed ones and those that were
        suspected and not confirmed.
    curve
        The commits that were measured, oldest first.
    """

    outcome: Outcome
    direction: Direction
    benchmark: str
    good: str
    bad: str
    reason: str
    gate: Comparison
    suspects: tuple[str, ...] = ()
    probability: float | None = None
    posterior: dict[str, float] = field(default_factory=dict)
    confirmations: tuple[Comparison, ...] = ()
    unmeasurable: dict[str, str] = field(default_factory=dict)
    remark: str = ""
    shape: Shape = Shape.NOTHING
    steps: tuple[Step, ...] = ()
    curve: tuple[CurvePoint, ...] = ()

    @property
    def confirmed_steps(self) -> list[Step]:
        """The steps that are named."""
        return [step for step in self.steps if step.confirmed]

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON-ready values."""
        return {**asdict(self), "steps": [step.to_json() for step in self.steps]}
