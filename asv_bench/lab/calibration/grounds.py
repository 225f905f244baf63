"""Where trials of `compare` run: a commit, and what is slower than it by a known amount.

A commit of kvtrail is made slower in its engine's source, in a scratch clone. Of what users declare
nobody knows the source: a life waits after its command, or is told to wait.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

from asv_bench.lab.calibration.planting import ScratchClone
from asv_bench.measure.delay import VARIABLE, Delay
from asv_bench.measure.lives import WALL
from asv_bench.measure.samples import RoundSource
from asv_bench.subjects.axis import Variant
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.subject import Metric

SECONDS_OF = {"seconds": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
"""Units of metrics that a delay can lengthen."""
OBEYED = 0.5
"""By this fraction of a delay a metric grows at least, if the benchmark obeys the delay."""
_STEP_PAIRS = 2


@dataclass(frozen=True, slots=True)
class PlantedEnds:
    """What a trial compares, as its source names it."""

    base: str
    head: str
    added: float  # what the head's figure has more than the base's, in the metric's unit


class EngineGround:
    """The engine of kvtrail's HEAD, with a longer decode step in a scratch clone."""

    def __init__(self, source: RoundSource, clone: ScratchClone) -> None:
        self.source = source
        self.remarks: list[str] = []  # sentences about what could not be planted
        self._clone = clone
        self._planted = [clone.plant(0.0)]
        self._step_s: float | None = None
        self.commit = self._planted[0].hash  # what is compared with itself

    def plant(self, metric: Metric, effect: float) -> PlantedEnds:
        """What is slower by about this fraction in the step time."""
        if self._step_s is None:
            self._step_s = self._measured_step()
        planted = self._clone.plant(effect * self._step_s)
        self._planted.append(planted)
        return PlantedEnds(self.commit, planted.hash, planted.seconds)

    def facts(self) -> dict[str, Any]:
        """What was planted, for the record."""
        return {"step_s": self._step_s, "planted": [asdict(one) for one in self._planted]}

    def _measured_step(self) -> float:
        return statistics.median(
            reading.value
            for _ in range(_STEP_PAIRS)
            for of_cell in self.source.round([self.commit, self.commit]).readings
            for reading in of_cell.values()
        )


class DeclaredGround:
    """A commit or label of a declared subject, with delays in its lives.

    For the wall time kvtrail sleeps after the command. Any other metric moves only if the benchmark
    sleeps $KVTRAIL_DELAY_S seconds in its timed part: one life that is told to sleep as long as the
    metric itself shows whether it does.
    """

    def __init__(self, source: RoundSource, delays: Delays, commit: str) -> None:
        self.source = source  # of lives of the variants that `delays` names
        self.commit = commit
        self.remarks: list[str] = []
        self._delays = delays
        self._values: dict[str, float | None] = {}

    def plant(self, metric: Metric, effect: float) -> PlantedEnds | None:
        """What is slower by about this fraction in a metric; None if nothing can be planted."""
        if metric.name not in self._values:
            self._values[metric.name] = self._value_to_lengthen(metric)
        value = self._values[metric.name]
        if value is None:
            return None
        added = effect * value
        base, head = (self._delayed(metric, one) for one in (0.0, added))
        return PlantedEnds(base, head, added)

    def facts(self) -> dict[str, Any]:
        """What was planted, for the record."""
        return {"planted": {name: str(delay) for name, delay in self._delays.planted.items()}}

    def _value_to_lengthen(self, metric: Metric) -> float | None:
        """The metric of one life; None, with a remark, if no delay lengthens it."""
        absence = self.source.prepare(self.commit).get(metric.name)
        if absence is not None:
            self.remarks.append(f"{metric.name} is not measured: {absence.reason}")
            return None
        if metric.unit not in SECONDS_OF or metric.better != "lower":
            self.remarks.append(
                f"{metric.name}: no delay was planted; only what is measured in "
                f"{', '.join(SECONDS_OF)}, lower being better, grows by one."
            )
            return None
        # Twice: the first life may have been disturbed, and look long enough to hide the wait.
        for _ in range(2):
            value = self._value(self.commit, metric)
            if metric.name == WALL:
                return value
            delayed = self._value(self._delayed(metric, value), metric)
            if delayed - value >= OBEYED * value:
                return value
        self.remarks.append(
            f"{metric.name}: no delay was planted, as a life that was told to wait by "
            f"${VARIABLE} did not move it. A benchmark that waits so many seconds within what "
            f"it times, once for each figure, can be tried."
        )
        return None

    def _value(self, name: str, metric: Metric) -> float:
        return self.source.round([name], metrics=[metric.name]).readings[0][metric.name].value

    def _delayed(self, metric: Metric, added: float) -> str:
        delay = Delay(added * SECONDS_OF[metric.unit], is_told=metric.name != WALL)
        return self._delays.plant(self.commit, delay)


Ground: TypeAlias = EngineGround | DeclaredGround
"""Where trials of a subject run."""


class Delays:
    """Names for variants of a declared subject with a delay in their lives."""

    def __init__(self, subject: DeclaredSubject) -> None:
        self._subject = subject
        self._variants: dict[str, Variant] = {}
        self.planted: dict[str, Delay] = {}  # by the variant's name

    def plant(self, commit: str, delay: Delay) -> str:
        """The name of a commit or label with a delay."""
        name = f"{commit} + {delay}"
        self.planted[name] = delay
        self._variants[name] = replace(self._subject.variant(commit), delay=delay)
        return name

    def variant(self, name: str) -> Variant:
        """What a name stands for, whether a delay is in it or not."""
        return self._variants.get(name) or self._subject.variant(name)
