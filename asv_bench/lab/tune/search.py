"""A choice by measurement: all candidates are screened, then the best few meet the present choice.

Each round times every candidate and the present choice once, and a candidate's figure is its ratio
to the present choice within the round. So drift of clocks and temperature cancels.

The place of its scratch memory makes a capture faster or slower in all its rounds, and the luckiest
capture wins the screening. So each final round captures all candidates again. A candidate is
adopted if its median gain is at least `LEAST_GAIN` and a sign test over the rounds is significant:
for the mean of its points, or for one point if it loses at no other.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

from asv_bench.lab.tune.candidates import Choice, Rejected, TableSlot, Timer, Workbench
from kernels.tiles.table import ConfigTable, Measured

SCREEN_ROUNDS = 3
FINAL_ROUNDS = 15
FINALISTS = 3
LEAST_GAIN = 0.015
NO_LOSS = 0.005
ALPHA = 0.01

Ratios = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate with its ratio to the present choice, or the reason why it has none."""

    choice: Choice
    ratio: float | None = None
    # By point, of the last rounds that it took part in.
    step_us: Mapping[str, float] = field(default_factory=dict)
    rejected: str = ""
    is_finalist: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided in one slot."""

    # `chosen` is `present` where nothing was adopted.
    slot: TableSlot
    present: Choice
    chosen: Choice
    # Microseconds of the step by point, in the final rounds.
    present_us: Mapping[str, float]
    chosen_us: Mapping[str, float]
    # Of the best candidate's sign tests, over all finalists and points (Bonferroni); else 1.
    p_value: float
    trials: tuple[Tried, ...]  # every candidate

    @property
    def is_adopted(self) -> bool:
        """Whether the table changes."""
        return self.chosen != self.present

    @property
    def measured(self) -> dict[str, Measured]:
        """By point: the step as chosen, and with the best other choice that got to the finals."""
        rivals = [
            (trial.ratio, trial.step_us)
            for trial in self.trials
            if trial.is_finalist and trial.ratio is not None and trial.choice != self.chosen
        ]
        if self.is_adopted:
            rivals.append((1.0, self.present_us))
        _, next_us = min(rivals, key=lambda rival: rival[0], default=(0.0, {}))
        return {
            point: Measured(round(us, 2), round(next_us[point], 2) if point in next_us else None)
            for point, us in self.chosen_us.items()
        }


@dataclass(slots=True)
class _Entrant:
    """A choice with its times, [rounds][points], and the timers of all its captures.

    Earlier captures are kept, so that a new one gets other memory.
    """

    choice: Choice
    captures: list[list[Timer]] = field(default_factory=list)
    rounds: list[list[float]] = field(default_factory=list)

    def capture(self, slot: TableSlot, table: ConfigTable, workbench: Workbench) -> None:
        """Prepare the step at every point of the slot; raises `Rejected`."""
        changed = slot.with_choice(table, self.choice)
        self.captures.append([workbench.prepare(changed, point) for point in slot.points])

    def ratios(self, present: _Entrant) -> Ratios:
        """Its time over the present choice's, [rounds, points]."""
        ratios: Ratios = np.array(self.rounds) / np.array(present.rounds)
        return ratios

    def medians(self, slot: TableSlot) -> dict[str, float]:
        """Median time by point."""
        times = zip(*self.rounds, strict=True)
        return {
            str(point): statistics.median(of_point)
            for point, of_point in zip(slot.points, times, strict=True)
        }


def decide(
    slot: TableSlot,
    table: ConfigTable,
    choices: Sequence[Choice],
    workbench: Workbench,
    *,
    out_of_time: Callable[[], bool] = lambda: False,
) -> Decision | None:
    """Try `choices` in a slot of the table; None where time ran out before it was decided.

    Raises Rejected if the present choice itself cannot be measured, or a finalist cannot be once
    more.
    """
    present = _Entrant(slot.choice(table))
    present.capture(slot, table, workbench)
    trials: dict[Choice, Tried] = {}
    entrants: list[_Entrant] = []
    for choice in choices:
        if out_of_time():
            return None
        entrant = _Entrant(choice)
        try:
            entrant.capture(slot, table, workbench)
        except Rejected as error:
            trials[choice] = Tried(choice, rejected=str(error))
        else:
            entrants.append(entrant)

    for number in range(SCREEN_ROUNDS):
        _run_round([present, *entrants], number)
    for entrant in entrants:
        ratio = _typical(entrant.ratios(present))
        trials[entrant.choice] = Tried(entrant.choice, ratio, entrant.medians(slot))
    finalists = sorted(entrants, key=lambda entrant: trials[entrant.choice].ratio or 0.0)
    finalists = finalists[:FINALISTS]
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
        ratios = entrant.ratios(present)
        ratio, doubt = _typical(ratios), _doubt(ratios, len(finalists))
        times = entrant.medians(slot)
        trials[entrant.choice] = Tried(entrant.choice, ratio, times, is_finalist=True)
        if doubt < ALPHA and ratio < best_ratio:
            best, best_ratio, p_value = entrant, ratio, doubt
    return Decision(
        slot,
        present.choice,
        best.choice,
        present.medians(slot),
        best.medians(slot),
        p_value,
        tuple(trials[choice] for choice in choices),
    )


def tune(
    table: ConfigTable,
    slots: Sequence[TableSlot],
    choices: Callable[[TableSlot, ConfigTable], Sequence[Choice]],
    workbench: Workbench,
    *,
    out_of_time: Callable[[], bool],
) -> Iterator[tuple[Decision, ConfigTable]]:
    """Go over the slots until a whole pass adopts nothing, or the time is over.

    Each decision comes with the table after it. When the time is over, the slot at hand is left as
    it was.
    """
    is_changed = True
    while is_changed:
        is_changed = False
        for slot in slots:
            if out_of_time():
                return
            decision = decide(slot, table, choices(slot, table), workbench, out_of_time=out_of_time)
            if decision is None:
                return
            table = slot.with_choice(table, decision.chosen, decision.measured)
            is_changed |= decision.is_adopted
            yield decision, table


def _run_round(entrants: Sequence[_Entrant], number: int) -> None:
    """Time everyone once, beginning with another one in each round."""
    start = number % len(entrants)
    for entrant in (*entrants[start:], *entrants[:start]):
        entrant.rounds.append([timer() for timer in entrant.captures[-1]])


def _over_points(ratios: Ratios) -> Ratios:
    """Geometric means over the points, [rounds]."""
    means: Ratios = np.exp(np.log(ratios).mean(axis=1))
    return means


def _typical(ratios: Ratios) -> float:
    return float(np.median(_over_points(ratios)))


def _doubt(ratios: Ratios, num_rivals: int) -> float:
    """The p-value of a gain over the present choice, corrected for the tests of all rivals.

    It is 1 if the gain is too small, or is one point's only and another point loses.
    """
    num_points = ratios.shape[1]
    gains = [_over_points(ratios)]
    if num_points > 1 and np.median(ratios, axis=0).max() <= 1 + NO_LOSS:
        gains += list(ratios.T)
    # All tests that could have been made: the figures themselves decide whether points are tested.
    num_tests = num_rivals * (1 + num_points if num_points > 1 else 1)
    return min(1.0, num_tests * min(map(_sign_test, gains)))


def _sign_test(ratios: Ratios) -> float:
    """The p-value of a gain in so many of the rounds; 1 where their median gains too little."""
    if np.median(ratios) > 1 - LEAST_GAIN:
        return 1.0
    wins = int((ratios < 1).sum())
    return float(binomtest(wins, len(ratios), alternative="greater").pvalue)
