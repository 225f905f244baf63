"""Confirming what history suggests: a change in stored results is a suspicion until compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from asv_bench.compare.catalog import Entry
from asv_bench.compare.comparison import OnAnswer, OnPair, compare_commits
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import Refused
from asv_bench.process.samples import CommitUnusable, PairSource


class Standing(StrEnum):
    """What became of a suspicion.

    A direction that comparison contradicts is `REFUTED`, as is a difference shown to be none, or
    between commits whose engine and kernels are the same.
    """

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    REFUTED = "refuted"
    UNRESOLVED = "unresolved"
    NOT_COMPARED = "not compared"


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A change that stored results suggest.

    Attributes
    ----------
    benchmark
        Name with parameters, as asv prints it.
    before, after
        Full hashes of measured commits surely before the change and surely after it.
    change
        What the results say it was: 0.03 is 3 % slower.
    """

    benchmark: str
    before: str
    after: str
    change: float


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A suspicion and what comparing its two commits came to."""

    suspicion: Suspicion
    comparison: Comparison

    @property
    def standing(self) -> Standing:
        """What may be said of the change now."""
        verdict = self.comparison.verdict
        seemed_slower = self.suspicion.change > 0
        if verdict is Verdict.SLOWER:
            return Standing.REGRESSION if seemed_slower else Standing.REFUTED
        if verdict is Verdict.FASTER:
            return Standing.REFUTED if seemed_slower else Standing.IMPROVEMENT
        if verdict in (Verdict.EQUIVALENT, Verdict.SAME):
            return Standing.REFUTED
        if verdict is Verdict.INCONCLUSIVE:
            return Standing.UNRESOLVED
        return Standing.NOT_COMPARED

    def to_json(self) -> dict[str, Any]:
        """The confirmation as JSON-ready values."""
        return {
            "change": self.suspicion.change,
            "standing": str(self.standing),
            **self.comparison.to_json(),
        }


def confirm(
    suspicions: Sequence[Suspicion],
    pairs_of: Callable[[Sequence[str]], AbstractContextManager[PairSource]],
    plan: ComparisonPlan | None = None,
    on_pair: OnPair | None = None,
    on_answer: OnAnswer | None = None,
) -> list[Confirmation]:
    """Compare the commits around each suspicion, those of the same commits together.

    Parameters
    ----------
    suspicions
        What stored results suggest.
    pairs_of
        Gives a source of pairs of these benchmarks (`BenchSetup.pairs_of`).
    plan
        Of each comparison; Holm's procedure covers the benchmarks of the same two commits.
    on_pair
        Told of every pair.
    on_answer
        Told of every answer, so that those given before an interruption are not lost.

    Returns
    -------
    list of Confirmation
        One for each suspicion, in their order.
    """
    around: dict[tuple[str, str], list[str]] = {}
    for suspicion in suspicions:
        benchmarks = around.setdefault((suspicion.before, suspicion.after), [])
        if suspicion.benchmark not in benchmarks:
            benchmarks.append(suspicion.benchmark)
    found: dict[tuple[str, str, str], Comparison] = {}
    for (before, after), benchmarks in around.items():
        try:
            with pairs_of(benchmarks) as source:
                compared = compare_commits(
                    source, before, after, benchmarks, plan, on_pair, on_answer
                )
        except CommitUnusable as error:
            verdict = Verdict.NOT_MEASURED if error.is_lacking else Verdict.FAILED
            compared = [
                Comparison(name, before, after, verdict, reason=str(error)) for name in benchmarks
            ]
            if on_answer is not None:
                for answer in compared:
                    on_answer(answer)
        found |= {(before, after, entry.benchmark): entry for entry in compared}
    return [Confirmation(one, found[one.before, one.after, one.benchmark]) for one in suspicions]


def entry_named(entries: Sequence[Entry], benchmark: str, values: Sequence[str]) -> Entry:
    """The entry of a benchmark whose parameters have these values, as stored results name them.

    Stored results are read without the quotes of texts (`asv_results.Series`).

    Raises
    ------
    Refused
        If today's benchmarks have no such entry.
    """
    wanted = [value.strip("'\"") for value in values]
    for entry in entries:
        name, _, rest = entry.name.partition("(")
        found = [value.strip("'\"") for value in rest.removesuffix(")").split(", ")] if rest else []
        if name == benchmark and found == wanted:
            return entry
    raise Refused(
        f"today's benchmarks have no {benchmark}({', '.join(values)}): the change is of a "
        f"benchmark that was renamed or removed, and cannot be measured again."
    )
