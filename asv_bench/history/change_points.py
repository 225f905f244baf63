"""Change points of stored histories: where a series of figures moved for good.

Segments of equal level are fitted to the logs of a series (`stats.segments`), in units of the
series' own noise. A change found so is a candidate: noise and a machine's drift can make one too.
One commit that was measured badly can also misplace it, so it has a range in which it lies.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from asv_bench.git.repository import Commit
from asv_bench.history.asv_results import Better, EnvironmentFacts, Figure, Ratios, Series
from asv_bench.stats import segments
from asv_bench.stats.paired import Floats, robust_sigma
from asv_bench.stats.segments import Labels

LEAST_EFFECT = 0.01
"""Smaller changes are none that a comparison would call slower or faster."""
FILTERED_PENALTY = 1.4 * segments.PENALTY
"""Medians of three neighbours share two values with the next. Chosen by simulation: no more false
changes than asv's own detection where processes have two modes."""
PLACE_PROBABILITY = 0.99
"""Of the range in which a change lies."""
LEAST_NOISE = 0.002
"""What a figure is taken to be uncertain by at least, however alike a few stored ones are."""
SESSION_NOISE = 0.01
"""What sessions are taken to differ by where too few were held to tell."""
REPEATED = 3
"""Processes of which the median is one that no single process can move."""
UNKNOWN_NOISE = 0.025
"""What single processes are taken to be off by where commits are too few to tell."""
_FEW, _MANY = 12, 50
_BULK, _NORMAL_BULK = 0.9, 1.645
"""A quantile of what noise is off by either way, and where a normal distribution has it."""
_Z95 = 1.96


@dataclass(frozen=True, slots=True)
class Point:
    """One commit of a series: its figure, and the commit that it is divided by, if any."""

    commit: Commit
    figure: Figure
    level: float  # log of the figure's median, or of its ratio to the reference's
    session: int  # which points were measured together
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A place where a series moved."""

    series: Series
    machine: str
    unit: str
    before: Commit  # the last measured commit before the change
    commit: Commit  # the first one after it, where it most probably is
    since: Commit
    until: Commit
    """`since` and this are the measured commits around every place where the change may be."""
    effect: float  # after / before - 1, from the levels of the segments on both sides
    interval: tuple[float, float]
    """Of 95 % confidence, if the segments' commits are alike but for noise."""
    before_value: float  # median of its segment, in `unit`
    after_value: float  # the same
    commits_before: int  # measured commits of the segment
    commits_after: int  # the same
    reference: str | None  # the commit whose ratio was judged; None where figures themselves were
    environment: EnvironmentFacts = ()
    better: Better = ""  # as in `Figure`

    @property
    def is_worse(self) -> bool:
        return (self.effect > 0) == (self.better != "higher")

    @property
    def is_placed(self) -> bool:
        """Whether it can lie in one place only."""
        return (self.since, self.until) == (self.before, self.commit)

    def to_json(self) -> dict[str, Any]:
        """The change as JSON-ready values."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        del values["series"]
        return {
            "benchmark": self.series.benchmark,
            "params": dict(self.series.params),
            "subject": self.commit.subject,
            **{key: one.hash if isinstance(one, Commit) else one for key, one in values.items()},
            "environment": dict(self.environment),
        }


def points_of(
    figures: Sequence[Figure], commits: Sequence[Commit], ratios: Ratios, sessions: Sequence[int]
) -> list[Point]:
    """One series on one machine, in one environment, as points in the order of `commits`.

    `ratios` (`read_ratios`) are used where every figure has one to the same reference:
    ratios and plain figures do not mix. `sessions` are the machine's (`sessions_of`).
    """
    by_commit = {one.commit: one for one in figures if not one.failed and one.median > 0}
    shown = [(commit, by_commit[commit.hash]) for commit in commits if commit.hash in by_commit]
    pairs = [ratios.get((one.series, one.commit, one.started_ms)) for _, one in shown]
    is_related = None not in pairs and len({pair[0] for pair in pairs if pair}) == 1
    points: list[Point] = []
    for (commit, figure), pair in zip(shown, pairs, strict=True):
        reference, divisor = pair if pair and is_related else (None, 1.0)
        level = math.log(figure.median / divisor)
        session = bisect_right(sessions, figure.started_ms)
        points.append(Point(commit, figure, level, session, reference))
    return points


def changes_in(points: Sequence[Point]) -> list[Change]:
    """Where a series moved by at least `LEAST_EFFECT`; points and changes are oldest first."""
    if len(points) < 2:
        return []
    levels = np.array([point.level for point in points])
    sessions = _sessions(points)
    samples = [point.figure.samples for point in points]
    spread = _spread_of(levels, sessions, samples, are_ratios=bool(points[0].reference))
    values, session = levels / spread.commit, spread.session / spread.commit
    if min(map(len, samples)) >= REPEATED:
        ends = segments.segment_ends(values, sessions, session, 1)
        if session == 0:
            least = math.sqrt(segments.PENALTY * math.log(max(len(values), segments.FEWEST)))
            ends = segments.lasting_ends(values, ends, least)
    elif session == 0:
        # Each disturbed process would be a change and its undoing.
        ends = segments.lasting_ends(values, segments.robust_segment_ends(values))
    else:
        from scipy.ndimage import median_filter  # not at the top: every command would wait for it

        values = median_filter(values, 3, mode="nearest")
        ends = segments.segment_ends(values, sessions, session, 2, FILTERED_PENALTY)
    levelled = [points[start:end] for start, end in pairwise([0, *ends])]
    found = (_change(before, after, spread) for before, after in pairwise(levelled))
    return [change for change in found if abs(change.effect) >= LEAST_EFFECT]


def _sessions(points: Sequence[Point]) -> Labels:
    """Numbers from 0 for the sessions of some points."""
    return np.unique([point.session for point in points], return_inverse=True)[1]


def _change(before: Sequence[Point], after: Sequence[Point], spread: Spread) -> Change:
    first, points = after[0], [*before, *after]
    levels = np.array([point.level for point in points]) / spread.commit
    session = spread.session / spread.commit
    height, sd, values = segments.step_between(levels, _sessions(points), session, len(before))
    shift, width = height * spread.commit, _Z95 * sd * spread.commit
    earliest, latest = _places_of(values, len(before))
    return Change(
        series=first.figure.series,
        machine=first.figure.machine,
        unit=first.figure.unit,
        before=before[-1].commit,
        commit=first.commit,
        since=points[earliest - 1].commit,
        until=points[latest].commit,
        effect=math.expm1(shift),
        interval=(math.expm1(shift - width), math.expm1(shift + width)),
        before_value=statistics.median(point.figure.median for point in before),
        after_value=statistics.median(point.figure.median for point in after),
        commits_before=len(before),
        commits_after=len(after),
        reference=first.reference,
        environment=first.figure.environment,
        better=first.figure.better,
    )


def _places_of(levels: Floats, found: int) -> tuple[int, int]:
    """The first and last number of levels before the one step of `levels`, `found` among them.

    Levels are in units of their noise. Every place is as probable beforehand; errors are of a
    Student t distribution, whose heavy tails let single commits be far off.
    """

    def cost(side: Floats) -> float:
        return float(segments.robust_costs(side - np.median(side)).sum())

    last = len(levels) - 1
    costs = np.array([cost(levels[:place]) + cost(levels[place:]) for place in range(1, last + 1)])
    weights = np.exp(costs.min() - costs)
    below = np.cumsum(weights) / weights.sum()
    outside = (1.0 - PLACE_PROBABILITY) / 2.0
    earliest = 1 + int(np.searchsorted(below, outside))
    latest = 1 + int(np.searchsorted(below, 1.0 - outside))
    return min(earliest, found), max(min(latest, last), found)


class Spread(NamedTuple):
    """Standard deviations of the logs of figures."""

    commit: float  # of what is new in each commit's figure
    session: float  # of what a session adds to all of its figures


def _spread_of(
    levels: Floats, sessions: Labels, samples: Sequence[Sequence[float]], *, are_ratios: bool
) -> Spread:
    """How the figures of a series vary, apart from a few changes; all arguments are by commit.

    Both are estimated from differences of neighbours, of which changes are outliers: the noise of a
    commit from those in one session, that of sessions from those in two. With `are_ratios` figures
    were divided by a reference of their session: then sessions differ by the reference's own noise
    at least; else by `SESSION_NOISE`, as far as too few differences tell.
    """
    differences = np.diff(levels)
    crosses = np.diff(sessions) != 0
    inside, across = differences[~crosses], differences[crosses]
    within = _noise_within(samples)
    if len(levels) < segments.FEWEST:
        commit = _noise_of_few(samples, within)
        return Spread(commit, (commit if are_ratios else SESSION_NOISE) if len(across) else 0.0)
    if not len(across) or (within == 0 and len(inside) < len(across)):
        # One session, or nearly as many as commits: differences hold all that there is.
        return Spread(_noise_of(differences, samples, within), 0.0)
    commit = _noise_of(inside, samples, within)
    before = commit if are_ratios else SESSION_NOISE
    both = _sd_of(across, has_bulk=True) / math.sqrt(2.0)
    told = max(0.0, both**2 - commit**2) if len(across) >= _FEW else before**2
    # By chance sessions look alike in a dozen differences, so what was thought before counts.
    session = math.sqrt((len(across) * told + _FEW * before**2) / (len(across) + _FEW))
    return Spread(commit, max(commit, session) if are_ratios else session)


def _noise_of_few(samples: Sequence[Sequence[float]], within: float) -> float:
    """Of so few commits that each difference may be a change, what processes say."""
    if min(map(len, samples)) < REPEATED:
        return UNKNOWN_NOISE
    from scipy.stats import norm, t  # not at the top: every command would wait for it

    # Few processes say little: the error is taken for wider, as Student's t is.
    freedom = sum(map(len, samples)) - len(samples)
    return max(LEAST_NOISE, within * float(t.isf(0.001, freedom) / norm.isf(0.001)))


def _noise_of(differences: Floats, samples: Sequence[Sequence[float]], within: float) -> float:
    """What is new in each commit's figure: no less than the spread of its own processes says."""
    commits = len(differences) + 1
    if commits < _FEW and within > 0:
        # Most differences may be changes.
        return max(LEAST_NOISE, within)
    has_bulk = commits >= _MANY or min(map(len, samples)) < REPEATED
    return max(LEAST_NOISE, _sd_of(differences, has_bulk=has_bulk) / math.sqrt(2.0), within)


def _sd_of(differences: Floats, *, has_bulk: bool) -> float:
    """Of differences of neighbours, of which some are changes.

    If processes have two modes, the median absolute deviation misses one. So where commits are too
    many for changes to be frequent, or nothing else tells, it is no less than the bulk says.
    """
    spread = robust_sigma(differences)
    levels = np.append(0.0, np.cumsum(differences[differences != 0]))
    if spread == 0 and len(np.unique(levels.round(9))) == len(levels):
        # Figures that are all equal but for steps, none of which is taken back.
        return 0.0
    if has_bulk:
        spread = max(spread, float(np.quantile(np.abs(differences), _BULK)) / _NORMAL_BULK)
    return spread


def _noise_within(samples: Sequence[Sequence[float]]) -> float:
    """The error of a commit's median, from the spread of its processes; 0 if that is unknown."""
    logs = [np.sort(np.log(one)) for one in samples if len(one) >= REPEATED and min(one) > 0]
    return math.sqrt(statistics.fmean(map(_median_variance, logs))) if logs else 0.0


def _median_variance(ordered: Floats) -> float:
    """Of the median of as many values drawn from these, with any of them more than once.

    This bootstrap needs no shape of the noise, so it sees that a median jumps between two modes.
    """
    weights = np.diff(_lower_half(len(ordered)))
    return float(weights @ (ordered - weights @ ordered) ** 2)


@cache
def _lower_half(count: int) -> Floats:
    """[count + 1] how probable it is that the median is among so many of the lowest values."""
    from scipy.stats import binom  # not at the top: every command would wait for it

    places = np.arange(count + 1) / count
    below = binom.sf([(count - 1) // 2, count // 2], count, places[:, None])
    return np.asarray(below.mean(axis=1), np.float64)
