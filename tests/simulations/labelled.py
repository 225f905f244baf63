"""`changes` and other detectors on series of others, whose steps people have set down.

A folder holds a file `NAME.json` for each series: `values` in the order of commits, one figure
each, and `labels`, rows of an index and a kind (`TP` and `FN` stand for steps, `FP` for none).
`eye.json` holds by name the `steps` that a reader saw, and what is `unsure`, which counts for
nothing: each is the index of the first value after a step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from asv_bench.errors import Refused
from asv_bench.git.repository import Commit
from asv_bench.history.asv_results import APART_MS, Figure, Series, sessions_of
from asv_bench.history.change_points import Change, changes_in, points_of
from asv_bench.output.table import Column, Table, digits
from asv_bench.stats.paired import Floats, robust_sigma

NEAR = 5
"""Commits by which what is found may be off."""
_SERIES = Series("labelled.Series.track_figure", ())
Values: TypeAlias = Sequence[float]
Detector: TypeAlias = Callable[[Values], list[int]]
"""Gives the index of the first value after each step."""


@dataclass(frozen=True, slots=True)
class LabelledSeries:
    """One series of somebody else."""

    name: str
    values: Values
    steps: Sequence[int]  # that a reader saw
    unsure: Sequence[int]
    labels: Sequence[int]  # of alerts that were judged to be steps
    undecided: Sequence[int]  # of alerts that nobody judged

    def shuffled(self, random: np.random.Generator) -> Values:
        """The same noise in another order, without steps."""
        levels = np.log(self.values)
        sides = np.split(levels, sorted({*self.steps, *self.unsure}))
        flat = np.concatenate([side - np.median(side) for side in sides if len(side)])
        return np.exp(random.permutation(flat)).tolist()


def read_labelled(folder: Path) -> list[LabelledSeries]:
    """The series of a folder by name; Refused where it holds none, or a reader saw none of them."""
    try:
        eye = json.loads((folder / "eye.json").read_text("utf-8"))
        read = [
            (path.stem, json.loads(path.read_text("utf-8")))
            for path in sorted(folder.glob("*.json"))
            if path.name != "eye.json"
        ]
        found = [
            LabelledSeries(
                *(name, one["values"], eye[name]["steps"], eye[name]["unsure"]),
                [place for place, kind, *_ in one["labels"] if kind in ("TP", "FN")],
                [place for place, kind, *_ in one["labels"] if kind == "SP"],
            )
            for name, one in read
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(
            f"{folder} holds no labelled series: {type(error).__name__} {error}."
        ) from None
    if not found:
        raise Refused(f"{folder} holds no labelled series: there is no file but eye.json.")
    return found


def our_changes(values: Values) -> list[Change]:
    """What `changes` finds in figures of one process each, every one of a session of its own."""
    commits = [Commit(f"{number:040x}", "") for number in range(len(values))]
    figures = [
        Figure(_SERIES, "seconds", "labelled", commit.hash, number, (value,), number * 2 * APART_MS)
        for number, (commit, value) in enumerate(zip(commits, values, strict=True))
    ]
    return changes_in(points_of(figures, commits, {}, sessions_of(figures)))


def _kvtrail(values: Values) -> list[int]:
    return [int(change.commit.hash, 16) for change in our_changes(values)]


def _asv(values: Values) -> list[int]:
    from asv.step_detect import detect_steps

    return [int(begin) for begin, *_ in detect_steps(list(values))[1:]]


def _otava(values: Values) -> list[int]:
    from otava.analysis import compute_change_points

    return [int(point.index) for point in compute_change_points(list(values))[0]]


def _in_units_of_noise(values: Values) -> Floats:
    levels = np.log(values)
    return levels[:, None] / max(robust_sigma(np.diff(levels)) / math.sqrt(2.0), 1e-9)


def _pelt(values: Values) -> list[int]:
    from ruptures import Pelt

    search = Pelt(model="l2", min_size=2, jump=1).fit(_in_units_of_noise(values))
    return [int(end) for end in search.predict(2.0 * math.log(len(values)))[:-1]]


def _kernel(values: Values) -> list[int]:
    from ruptures import KernelCPD

    search = KernelCPD(kernel="rbf", min_size=2).fit(_in_units_of_noise(values))
    return [int(end) for end in search.predict(pen=math.log(len(values)))[:-1]]


DETECTORS: dict[str, Detector] = {
    "kvtrail": _kvtrail,
    "asv": _asv,
    "otava": _otava,
    "ruptures KernelCPD (rbf, ln n)": _kernel,
    "ruptures PELT (l2, 2 ln n)": _pelt,
}
PACKAGES = {"asv": "asv", "otava": "apache-otava", "ruptures": "ruptures"}
"""What detectors are imported from, by the first word of their names, and how it is distributed."""
COLUMNS = (
    Column("detector", "detector", kind="text"),
    Column("hits", "steps found"),
    Column("missed", "missed"),
    Column("false", "false"),
    Column("f1", "F1 by labels", show=digits(2)),
    Column("flat", "false in a flat series", show=digits(3)),
)


@dataclass(frozen=True, slots=True)
class Score:
    """What one detector found in all series."""

    detector: str
    # By eye: steps found and not found, and what is near neither a step nor what is unsure.
    hits: int
    missed: int
    false: int
    f1: float  # against the rows of the labels
    flat: float  # what it finds in a series whose noise is in another order, without steps
    found: dict[str, list[int]]


def is_installed(detector: str) -> bool:
    """Whether the package of a detector is there."""
    package = detector.split()[0]
    return package not in PACKAGES or find_spec(package) is not None


def versions() -> dict[str, str]:
    """Of the packages that are there, by name."""
    there = [package for package in PACKAGES if is_installed(package)]
    return {package: metadata.version(PACKAGES[package]) for package in there}


def score(name: str, detector: Detector, every: Sequence[LabelledSeries], runs: int) -> Score:
    """Judge one detector, and in `runs` shuffled series of each."""
    found = {one.name: detector(one.values) for one in every}
    hits, missed, false = _counts([(found[one.name], one.steps, one.unsure) for one in every])
    right, lost, wrong = _counts([(found[one.name], one.labels, one.undecided) for one in every])
    flat = [
        len(detector(one.shuffled(np.random.default_rng((seed, number)))))
        for number, one in enumerate(every)
        for seed in range(runs)
    ]
    f1 = 2 * right / max(1, 2 * right + lost + wrong)
    return Score(name, hits, missed, false, f1, float(np.mean(flat or [0])), found)


def _counts(
    rows: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int]]],
) -> tuple[int, int, int]:
    """Places that were found, that were not, and what was found near neither these nor others.

    A row has what was found, the places, and the others.
    """
    hits = sum(_near(place, found) for found, places, _ in rows for place in places)
    false = sum(
        not _near(one, [*places, *others]) for found, places, others in rows for one in found
    )
    return hits, sum(len(places) for _, places, _ in rows) - hits, false


def _near(place: int, others: Sequence[int]) -> bool:
    return any(abs(place - other) <= NEAR for other in others)


def ranges_that_hold(every: Sequence[LabelledSeries]) -> tuple[int, int]:
    """How many steps lie in the range of a change of `changes`, and how many there are."""
    held = sum(
        any(int(one.since.hash, 16) < step <= int(one.until.hash, 16) for one in changes)
        for changes, steps in ((our_changes(one.values), one.steps) for one in every)
        for step in steps
    )
    return held, sum(len(one.steps) for one in every)


def score_table(scores: Sequence[Score], every: Sequence[LabelledSeries], runs: int) -> Table:
    """A row for each detector."""
    held, steps = ranges_that_hold(every)
    caption = (
        f"A step is found where a detector names one within {NEAR} commits; false is what is near "
        "neither a step nor what the reader was unsure of. Flat: the values around the levels "
        f"between steps, in another order, {runs} times for each series. Labels are rows of "
        "alerts, and stand some commits behind the steps. KernelCPD has the penalty that does best "
        f"here. The ranges of kvtrail's changes hold {held} of {steps} steps."
    )
    rows: list[tuple[Any, ...]] = [
        (one.detector, one.hits, one.missed, one.false, one.f1, one.flat) for one in scores
    ]
    return Table(COLUMNS, rows, f"steps of {len(every)} series of others", caption)
