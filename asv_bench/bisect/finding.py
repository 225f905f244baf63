"""What a bisection came to, and the account of every pair on the way."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.process.samples import Pair


class Direction(StrEnum):
    """Which change is looked for."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"

    @property
    def sign(self) -> int:
        """What turns log-ratios of this direction positive."""
        return 1 if self is Direction.REGRESSION else -1

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
    IN_TURNS = "in turns"


@dataclass(frozen=True, slots=True)
class Guess:
    """What is most probable after a pair.

    Attributes
    ----------
    commits
        Full hashes, oldest first: one of them is the first changed commit. Empty: none is.
    probability
        Of exactly that.
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
        The first changed commit; several, oldest first, if those before the last cannot be
        measured; empty if no commit is named.
    probability
        That it is one of them, by the search alone; None where nothing was searched.
    posterior
        By hash of every candidate: how probable it was at the end of the search.
    confirmations
        Comparisons of suspects with the commit before them; the last is of `suspects`.
    unmeasurable
        By hash of the candidates that were left out: why.
    remark
        A sentence where more than one step was shown, else "".
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

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON-ready values."""
        return asdict(self)
