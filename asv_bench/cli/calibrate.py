"""`calibrate`: test the verdicts of `compare` on this machine with known slowdowns."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from asv_bench.cli.compare import plan_of
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.errors import Refused
from asv_bench.git.repository import Commit, Repository
from asv_bench.lab.calibration.grounds import DeclaredGround, Delays, EngineGround, Ground
from asv_bench.lab.calibration.planting import ScratchClone
from asv_bench.lab.calibration.reach import MetricNoise, noise_of
from asv_bench.lab.calibration.trials import Trials, are_sound, trial_table
from asv_bench.measure.places import shared_out
from asv_bench.measure.samples import Pair
from asv_bench.output.console import print_sentences
from asv_bench.output.issue_text import described, place_of
from asv_bench.output.table_files import TableFiles
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.grouped import grouped
from asv_bench.session.options import (
    MOST,
    ComparedMetrics,
    EngineOptions,
    MeasuredCommand,
    MeasuringOptions,
    MostPairs,
    Outputs,
)
from asv_bench.session.session import Session
from asv_bench.subjects.axis import Variant
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.own_suite import OwnSuite

INTERRUPTED = "Interrupted: trials are missing, so whether the verdicts hold is unknown."


@grouped
def calibrate(
    command: MeasuredCommand = None,
    benchmark: ComparedMetrics = None,
    *,
    asked: EngineOptions,
    commit: Annotated[
        str | None,
        typer.Option(
            help="The commit or label that is measured; . is the working tree as it stands "
            "(default: HEAD, or the first label)."
        ),
    ] = None,
    null: Annotated[
        int, typer.Option(min=0, max=MOST, help="Comparisons of a commit with itself.")
    ] = 8,
    planted: Annotated[
        str, typer.Option(help="Slowdowns in per cent, separated by commas, or none.")
    ] = "1,2,3,5",
    minutes: Annotated[
        str,
        typer.Option(
            help="Minutes of a comparison, separated by commas: for each the smallest change is "
            "said that it finds."
        ),
    ] = "1,5,15",
    pairs: MostPairs = None,
    how: MeasuringOptions,
    outputs: Outputs,
) -> None:
    """Compare a commit with itself and with known slowdowns: do the verdicts hold on this machine,
    and which change is found?

    To plant a slowdown kvtrail sleeps after the command. For any other metric your benchmark must
    sleep $KVTRAIL_DELAY_S seconds inside the timed part. The noise is kept for comparisons to come.

    Exit code 0: the verdicts hold; 1: a contradiction or another failure; 2: refused; 5: nothing
    could be measured; 130: interrupted, with no word on whether they hold; the same command goes on
    with the pairs of the commit with itself.
    """
    effects = effects_named(planted)
    limits = minutes_named(minutes)
    if not effects and not null:
        raise Refused("--null 0 --planted none leaves nothing to compare.")
    files = outputs.files()
    plan = plan_of(pairs).with_margin(how.margin / 100)
    measured = asked.choice(command, benchmark, how, near=(commit,)).subject("calibrate")
    chosen = commit_of(measured, commit)
    Calibrating(measured, chosen, commit, null, effects, limits, plan, files, how).answer()


def effects_named(text: str) -> list[float]:
    """Per cents, separated by commas, as fractions. Raises Refused if one is no positive number."""
    if text.strip() == "none":
        return []
    effects = [one / 100 for one in _numbers(text)]
    if not effects or not all(0 < effect < 10 for effect in effects):
        raise Refused(f"--planted {text!r} must be per cents, such as 1,2,3,5, or none.")
    return effects


def minutes_named(text: str) -> list[float]:
    """Minutes, separated by commas. Raises Refused if one is no positive number."""
    minutes = _numbers(text)
    if not minutes or not all(0 < one < float("inf") for one in minutes):
        raise Refused(f"--minutes {text!r} must be minutes, such as 1,5,15.")
    return minutes


def _numbers(text: str) -> list[float]:
    """Numbers with commas between; none if one is no number."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        return []


def commit_of(subject: DeclaredSubject, name: str | None) -> Commit:
    """The commit or label to measure; `name` None: HEAD, or the first label.

    Raises Refused if there is none, or nothing can be planted in what is measured.
    """
    if not isinstance(subject, OwnSuite):
        return subject.resolve(name or (*subject.labels, "HEAD")[0])
    names = [metric.name for metric in subject.metrics]
    if len(names) != 1 or "step_time" not in names[0]:
        raise Refused(
            f"--benchmark names {', '.join(names)}; calibrate plants a time in each decode step, "
            f"so it takes one benchmark of step time."
        )
    if name is not None:
        raise Refused("--commit is for declared subjects; of kvtrail's engine HEAD is measured.")
    return subject.resolve("HEAD")


@contextmanager
def ground_of(subject: DeclaredSubject, commit: Commit) -> Iterator[Ground]:
    """Where trials of a subject run; leaving it ends its processes."""
    if not isinstance(subject, OwnSuite):
        delays = Delays(subject)
        with subject.pairs_of(delays.variant) as lives:
            yield DeclaredGround(lives, delays, commit.hash)
        return
    with tempfile.TemporaryDirectory(prefix="kvtrail-calibrate-") as scratch:
        directory = Path(scratch) / "clone"
        clone = ScratchClone(directory, shared_out(subject.devices)[0])
        with subject.pairs_of(lambda name: Variant(name, Repository(directory), name)) as source:
            yield EngineGround(source, clone)


class Calibrating(Session):
    """Trials of a commit with itself and with slowdowns, from the first to the record."""

    def __init__(
        self,
        subject: DeclaredSubject,
        commit: Commit,
        given: str | None,  # what the user calls it
        null: int,
        effects: Sequence[float],
        minutes: Sequence[float],
        plan: ComparisonPlan,
        files: TableFiles,
        how: MeasuringOptions,
    ) -> None:
        self._commit = commit
        self._given = given
        self._null = null
        self._effects = effects
        self._minutes = minutes
        self._plan = plan
        settings = {
            "null": null,
            "planted": effects,
            "minutes": minutes,
            "commit": commit.to_json(),
            "benchmarks": [metric.name for metric in subject.metrics],
            "plan": plan.to_json(),
        }
        super().__init__("calibrate", settings, subject, files, how)
        self._trials: Trials
        self._planted: dict[str, Any] = {}
        self._is_interrupted = False

    def names(self) -> Sequence[str]:
        """See `Session`."""
        return [self._commit.hash]

    def begin(self) -> list[str]:
        """See `Session`."""
        return []

    def source(self) -> AbstractContextManager[Ground]:
        """See `Session`: where trials run."""
        return ground_of(self._subject, self._commit)

    def measure(self, source: Ground) -> ExitCode:
        """See `Session`: also after Ctrl-C, with the trials that were over."""
        # A machine for kvtrail's own engine has been chosen for it; users measure where they are.
        must_find, shown = isinstance(self._subject, OwnSuite), (self._record, self._console)
        self._trials = Trials(
            self._subject.metrics, self._plan, self._noise, self._log, *shown, must_find=must_find
        )
        try:
            self._trials.run(source, self._null, self._effects)
        except KeyboardInterrupt:
            self._is_interrupted = True
            self._record.notes.append(INTERRUPTED)
            return ExitCode.INTERRUPTED
        finally:
            self._planted = source.facts()
            self._record.notes += source.remarks
        return ExitCode.GOOD if are_sound(self._trials.done) else ExitCode.FAILED

    def print_answer(self) -> None:
        """See `Session`; verdicts that contradict what was planted are named."""
        trials, console = self._trials.done, self._console
        title = f"compare on {place_of(self._record.machine, self._subject.devices)}, commit "
        table = trial_table(
            trials, title + self._commit.short, INTERRUPTED if self._is_interrupted else ""
        )
        noises = [noise.sentence(self._plan) for noise in self._noises()]
        reasons = [trial.comparison.reason for trial in trials]
        said = [*filter(None, dict.fromkeys(reasons)), *self._record.notes]
        if not (self._is_interrupted or are_sound(trials)):
            wrong = [f"{one.name}: {one.comparison.verdict}" for one in trials if not one.holds]
            noises.append(f"Verdicts contradict what was planted: {'; '.join(wrong)}.")
        commits = described(self._commit)
        names = {} if self._given is None else {self._given: (self._commit.short,)}
        heading, remarks = noises[-1] if noises else title, [*said, *noises]
        page = self._issue(heading, commits, [table], remarks, names)
        self._files.show(table, page=page)
        print_sentences(console, said)
        print_sentences(console, noises, "bold")

    def _noises(self) -> list[MetricNoise]:
        """The noise of each metric that was compared with itself, and what it allows."""
        by_metric: dict[str, list[Sequence[Pair]]] = defaultdict(list)
        for trial in self._trials.done:
            if trial.planted == 0 and trial.pairs:
                by_metric[trial.comparison.benchmark].append(trial.pairs)
        return [
            noise_of(
                metric.name,
                by_metric[metric.name],
                self._trials.plan_of(metric),
                self._minutes,
                at_once=len(self._subject.metrics),
                devices=len(self._subject.devices),
            )
            for metric in self._subject.metrics
            if metric.name in by_metric
        ]

    def results(self) -> dict[str, Any]:
        """See `Session`."""
        if self._ending:
            return self._planted
        is_sound = None if self._is_interrupted else are_sound(self._trials.done)
        return {
            **self._planted,
            "trials": [trial.to_json() for trial in self._trials.done],
            "noise": [asdict(noise) for noise in self._noises()],
            "is_sound": is_sound,
            "interrupted": self._is_interrupted,
        }
