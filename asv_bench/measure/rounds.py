"""Rounds of lives: one of each of several cells, next to each other in time.

A cell is what `LifeSource` can measure by name: a commit, or a commit under a label. What a round
tells is a set of contrasts, each between some cells taken as its base and some as its head.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from asv_bench.measure.samples import (
    Absence,
    Pair,
    PairSource,
    Reading,
    SampleFailed,
)
from asv_bench.process.gpu_watch import why_discarded
from asv_bench.subjects.subject import Metric


class RoundSource(PairSource, Protocol):
    """Measures pairs, and single lives too."""

    def life(
        self,
        commit: str,
        *,
        benchmarks: Collection[str] | None = None,
        device: str | None = None,
    ) -> Mapping[str, Reading]:
        """See `LifeSource`."""
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """What a round of a base and a head consists of."""

    orders: tuple[tuple[str, ...], ...]
    """Orders of all cells. Two rounds follow the first, one of them backwards, two the next."""
    contrasts: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    """By name, the cells that a contrast takes as its base and those that it takes as its head."""


class Rounds:
    """Rounds as a `PairSource`: a pair for each contrast of each metric.

    All contrasts of a metric come from the same lives, and a round has a life of every cell as long
    as one of the contrasts is asked for. A drift of the machine favours no cell: each round is
    followed by one in the opposite order.

    `lives` measures cells. `layout` takes full hashes of a base and a head, and `cells_of` gives
    the cells that must be ready before one of these can be measured.
    """

    prepares_together = False

    def __init__(
        self,
        lives: RoundSource,
        metrics: Sequence[Metric],
        layout: Callable[[str, str], Layout],
        cells_of: Callable[[str], Sequence[str]],
        contrasts: Sequence[str],
    ) -> None:
        self._lives = lives
        self._metrics = metrics
        self._layout = layout
        self._cells_of = cells_of
        self._contrasts = tuple(contrasts)
        self._rounds: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def devices(self) -> Sequence[str]:
        """See `PairSource`."""
        return self._lives.devices

    def stop(self) -> None:
        """See `PairSource`."""
        self._lives.stop()

    def prepare(self, commit: str, device: str | None = None) -> Mapping[str, Absence]:
        """See `PairSource`: all cells of a base, or of a head."""
        absences: dict[str, Absence] = {}
        for cell in self._cells_of(commit):
            absences |= self._lives.prepare(cell, device)
        return {
            named(metric, contrast): absence
            for metric, absence in absences.items()
            for contrast in self._contrasts
        }

    def pair(
        self,
        base: str,
        head: str,
        *,
        head_first: bool,
        benchmarks: Collection[str] | None = None,
        device: str | None = None,
    ) -> Mapping[str, Pair]:
        """See `PairSource`: one life of each cell, and all contrasts of the metrics asked for."""
        layout = self._layout(base, head)
        order = self._order(layout, device or self.devices[0], backwards=head_first)
        metrics = [one for one in self._metrics if self._is_wanted(one, benchmarks)]
        names = [metric.name for metric in metrics]
        readings = {cell: self._life(cell, names, device) for cell in order}
        found: dict[str, Pair] = {}
        for metric in metrics:
            of_metric = {
                cell: reading[metric.name]
                for cell, reading in readings.items()
                if metric.name in reading
            }
            if len(of_metric) < len(order):
                continue
            for contrast, (before, after) in layout.contrasts.items():
                name = named(metric.name, contrast)
                found[name] = Pair(
                    _together([of_metric[cell] for cell in before], base, name),
                    _together([of_metric[cell] for cell in after], head, name),
                    head_first=order.index(after[0]) < order.index(before[0]),
                    discarded=_why_discarded(of_metric, before, after),
                    higher_is_better=metric.better == "higher",
                )
        return found

    def _order(self, layout: Layout, device: str, *, backwards: bool) -> tuple[str, ...]:
        with self._lock:
            number = self._rounds.get(device, 0)
            self._rounds[device] = number + 1
        order = layout.orders[number // 2 % len(layout.orders)]
        return order[::-1] if backwards else order

    def _is_wanted(self, metric: Metric, benchmarks: Collection[str] | None) -> bool:
        return benchmarks is None or any(
            named(metric.name, contrast) in benchmarks for contrast in self._contrasts
        )

    def _life(self, cell: str, names: Sequence[str], device: str | None) -> Mapping[str, Reading]:
        try:
            return self._lives.life(cell, benchmarks=names, device=device)
        except SampleFailed as failure:
            contrasts = [
                named(name, contrast) for name in failure.benchmarks for contrast in self._contrasts
            ]
            raise SampleFailed(failure.commit, contrasts, failure.reason) from None


def named(metric: str, contrast: str) -> str:
    """The name under which a contrast of a metric is judged."""
    return f"{metric} {contrast}"


def _together(readings: Sequence[Reading], end: str, name: str) -> Reading:
    """The geometric mean of the readings of some cells; of several, the commit is the end's."""
    commit = readings[0].commit if len(readings) == 1 else end
    for reading in readings:
        reading.require_ratio()
    mean = math.exp(sum(math.log(one.value) for one in readings) / len(readings))
    samples = tuple(sample for one in readings for sample in one.samples)
    return replace(readings[0], commit=commit, benchmark=name, value=mean, samples=samples)


def _why_discarded(
    readings: Mapping[str, Reading], before: Sequence[str], after: Sequence[str]
) -> str | None:
    """Why a contrast of these cells must not be judged by this round; None where it may."""
    reasons = (
        why_discarded(readings[one].gpu, readings[two].gpu) for one in before for two in after
    )
    return next((reason for reason in reasons if reason), None)
