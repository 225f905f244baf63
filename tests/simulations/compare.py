"""How often `compare` errs, on simulated processes and on measured ones drawn again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import scipy

from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Verdict
from asv_bench.output.table import Column, Table, digits, percent

from .many_comparisons import compare_many
from .noise import COARSE, ReplayedNoise, Situation

NoiseSource: TypeAlias = Situation | ReplayedNoise
EFFECTS = (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.3)
SEVERAL = 10
SEVERAL_AT_ONCE = ("ordinary", "normal 1 %", "two modes")
"""Situations in which several benchmarks are compared at once, too."""
VERDICTS = (Verdict.SLOWER, Verdict.FASTER, Verdict.EQUIVALENT, Verdict.INCONCLUSIVE)
COLUMNS = (
    Column("noise", "noise", kind="text"),
    Column("benchmarks", "benchmarks"),
    Column("effect", "true effect", show=percent(1, signed=True)),
    *(Column(str(verdict), str(verdict), show=percent(2)) for verdict in VERDICTS),
    Column("false_alarms", "false alarms", show=percent(2)),
    Column("wrong_signs", "wrong signs", show=percent(2)),
    Column("mean_pairs", "pairs", show=digits(1)),
    Column("coverage", "coverage", show=percent(1)),
    Column("broken", "broken promise", kind="text"),
)
COUNTS = ("runs", "false_alarms", "wrong_signs", "pairs", "covered")
_AT_ONCE = 2000
"""Benchmarks whose pairs are in memory at once."""
_CERTAIN = 0.001
"""A promise is called broken where counts as high would be rarer than this if it were kept."""


@dataclass(frozen=True, slots=True)
class Case:
    """Comparisons to simulate, of so many benchmarks at once; the first has the effect."""

    name: str
    noise: NoiseSource
    effect: float
    benchmarks: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Tally:
    """What many comparisons of one case came to."""

    noise: str
    effect: float  # the true one: 0.02 is 2 % slower
    benchmarks: int
    runs: int
    verdicts: dict[str, int]  # how many came to each, for the first benchmark
    false_alarms: int  # comparisons that called a benchmark without an effect slower or faster
    wrong_signs: int  # that called the first one slower though it is faster, or the reverse
    pairs: int  # that the first benchmark took, all comparisons together
    covered: int  # how many of its intervals hold the true effect
    # Comparisons with nothing in common that the noise is enough for; None: any number.
    independent: int | None = None

    @classmethod
    def of(cls, case: Case, parts: Sequence[Counter[str]]) -> Tally:
        """The sum of a case's parts."""
        total = sum(parts, Counter[str]())
        counts = {name: total[name] for name in COUNTS}
        verdicts = {str(verdict): total[verdict] for verdict in VERDICTS if total[verdict]}
        return cls(
            case.name,
            case.effect,
            case.benchmarks,
            verdicts=verdicts,
            independent=case.noise.independent,
            **counts,
        )

    def rate(self, count: str) -> float:
        """The fraction of comparisons with this verdict, or of which that was counted."""
        found = getattr(self, count) if count in COUNTS else self.verdicts.get(count, 0)
        return float(found / self.runs)

    def broken(self, plan: ComparisonPlan) -> list[str]:
        """Which of the plan's promises these counts certainly break, in words."""
        found: list[str] = []
        if self._exceeds(self.false_alarms + self.wrong_signs, plan.alpha):
            found.append("false alarms")
        is_beyond = abs(np.log1p(self.effect)) >= np.log1p(plan.margin) - 1e-12
        equivalent = self.verdicts.get(Verdict.EQUIVALENT, 0)
        if is_beyond and self._exceeds(equivalent, plan.equivalence_alpha):
            found.append("equivalent")
        return found

    def _exceeds(self, errors: int, rate: float) -> bool:
        # What is drawn again and again from little is worth no more than that.
        worth = min(self.runs, self.independent or self.runs)
        counted = math.floor(errors * worth / self.runs)
        return bool(scipy.stats.binom.sf(counted - 1, worth, rate) < _CERTAIN)


def simulate(
    effect: float,
    noise: NoiseSource,
    runs: int,
    *,
    benchmarks: int = 1,
    seed: int = 0,
    plan: ComparisonPlan | None = None,
    has_pools: bool = True,
) -> Tally:
    """Compare commits that differ by `effect` in the first of some benchmarks, `runs` times.

    `has_pools`: whether the noise was seen before, as differences within a commit.
    """
    case = Case("", noise, effect, benchmarks, seed)
    doing = parts(case, runs, plan or ComparisonPlan(), has_pools=has_pools)
    return Tally.of(case, [part() for part in doing])


def cases(noises: Mapping[str, NoiseSource], plan: ComparisonPlan) -> list[Case]:
    """Every effect under every noise, and several benchmarks at once."""
    found: list[tuple[str, NoiseSource, float, int]] = []
    for name, noise in noises.items():
        effects = EFFECTS if noise.is_symmetric else (1 / (1 + plan.margin) - 1, *EFFECTS)
        if isinstance(noise, Situation) and noise.digits > COARSE:
            # Ties make each comparison a table of its own, and take long.
            effects = (0.0, plan.margin)
        found += [(name, noise, effect, 1) for effect in effects]
    several = [(name, noises[name]) for name in SEVERAL_AT_ONCE if name in noises]
    found += [(*one, effect, SEVERAL) for one in several for effect in (0.0, 0.03)]
    return [Case(*one, seed) for seed, one in enumerate(found)]


def parts(
    case: Case, runs: int, plan: ComparisonPlan, *, has_pools: bool = True
) -> list[partial[Counter[str]]]:
    """The runs of a case, split in the same way whoever simulates them."""
    size = max(1, _AT_ONCE // case.benchmarks)
    sizes = [min(size, runs - begun) for begun in range(0, runs, size)]
    seeds = np.random.SeedSequence(case.seed).spawn(len(sizes))
    return [
        partial(_counts, case, part, seed, plan, has_pools)
        for part, seed in zip(sizes, seeds, strict=True)
    ]


def _counts(
    case: Case, runs: int, seed: np.random.SeedSequence, plan: ComparisonPlan, has_pools: bool
) -> Counter[str]:
    effects = np.zeros(case.benchmarks)
    effects[0] = case.effect
    drawn = case.noise.draw(np.random.default_rng(seed), effects.tolist(), runs, plan.cap)
    if not has_pools:
        drawn = replace(drawn, pools=drawn.pools[..., :0])
    answers = compare_many(drawn, plan)
    differ = np.isin(answers.verdict, (Verdict.SLOWER, Verdict.FASTER))
    first = answers.verdict[:, 0]
    wrong = Verdict.FASTER if case.effect > 0 else Verdict.SLOWER
    covered = (answers.low <= case.effect) & (case.effect <= answers.high)
    return Counter(
        {str(verdict): int((first == verdict).sum()) for verdict in VERDICTS}
        | {
            "runs": runs,
            "false_alarms": int((differ & (effects == 0)).any(axis=-1).sum()),
            "wrong_signs": int((first == wrong).sum()) if case.effect else 0,
            "pairs": int(answers.pairs[:, 0].sum()),
            "covered": int(covered[:, 0].sum()),
        }
    )


def tally_table(
    tallies: Sequence[Tally], noises: Mapping[str, NoiseSource], plan: ComparisonPlan
) -> Table:
    """A row for each tally."""
    shown = (*VERDICTS, *COUNTS[1:])
    rows = [
        (
            *(tally.noise, tally.benchmarks, tally.effect),
            *map(tally.rate, shown),
            ", ".join(tally.broken(plan)),
        )
        for tally in tallies
    ]
    title = f"verdicts of {tallies[0].runs:,} simulated comparisons each"
    return Table(COLUMNS, rows, title, "; ".join(f"{name}: {noises[name]}" for name in noises))
