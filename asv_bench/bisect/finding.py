"""What is settled before a search, every pair of it, and what it came to."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from asv_bench.compare.plan import ComparisonPlan, looks_at
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.measure.samples import Pair

MOST_CONFIRMATIONS = 3
"""Culprits that may fail their confirmation before a bisection gives up."""
THOROUGH = ComparisonPlan(looks=looks_at(14, 18, 24, 32, 48, 64, 96), max_discarded=24)
"""The plan for comparing the ends of a range, or a culprit with its parent.

Its cap is far beyond that of a plain comparison: a search needs two comparisons and its own answer
to be right together. A clear case is decided at the first looks all the same."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """What is settled before the first pair of a bisection."""

    comparison: ComparisonPlan = THOROUGH
    """Of the two ends, before the search, and of the culprit with its parent, after it."""
    certain: float = 0.8
    """Probability of a step at one commit at which that is compared with the commit before it."""
    most_pairs: int = 200
    """Pairs of the search, after which it gives up; the comparisons' own do not count."""
    is_inside: bool = False  # whether to look between the ends also where those do not differ
    is_all: bool = False  # whether to go on when what is confirmed explains the ends

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON-ready values."""
        comparison = {"comparison": self.comparison.to_json()}
        return {**asdict(self), **comparison, "most_confirmations": MOST_CONFIRMATIONS}


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


class RangeShape(StrEnum):
    """How the range goes from its good end to its bad one; `SLOPE`: with no step at any commit."""

    NOTHING = "nothing"
    ONE_STEP = "one step"
    SEVERAL_STEPS = "several steps"
    SLOPE = "slope"
    UNRESOLVED = "unresolved"


@dataclass(frozen=True, slots=True)
class Step:
    """A change between one commit and the next that can be measured."""

    commits: tuple[str, ...]
    """Full hashes, oldest first: one of them made it. Several where those before the last cannot be
    measured."""
    effect: float  # of its confirmation, where there was one; else of the curve
    interval: tuple[float, float] | None  # as the effect; of the curve there is none
    probability: float  # that there is a step, by the search alone
    confirmed: bool
    """Whether the comparison with the commit before it shows it, of at least the margin."""

    @property
    def commit(self) -> str:
        """The last of the commits."""
        return self.commits[-1]


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
    """Where a step is most probable after a pair."""

    commits: tuple[str, ...]
    """Full hashes, oldest first: the commits between two measured ones, the later included; the
    range in which the change of the ends must lie; or none."""
    probability: float  # of a step among them, or that there is none
    pairs_left: int  # that the search is expected to take from here on


@dataclass(frozen=True, slots=True)
class Probe:
    """One pair of a bisection."""

    stage: Stage
    reference: str  # full hash of the pair's base
    commit: str  # full hash of its head
    pair: Pair | None  # None where a process failed
    failure: str = ""
    """A sentence where a process failed or the commit cannot be measured at all; else ""."""
    guess: Guess | None = None  # what was most probable then; None before the search

    def to_json(self) -> dict[str, Any]:
        """The probe as JSON-ready values."""
        return {**asdict(self), "pair": None if self.pair is None else self.pair.to_json()}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a bisection came to."""

    outcome: Outcome
    direction: Direction
    benchmark: str
    good: str
    bad: str
    reason: str  # a sentence that says why the outcome is what it is
    gate: Comparison  # the comparison of the two ends
    suspects: tuple[str, ...] = ()
    """The commit of the largest step in this direction; several, oldest first, if those before the
    last cannot be measured. Where the search gave up, the commits among which a step is most
    probable, or must lie. Else empty."""
    probability: float | None = None
    """Of a step among them, by the search alone; None where there are none."""
    posterior: dict[str, float] = field(default_factory=dict)
    """By hash of every candidate: how probable a step of it was at the end of the search."""
    confirmations: tuple[Comparison, ...] = ()
    """Comparisons of steps with the commit before them, in the order they were made."""
    unmeasurable: dict[str, str] = field(default_factory=dict)
    """By hash of the candidates that were left out: why."""
    remark: str = ""
    """A sentence where something was not looked for, else ""."""
    shape: RangeShape = RangeShape.NOTHING  # what the range is
    steps: tuple[Step, ...] = ()
    """Oldest first: the confirmed ones, and those that were suspected and not confirmed."""
    curve: tuple[CurvePoint, ...] = ()  # the commits that were measured, oldest first

    @property
    def confirmed_steps(self) -> list[Step]:
        """The steps that are named."""
        return [step for step in self.steps if step.confirmed]

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON-ready values."""
        steps = [{"commit": step.commit, **asdict(step)} for step in self.steps]
        return {**asdict(self), "steps": steps}
