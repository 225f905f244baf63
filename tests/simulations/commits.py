"""A machine that does not exist: pairs of commits whose true times are known."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from asv_bench.measure.samples import Absence, CommitUnusable, Pair, Reading
from asv_bench.subjects.subject import Metric

from .noise import Noise
from .rounds_of_pairs import RoundsOfPairs

SIMULATED_BENCHMARK = "simulated.Workload.track_step_time"
SIMULATED = Metric(SIMULATED_BENCHMARK, "seconds")


class SimulatedCommits(RoundsOfPairs):
    """Pairs of one benchmark. It draws its figures; each device drifts by itself."""

    def __init__(
        self,
        # By commit: the log of its true time. Another commit cannot be measured.
        log_times: Mapping[str, float],
        noise: Noise,  # of processes, which run one after the other on each device
        seed: int,
        devices: Sequence[str] = ("simulated",),
        # By commit: how many times as far its processes lie from where they should.
        unsteady: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._log_times = log_times
        self._unsteady = unsteady
        self._devices = tuple(devices)
        self._errors = {
            device: noise.figures(np.random.default_rng([seed, place]))
            for place, device in enumerate(devices)
        }
        self.measured = dict.fromkeys(self._devices, 0)

    @property
    def devices(self) -> Sequence[str]:
        """The names that were given."""
        return self._devices

    def prepare(self, commit: str, device: str | None = None) -> Mapping[str, Absence]:
        """Raise CommitUnusable unless the commit has a time."""
        if commit not in self._log_times:
            raise CommitUnusable(commit, "the simulation has no time for it")
        return {}

    def pair(
        self,
        base: str,
        head: str,
        *,
        head_first: bool,
        benchmarks: Collection[str] | None = None,
        device: str | None = None,
    ) -> Mapping[str, Pair]:
        """See `RoundsOfPairs`."""
        self.prepare(base)
        self.prepare(head)
        place = self._devices[0] if device is None else device
        self.measured[place] += 1
        order = (head, base) if head_first else (base, head)
        first, second = (self._process(commit, place) for commit in order)
        of_base, of_head = (second, first) if head_first else (first, second)
        return {SIMULATED_BENCHMARK: Pair(of_base, of_head, head_first)}

    def stop(self) -> None:
        """Nothing runs."""

    def _process(self, commit: str, device: str) -> Reading:
        error = self._unsteady.get(commit, 1.0) * next(self._errors[device])
        value = math.exp(self._log_times[commit] + error)
        return Reading(commit, SIMULATED_BENCHMARK, value, (value,), device, 0.0, 0.0)
