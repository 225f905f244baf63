"""Histories that were never measured: series of figures whose steps are known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asv_bench.git.repository import Commit
from asv_bench.history.asv_results import Figure, Series
from asv_bench.history.change_points import Point, points_of
from asv_bench.history.sessions import APART_MS, Ratios, sessions_of

SERIES = Series("simulated.Workload.track_step_time", ())
REFERENCE = "f" * 40


@dataclass(frozen=True, slots=True)
class Modes:
    """Processes of two kinds: a share of them takes longer by `more`, 0.05 being 5 %."""

    share: float
    more: float


@dataclass(frozen=True, slots=True)
class HistoryKind:
    """What is drawn.

    Attributes
    ----------
    name
        For the table.
    step
        At a random commit, as a fraction; 0: the series is flat.
    commits, processes
        How many there are, and how many of a commit.
    noise
        Standard deviation of the log of a process' figure.
    modes
        Of processes; None: there is one.
    session_commits
        Neighbours that are measured in one session; None: all are.
    sessions_apart
        Each session adds this to the logs of its figures, or takes it away.
    has_reference
        Whether each session measures a reference too, by which its figures are divided.
    is_newest
        Whether the step is at the newest commit.
    """

    name: str
    step: float = 0.0
    commits: int = 150
    processes: int = 3
    noise: float = 0.01
    modes: Modes | None = None
    session_commits: int | None = None
    sessions_apart: float = 0.0
    has_reference: bool = False
    is_newest: bool = False


@dataclass(frozen=True, slots=True)
class SimulatedHistory:
    """A series, and the number of the first commit after its step; None where it is flat."""

    points: list[Point]
    place: int | None


def simulated_history(kind: HistoryKind, seed: int) -> SimulatedHistory:
    """Draw one series."""
    random = np.random.default_rng(seed)
    place = None
    if kind.step:
        place = kind.commits - 1 if kind.is_newest else int(random.integers(2, kind.commits - 1))
    session_commits = kind.session_commits or kind.commits
    added = kind.sessions_apart * random.choice([-1.0, 1.0], kind.commits // session_commits + 1)
    commits = [Commit(f"{number:040x}", "") for number in range(kind.commits)]
    references = [_median(kind, random, adds) for adds in added]
    figures: list[Figure] = []
    ratios: Ratios = {}
    for number, commit in enumerate(commits):
        session = number // session_commits
        level = added[session] + (math.log1p(kind.step) if place and number >= place else 0.0)
        started_ms = session * 2 * APART_MS + number
        samples = tuple(np.exp(level + _processes(kind, random)).tolist())
        figures.append(
            Figure(SERIES, "seconds", "simulated", commit.hash, number, samples, started_ms)
        )
        if kind.has_reference:
            ratios[SERIES, commit.hash, started_ms] = (REFERENCE, references[session])
    return SimulatedHistory(points_of(figures, commits, ratios, sessions_of(figures)), place)


def _median(kind: HistoryKind, random: np.random.Generator, level: float) -> float:
    return math.exp(level + float(np.median(_processes(kind, random))))


def _processes(kind: HistoryKind, random: np.random.Generator) -> npt.NDArray[np.float64]:
    """[processes] logs of figures around 0."""
    logs = random.normal(0.0, kind.noise, kind.processes)
    if kind.modes is not None:
        logs += math.log1p(kind.modes.more) * (random.random(kind.processes) < kind.modes.share)
    return logs
