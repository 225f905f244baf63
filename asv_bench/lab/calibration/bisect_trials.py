"""Bisect planted slowdowns on this machine, and see whether `bisect` is right.

`python -m asv_bench.lab.calibration.bisect_trials` makes a scratch clone for each trial, with
harmless commits and some that change the decode step by a known time, or none, and runs `bisect`
there. This repository's own history is only read.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from asv_bench.bisect.finding import Outcome, Shape
from asv_bench.cli.grouped import grouped
from asv_bench.cli.options import Devices, Margin, Outputs
from asv_bench.compare.plan import DEFAULT_MARGIN
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.lab.calibration.planting import PLANTED_IN, ScratchClone
from asv_bench.output.record import REPOSITORY, Record
from asv_bench.output.table import Column, Table, digits, percent
from asv_bench.process.contract import MEASURED_PACKAGES
from asv_bench.subjects.own_suite import OwnSuite
from asv_bench.subjects.places import shared_out

STEP_TIME = r"^scheduler\.Scheduler\.track_step_time"
COLUMNS = (
    Column("place", "trial", kind="text"),
    Column("planted", "planted", kind="text"),
    Column("measured", "ends differ by", show=percent(2, signed=True)),
    Column("said", "bisect"),
    Column("pairs", "pairs"),
    Column("seconds", "seconds", show=digits(0)),
)
SLOPE_COMMITS = 15
TAKEN_BACK = 0.6
"""Of the first of two steps."""


class Kind(StrEnum):
    """What is planted in a range."""

    STEP = "step"  # all of the effect at one commit
    TWO = "two"  # the same, and a part of it taken back at a later one
    SLOPE = "slope"  # a little at each of several neighbours
    NOTHING = "nothing"

    def changes(self, commits: int, effect: float, choices: random.Random) -> dict[int, float]:
        """By which fraction of the good end's step commits change it, by their place from 1 on."""
        match self:
            case Kind.STEP:
                return {choices.randint(1, commits): effect}
            case Kind.TWO:
                first, second = sorted(choices.sample(range(1, commits + 1), 2))
                return {first: effect, second: -TAKEN_BACK * effect}
            case Kind.SLOPE:
                first = choices.randint(1, commits - SLOPE_COMMITS + 1)
                return dict.fromkeys(range(first, first + SLOPE_COMMITS), effect / SLOPE_COMMITS)
            case Kind.NOTHING:
                return {}


@dataclass(frozen=True, slots=True)
class BisectTrial:
    """One range, and what `bisect` said of it."""

    seed: int
    kind: Kind
    commits: int
    places: tuple[int, ...]  # of the commits that change the step, counted from 1
    effects: tuple[float, ...]  # by which fraction each
    culprits: tuple[str, ...]  # full hashes of those that change it at once
    named: tuple[str, ...]  # and of those that `bisect` confirmed
    shape: str  # see `bisect.finding`
    outcome: str
    measured: float | None  # how far the ends differ, as a fraction
    pairs: int
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether exactly the culprits are named, and a slope, or nothing, is called so."""
        if self.kind is Kind.SLOPE:
            return not self.named and self.shape == Shape.SLOPE
        answer = Outcome.NONE if self.kind is Kind.NOTHING else Outcome.FOUND
        return set(self.named) == set(self.culprits) and self.outcome == answer


@grouped
def run(
    kinds: Annotated[
        str,
        typer.Option(help="What to plant, separated by commas: step, two, slope or nothing."),
    ] = "step,step,two,slope,nothing",
    commits: Annotated[int, typer.Option(min=SLOPE_COMMITS, help="Commits in each range.")] = 32,
    effect: Annotated[float, typer.Option(help="What is planted, as a fraction.")] = 0.03,
    seed: Annotated[int, typer.Option(help="Of positions and harmless changes.")] = 0,
    devices: Devices = None,
    margin: Margin = 100 * DEFAULT_MARGIN,
    *,
    outputs: Outputs,
) -> None:
    """Run the trials, print who was right, and write the record after each.

    Raises typer.Exit with 1 where a trial had no answer, which the record notes.
    """
    try:
        wanted = [Kind(part.strip()) for part in kinds.split(",")]
    except ValueError:
        raise Refused(f"--kinds is {kinds!r}; there are {', '.join(Kind)}.") from None
    files = outputs.files()
    suite = OwnSuite(REPOSITORY)
    suite.choose([STEP_TIME], devices)
    settings = {"kinds": wanted, "commits": commits, "effect": effect}
    settings |= {"seed": seed, "margin": margin}
    measured = {
        "benchmark": [metric.name for metric in suite.metrics],
        "devices": list(suite.devices),
    }
    record = Record("bisect_trials", {**settings, **measured})
    head = suite.resolve("HEAD").hash
    with suite.pairs() as source:
        [pair] = source.pair(head, head, head_first=False).values()
    step_s = record.results["step_s"] = (pair.base.value + pair.head.value) / 2
    options = ["--margin", f"{margin:g}", *(["--devices", devices] if devices else [])]
    trials: list[BisectTrial] = []
    for number, kind in enumerate(wanted):
        with tempfile.TemporaryDirectory(prefix="kvtrail-bisect-") as scratch:
            clone = ScratchClone(Path(scratch) / "clone", shared_out(suite.devices)[0])
            try:
                trial = run_trial(clone, seed + number, kind, commits, effect, step_s, options)
            except MeasurementFailed as error:
                record.notes.append(f"Trial {number}: {error}")
                files.console.print(record.notes[-1])
            else:
                trials.append(trial)
                record.samples.append(asdict(trial) | {"is_right": trial.is_right})
                said = "right" if trial.is_right else "wrong"
                files.console.print(f"trial {number}, {kind}: {said}")
        record.results["right"] = sum(one.is_right for one in trials)
        path = record.write(files.record)
    files.show(trial_table(trials))
    files.console.print(f"record: {path}")
    if record.notes:
        raise typer.Exit(1)


def run_trial(
    clone: ScratchClone,
    seed: int,
    kind: Kind,
    commits: int,
    effect: float,
    step_s: float,
    options: Sequence[str],
) -> BisectTrial:
    """Make one range in a fresh clone and bisect it. Raises MeasurementFailed without an answer."""
    choices = random.Random(seed)
    changes = kind.changes(commits, effect, choices)
    # The good end has the planted work too, of no length: its own cost is no culprit's.
    good = bad = clone.plant(0.0).hash
    changed: list[str] = []
    for number in range(1, commits + 1):
        if number in changes:
            so_far = sum(change for place, change in changes.items() if place <= number)
            bad = clone.plant(so_far * step_s).hash
            changed.append(bad)
        else:
            bad = clone.commit(_change_nothing(clone.root, number, choices))
    begun = time.monotonic()
    results = bisect_in(clone.root, good, bad, options)
    finding = results["finding"]
    return BisectTrial(
        seed=seed,
        kind=kind,
        commits=commits,
        places=tuple(changes),
        effects=tuple(changes.values()),
        culprits=() if kind is Kind.SLOPE else tuple(changed),
        named=tuple(step["commit"] for step in finding["steps"] if step["confirmed"]),
        shape=finding["shape"],
        outcome=finding["outcome"],
        measured=finding["gate"]["effect"],
        pairs=sum(results["pairs"].values()),
        seconds=time.monotonic() - begun,
    )


def _change_nothing(root: Path, number: int, choices: random.Random) -> str:
    """Add a comment to a measured file other than the planted one; returns the commit's subject."""
    files = sorted(path for package in MEASURED_PACKAGES for path in (root / package).rglob("*.py"))
    path = choices.choice([path for path in files if path != root / PLANTED_IN])
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n# Remark {number}, which nothing depends on.\n")
    return f"Add a comment to {path.relative_to(root)} (change {number})"


def bisect_in(root: Path, good: str, bad: str, options: Sequence[str]) -> dict[str, Any]:
    """The results that `bisect` records in a clone. Raises MeasurementFailed without a finding."""
    path = root / "reports" / "runs" / "trial.json"
    command = [sys.executable, "-m", "asv_bench", "bisect", good, bad, "--benchmark", STEP_TIME]
    command += ["--json", str(path), *options]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    results: dict[str, Any] = {}
    if path.is_file():
        results = json.loads(path.read_text("utf-8"))["results"]
    if results.get("finding") is None:
        raise MeasurementFailed(f"bisect gave no answer in {root}: {done.stdout}{done.stderr}")
    return results


def trial_table(trials: Sequence[BisectTrial]) -> Table:
    """A row for each trial."""
    rows = []
    for one in trials:
        where = f" at {' and '.join(map(str, one.places))}" if one.places else ""
        if one.kind is Kind.SLOPE:
            where = f" from {one.places[0]} to {one.places[-1]}"
        planted = ", ".join(f"{100 * effect:+.2g} %" for effect in dict.fromkeys(one.effects))
        said = f"{'right' if one.is_right else 'wrong'}: {one.shape}"
        place = f"{one.kind}{where} of {one.commits} commits"
        rows.append((place, planted or None, one.measured, said, one.pairs, one.seconds))
    caption = (
        "Right: exactly the commits are named that change the step at once, and a slope is called "
        "so, as is nothing."
    )
    return Table(COLUMNS, rows, "bisection of planted changes", caption)


if __name__ == "__main__":
    typer.run(run)
