"""A range of simulated commits, searched as `bisect` does."""

from __future__ import annotations

import math
from collections.abc import Mapping

from asv_bench.bisect.finding import Finding, Probe, SearchPlan
from asv_bench.bisect.search import Search
from asv_bench.measure.samples import Pair
from asv_bench.subjects.subject import Metric
from tests.simulations.commits import SIMULATED, SimulatedCommits
from tests.simulations.noise import Noise

GOOD = "good"
COMMITS = [f"commit {number:02d}" for number in range(32)]
QUIET = Noise(process=0.002, drift=0.002, outliers=0.0)
INSIDE = SearchPlan(is_inside=True)


def times(steps: Mapping[int, float]) -> dict[str, float]:
    """Log times of commits whose steps are at these places."""
    return {GOOD: 0.0} | {
        commit: math.fsum(math.log1p(effect) for place, effect in steps.items() if number >= place)
        for number, commit in enumerate(COMMITS)
    }


class Parts:
    """A source for each part, of the same machine; counts pairs by part."""

    def __init__(self, machine: SimulatedCommits) -> None:
        self.machine = machine
        self.asked: dict[str, list[tuple[str, str]]] = {}

    def __call__(self, part: str) -> SimulatedCommits:
        asked = self.asked.setdefault(part, [])
        machine = self.machine

        class Counted(SimulatedCommits):
            def __init__(self) -> None:
                self.devices = machine.devices

            def prepare(self, commit: str, device: str | None = None):
                return machine.prepare(commit, device)

            def pair(self, base: str, head: str, **options) -> Mapping[str, Pair]:
                asked.append((base, head))
                return machine.pair(base, head, **options)

        return Counted()


def search(
    steps: Mapping[int, float],
    noise: Noise = QUIET,
    machine: SimulatedCommits | None = None,
    metric: Metric = SIMULATED,
    **options,
) -> tuple[Finding, list[Probe], dict[str, list[tuple[str, str]]]]:
    parts = Parts(machine or SimulatedCommits(times(steps), noise, 1))
    probes: list[Probe] = []
    finding = Search(parts, GOOD, COMMITS, metric, on_probe=probes.append, **options).run()
    return finding, probes, parts.asked


def named(finding: Finding) -> dict[str, float]:
    """The effects of the commits that are named."""
    return {step.commit: step.effect for step in finding.confirmed_steps}
