"""How often the procedure of `compare` errs, on noise.

Run as `python -m asv_bench.lab.calibration.simulate`.

It runs the procedure itself, looks, replacements and all, on simulated processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress as ProgressBar
from rich.table import Table

from asv_bench.compare.comparison import compare_commits
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.tables import percentage
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.lab.calibration.simulated_noise import BASE, HEAD, Noise, SimulatedPairs
from asv_bench.output.console import add_figure_columns, make_console, print_table
from asv_bench.output.record import Record

EFFECTS = (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05)
NOISES = {
    "ordinary": Noise(),
    "quiet": Noise(process=0.003, drift=0.003),
    "heavy": Noise(tail=3.0, drift=0.02, outliers=0.05),
}
"""`ordinary` is a machine on which other things run, `quiet` a GPU with nothing else to do."""


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
) -> Tally:
    """Compare commits that differ by `effect` in the first of some benchmarks, `runs` times."""
    plan = plan or ComparisonPlan()
    effects = {f"benchmark {number}": 0.0 for number in range(benchmarks)}
    first = next(iter(effects))
    effects[first] = effect
    answers: list[Comparison] = []
    false_alarms = 0
    for run in range(runs):
        source = SimulatedPairs(effects, noise, seed=1_000_003 * seed + run)
        compared = compare_commits(source, BASE, HEAD, list(effects), plan)
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


def _covers(answer: Comparison, effect: float) -> bool:
    return answer.interval is not None and answer.interval[0] <= effect <= answer.interval[1]


def run(
    runs: Annotated[int, typer.Option(min=1, help="Comparisons for each effect and noise.")] = 1000,
    json: Annotated[
        Path | None, typer.Option(help="Where the record goes (default: reports/runs).")
    ] = None,
) -> None:
    """Simulate every effect under every noise, and several benchmarks at once."""
    console = make_console()
    plan = ComparisonPlan()
    cases = [(name, effect, 1) for name in NOISES for effect in EFFECTS]
    cases += [(next(iter(NOISES)), 0.0, 10), (next(iter(NOISES)), 0.03, 10)]
    record = Record("simulate", {"runs": runs, "plan": plan.to_json()})
    tallies: list[Tally] = []
    with ProgressBar(console=console, transient=True) as progress:
        task = progress.add_task("simulating", total=len(cases))
        for number, (name, effect, benchmarks) in enumerate(cases):
            tallies.append(
                simulate(effect, NOISES[name], runs, name=name, benchmarks=benchmarks, seed=number)
            )
            progress.advance(task)
    record.results = {
        "noises": {name: noise.to_json() for name, noise in NOISES.items()},
        "tallies": [asdict(tally) for tally in tallies],
    }
    print_table(console, tally_table(tallies))
    console.print(f"record: {record.write(json)}", highlight=False, soft_wrap=True)


def tally_table(tallies: Sequence[Tally]) -> Table:
    """A row for each tally."""
    table = Table(
        title=f"verdicts of {tallies[0].runs} simulated comparisons each",
        title_justify="left",
        caption="; ".join(f"{name}: {_described(noise)}" for name, noise in NOISES.items()),
    )
    table.add_column("noise", overflow="fold")
    add_figure_columns(table, "benchmarks", "true effect")
    verdicts = (Verdict.SLOWER, Verdict.FASTER, Verdict.EQUIVALENT, Verdict.INCONCLUSIVE)
    add_figure_columns(table, *verdicts, "false alarms", "pairs", "coverage")
    for tally in tallies:
        table.add_row(
            tally.noise,
            str(tally.benchmarks),
            percentage(tally.effect, 1, signed=True),
            *(percentage(tally.rate(verdict), 1) for verdict in verdicts),
            percentage(tally.false_alarms / tally.runs, 1),
            f"{tally.mean_pairs:.1f}",
            percentage(tally.coverage, 1),
        )
    return table


def _described(noise: Noise) -> str:
    tail = "" if noise.tail is None else f", t with {noise.tail:.0f} degrees of freedom"
    return (
        f"{percentage(noise.process, 1)} a process{tail}, drift of {percentage(noise.drift, 1)}, "
        f"{percentage(noise.outliers, 0)} outliers of {percentage(noise.outlier_size, 0)}"
    )


if __name__ == "__main__":
    typer.run(run)
