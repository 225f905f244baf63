"""Readings of single processes, pairs of readings, and where rounds of them come from."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

from asv_bench.errors import MeasurementFailed
from asv_bench.git.repository import short
from asv_bench.output.stored_json import Count
from asv_bench.process.gpu import GpuConditions

TOLERATED = 0.01
"""The share that stands for the tolerance of a check whose results are numbers."""
_MOST_LOGARITHM = 200.0


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure that a subject has, or a result that is checked beside the figures.

    Results that are numbers may be 0 or negative, and are compared by their difference: their
    figure is one whose logarithm they are, in units in which `tolerance` is a share of `TOLERATED`.
    """

    name: str
    unit: str  # "seconds", or another word to print behind values
    better: Literal["lower", "higher"] = "lower"
    margin: float | None = None  # the difference that matters, as a fraction; None: the command's
    take: str = "median"  # what of a life's windows is its figure, as in `[metrics.NAME]`
    control: bool = False  # whether no change can move it
    check: Literal["", "equal", "not-worse"] = ""  # what must hold of it; "": it is no check
    tolerance: float | None = None  # of a check whose results are numbers
    score: str = ""  # a command that gives results their numbers; "": they are numbers

    def figure(self, result: float) -> float:
        """The figure of a result; ValueError where it is too far from 0 for the tolerance."""
        logarithm = math.log1p(TOLERATED) * result / (self.tolerance or 1)
        if abs(logarithm) > _MOST_LOGARITHM:
            raise ValueError(f"{result:g} is too large for a tolerance of {self.tolerance:g}")
        return math.exp(logarithm)

    def result(self, figure: float) -> float:
        """The result of a figure."""
        return math.log(figure) * (self.tolerance or 1) / math.log1p(TOLERATED)


def judged(metrics: Iterable[Metric]) -> list[Metric]:
    """Those that a change can move; all, where none can be moved."""
    metrics = list(metrics)
    return [one for one in metrics if not one.control and one.check != "equal"] or metrics


@dataclass(eq=False)
class CommitUnusable(MeasurementFailed):
    """A commit cannot be measured: it cannot be built or imported, or lacks the benchmark.

    `reason` is a clause without the commit; `is_lacking` means that the commit works but lacks the
    benchmark.
    """

    commit: str
    reason: str
    is_lacking: bool = False

    def __str__(self) -> str:
        return f"commit {short(self.commit)} cannot be measured: {self.reason}"


@dataclass(eq=False)
class SampleFailed(MeasurementFailed):
    """A process of a commit that can be measured gave no figure of `benchmarks` this time.

    `round` has the figures of other benchmarks, which processes beside it gave.
    """

    commit: str
    benchmarks: Collection[str]
    reason: str
    round: Round | None = None

    def __str__(self) -> str:
        names = ", ".join(self.benchmarks)
        return f"a process of commit {short(self.commit)} gave no figure of {names}: {self.reason}"


class DeviceLost(MeasurementFailed):
    """A device is out of use, and what it was asked to measure is still to be measured."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one process measured of one benchmark, or of one metric of a subject.

    Raises MeasurementFailed where the value is no number, or negative.
    """

    commit: str  # the full hash of the commit whose engine ran, or a label
    benchmark: str
    """The metric, or asv's name with parameters, such as
    "scheduler.Scheduler.track_step_time('gpt2')"."""
    value: Count
    """The process's figure, its least disturbed sample: seconds, or another positive number."""
    samples: tuple[Count, ...]  # the raw values
    device: str  # GPUs by UUID, "cpu" or "host", or a slot of a fleet
    started_at: Count  # in seconds since 1970
    process_s: Count  # how many seconds lay between its begin and its end
    gpu: GpuConditions | None = None  # the GPU meanwhile; None on a CPU
    pairs: int = 1  # through which its server lived, whose start counts once
    client: str = ""  # a hash of the client's environment, where a server is asked
    build: int | None = None  # which of its builds it ran, from 0; None: there is one alone
    results: tuple[str, ...] = ()
    """Of a check for equal results: those of its windows, as JSON; one, where all are the same."""

    def __post_init__(self) -> None:
        # A count may be 0; a pair of readings may not.
        if self.value != 0:
            self.require_ratio()

    def brief(self) -> Reading:
        """The same with a hash in the place of each result."""
        hashes = (
            hashlib.sha256(one.encode(errors="surrogatepass")).hexdigest()[:16]
            for one in self.results
        )
        return replace(self, results=tuple(hashes))

    def require_ratio(self) -> None:
        """Raise MeasurementFailed unless there is a ratio to the value."""
        if not (math.isfinite(self.value) and self.value > 0):
            raise MeasurementFailed(
                f"{self.benchmark} gave {self.value!r} at commit {short(self.commit)}; only "
                f"positive figures can be compared."
            )


@dataclass(frozen=True, slots=True)
class Pair:
    """Readings of one benchmark by two processes on one device, one after the other or in turns.

    `discarded` is a sentence that says why the pair must not be judged by; None where it may.
    `higher_is_better` says which way the values are judged.
    """

    base: Reading
    head: Reading
    head_first: bool
    discarded: str | None = None
    higher_is_better: bool = False

    def __post_init__(self) -> None:
        for reading in (self.base, self.head):
            reading.require_ratio()

    @property
    def costs(self) -> tuple[float, float]:
        """Logarithms of base and head, turned so that the larger one is the worse."""
        sign = -1.0 if self.higher_is_better else 1.0
        return sign * math.log(self.base.value), sign * math.log(self.head.value)

    @property
    def log_ratio(self) -> float:
        """The head's cost less the base's: positive where the head is slower."""
        base, head = self.costs
        return head - base

    @property
    def effect(self) -> float:
        """The change of the figure itself, head / base - 1."""
        return self.head.value / self.base.value - 1.0

    @property
    def seconds(self) -> float:
        """From the begin of the first process to the end of the last."""
        both = self.base, self.head
        ended = max(reading.started_at + reading.process_s for reading in both)
        return ended - min(reading.started_at for reading in both)

    def to_json(self) -> dict[str, Any]:
        """The pair as JSON-ready values."""
        told = {"benchmark": self.base.benchmark, "log_ratio": self.log_ratio}
        return {**told, **asdict(replace(self, base=self.base.brief(), head=self.head.brief()))}


@dataclass(frozen=True, slots=True)
class Absence:
    """Why a commit that can be measured gives no figure of one benchmark.

    `has_failed` tells an error from a benchmark that this commit, or this machine, merely lacks.
    """

    reason: str
    has_failed: bool


@dataclass(frozen=True, slots=True)
class Round:
    """Readings of a life of each of some cells, next to each other in time.

    Cells are known by their places, since a commit may be compared with itself.
    """

    order: tuple[int, ...]  # places of the cells, as their lives ran
    readings: tuple[Mapping[str, Reading], ...]  # of each place, by metric


class RoundSource(Protocol):
    """Measures rounds. A cell is a full hash, a label, or a hash under a label."""

    @property
    def devices(self) -> Sequence[str]:
        """Where it measures; a round at a time on each, and those of different ones together."""
        ...

    def prepare(self, cell: str, device: str | None = None) -> Mapping[str, Absence]:
        """Make a cell ready to be measured; return the metrics that it has no figure of.

        What that takes runs on a device, by default the first. Raises CommitUnusable where the
        cell can give a figure of none, and DeviceLost as `round` does.
        """
        ...

    def round(
        self, cells: Sequence[str], order: Sequence[int], metrics: Collection[str], device: str = ""
    ) -> Round:
        """Measure a fresh life of each cell, in an order of places.

        A cell that was not prepared is prepared first. Metrics that one of the cells lacks are left
        out; without any it is all that the source was made for. `device` is one of `devices`; "":
        the first that can. A thread for each device may call this.

        Raises CommitUnusable where a cell cannot be measured, SampleFailed where a life failed
        although its cell can be, and DeviceLost where the device went out of use before the end.
        """
        ...

    def stop(self) -> None:
        """End every process that is running; calls of `round` in other threads then fail."""
        ...
