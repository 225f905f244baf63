"""Bisections of simulated commits, by the very procedure that bisects real ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asv_bench.bisect.finding import Finding, Outcome
from asv_bench.bisect.plan import SearchPlan
from asv_bench.bisect.search import find_first_changed
from asv_bench.lab.calibration.simulated_commits import SIMULATED_BENCHMARK, SimulatedCommits
from asv_bench.lab.calibration.simulated_noise import Noise

GOOD = "good"
_STEPS = 1_000
"""Sets the stream that places steps apart from those of the devices."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is bisected.

    Attributes
    ----------
    name
        For tables.
    effects
        Of the steps that lie at random places, as fractions; none: there is nothing to find.
    commits
        Candidates.
    devices
        On which pairs are measured at the same time.
    unmeasurable
        Share of the commits between the ends that cannot be measured.
    jitter
        Standard deviation of what each commit does to the time by itself, harmless as it is, by
        another memory layout for instance; it goes no further than the commit.
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


@dataclass(frozen=True, slots=True)
class Trial:
    """One bisection: its answer, whether that was right, and the pairs that it took."""

    finding: Finding
    right: bool
    pairs: int


def bisect_once(
    scenario: Scenario,
    seed: int,
    plan: SearchPlan | None = None,
) -> Trial:
    """Bisect one range of simulated commits.

    An answer is right where it is confirmed and names a commit with a step, alone or among
    neighbours that cannot be measured; without a step, where it says that there is none. Merely
    finding nothing is not right, with a step or without.
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
    finding = find_first_changed(lambda part: source, GOOD, commits, SIMULATED_BENCHMARK, plan=plan)
    if scenario.effects:
        culprits = {commits[place] for place in places}
        right = finding.outcome is Outcome.FOUND and bool(culprits & set(finding.suspects))
    else:
        right = finding.outcome is Outcome.NONE
    return Trial(finding, right, sum(source.measured.values()))


def bisect_often(
    scenario: Scenario,
    runs: int,
    seed: int,
    on_run: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Bisect `runs` ranges and count; returns a row of the report as JSON-ready values."""
    trials: list[Trial] = []
    for run in range(runs):
        trials.append(bisect_once(scenario, seed + run))
        on_run()
    outcomes = Counter(str(trial.finding.outcome) for trial in trials)
    pairs = [trial.pairs for trial in trials]
    named = [trial for trial in trials if trial.finding.outcome is Outcome.FOUND]
    return {
        "scenario": scenario.name,
        "effects": list(scenario.effects),
        "commits": scenario.commits,
        "devices": scenario.devices,
        "unmeasurable": scenario.unmeasurable,
        "jitter": scenario.jitter,
        "noise": scenario.noise.to_json(),
        "runs": runs,
        "right": sum(trial.right for trial in trials),
        "wrong_commit": sum(not trial.right for trial in named),
        "outcomes": dict(outcomes),
        "said_more_than_one_step": sum(bool(trial.finding.remark) for trial in trials),
        "pairs": {
            "mean": round(float(np.mean(pairs)), 1),
            "p50": float(np.median(pairs)),
            "p95": float(np.percentile(pairs, 95)),
            "most": max(pairs),
        },
    }


def bisect_table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a table in Markdown."""
    lines = [
        "| range | right | wrong commit | inconclusive | pairs: median | 95 % below |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        share = 100 * row["right"] / row["runs"]
        lines.append(
            f"| {row['scenario']} | {row['right']} of {row['runs']} ({share:.1f} %) "
            f"| {row['wrong_commit']} | {row['outcomes'].get('inconclusive', 0)} "
            f"| {row['pairs']['p50']:.0f} | {row['pairs']['p95']:.0f} |"
        )
    return "\n".join(lines)
