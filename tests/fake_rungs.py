"""Processes that measure nothing: each rung takes the time that a test gives it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from asv_bench.measure.lives import Place
from asv_bench.measure.processes import LifeFailed
from asv_bench.measure.samples import GpuConditions
from asv_bench.measure.turns import TURNS_VARIABLE
from asv_bench.studies.ladder.claims import FIGURES
from asv_bench.studies.ladder.rung_counters import COUNTERS
from asv_bench.studies.ladder.rung_process import RungAnswer
from asv_bench.studies.ladder.rung_run import STEP_TIME
from asv_bench.studies.ladder.rungs import Rung


@dataclass
class FakeProcesses:
    """Answers at once; `seconds` are by rung, noise is a standard deviation in logarithms."""

    seconds: Mapping[int, float] = field(default_factory=dict)
    noise: float = 0.0
    digests: Mapping[int, Sequence[str]] = field(default_factory=dict)
    checks: Mapping[int, Sequence[str]] = field(default_factory=dict)
    fails: set[int] = field(default_factory=set)
    throttled: set[int] = field(default_factory=set)
    ran: list[tuple[str, int, tuple[str, ...], bool]] = field(default_factory=list)
    is_stopped: bool = False

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(1)
        self._lock = threading.Lock()

    def measure(
        self,
        rung: Rung,
        workloads: Sequence[str],
        place: Place,
        *,
        check: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> RungAnswer:
        own_turns = TURNS_VARIABLE in (variables or {})
        assert own_turns != check, "rungs of a pair take turns, and no other"
        with self._lock:
            self.ran.append((place.device, rung.number, tuple(workloads), check))
            factor = float(np.exp(self.noise * self._random.standard_normal()))
        if rung.number in self.fails:
            raise LifeFailed("it ended with exit code 1: no such thing")
        value = self.seconds.get(rung.number, 1e-3) * factor
        figures = dict.fromkeys((STEP_TIME, *FIGURES), value)
        digests = list(self.digests.get(rung.number, ["a", "b"]))
        measured = {"figures": figures, "runs": [figures], "digests": digests, "turns": []}
        checked = list(self.checks.get(rung.number, ["c", "d", "e"]))
        events = ("sw_thermal_slowdown",) if rung.number in self.throttled else ()
        gpu = GpuConditions(1980.0, 1980.0, 1980.0, events, 40, 3)
        return RungAnswer(
            {name: measured for name in workloads},
            {"digests": checked, "parted": 0} if check else None,
            gpu,
            1.0,
            0.5,
        )

    def count(self, rungs: Sequence[Rung]) -> dict[str, dict[str, int]]:
        return {rung.label: dict.fromkeys(COUNTERS, rung.number) for rung in rungs}

    def stop(self) -> None:
        self.is_stopped = True


class Silent:
    """Watches a run and says nothing."""

    def __init__(self) -> None:
        self.rungs: list[int] = []
        self.claims: list[str] = []

    def ran(self, rung, answer):
        self.rungs.append(rung.number)

    def found(self, claim):
        self.claims.append(claim.trial.claim.seed)
