"""A machine that does not exist: pairs of commits whose true times are known."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from asv_bench.measure.samples import Absence, CommitUnusable, Metric, Pair, Reading, Round
from asv_bench.process.gpu import GpuConditions

from .noise import Noise

SIMULATED_BENCHMARK = "simulated.Workload.track_step_time"
SIMULATED = Metric(SIMULATED_BENCHMARK, "seconds")
_THROTTLED = GpuConditions(1.0, 1.0, 1.0, ("sw_thermal_slowdown",), 90, 1)
"""Both lives of a pair that is to be discarded have it."""


class RoundsOfPairs:
    """A `RoundSource` of rounds of two cells, of which a subclass says what a pair measures."""

    devices: Sequence[str]

    def pair(
        self, base: str, head: str, *, head_first: bool, benchmarks: Collection[str], device: str
    ) -> Mapping[str, Pair]:
        """Of each benchmark, a pair in this order; one that is discarded is of a throttled GPU."""
        raise NotImplementedError

    def round(
        self, cells: Sequence[str], order: Sequence[int], metrics: Collection[str], device: str = ""
    ) -> Round:
        """See `RoundSource`."""
        base, head = cells[0], cells[-1]
        is_back = tuple(order) == (1, 0)
        place = device or self.devices[0]
        pairs = self.pair(base, head, head_first=is_back, benchmarks=metrics, device=place)
        readings: tuple[dict[str, Reading], ...] = ({}, {})
        for name, pair in pairs.items():
            for of_cell, one in zip(readings, (pair.base, pair.head), strict=True):
                of_cell[name] = replace(one, gpu=_THROTTLED) if pair.discarded else one
        return Round(tuple(order), readings[-len(cells) :])


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
        self.devices = tuple(devices)
        self._errors = {
            device: noise.figures(np.random.default_rng([seed, place]))
            for place, device in enumerate(devices)
        }
        self.measured = dict.fromkeys(self.devices, 0)

    def prepare(self, commit: str, device: str | None = None) -> Mapping[str, Absence]:
        """Raise CommitUnusable unless the commit has a time."""
        if commit not in self._log_times:
            raise CommitUnusable(commit, "the simulation has no time for it")
        return {}

    def pair(
        self, base: str, head: str, *, head_first: bool, benchmarks: Collection[str], device: str
    ) -> Mapping[str, Pair]:
        """See `RoundsOfPairs`."""
        self.prepare(base)
        self.prepare(head)
        self.measured[device] += 1
        order = (head, base) if head_first else (base, head)
        first, second = (self._process(commit, device) for commit in order)
        of_base, of_head = (second, first) if head_first else (first, second)
        return {SIMULATED_BENCHMARK: Pair(of_base, of_head, head_first)}

    def stop(self) -> None:
        """Nothing runs."""

    def _process(self, commit: str, device: str) -> Reading:
        error = self._unsteady.get(commit, 1.0) * next(self._errors[device])
        value = math.exp(self._log_times[commit] + error)
        return Reading(commit, SIMULATED_BENCHMARK, value, (value,), device, 0.0, 0.0)
