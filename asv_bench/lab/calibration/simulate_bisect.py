"""How often a bisection is right, on simulated commits.

`python -m asv_bench.lab.calibration.simulate_bisect` runs the procedure that bisects real commits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import numpy as np
import typer

from asv_bench.bisect.finding import Finding, Outcome
from asv_bench.bisect.plan import SearchPlan
from asv_bench.bisect.search import Search
from asv_bench.cli.options import CsvPath, MarkdownPath, RecordPath
from asv_bench.lab.calibration.simulated_commits import SIMULATED_BENCHMARK, SimulatedCommits
from asv_bench.lab.calibration.simulated_noise import NOISES, Noise
from asv_bench.output.progress import Progress
from asv_bench.output.record import Record
from asv_bench.output.table import Column, Table, digits
from asv_bench.output.table_files import TableFiles

GOOD = "good"
_STEPS = 1_000
"""Sets the stream that places steps apart from those of the devices."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is bisected.

    Attributes
    ----------
    name
        For the table.
    effects
        Of the steps that lie at random places, as fractions; none: there is nothing to find.
    commits
        Candidates.
    devices
        On which pairs are measured at the same time.
    unmeasurable
        Share of the commits between the ends that cannot be measured.
    jitter
        Standard deviation of what each commit does to its own time only, by another memory layout
        for instance.
    noise
        Of the processes.
    """

    name: str
    effects: tuple[float, ...]
    commits: int = 64
    devices: int = 1
    unmeasurable: float = 0.0
    jitter: float = 0.0
    noise: Noise = field(default_factory=Noise)


SCENARIOS = (
    Scenario("2 %", (0.02,)),
    Scenario("3 %", (0.03,)),
    Scenario("5 %", (0.05,)),
    Scenario("nothing", ()),
    Scenario("3 %, four devices", (0.03,), devices=4),
    Scenario("3 %, a fifth unmeasurable", (0.03,), unmeasurable=0.2),
    Scenario("3 %, each commit moves by 0.2 %", (0.03,), jitter=0.002),
    Scenario("3 %, heavy noise", (0.03,), noise=NOISES["heavy"]),
    Scenario("3 % and 4 %", (0.03, 0.04)),
)
COLUMNS = (
    Column("scenario", "range", kind="text"),
    Column("runs", "runs"),
    Column("right", "right"),
    Column("wrong_commit", "wrong commit"),
    Column("inconclusive", "inconclusive"),
    Column("pairs_p50", "pairs: median", show=digits(0)),
    Column("pairs_p95", "95 % below", show=digits(0)),
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One bisection: its answer, whether that was right, and the pairs that it took."""

    finding: Finding
    right: bool
    pairs: int


def bisect_once(scenario: Scenario, seed: int, plan: SearchPlan | None = None) -> Trial:
    """Bisect one range of simulated commits.

    An answer is right if it is confirmed and names a commit with a step, alone or among neighbours
    that cannot be measured. Without a step it is right if it says that there is none. An
    inconclusive answer is never right.
    """
    draws = np.random.default_rng([seed, _STEPS])
    commits = [f"commit {number}" for number in range(scenario.commits)]
    places = draws.choice(scenario.commits, size=len(scenario.effects), replace=False)
    log_times = {GOOD: 0.0}
    for number, commit in enumerate(commits):
        reached = [
            math.log1p(effect)
            for place, effect in zip(places, scenario.effects, strict=True)
            if number >= place
        ]
        log_times[commit] = math.fsum(reached) + scenario.jitter * draws.standard_normal()
    for commit in commits[:-1]:
        if draws.random() < scenario.unmeasurable:
            del log_times[commit]
    names = [f"device {number}" for number in range(scenario.devices)]
    source = SimulatedCommits(log_times, scenario.noise, seed, names)
    finding = Search(lambda part: source, GOOD, commits, SIMULATED_BENCHMARK, plan=plan).run()
    if scenario.effects:
        culprits = {commits[place] for place in places}
        right = finding.outcome is Outcome.FOUND and bool(culprits & set(finding.suspects))
    else:
        right = finding.outcome is Outcome.NONE
    return Trial(finding, right, sum(source.measured.values()))


def bisect_often(
    scenario: Scenario, runs: int, seed: int, on_run: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Bisect `runs` ranges and count; returns a row of the report as JSON-ready values."""
    trials: list[Trial] = []
    for run in range(runs):
        trials.append(bisect_once(scenario, seed + run))
        on_run()
    outcomes = Counter(str(trial.finding.outcome) for trial in trials)
    pairs = [trial.pairs for trial in trials]
    return {
        **asdict(scenario),
        "scenario": scenario.name,
        "runs": runs,
        "right": sum(trial.right for trial in trials),
        "wrong_commit": sum(
            not trial.right for trial in trials if trial.finding.outcome is Outcome.FOUND
        ),
        "inconclusive": outcomes[str(Outcome.INCONCLUSIVE)],
        "outcomes": dict(outcomes),
        "said_more_than_one_step": sum(bool(trial.finding.remark) for trial in trials),
        "pairs_mean": round(float(np.mean(pairs)), 1),
        "pairs_p50": float(np.median(pairs)),
        "pairs_p95": float(np.percentile(pairs, 95)),
        "pairs_most": max(pairs),
    }


def run(
    runs: Annotated[int, typer.Option(min=1, help="Bisections for each range.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of all draws.")] = 0,
    json: RecordPath = None,
    markdown: MarkdownPath = None,
    csv: CsvPath = None,
) -> None:
    """Bisect simulated ranges of 64 commits, and count how often the answer was right."""
    files = TableFiles.beside_record(json, markdown=markdown, csv=csv)
    record = Record("simulate_bisect", {"runs": runs, "seed": seed, "plan": SearchPlan().to_json()})
    rows: list[dict[str, Any]] = []
    total = runs * len(SCENARIOS)
    with Progress(files.console, "bisecting", total, "ranges", is_apart=False) as progress:
        for scenario in SCENARIOS:
            progress.name(scenario.name)
            rows.append(bisect_often(scenario, runs, seed, progress.advance))
    record.results = {"rows": rows}
    files.show(bisect_table(rows))
    files.console.print(f"record: {record.write(json)}", highlight=False, soft_wrap=True)


def bisect_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A row for each scenario."""
    caption = (
        f"Noise: {Noise()}; heavy: {NOISES['heavy']}. Right: a confirmed commit that has a step, "
        "or without steps the answer that there is none."
    )
    cells = [[row[column.key] for column in COLUMNS] for row in rows]
    return Table(COLUMNS, cells, "simulated bisections", caption)


if __name__ == "__main__":
    typer.run(run)
