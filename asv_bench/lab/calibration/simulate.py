"""How often `compare` errs, on simulated processes and on measured ones drawn again.

`python -m asv_bench.lab.calibration.simulate` applies the rule that compares real commits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import scipy
import typer

from asv_bench.cli.grouped import grouped
from asv_bench.cli.options import Outputs
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Verdict
from asv_bench.lab.calibration.many_comparisons import Drawn, compare_many
from asv_bench.lab.calibration.replayed_noise import replayed
from asv_bench.lab.calibration.situations import SITUATIONS, NoiseSource
from asv_bench.output.progress import Progress
from asv_bench.output.record import Record
from asv_bench.output.table import Column, Table, digits, percent

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
_AT_ONCE = 2000
"""Benchmarks whose pairs are in memory at once."""
_CERTAIN = 0.001
"""A promise is called broken where counts as high would be rarer than this if it were kept."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What many comparisons with one true effect came to.

    Attributes
    ----------
    noise
        Its name.
    effect
        The true one: 0.02 is 2 % slower.
    benchmarks
        Compared at once; the effect is the first's, the others have none.
    runs
        Comparisons.
    verdicts
        How many came to each, for the first benchmark.
    false_alarms
        Comparisons that called a benchmark without an effect slower or faster.
    wrong_signs
        Comparisons that called the first benchmark slower though it is faster, or the reverse.
    pairs
        That the first benchmark took, all comparisons together.
    covered
        How many of its intervals hold the true effect.
    independent
        Comparisons with nothing in common that the noise is enough for; None: any number.
    """

    noise: str
    effect: float
    benchmarks: int
    runs: int
    verdicts: dict[str, int]
    false_alarms: int
    wrong_signs: int
    pairs: int
    covered: int
    independent: int | None = None

    def __add__(self, other: Tally) -> Tally:
        """Both together, of the same noise and effect."""
        return Tally(
            noise=self.noise,
            effect=self.effect,
            benchmarks=self.benchmarks,
            runs=self.runs + other.runs,
            verdicts=dict(Counter(self.verdicts) + Counter(other.verdicts)),
            false_alarms=self.false_alarms + other.false_alarms,
            wrong_signs=self.wrong_signs + other.wrong_signs,
            pairs=self.pairs + other.pairs,
            covered=self.covered + other.covered,
            independent=self.independent,
        )

    def rate(self, verdict: Verdict) -> float:
        """The fraction of comparisons with this verdict."""
        return self.verdicts.get(verdict, 0) / self.runs

    @property
    def mean_pairs(self) -> float:
        """Pairs that the first benchmark took."""
        return self.pairs / self.runs

    @property
    def coverage(self) -> float:
        """The fraction of its intervals that hold the true effect."""
        return self.covered / self.runs

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


@dataclass(frozen=True, slots=True)
class Case:
    """Comparisons to simulate: a noise, its name, an effect, and how many benchmarks at once."""

    name: str
    noise: NoiseSource
    effect: float
    benchmarks: int = 1


def simulate(
    effect: float,
    noise: NoiseSource,
    runs: int,
    *,
    name: str = "",
    benchmarks: int = 1,
    seed: int = 0,
    plan: ComparisonPlan | None = None,
    has_pools: bool = True,
) -> Tally:
    """Compare commits that differ by `effect` in the first of some benchmarks, `runs` times.

    `has_pools`: whether the noise was seen before, as differences within a commit.
    """
    case = Case(name, noise, effect, benchmarks)
    parts = [
        _tally(case, part, one, plan or ComparisonPlan(), has_pools)
        for one, part in _parts(runs, benchmarks, seed)
    ]
    return _together(parts)


@grouped
def run(
    runs: Annotated[
        int, typer.Option(min=1, help="Comparisons for each effect and noise.")
    ] = 10_000,
    workers: Annotated[int, typer.Option(min=1, help="Processes that simulate.")] = 1,
    replay: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Record of compare or calibrate: draw from its pairs of a commit with itself, "
            "too; may be given several times.",
        ),
    ] = None,
    *,
    outputs: Outputs,
) -> None:
    """Simulate every effect under every noise, and several benchmarks at once."""
    files = outputs.files()
    plan = ComparisonPlan()
    noises: dict[str, NoiseSource] = dict(SITUATIONS)
    for path in replay or []:
        noises.update(replayed(path, plan.cap))
    record = Record("simulate", {"runs": runs, "plan": plan.to_json()})
    tallies: list[Tally] = []
    cases = _cases(noises, plan)
    with (
        Progress(files.console, "simulating", len(cases), "cases", is_apart=False) as progress,
        ProcessPoolExecutor(workers) as pool,
    ):
        # All at once, so that no process waits for the last part of a case.
        futures = [
            [
                pool.submit(_tally, case, part, seed, plan, True)
                for seed, part in _parts(runs, case.benchmarks, number)
            ]
            for number, case in enumerate(cases)
        ]
        for parts in futures:
            tallies.append(_together([future.result() for future in parts]))
            progress.advance()
    record.results = {
        "noises": {name: str(noise) for name, noise in noises.items()},
        "tallies": [{**asdict(tally), "broken": tally.broken(plan)} for tally in tallies],
    }
    files.show(tally_table(tallies, noises, plan))
    files.console.print(f"record: {record.write(files.record)}", highlight=False, soft_wrap=True)


def tally_table(
    tallies: Sequence[Tally], noises: dict[str, NoiseSource], plan: ComparisonPlan
) -> Table:
    """A row for each tally."""
    rows = [
        (
            tally.noise,
            tally.benchmarks,
            tally.effect,
            *(tally.rate(verdict) for verdict in VERDICTS),
            tally.false_alarms / tally.runs,
            tally.wrong_signs / tally.runs,
            tally.mean_pairs,
            tally.coverage,
            ", ".join(tally.broken(plan)),
        )
        for tally in tallies
    ]
    title = f"verdicts of {tallies[0].runs:,} simulated comparisons each"
    return Table(COLUMNS, rows, title, "; ".join(f"{name}: {noises[name]}" for name in noises))


def _cases(noises: dict[str, NoiseSource], plan: ComparisonPlan) -> list[Case]:
    cases: list[Case] = []
    for name, noise in noises.items():
        effects = EFFECTS if noise.is_symmetric else (1 / (1 + plan.margin) - 1, *EFFECTS)
        cases += [Case(name, noise, effect) for effect in effects]
    several = [(name, noises[name]) for name in SEVERAL_AT_ONCE if name in noises]
    return cases + [
        Case(name, noise, effect, SEVERAL) for name, noise in several for effect in (0.0, 0.03)
    ]


def _parts(runs: int, benchmarks: int, seed: int) -> list[tuple[np.random.SeedSequence, int]]:
    """How comparisons are split, whoever simulates them: a seed and a number of runs for each."""
    size = max(1, _AT_ONCE // benchmarks)
    sizes = [min(size, runs - begun) for begun in range(0, runs, size)]
    return list(zip(np.random.SeedSequence(seed).spawn(len(sizes)), sizes, strict=True))


def _together(parts: Sequence[Tally]) -> Tally:
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total


def _tally(
    case: Case, runs: int, seed: np.random.SeedSequence, plan: ComparisonPlan, has_pools: bool
) -> Tally:
    effects = np.zeros(case.benchmarks)
    effects[0] = case.effect
    drawn = case.noise.draw(np.random.default_rng(seed), effects.tolist(), runs, plan.cap)
    if not has_pools:
        drawn = Drawn(drawn.base, drawn.head, drawn.pools[..., :0])
    answers = compare_many(drawn, plan)
    differ = np.isin(answers.verdict, (Verdict.SLOWER, Verdict.FASTER))
    first = answers.verdict[:, 0]
    wrong = Verdict.FASTER if case.effect > 0 else Verdict.SLOWER
    return Tally(
        noise=case.name,
        effect=case.effect,
        benchmarks=case.benchmarks,
        runs=runs,
        verdicts={
            verdict.value: int(number)
            for verdict in VERDICTS
            if (number := (first == verdict).sum())
        },
        false_alarms=int((differ & (effects == 0)).any(axis=-1).sum()),
        wrong_signs=int((first == wrong).sum()) if case.effect else 0,
        pairs=int(answers.pairs[:, 0].sum()),
        covered=int(((answers.low <= case.effect) & (case.effect <= answers.high))[:, 0].sum()),
        independent=case.noise.independent,
    )


if __name__ == "__main__":
    typer.run(run)
