"""How often `compare` errs, on simulated processes.

`python -m asv_bench.lab.calibration.simulate` runs the procedure that compares real commits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
import typer

from asv_bench.cli.options import CsvPath, MarkdownPath, RecordPath
from asv_bench.compare.comparison import CommitComparison
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.lab.calibration.simulated_noise import BASE, HEAD, NOISES, Noise, SimulatedPairs
from asv_bench.output.progress import Progress
from asv_bench.output.record import Record
from asv_bench.output.table import Column, Table, digits, percent
from asv_bench.output.table_files import TableFiles
from asv_bench.stats.few_pairs import POOL_SIZE

EFFECTS = (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05)
VERDICTS = (Verdict.SLOWER, Verdict.FASTER, Verdict.EQUIVALENT, Verdict.INCONCLUSIVE)
COLUMNS = (
    Column("noise", "noise", kind="text"),
    Column("benchmarks", "benchmarks"),
    Column("effect", "true effect", show=percent(1, signed=True)),
    *(Column(str(verdict), str(verdict), show=percent(1)) for verdict in VERDICTS),
    Column("false_alarms", "false alarms", show=percent(1)),
    Column("mean_pairs", "pairs", show=digits(1)),
    Column("coverage", "coverage", show=percent(1)),
)


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
    mean_pairs
        Pairs that the first benchmark took.
    coverage
        Fraction of its intervals that hold the true effect.
    """

    noise: str
    effect: float
    benchmarks: int
    runs: int
    verdicts: dict[str, int]
    false_alarms: int
    mean_pairs: float
    coverage: float

    def rate(self, verdict: Verdict) -> float:
        """The fraction of comparisons with this verdict."""
        return self.verdicts.get(verdict, 0) / self.runs


def simulate(
    effect: float,
    noise: Noise,
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
    plan = plan or ComparisonPlan()
    effects = {f"benchmark {number}": 0.0 for number in range(benchmarks)}
    effects["benchmark 0"] = effect
    answers: list[Comparison] = []
    false_alarms = 0
    for run in range(runs):
        source_seed = 1_000_003 * seed + run
        source = SimulatedPairs(effects, noise, seed=source_seed)
        pools = {one: _pool(noise, source_seed + place) for place, one in enumerate(effects)}
        compared = CommitComparison(
            BASE, HEAD, list(effects), plan, pools if has_pools else None
        ).run(source)
        answers.append(compared[0])
        false_alarms += any(
            comparison.verdict in (Verdict.SLOWER, Verdict.FASTER)
            for comparison in compared
            if effects[comparison.benchmark] == 0
        )
    return Tally(
        noise=name,
        effect=effect,
        benchmarks=benchmarks,
        runs=runs,
        verdicts={str(key): count for key, count in Counter(a.verdict for a in answers).items()},
        false_alarms=false_alarms,
        mean_pairs=sum(answer.pairs_used for answer in answers) / runs,
        coverage=sum(_covers(answer, effect) for answer in answers) / runs,
    )


def run(
    runs: Annotated[int, typer.Option(min=1, help="Comparisons for each effect and noise.")] = 1000,
    json: RecordPath = None,
    markdown: MarkdownPath = None,
    csv: CsvPath = None,
) -> None:
    """Simulate every effect under every noise, and several benchmarks at once."""
    files = TableFiles.beside_record(json, markdown=markdown, csv=csv)
    ordinary = next(iter(NOISES))
    cases = [(name, effect, 1) for name in NOISES for effect in EFFECTS]
    cases += [(ordinary, 0.0, 10), (ordinary, 0.03, 10)]
    record = Record("simulate", {"runs": runs, "plan": ComparisonPlan().to_json()})
    tallies: list[Tally] = []
    with Progress(files.console, "simulating", len(cases), "cases", is_apart=False) as progress:
        for number, (name, effect, benchmarks) in enumerate(cases):
            tallies.append(
                simulate(effect, NOISES[name], runs, name=name, benchmarks=benchmarks, seed=number)
            )
            progress.advance()
    record.results = {
        "noises": {name: asdict(noise) for name, noise in NOISES.items()},
        "tallies": [asdict(tally) for tally in tallies],
    }
    files.show(tally_table(tallies))
    files.console.print(f"record: {record.write(json)}", highlight=False, soft_wrap=True)


def tally_table(tallies: Sequence[Tally]) -> Table:
    """A row for each tally."""
    rows = [
        (
            tally.noise,
            tally.benchmarks,
            tally.effect,
            *(tally.rate(verdict) for verdict in VERDICTS),
            tally.false_alarms / tally.runs,
            tally.mean_pairs,
            tally.coverage,
        )
        for tally in tallies
    ]
    title = f"verdicts of {tallies[0].runs} simulated comparisons each"
    return Table(COLUMNS, rows, title, "; ".join(f"{name}: {NOISES[name]}" for name in NOISES))


def _pool(noise: Noise, seed: int) -> list[float]:
    """Differences between processes next to each other, of another run."""
    figures = noise.figures(np.random.default_rng((seed, 1)))
    values = np.fromiter(figures, np.float64, 2 * POOL_SIZE)
    return [float(one) for one in values[1::2] - values[::2]]


def _covers(answer: Comparison, effect: float) -> bool:
    return answer.interval is not None and answer.interval[0] <= effect <= answer.interval[1]


if __name__ == "__main__":
    typer.run(run)
