"""How often `changes` sees what is no change, and misses what is one, beside asv's own steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from asv_bench.git.repository import Commit
from asv_bench.history.asv_results import APART_MS, Figure, Ratios, Series, sessions_of
from asv_bench.history.change_points import Point, changes_in, points_of
from asv_bench.output.table import Column, Table, digits, percent

from .noise import Noise

SERIES = Series("simulated.Workload.track_step_time", ())
REFERENCE = "f" * 40
QUIET = 0.003
_Hits: TypeAlias = tuple[int, int, int, int]
"""False changes and found steps, by `changes`; and the same by asv's step detection."""


@dataclass(frozen=True, slots=True)
class Modes:
    """Processes of two kinds: a share of them takes longer by `more`, 0.05 being 5 %."""

    share: float
    more: float


@dataclass(frozen=True, slots=True)
class HistoryKind:
    """What is drawn."""

    name: str
    step: float = 0.0  # at a random commit, as a fraction; 0: the series is flat
    commits: int = 150
    processes: int = 3  # of a commit
    noise: float = 0.01  # standard deviation of the log of a process' figure
    modes: Modes | None = None  # of processes; None: there is one
    session_commits: int | None = None  # neighbours measured in one session; None: all
    # Each session adds this to the logs of its figures, or takes it away.
    sessions_apart: float = 0.0
    # Whether each session measures a reference too, by which its figures are divided.
    has_reference: bool = False
    is_newest: bool = False  # whether the step is at the newest commit
    # What the machine adds to all processes of a commit: its deviation, and its correlation from
    # one commit to the next.
    drift: float = 0.0
    memory: float = 0.95
    slope: float = 0.0  # how much more the last commit takes, along a line, as a fraction
    tail: float | None = None  # degrees of freedom of Student's t; None: noise is normal


TWO_MODES = Modes(share=0.3, more=0.05)
_OF_10: dict[str, Any] = {"session_commits": 10, "sessions_apart": 0.01}
_OF_50: dict[str, Any] = {"session_commits": 50, "sessions_apart": 0.01}
_QUIET_MODES: dict[str, Any] = {"noise": QUIET, "modes": TWO_MODES}
_CORRELATED: dict[str, Any] = {"noise": 0.002, "drift": 0.01, "memory": 0.5}
_DRIFTING: dict[str, Any] = {"drift": 0.01}
KINDS = (
    HistoryKind("flat"),
    HistoryKind("flat, two modes", **_QUIET_MODES),
    HistoryKind("flat, one process", processes=1),
    HistoryKind("flat, 2 commits", commits=2),
    HistoryKind("flat, two modes, one process", processes=1, **_QUIET_MODES),
    HistoryKind("flat, two modes, five processes", processes=5, **_QUIET_MODES),
    HistoryKind("flat, two modes, 20 commits", commits=20, **_QUIET_MODES),
    HistoryKind("flat, a rare mode", noise=QUIET, modes=Modes(share=0.1, more=0.05)),
    HistoryKind("flat, sessions of 10", noise=QUIET, **_OF_10),
    HistoryKind("flat, sessions of 50", noise=QUIET, **_OF_50),
    HistoryKind("flat, each commit by itself", noise=QUIET, session_commits=1, sessions_apart=0.01),
    HistoryKind("flat, sessions of 10 with a reference", has_reference=True, **_OF_10),
    HistoryKind("flat, noisy sessions of 10", **_OF_10),
    HistoryKind("flat, noisy sessions of 10, one process", processes=1, **_OF_10),
    HistoryKind("flat, heavy tails", tail=3.0),
    HistoryKind("flat, heavy tails, one process", processes=1, tail=3.0),
    HistoryKind("flat, autocorrelated", **_CORRELATED),
    HistoryKind("flat, autocorrelated, one process", processes=1, **_CORRELATED),
    HistoryKind("flat, autocorrelated, 20 commits", commits=20, processes=1, **_CORRELATED),
    HistoryKind("flat, drifting", **_DRIFTING),
    HistoryKind("flat, drifting, one process", processes=1, **_DRIFTING),
    HistoryKind("flat, a slope of 2 %", slope=0.02),
    HistoryKind("flat, a slope of 2 %, one process", processes=1, slope=0.02),
    HistoryKind("a step", step=0.03),
    HistoryKind("a step", step=0.05),
    HistoryKind("a step, 20 commits", step=0.03, commits=20),
    HistoryKind("a step, one process", step=0.03, processes=1),
    HistoryKind("a step, one process, 20 commits", step=0.03, commits=20, processes=1),
    HistoryKind("a step, one process, autocorrelated", step=0.03, processes=1, **_CORRELATED),
    HistoryKind("a step at the newest commit", step=0.05, is_newest=True),
    HistoryKind("a step, two modes", step=0.05, **_QUIET_MODES),
    HistoryKind("a step, sessions of 10", step=0.03, noise=QUIET, **_OF_10),
    HistoryKind("a step, sessions of 50", step=0.03, noise=QUIET, **_OF_50),
)
COLUMNS = (
    Column("name", "history", kind="text"),
    Column("commits", "commits"),
    Column("processes", "processes"),
    Column("step", "step", show=percent(0, signed=True)),
    Column("false", "false changes a series", show=digits(3)),
    Column("asv_false", "of asv", show=digits(3)),
    Column("found", "step found", show=percent(1)),
    Column("asv_found", "by asv", show=percent(1)),
)


@dataclass(frozen=True, slots=True)
class Rates:
    """What judging many histories of one kind came to, by `changes` and by asv's step detection."""

    kind: HistoryKind
    # Changes a series where nothing changed.
    false: float
    asv_false: float
    # The share of series whose step was found; None where they are flat.
    found: float | None
    asv_found: float | None

    @classmethod
    def of(cls, kind: HistoryKind, judged: Sequence[_Hits]) -> Rates:
        false, found, asv_false, asv_found = np.sum(judged, axis=0).tolist()
        runs, step = len(judged), kind.step
        rates = (found / runs, asv_found / runs) if step else (None, None)
        return cls(kind, false / runs, asv_false / runs, *rates)


def judge(kind: HistoryKind, runs: int, seed: int = 0) -> Rates:
    """Judge so many histories of a kind."""
    return Rates.of(kind, [judge_once(kind, seed + run) for run in range(runs)])


def judge_once(kind: HistoryKind, seed: int) -> _Hits:
    """Judge one history; `changes` and asv see the same one."""
    from asv.step_detect import detect_steps

    points, place = simulated_history(kind, seed)
    # Numbers of the commits after which, and up to which, a change lies; asv's steps are granted a
    # commit on both sides.
    ours = [(int(one.since.hash, 16), int(one.until.hash, 16)) for one in changes_in(points)]
    steps = detect_steps([point.figure.median for point in points])
    of_asv = [(begin - 2, begin + 1) for begin, *_ in steps[1:]]
    hits = [
        any(since < place <= until for since, until in ranges if place) for ranges in (ours, of_asv)
    ]
    return len(ours) - hits[0], int(hits[0]), len(of_asv) - hits[1], int(hits[1])


def simulated_history(kind: HistoryKind, seed: int) -> tuple[list[Point], int | None]:
    """One series, and the number of the first commit after its step; None where it is flat."""
    random = np.random.default_rng(seed)
    place = None
    if kind.step:
        place = kind.commits - 1 if kind.is_newest else int(random.integers(2, kind.commits - 1))
    session_commits = kind.session_commits or kind.commits
    added = kind.sessions_apart * random.choice([-1.0, 1.0], kind.commits // session_commits + 1)
    commits = [Commit(f"{number:040x}", "") for number in range(kind.commits)]
    machine = _drift(kind, random)
    references = [math.exp(adds + float(np.median(_processes(kind, random)))) for adds in added]
    figures: list[Figure] = []
    ratios: Ratios = {}
    for number, commit in enumerate(commits):
        session = number // session_commits
        level = (
            added[session]
            + machine[number]
            + (math.log1p(kind.step) if place and number >= place else 0.0)
        )
        started_ms = session * 2 * APART_MS + number
        samples = tuple(np.exp(level + _processes(kind, random)).tolist())
        figures.append(
            Figure(SERIES, "seconds", "simulated", commit.hash, number, samples, started_ms)
        )
        if kind.has_reference:
            ratios[SERIES, commit.hash, started_ms] = (REFERENCE, references[session])
    return points_of(figures, commits, ratios, sessions_of(figures)), place


def _drift(kind: HistoryKind, random: np.random.Generator) -> npt.NDArray[np.float64]:
    """[commits] what the machine adds to the logs of each commit's figures."""
    added = np.linspace(0.0, math.log1p(kind.slope), kind.commits)
    if kind.drift:
        added += Noise(drift=kind.drift, memory=kind.memory).states(random, (kind.commits,))
    return added


def _processes(kind: HistoryKind, random: np.random.Generator) -> npt.NDArray[np.float64]:
    """[processes] logs of figures around 0."""
    if kind.tail is None:
        logs = random.normal(0.0, kind.noise, kind.processes)
    else:
        logs = random.standard_t(kind.tail, kind.processes) * kind.noise
        logs /= math.sqrt(kind.tail / (kind.tail - 2.0))
    if kind.modes is not None:
        logs += math.log1p(kind.modes.more) * (random.random(kind.processes) < kind.modes.share)
    return logs


def rates_table(rates: Sequence[Rates], runs: int) -> Table:
    """A row for each kind of history."""
    caption = (
        "Noise of a process: 1 %; with two modes or sessions, 0.3 %. Two modes: 30 % of the "
        "processes take 5 % longer; a rare one: 10 %. Sessions are 1 % up or down. Autocorrelated: "
        "a machine's own deviation of 1 %, which remembers half from commit to commit; drifting: "
        "95 %, beside the noise. Heavy tails: t with 3 degrees of freedom. A step is found "
        "where the range of a change holds it; for asv, within a commit of its step, and it sees "
        "figures in place of ratios."
    )
    rows: list[tuple[Any, ...]] = [
        (
            *(one.kind.name, one.kind.commits, one.kind.processes, one.kind.step or None),
            *(one.false, one.asv_false, one.found, one.asv_found),
        )
        for one in rates
    ]
    return Table(COLUMNS, rows, f"changes in {runs} simulated histories each", caption)
