"""Confirming what history suggests: a change in stored results is a suspicion until compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from asv_bench.compare.catalog import Entry
from asv_bench.compare.comparison import CommitComparison, OnPair
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


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What comparing suspicions came to, and whether Ctrl-C ended it before its end."""

    confirmations: list[Confirmation]
    is_interrupted: bool


def confirm(
    suspicions: Sequence[Suspicion],
    pairs_of: Callable[[Sequence[str]], AbstractContextManager[PairSource]],
    on_pair: OnPair | None = None,
) -> Confirmed:
    """Compare the commits around each suspicion, those of the same commits together.

    Holm's procedure covers the benchmarks of the same two commits.

    Parameters
    ----------
    suspicions
        What stored results suggest.
    pairs_of
        Gives a source of pairs of these benchmarks (`BenchSetup.pairs_of`).
    on_pair
        Told of every pair.

    Returns
    -------
    Confirmed
        In the order of the suspicions; after Ctrl-C those that were begun.
    """
    around: dict[tuple[str, str], list[str]] = {}
    for suspicion in suspicions:
        benchmarks = around.setdefault((suspicion.before, suspicion.after), [])
        if suspicion.benchmark not in benchmarks:
            benchmarks.append(suspicion.benchmark)
    found: dict[tuple[str, str, str], Comparison] = {}
    is_interrupted = False
    for (before, after), benchmarks in around.items():
        comparison = CommitComparison(before, after, benchmarks)
        try:
            with pairs_of(benchmarks) as source:
                compared = comparison.run(source, on_pair)
        except (CommitUnusable, KeyboardInterrupt) as error:
            compared = comparison.answers_after(error)
            if isinstance(error, KeyboardInterrupt):
                is_interrupted = True
                compared = [one for one in compared if one.pairs_used or one.pairs_discarded]
        found |= {(before, after, entry.benchmark): entry for entry in compared}
        if is_interrupted:
            break
    confirmations = [
        Confirmation(one, found[key])
        for one in suspicions
        if (key := (one.before, one.after, one.benchmark)) in found
    ]
    return Confirmed(confirmations, is_interrupted)


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
