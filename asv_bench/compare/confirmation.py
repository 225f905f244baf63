"""A change in stored results is a suspicion until its commits are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from asv_bench.compare.comparison import CommitComparison, OnPair
from asv_bench.compare.noise_pools import NoisePools
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.measure.rounds import two_cells
from asv_bench.measure.samples import CommitUnusable, Metric, RoundSource


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
        return cls.UNRESOLVED if answer.verdict is Verdict.INCONCLUSIVE else cls.NOT_COMPARED


class Suspicion(NamedTuple):
    """A benchmark, as asv prints it, that may differ between two commits, given by full hashes."""

    before: str
    after: str
    benchmark: str


@dataclass(slots=True)
class Answers:
    """What comparing suspicions came to, and whether Ctrl-C ended it before its end."""

    by_suspicion: dict[Suspicion, Comparison]
    is_interrupted: bool = False


def confirm(
    suspicions: Iterable[Suspicion],
    metrics: Mapping[str, Metric],
    source: RoundSource,
    on_pair: OnPair | None = None,
    plan: ComparisonPlan | None = None,
    noise: NoisePools | None = None,
) -> Answers:
    """Compare the commits of each suspicion, those of the same commits together.

    Holm's procedure covers the benchmarks of the same two commits. After Ctrl-C, suspicions that
    were not begun have no answer. `metrics` are the benchmarks by name, and `noise` is this
    machine's.
    """
    around: dict[tuple[str, str], list[str]] = {}
    for before, after, benchmark in dict.fromkeys(suspicions):
        around.setdefault((before, after), []).append(benchmark)
    answers = Answers({})
    for (before, after), benchmarks in around.items():
        pools = None if noise is None else noise.of(benchmarks)
        asked = [metrics[name] for name in benchmarks]
        comparison = CommitComparison(two_cells(before, after), asked, plan, pools)
        try:
            compared = comparison.run(source, on_pair)
        except (CommitUnusable, KeyboardInterrupt) as error:
            compared = comparison.answers_after(error)
            if isinstance(error, KeyboardInterrupt):
                answers.is_interrupted = True
                compared = [one for one in compared if one.pairs_used or one.pairs_discarded]
        if noise is not None and not answers.is_interrupted:
            noise.add({name: comparison.kept_pairs(name) for name in benchmarks})
        for one in compared:
            answers.by_suspicion[Suspicion(before, after, one.benchmark)] = one
        if answers.is_interrupted:
            break
    return answers
