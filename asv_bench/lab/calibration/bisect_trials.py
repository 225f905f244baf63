"""Bisect planted slowdowns on this machine, and see whether `bisect` is right.

`python -m asv_bench.lab.calibration.bisect_trials` makes a scratch clone for each trial, with
harmless commits and one commit that slows the decode step by a known time, or none, and runs
`bisect` there. This repository's own history is only read.
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
from pathlib import Path
from typing import Annotated, Any

import typer

from asv_bench.cli.grouped import grouped
from asv_bench.cli.options import Devices, Margin, Outputs
from asv_bench.compare.bench_setup import set_up
from asv_bench.compare.plan import DEFAULT_MARGIN
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.git.repository import Repository
from asv_bench.lab.calibration.planting import PLANTED_IN, ScratchClone
from asv_bench.output.record import REPOSITORY, Record
from asv_bench.output.table import Cell, Column, Table, digits, percent
from asv_bench.process.contract import MEASURED_PACKAGES
from asv_bench.process.measured_process import Place

STEP_TIME = r"^scheduler\.Scheduler\.track_step_time"
COLUMNS = (
    Column("place", "trial", kind="text"),
    Column("planted", "planted", show=percent(1, signed=True)),
    Column("measured", "measured", show=percent(2, signed=True)),
    Column("outcome", "bisect"),
    Column("pairs", "pairs"),
    Column("seconds", "seconds", show=digits(0)),
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One range with a culprit, or without one, and what `bisect` said of it.

    `place` counts from 1; `planted_s` is what the culprit adds to a step. Both are None without.
    `named` is the only commit that bisect suspects; None if there are several, or none.
    """

    seed: int
    commits: int
    place: int | None
    planted_s: float | None
    planted: float | None
    culprit: str | None
    named: str | None
    outcome: str
    measured: float | None
    probability: float | None
    pairs: int
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether the answer names the culprit; where there is none, whether it says so."""
        if self.culprit is None:
            return self.named is None and self.outcome == "none"
        return self.named == self.culprit


@grouped
def run(
    positions: Annotated[int, typer.Option(min=0, help="Trials with a culprit.")] = 3,
    nulls: Annotated[int, typer.Option(min=0, help="Trials without one.")] = 2,
    commits: Annotated[int, typer.Option(min=2, help="Commits in each range.")] = 32,
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
    if not positions + nulls:
        raise Refused("--positions 0 --nulls 0 leaves nothing to search.")
    files = outputs.files()
    setup = set_up(REPOSITORY, [STEP_TIME], devices)
    settings = {"positions": positions, "nulls": nulls, "commits": commits, "effect": effect}
    settings |= {"seed": seed, "margin": margin}
    measured = {"benchmark": setup.benchmarks, "devices": list(setup.devices)}
    record = Record("bisect_trials", {**settings, **measured})
    head = setup.sources.resolve("HEAD").hash
    with setup.pairs() as source:
        [pair] = source.pair(head, head, head_first=False).values()
    step_s = record.results["step_s"] = (pair.base.value + pair.head.value) / 2
    options = ["--margin", f"{margin:g}", *(["--devices", devices] if devices else [])]
    trials: list[Trial] = []
    for number in range(positions + nulls):
        planted_s = effect * step_s if number < positions else None
        with tempfile.TemporaryDirectory(prefix="kvtrail-bisect-") as scratch:
            clone = ScratchClone(Path(scratch) / "clone", Place(setup.devices[0]))
            try:
                trial = run_trial(clone, seed + number, commits, planted_s, effect, options)
            except MeasurementFailed as error:
                record.notes.append(f"Trial {number}: {error}")
                files.console.print(record.notes[-1])
            else:
                trials.append(trial)
                record.samples.append(asdict(trial) | {"is_right": trial.is_right})
                files.console.print(f"trial {number}: {trial.outcome}")
        record.results["right"] = sum(one.is_right for one in trials)
        path = record.write(files.record)
    files.show(trial_table(trials))
    files.console.print(f"record: {path}")
    if record.notes:
        raise typer.Exit(1)


def run_trial(
    clone: ScratchClone,
    seed: int,
    commits: int,
    planted_s: float | None,
    effect: float,
    options: Sequence[str],
) -> Trial:
    """Make one range in a fresh clone and bisect it. Raises MeasurementFailed without an answer."""
    choices = random.Random(seed)
    place = choices.randint(1, commits) if planted_s is not None else None
    # The good end has the planted work too, of no length: its own cost is not the culprit's.
    good = clone.plant(0.0).hash
    culprit = None
    for number in range(1, commits + 1):
        if number == place and planted_s is not None:
            planted = clone.plant(planted_s)
            culprit, planted_s = planted.hash, planted.seconds
        else:
            clone.commit(_change_nothing(clone.root, number, choices))
    bad = Repository(clone.root).line("rev-parse", "--verify", "HEAD")
    begun = time.monotonic()
    results = bisect_in(clone.root, good, bad, options)
    finding = results["finding"]
    suspects = finding["suspects"] if finding["outcome"] == "found" else []
    named = suspects[0] if len(suspects) == 1 else None
    compared = {one["head"]: one for one in finding["confirmations"]}
    return Trial(
        seed=seed,
        commits=commits,
        place=place,
        planted_s=planted_s,
        planted=effect if culprit else None,
        culprit=culprit,
        named=named,
        outcome=finding["outcome"],
        measured=(compared[named] if named else finding["gate"])["effect"],
        probability=finding["probability"],
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


def trial_table(trials: Sequence[Trial]) -> Table:
    """A row for each trial."""
    rows = []
    for one in trials:
        where = "nothing planted" if one.place is None else f"commit {one.place}"
        said = f"{'right' if one.is_right else 'wrong'}, {one.outcome}"
        place = Cell(one.place, text=f"{where} of {one.commits}")
        rows.append((place, one.planted, one.measured, said, one.pairs, one.seconds))
    caption = "Right: it names the culprit, or says that there is none where none was planted."
    return Table(COLUMNS, rows, "bisection of planted slowdowns", caption)


if __name__ == "__main__":
    typer.run(run)
