"""Trials: comparisons whose truth is known, and whether their verdicts hold."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from asv_bench.compare.comparison import CommitComparison, Headway
from asv_bench.compare.noise_pools import NoisePools
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.tables import STYLES
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.lab.calibration.grounds import Ground, PlantedEnds
from asv_bench.measure.log import Log, Logged
from asv_bench.measure.rounds import two_cells
from asv_bench.measure.samples import Pair, RoundSource
from asv_bench.output.progress import Progress
from asv_bench.output.record import Record
from asv_bench.output.table import Cell, Column, Table, digits, interval, percent, percentage
from asv_bench.subjects.subject import Metric

SEEN_FROM = 1.5
"""Planted effects of at least so many times the minimum effect must be found where a trial says so.
Smaller ones may be inconclusive, and only those below the margin may be called equivalent."""
FALSE_ALARMS_ALLOWED = 0.05
_COLUMNS = (
    Column("name", "compared with", kind="text"),
    Column("planted", "planted", show=percent(2, signed=True)),
    Column("verdict", "verdict"),
    Column("effect", "effect", show=percent(2, signed=True)),
    Column("interval", "interval", show=interval(2), parts=("low", "high")),
    Column("pairs", "pairs"),
    Column("discarded", "discarded"),
    Column("seconds", "seconds", show=digits(0)),
)


@dataclass(frozen=True, slots=True)
class PlantedTrial:
    """One comparison whose truth is known."""

    name: str
    # The true effect as a fraction of the base's figure; 0 for a commit against itself.
    planted: float
    comparison: Comparison
    seconds: float
    plan: ComparisonPlan  # by which it was decided
    pairs: Sequence[Pair] = ()  # those that were not discarded
    # Whether an effect well beyond the margin must be found: the machine is known to be fit for it.
    must_find: bool = True

    @property
    def holds(self) -> bool:
        """Whether the verdict is one that the truth allows."""
        verdict = self.comparison.verdict
        if self.planted == 0:
            return verdict in (Verdict.EQUIVALENT, Verdict.INCONCLUSIVE)
        if verdict is Verdict.INCONCLUSIVE:
            return not self.must_find or self.planted < SEEN_FROM * self.plan.minimum_effect
        if verdict is Verdict.EQUIVALENT:
            return self.planted < 0.9 * self.plan.margin
        return verdict is Verdict.SLOWER

    def to_json(self) -> dict[str, Any]:
        """The trial as JSON-ready values."""
        return {
            "name": self.name,
            "planted": self.planted,
            "holds": self.holds,
            "seconds": self.seconds,
            **self.comparison.to_json(),
        }


def are_sound(trials: Sequence[PlantedTrial]) -> bool:
    """Whether nothing contradicts the truth but as many false alarms as are allowed."""
    wrong = [trial for trial in trials if not trial.holds]
    alarms = sum(trial.planted == 0 for trial in wrong)
    nulls = sum(trial.planted == 0 for trial in trials)
    return alarms <= FALSE_ALARMS_ALLOWED * nulls and len(wrong) == alarms


@dataclass
class Trials:
    """Trials, one after the other."""

    # All are compared where a commit is compared with itself, and each by itself where something
    # is planted in it.
    metrics: Sequence[Metric]
    plan: ComparisonPlan  # of every comparison; metrics may have margins of their own
    pools: NoisePools  # to whose noise each trial of a commit with itself adds
    log: Log  # the pairs of an interrupted command, which are not measured again
    record: Record
    console: Console
    must_find: bool  # see `PlantedTrial`
    done: list[PlantedTrial] = field(default_factory=list)  # those that have a verdict

    def run(self, ground: Ground, null: int, effects: Sequence[float]) -> None:
        """Compare a commit with itself so many times, then with what is slower by each effect."""
        source, itself = ground.source, PlantedEnds(ground.commit, ground.commit, 0.0)
        for number in range(null):
            self._compare(source, f"itself, {number + 1} of {null}", itself)
        for metric in self.metrics:
            for effect in effects:
                ends = ground.plant(metric, effect)
                if ends is None:
                    break
                self._compare(source, f"planted {percentage(effect, 1)}", ends, metric)

    def plan_of(self, metric: Metric) -> ComparisonPlan:
        """The plan with the metric's own margin."""
        return self.plan if metric.margin is None else self.plan.with_margin(metric.margin)

    def _compare(
        self, source: RoundSource, name: str, ends: PlantedEnds, metric: Metric | None = None
    ) -> None:
        metrics = self.metrics if metric is None else (metric,)
        names = [one.name for one in metrics]
        begun = time.monotonic()
        with Progress(self.console, name, self.plan.cap, "pairs at most") as progress:

            def on_pair(now: Headway, pairs: Mapping[str, Pair]) -> None:
                self.record.samples += [{"trial": name, **one.to_json()} for one in pairs.values()]
                progress.show(now.kept)

            design, pools = two_cells(ends.base, ends.head), self.pools.of(names)
            comparing = CommitComparison(design, metrics, self.plan, pools)
            logged = Logged(source, self.log, name)
            found = comparing.run(logged, on_pair)
        seconds = time.monotonic() - begun
        pairs = {one: comparing.kept_pairs(one) for one in names}
        # What is kept wholly was added when it was measured.
        if metric is None and logged.measured:
            self.pools.add_same(pairs)
        for one, comparison in zip(metrics, found, strict=True):
            if comparison.verdict is Verdict.NOT_MEASURED:
                continue
            shown = name if len(self.metrics) == 1 else f"{name}, {one.name}"
            self.console.print(f"{shown}: {comparison.verdict}")
            value = comparison.base_value
            self.done.append(
                PlantedTrial(
                    name=shown,
                    planted=ends.added / value if value else 0.0,
                    comparison=comparison,
                    seconds=seconds,
                    plan=self.plan_of(one),
                    pairs=pairs[one.name],
                    must_find=self.must_find,
                )
            )


def trial_table(trials: Sequence[PlantedTrial], title: str, note: str = "") -> Table:
    """A row for each trial; a verdict that the truth does not allow is marked."""
    rows = []
    for trial in trials:
        found, verdict = trial.comparison, str(trial.comparison.verdict)
        rows.append(
            (
                trial.name,
                trial.planted,
                Cell(verdict, STYLES[found.verdict])
                if trial.holds
                else Cell(verdict, "reverse red", text=f"{verdict} (!)"),
                found.effect,
                found.interval,
                found.pairs_used,
                found.pairs_discarded,
                trial.seconds,
            )
        )
    caption = f"(!): a verdict that the truth does not allow. {note}".strip()
    return Table(_COLUMNS, rows, title, caption)
