"""Choosing by measurement: screen every candidate, then the best few against what is there.

Candidates are measured in turns with the present choice, round by round, so that drift of clocks
and temperature falls on all alike, and compared by the ratio to it within a round.

Captures of one and the same step differ too, in all rounds alike, by where their scratch happens to
lie: by up to 0.9 %, those of a single row by up to 4 (reports/tune-ring.json has 43 captures of it,
whose step does not use the ring). The luckiest comes out of the screening first, so in the final
rounds everyone is captured anew for each. What is adopted must gain at least `LEAST_GAIN` in their
median, and win so many of them that a sign test leaves no doubt: in the mean of its points, or at
one of them where it loses at none, as the depth of a ring for some batches changes no others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scipy.stats import binomtest

from asv_bench.lab.tune.candidates import Choice, Slot
from asv_bench.lab.tune.workbench import Rejected, Timer, Workbench
from kernels.tiles.table import ConfigTable, Measured

SCREEN_ROUNDS = 3
FINAL_ROUNDS = 15
FINALISTS = 3
LEAST_GAIN = 0.015
NO_LOSS = 0.005
ALPHA = 0.01


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate and what became of it: its ratio to the present choice, or why it has none.

    `step_us` is by point, of the last rounds that it took part in.
    """

    choice: Choice
    ratio: float | None = None
    step_us: Mapping[str, float] = field(default_factory=dict)
    rejected: str = ""
    is_finalist: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided in one slot.

    Attributes
    ----------
    slot, present, chosen
        `chosen` is `present` where nothing was adopted.
    present_us, chosen_us
        Microseconds of the step by point, in the final rounds.
    p_value
        Of the sign tests of the best candidate, over all finalists and points (Bonferroni); 1
        without any.
    trials
        Every candidate.
    """

    slot: Slot
    present: Choice
    chosen: Choice
    present_us: Mapping[str, float]
    chosen_us: Mapping[str, float]
    p_value: float
    trials: tuple[Trial, ...]

    @property
    def is_adopted(self) -> bool:
        """Whether the table changes."""
        return self.chosen != self.present

    @property
    def measured(self) -> dict[str, Measured]:
        """By point: the step as chosen, and with the best other choice that got to the finals."""
        others = [trial for trial in self.trials if trial.is_finalist]
        rivals: list[tuple[float, Mapping[str, float]]] = [
            (trial.ratio, trial.step_us)
            for trial in others
            if trial.ratio is not None and trial.choice != self.chosen
        ]
        if self.is_adopted:
            rivals.append((1.0, self.present_us))
        _, next_us = min(rivals, key=lambda rival: rival[0], default=(0.0, {}))
        return {
            point: Measured(
                round(us, 2), None if point not in next_us else round(next_us[point], 2)
            )
            for point, us in self.chosen_us.items()
        }


@dataclass(slots=True)
class _Entrant:
    """A choice with its times by round, [rounds][points], and the timers of all its captures.

    Those before the last are only kept: what they hold, the next would be given again.
    """

    choice: Choice
    captures: list[list[Timer]] = field(default_factory=list)
    rounds: list[list[float]] = field(default_factory=list)

    def capture(self, slot: Slot, table: ConfigTable, workbench: Workbench) -> None:
        """Prepare the step at every point of the slot; raises `Rejected`."""
        changed = slot.with_choice(table, self.choice)
        self.captures.append([workbench.prepare(changed, point) for point in slot.points])

    def ratios(self, present: _Entrant) -> list[float]:
        """Its time over the present choice's, geometric mean over points, by round."""
        return [
            math.exp(statistics.fmean(math.log(a / b) for a, b in zip(mine, base, strict=True)))
            for mine, base in zip(self.rounds, present.rounds, strict=True)
        ]

    def ratios_by_point(self, present: _Entrant) -> list[list[float]]:
        """Its time over the present choice's, [points][rounds]."""
        return [
            [a / b for a, b in zip(mine, base, strict=True)]
            for mine, base in zip(
                zip(*self.rounds, strict=True), zip(*present.rounds, strict=True), strict=True
            )
        ]

    def doubt(self, present: _Entrant, num_rivals: int) -> float:
        """The p-value of its gain over the present choice, for all tests of so many rivals.

        1 where it gains too little, or only at one point and loses at another.
        """
        by_point = self.ratios_by_point(present)
        gains = [self.ratios(present)]
        if len(by_point) > 1 and max(map(statistics.median, by_point)) <= 1 + NO_LOSS:
            gains += by_point
        # As many tests as there could have been: whether points count is seen from the figures.
        num_tests = num_rivals * (1 + len(by_point) if len(by_point) > 1 else 1)
        return min(1.0, num_tests * min(map(_sign_test, gains)))

    def medians(self, slot: Slot) -> dict[str, float]:
        """Median time by point."""
        return {
            str(point): statistics.median(times)
            for point, times in zip(slot.points, zip(*self.rounds, strict=True), strict=True)
        }


def decide(
    slot: Slot,
    table: ConfigTable,
    choices: Sequence[Choice],
    workbench: Workbench,
    *,
    out_of_time: Callable[[], bool] = lambda: False,
) -> Decision | None:
    """Try `choices` in a slot of the table; None where time ran out before it was decided.

    Raises
    ------
    Rejected
        If the present choice itself cannot be measured, or a finalist cannot be once more.
    """
    present = _Entrant(slot.choice(table))
    present.capture(slot, table, workbench)
    trials: dict[Choice, Trial] = {}
    entrants: list[_Entrant] = []
    for choice in choices:
        if out_of_time():
            return None
        entrant = _Entrant(choice)
        try:
            entrant.capture(slot, table, workbench)
        except Rejected as error:
            trials[choice] = Trial(choice, rejected=str(error))
            continue
        entrants.append(entrant)

    for number in range(SCREEN_ROUNDS):
        _run_round([present, *entrants], number)
    scores = {entrant.choice: statistics.median(entrant.ratios(present)) for entrant in entrants}
    for entrant in entrants:
        times = entrant.medians(slot)
        trials[entrant.choice] = Trial(entrant.choice, scores[entrant.choice], times)
    finalists = sorted(entrants, key=lambda entrant: scores[entrant.choice])[:FINALISTS]
    contenders = [present, *finalists]
    for entrant in contenders:
        entrant.rounds.clear()
    for number in range(FINAL_ROUNDS):
        if out_of_time():
            return None
        for entrant in contenders:
            entrant.capture(slot, table, workbench)
        _run_round(contenders, number)

    best, best_ratio, p_value = present, 1.0, 1.0
    for entrant in finalists:
        ratio = statistics.median(entrant.ratios(present))
        trials[entrant.choice] = Trial(
            entrant.choice, ratio, entrant.medians(slot), is_finalist=True
        )
        doubt = entrant.doubt(present, len(finalists))
        if doubt < ALPHA and ratio < best_ratio:
            best, best_ratio, p_value = entrant, ratio, doubt
    return Decision(
        slot=slot,
        present=present.choice,
        chosen=best.choice,
        present_us=present.medians(slot),
        chosen_us=best.medians(slot),
        p_value=p_value,
        trials=tuple(trials[choice] for choice in choices),
    )


def _sign_test(ratios: Sequence[float]) -> float:
    """The p-value of a gain in so many of the rounds; 1 where their median gains too little."""
    if statistics.median(ratios) > 1 - LEAST_GAIN:
        return 1.0
    wins = sum(ratio < 1 for ratio in ratios)
    return float(binomtest(wins, len(ratios), alternative="greater").pvalue)


def _run_round(entrants: Sequence[_Entrant], number: int) -> None:
    """Measure all in turns; who begins changes, so that none is always the first or the last."""
    start = number % len(entrants)
    for entrant in (*entrants[start:], *entrants[:start]):
        entrant.rounds.append([timer() for timer in entrant.captures[-1]])


def tune(
    table: ConfigTable,
    slots: Sequence[Slot],
    choices: Callable[[Slot, ConfigTable], Sequence[Choice]],
    workbench: Workbench,
    *,
    out_of_time: Callable[[], bool],
    on_slot: Callable[[Slot], None] = lambda slot: None,
    on_decision: Callable[[Decision], None] = lambda decision: None,
) -> ConfigTable:
    """Go over the slots until a whole pass adopts nothing, or the time is over.

    What has been decided when the time is over stands; the slot at hand is left as it was.
    """
    while True:
        is_changed = False
        for slot in slots:
            if out_of_time():
                return table
            on_slot(slot)
            decision = decide(slot, table, choices(slot, table), workbench, out_of_time=out_of_time)
            if decision is None:
                return table
            table = with_decision(table, decision)
            is_changed |= decision.is_adopted
            on_decision(decision)
        if not is_changed:
            return table


def with_decision(table: ConfigTable, decision: Decision) -> ConfigTable:
    """The table with what was decided and its figures; a bucket's step is that of its last one."""
    slot, measured = decision.slot, decision.measured
    if slot.role is None:
        chosen: Any = decision.chosen
        return table.with_ring(slot.place, chosen, measured)
    [figure] = measured.values()
    tile: Any = decision.chosen
    return table.with_tile(slot.place, slot.role, tile, figure)
