"""Sources without processes: tests say what a pair measures, and see what was asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from asv_bench.git.repository import Commit
from asv_bench.measure.samples import (
    Absence,
    CommitUnusable,
    Metric,
    Pair,
    Reading,
    RoundSource,
    SampleFailed,
)
from asv_bench.subjects.own_suite import OwnSuite
from tests.simulations.commits import RoundsOfPairs

BASE, HEAD = "b" * 40, "c" * 40
FIRST_LOOK = 6
"""Pairs that are enough for a clear case where no pool of earlier differences is known."""

Answer = tuple[int, str, dict[str, Any]]
"""What a command gave: its exit code, all that it printed with single spaces, and its record."""


def reading(commit: str, benchmark: str, value: float, device: str = "cpu") -> Reading:
    """A reading of one sample."""
    return Reading(commit, benchmark, value, (value,), device, started_at=0.0, process_s=1.0)


def pair_of(
    base_value: float,
    head_value: float,
    *,
    benchmark: str = "b",
    head_first: bool = False,
    discarded: str | None = None,
    device: str = "cpu",
    ends: tuple[str, str] = (BASE, HEAD),
) -> Pair:
    """A pair of two commits."""
    return Pair(
        reading(ends[0], benchmark, base_value, device),
        reading(ends[1], benchmark, head_value, device),
        head_first,
        discarded,
    )


def seconds(*names: str, margin: float | None = None) -> list[Metric]:
    """Metrics of these names."""
    return [Metric(name, "seconds", margin=margin) for name in names]


@dataclass(frozen=True)
class Asked:
    """One call of `pair`."""

    device: str
    head_first: bool
    benchmarks: tuple[str, ...]


@dataclass
class ScriptedPairs(RoundsOfPairs):
    """Gives log-ratios by a function of benchmark and pair number; such a function may raise."""

    ratio: Callable[[str, int], float]
    benchmarks: tuple[str, ...] = ("b",)
    devices: Sequence[str] = ("cpu",)
    discard: Callable[[str, int], str | None] = lambda name, number: None
    unusable: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, Mapping[str, Absence]] = field(default_factory=dict)
    seconds: float = 0.0
    asked: list[Asked] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    stopped: bool = False
    busy: dict[str, int] = field(default_factory=dict)
    most_busy: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def prepare(self, commit: str, device: str | None = None) -> Mapping[str, Absence]:
        if commit in self.unusable:
            raise CommitUnusable(commit, self.unusable[commit])
        self.prepared.append(commit)
        return self.absent.get(commit, {})

    def pair(
        self, base: str, head: str, *, head_first: bool, benchmarks: Collection[str], device: str
    ) -> Mapping[str, Pair]:
        wanted = tuple(benchmarks or self.benchmarks)
        with self.lock:
            number = len(self.asked)
            self.asked.append(Asked(device, head_first, wanted))
            self.busy[device] = self.busy.get(device, 0) + 1
            if self.busy[device] > 1:
                raise AssertionError(f"two pairs at a time on {device}")
            self.most_busy = max(self.most_busy, sum(self.busy.values()))
        try:
            deadline = time.monotonic() + self.seconds
            while time.monotonic() < deadline:
                if self.stopped:
                    raise SampleFailed(head, wanted, "it was stopped")
                time.sleep(0.005)
            return {
                name: pair_of(
                    1.0,
                    self.ratio(name, number),
                    benchmark=name,
                    head_first=head_first,
                    discarded=self.discard(name, number),
                    device=device,
                    ends=(base, head),
                )
                for name in wanted
            }
        finally:
            with self.lock:
                self.busy[device] -= 1

    def stop(self) -> None:
        self.stopped = True


class SourcedSuite(OwnSuite):
    """kvtrail's benchmarks, whose figures come from a source; `commits` are by their names.

    Without `commits` these are of the repository.
    """

    pathspecs = ()

    def __init__(
        self,
        root: Path,
        source: RoundSource,
        names: Sequence[str] = ("b",),
        commits: Mapping[str, Commit] | None = None,
    ) -> None:
        self.given, self.by_name = source, commits
        super().__init__(root)
        self.metrics = [Metric(name, "seconds") for name in names]

    @property
    def devices(self) -> Sequence[str]:
        return self.given.devices

    def choose(self, patterns, devices) -> None:
        pass

    def resolve(self, name: str) -> Commit:
        return super().resolve(name) if self.by_name is None else self.by_name[name]

    def are_same(self, base: str, head: str) -> bool:
        return self.by_name is None and super().are_same(base, head)

    def to_json(self) -> dict[str, str]:
        return {"kind": "simulated"}

    def sentence(self) -> str:
        return "measuring a simulation"

    @contextmanager
    def pairs(self) -> Iterator[RoundSource]:
        yield self.given


def pairs_with_itself(pairs: int, benchmark: str = "b") -> list[dict[str, Any]]:
    """As many of a commit with itself on each of two devices, whose levels differ, as records hold
    them; processes begin a second apart."""
    random = np.random.default_rng(11)
    stored = []
    for device in range(2):
        for number, values in enumerate(np.exp(device + random.normal(0, 0.003, (pairs, 2)))):
            told = {"commit": "a" * 40, "device": f"device {device}"}
            readings = [
                {**told, "value": float(value), "started_at": 2.0 * number + place}
                for place, value in enumerate(values)
            ]
            head_first = number % 4 in (1, 2)
            base, head = reversed(readings) if head_first else readings
            kind = {"benchmark": benchmark, "head_first": head_first, "discarded": None}
            stored.append({**kind, "base": base, "head": head})
    return stored
