"""Bisect planted slowdowns, and see who is right.

Run as `python -m asv_bench.lab.calibration.bisect_trials`.

Each trial makes a scratch clone with harmless commits and one commit that slows the decode step by
a known time, or none; it runs `bisect` there, as a user would, and on request gives the same task
to `asv find`. This repository's own history is only read.
"""

from __future__ import annotations

import json as json_format
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

from asv_bench.compare.bench_setup import set_up
from asv_bench.compare.plan import DEFAULT_MARGIN
from asv_bench.errors import MeasurementFailed
from asv_bench.git.repository import Repository
from asv_bench.history.asv_runs import AsvProject
from asv_bench.lab.calibration.harmless_commits import make_harmless_change
from asv_bench.lab.calibration.planting import PLANTED_IN, ScratchClone
from asv_bench.lab.calibration.trial_page import trial_table, write_page
from asv_bench.output.console import make_console, print_sentences, print_table
from asv_bench.output.record import REPOSITORY, Record
from asv_bench.process.measured_process import Place

STEP_TIME = r"^scheduler\.Scheduler\.track_step_time"
"""What is bisected; asv finds it by the same name, and skips the model that is not for here."""

KEPT = REPOSITORY / "reports" / "verdicts"
"""Where the records of the reference machines are, and their page."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool said of a range: the commit that it named, if any, and the seconds it took."""

    named: str | None
    outcome: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One range with a culprit, or without one, and what the tools said.

    `place` counts from 1; `planted_s` is what the culprit adds to a step. Both are None without.
    """

    seed: int
    commits: int
    place: int | None
    planted_s: float | None
    planted: float | None
    culprit: str | None
    bisect: Answer
    measured: float | None
    probability: float | None
    pairs: int
    asv_find: Answer | None

    def is_right(self, answer: Answer) -> bool:
        """Whether an answer names the culprit; where there is none, whether it says so."""
        if self.culprit is None:
            return answer.named is None and answer.outcome == "none"
        return answer.named == self.culprit

    def to_json(self) -> dict[str, Any]:
        """The trial as JSON-ready values, with who was right."""
        return {
            **asdict(self),
            "bisect_right": self.is_right(self.bisect),
            "asv_find_right": None if self.asv_find is None else self.is_right(self.asv_find),
        }


def run(
    positions: Annotated[int, typer.Option(min=0, help="Trials with a culprit.")] = 3,
    nulls: Annotated[int, typer.Option(min=0, help="Trials without one.")] = 2,
    commits: Annotated[int, typer.Option(min=2, help="Commits in each range.")] = 32,
    effect: Annotated[float, typer.Option(help="What is planted, as a fraction.")] = 0.03,
    seed: Annotated[int, typer.Option(help="Of positions and harmless changes.")] = 0,
    devices: Annotated[
        str | None, typer.Option(help="As for bisect: numbers of GPUs, or all.")
    ] = None,
    margin: Annotated[
        float, typer.Option(help="As for bisect: the difference that matters, in per cent.")
    ] = 100 * DEFAULT_MARGIN,
    asv_find: Annotated[
        bool, typer.Option("--asv-find", help="Give the same task to asv find.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option(help="Where clones go, which stay (default: they are removed).")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Where the record goes (default: reports/runs).")
    ] = None,
    render: Annotated[
        bool, typer.Option("--render", help="Write the page of the kept records; measure nothing.")
    ] = False,
) -> None:
    """Run the trials, print who was right, and write the record.

    Raises
    ------
    typer.Exit
        With 1 where a trial had no answer, which the record notes.
    """
    if render:
        complaints: list[str] = []
        page = write_page(KEPT, complaints)
        print_sentences(make_console(), [*complaints, f"page: {page}"])
        return
    if not positions + nulls:
        raise typer.BadParameter("--positions 0 --nulls 0 leaves nothing to search.")
    console = make_console()
    setup = set_up(REPOSITORY, [STEP_TIME], devices)
    settings = {
        "positions": positions,
        "nulls": nulls,
        "commits": commits,
        "effect": effect,
        "seed": seed,
        "benchmark": setup.benchmarks,
        "devices": list(setup.devices),
        "margin": margin,
    }
    record = Record("bisect_trials", settings)
    head = setup.sources.resolve("HEAD").hash
    with setup.pairs() as source:
        [pair] = source.pair(head, head, head_first=False).values()
    step_s = (pair.base.value + pair.head.value) / 2
    console.print(f"a step takes {1e3 * step_s:.3f} ms at {head[:8]}", highlight=False)
    record.results["step_s"] = step_s
    for number in range(positions + nulls):
        planted_s = effect * step_s if number < positions else None
        with tempfile.TemporaryDirectory(prefix="kvtrail-bisect-") as temporary:
            directory = Path(temporary if folder is None else folder) / f"trial-{number}"
            clone = ScratchClone(directory, Place(setup.devices[0]))
            try:
                trial = run_trial(
                    clone,
                    seed + number,
                    commits,
                    planted_s,
                    effect,
                    ["--margin", f"{margin:g}", *(["--devices", devices] if devices else [])],
                    asv_find=asv_find,
                )
            except MeasurementFailed as error:
                record.notes.append(f"Trial {number}: {error}")
                record.write(json)
                console.print(record.notes[-1], highlight=False, markup=False)
                continue
        note(trial, record, json)
        verdict = "right" if trial.is_right(trial.bisect) else "WRONG"
        console.print(
            f"trial {number}: {trial.bisect.outcome}, {verdict}, {trial.pairs} pairs, "
            f"{trial.bisect.seconds:.0f} s",
            highlight=False,
        )
    print_table(console, trial_table(record.samples))
    console.print(f"record: {record.write(json)}", highlight=False, soft_wrap=True)
    if record.notes:
        raise typer.Exit(1)


def note(trial: Trial, record: Record, path: Path | None) -> Path:
    """Write the record with one more trial: the next takes minutes, and may be cut short."""
    record.samples.append(trial.to_json())
    record.results |= {
        "bisect_right": sum(sample["bisect_right"] for sample in record.samples),
        "trials": len(record.samples),
    }
    return record.write(path)


def run_trial(
    clone: ScratchClone,
    seed: int,
    commits: int,
    planted_s: float | None,
    effect: float,
    options: Sequence[str],
    *,
    asv_find: bool,
) -> Trial:
    """Make one range in a fresh clone and let the tools search it."""
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
            clone.commit(make_harmless_change(clone.root, number, choices, PLANTED_IN))
    bad = Repository(clone.root).line("rev-parse", "--verify", "HEAD")
    answer, record = bisect_in(clone.root, good, bad, options)
    finding = record["results"]["finding"]
    confirmations = finding["confirmations"]
    return Trial(
        seed=seed,
        commits=commits,
        place=place,
        planted_s=planted_s,
        planted=effect if culprit else None,
        culprit=culprit,
        bisect=answer,
        measured=confirmations[-1]["effect"] if answer.named else finding["gate"]["effect"],
        probability=finding["probability"],
        pairs=sum(record["results"]["pairs"].values()),
        asv_find=find_in(clone.root, good, bad) if asv_find else None,
    )


def bisect_in(
    root: Path, good: str, bad: str, options: Sequence[str]
) -> tuple[Answer, dict[str, Any]]:
    """Run `bisect` in a clone; returns what it named, and its record.

    Raises
    ------
    MeasurementFailed
        If it gave no answer.
    """
    path = root / "reports" / "runs" / "trial.json"
    command = [sys.executable, "-m", "asv_bench", "bisect", good, bad, "--benchmark", STEP_TIME]
    command += ["--json", str(path), *options]
    begun = time.monotonic()
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begun
    record = json_format.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    if record is None or record["results"]["finding"] is None:
        raise MeasurementFailed(f"bisect gave no answer in {root}: {done.stdout}{done.stderr}")
    finding = record["results"]["finding"]
    found = finding["outcome"] == "found" and len(finding["suspects"]) == 1
    named = finding["suspects"][0] if found else None
    return Answer(named, finding["outcome"], seconds), record


def find_in(root: Path, good: str, bad: str) -> Answer:
    """Run `asv find` in a clone; returns the commit that it blames."""
    project = AsvProject(root, root, root / "reports" / "asv-find", branch="HEAD")
    command = [sys.executable, "-m", "asv", "--config", str(project.write_config()), "find"]
    command += ["--skip-save", f"{good}..{bad}", STEP_TIME]
    begun = time.monotonic()
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begun
    said = done.stdout + done.stderr
    lines = [line.strip(" ·") for line in said.splitlines() if line.strip(" ·")]
    listed = Repository(root).line("rev-list", f"{good}..{bad}").split()
    blamed = [line for line in lines if "regression found" in line.lower()]
    named = next((commit for commit in listed if blamed and commit[:8] in blamed[-1]), None)
    outcome = "found" if named else "none" if done.returncode == 0 else "failed"
    return Answer(named, outcome if outcome != "failed" else f"failed: {lines[-1:]}", seconds)


if __name__ == "__main__":
    typer.run(run)
