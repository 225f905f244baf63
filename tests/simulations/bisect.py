"""How often a bisection is right, on simulated commits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from asv_bench.bisect.finding import Finding, Outcome, Probe, RangeShape, SearchPlan, Stage
from asv_bench.bisect.search import Search
from asv_bench.output.table import Column, Table, digits

from .commits import SIMULATED, SimulatedCommits
from .noise import NOISES, Noise

GOOD = "good"
_STEPS = 1_000
"""Sets the stream that places steps apart from those of the devices."""
PLAIN = Noise(drift=0.0, outliers=0.0)
_TAKEN_BACK = 0.05, 1 / 1.05 - 1
TWO_MODES = Noise(process=0.003, drift=0.0, outliers=0.0, modes=0.3, mode_size=0.05)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is bisected."""

    name: str
    # Of the steps that lie at random places, oldest first, as fractions.
    effects: tuple[float, ...] = ()
    slope: float = 0.0  # what each of `slope_commits` in a row adds; none of them is to be named
    slope_commits: int = 15
    commits: int = 64
    devices: int = 1  # on which pairs are measured at the same time
    unmeasurable: float = 0.0  # share of the commits between the ends that cannot be measured
    # Standard deviation of what each commit does to its own time only, by another memory layout
    # for instance.
    jitter: float = 0.0
    unsteady: float = 1.0  # how many times as far the bad end's processes lie apart
    noise: Noise = PLAIN
    is_inside: bool = False  # whether the search looks also between ends that are alike
    is_all: bool = False  # whether it measures every commit


SCENARIOS = (
    Scenario("2 %", (0.02,)),
    Scenario("3 %", (0.03,)),
    Scenario("5 %", (0.05,)),
    Scenario("10 %", (0.10,)),
    Scenario("nothing"),
    Scenario("+5 % and -3 %", (0.05, -0.03)),
    Scenario("+3 % and +4 %", (0.03, 0.04)),
    Scenario("+5 % taken back, inside", _TAKEN_BACK, is_inside=True),
    Scenario("nothing, inside", is_inside=True),
    Scenario("15 commits of 0.2 % each", slope=0.002),
    Scenario("2 %, offsets of 0.2 %", (0.02,), jitter=0.002),
    Scenario("2 %, offsets of 0.5 %", (0.02,), jitter=0.005),
    Scenario("nothing, offsets of 0.5 %", jitter=0.005),
    Scenario("3 %, a fifth unmeasurable", (0.03,), unmeasurable=0.2),
    Scenario("3 %, two modes", (0.03,), noise=TWO_MODES),
    Scenario("3 %, bad end 3 times noisier", (0.03,), unsteady=3.0),
    Scenario("3 %, four devices", (0.03,), devices=4),
    Scenario("3 %, ordinary noise", (0.03,), noise=NOISES["ordinary"]),
    Scenario("3 %, heavy noise", (0.03,), noise=NOISES["heavy"]),
    # Steps that cancel, with each commit measured.
    Scenario("+5 % taken back, all of 16", _TAKEN_BACK, commits=16, is_inside=True, is_all=True),
    Scenario("nothing, all of 16", commits=16, is_inside=True, is_all=True),
    Scenario("+10 % taken back before +5 %, of 8", (0.10, 1 / 1.10 - 1, 0.05), commits=8),
    Scenario("+5 %, of 8", (0.05,), commits=8),
)
COLUMNS = (
    Column("scenario", "range", kind="text"),
    Column("runs", "runs"),
    Column("right", "right"),
    Column("wrong_commit", "wrong commit"),
    Column("said_slope", "said: slope"),
    Column("inconclusive", "unresolved"),
    Column("pairs_p50", "pairs: median", show=digits(0)),
    Column("search_p50", "in the search", show=digits(0)),
    Column("pairs_p95", "95 % below", show=digits(0)),
)


@dataclass(frozen=True, slots=True)
class Bisected:
    """One bisection and its truth."""

    finding: Finding
    right: bool
    is_wrong: bool  # whether it names a commit that does nothing
    pairs: int
    searched: int  # pairs of the search alone


def bisect_once(scenario: Scenario, seed: int, plan: SearchPlan | None = None) -> Bisected:
    """Bisect one range of simulated commits.

    An answer is right if it names every commit with a step, alone or among neighbours that cannot
    be measured, and no other; or says "slope", or that there is nothing, where that is so.
    """
    draws = np.random.default_rng([seed, _STEPS])
    commits = [f"commit {number}" for number in range(scenario.commits)]
    places = np.sort(draws.choice(scenario.commits, size=len(scenario.effects), replace=False))
    rises = np.zeros(scenario.commits)
    rises[places] = np.log1p(scenario.effects)
    if scenario.slope:
        first = draws.integers(scenario.commits - scenario.slope_commits + 1)
        rises[first : first + scenario.slope_commits] += math.log1p(scenario.slope)
    offsets = scenario.jitter * draws.standard_normal(scenario.commits)
    levels = np.cumsum(rises) + offsets
    log_times = {GOOD: 0.0, **dict(zip(commits, levels.tolist(), strict=True))}
    for commit in commits[:-1]:
        if draws.random() < scenario.unmeasurable:
            del log_times[commit]
    names = [f"device {number}" for number in range(scenario.devices)]
    unsteady = {commits[-1]: scenario.unsteady}
    source = SimulatedCommits(log_times, scenario.noise, seed, names, unsteady)
    plan = plan or SearchPlan(is_inside=scenario.is_inside, is_all=scenario.is_all)
    probes: list[Probe] = []
    finding = Search(
        source_of=lambda part: source,
        good=GOOD,
        candidates=commits,
        metric=SIMULATED,
        plan=plan,
        on_probe=probes.append,
    ).run()
    culprits = {commits[place] for place in places}
    named = [set(step.commits) for step in finding.confirmed_steps]
    is_wrong = any(not one & culprits for one in named)
    if scenario.slope:
        right = not named and finding.shape is RangeShape.SLOPE
    elif not scenario.effects:
        right = finding.outcome is Outcome.NONE
    else:
        are_all_named = len(named) == len(culprits) and not is_wrong
        right = are_all_named and finding.outcome is Outcome.FOUND
    searched = sum(probe.stage is Stage.SEARCH for probe in probes)
    return Bisected(finding, right, is_wrong, sum(source.measured.values()), searched)


def bisect_often(scenario: Scenario, runs: int, seed: int) -> dict[str, Any]:
    """Bisect `runs` ranges, and count."""
    return row_of(scenario, [bisect_once(scenario, seed + run) for run in range(runs)])


def row_of(scenario: Scenario, trials: Sequence[Bisected]) -> dict[str, Any]:
    """A row of the report as JSON-ready values."""
    shapes = Counter(str(trial.finding.shape) for trial in trials)
    pairs = [trial.pairs for trial in trials]
    return {
        **asdict(scenario),
        "scenario": scenario.name,
        "runs": len(trials),
        "right": sum(trial.right for trial in trials),
        "wrong_commit": sum(trial.is_wrong for trial in trials),
        "said_slope": shapes[str(RangeShape.SLOPE)],
        "inconclusive": shapes[str(RangeShape.UNRESOLVED)],
        "shapes": dict(shapes),
        "pairs_mean": round(float(np.mean(pairs)), 1),
        "pairs_p50": float(np.median(pairs)),
        "search_p50": float(np.median([trial.searched for trial in trials])),
        "pairs_p95": float(np.percentile(pairs, 95)),
        "pairs_most": max(pairs),
    }


def bisect_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A row for each scenario."""
    caption = (
        f"Noise: {PLAIN}; ordinary: {NOISES['ordinary']}; heavy: {NOISES['heavy']}; two modes: "
        f"{TWO_MODES}. Right: every commit with a step is named and confirmed and no other, or the "
        "answer is that there is none, or a slope where there is one."
    )
    cells = [[row[column.key] for column in COLUMNS] for row in rows]
    return Table(COLUMNS, cells, "simulated bisections", caption)
