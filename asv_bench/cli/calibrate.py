"""`calibrate`: test the verdicts of `compare` on this machine with known slowdowns."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from asv_bench.cli.compare import plan_of
from asv_bench.compare.noise_pools import NoisePools
from asv_bench.compare.plan import DEFAULT_MARGIN, ComparisonPlan
from asv_bench.errors import MeasurementFailed, NothingMeasured, Refused
from asv_bench.git.repository import Commit, Repository
from asv_bench.lab.calibration.grounds import DeclaredGround, Delays, EngineGround, Ground
from asv_bench.lab.calibration.planting import ScratchClone
from asv_bench.lab.calibration.reach import MetricNoise, noise_of
from asv_bench.lab.calibration.trials import PlantedTrial, Trials, are_sound, trial_table
from asv_bench.measure.places import shared_out
from asv_bench.measure.samples import CommitUnusable, Pair
from asv_bench.output.console import print_sentences
from asv_bench.output.record import Record
from asv_bench.output.table_files import TableFiles
from asv_bench.process.termination import termination_as_interrupt
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.grouped import grouped
from asv_bench.session.options import (
    MOST,
    ComparedMetrics,
    Margin,
    MeasuredCommand,
    MostPairs,
    Outputs,
    SubjectOptions,
)
from asv_bench.subjects.axis import Variant
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.own_suite import OwnSuite

INTERRUPTED = "Interrupted: trials are missing, so whether the verdicts hold is unknown."


@grouped
def calibrate(
    command: MeasuredCommand = None,
    benchmark: ComparedMetrics = None,
    *,
    asked: SubjectOptions,
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
    margin: Margin = 100 * DEFAULT_MARGIN,
    outputs: Outputs,
) -> None:
    """Compare a commit with itself and with known slowdowns: do the verdicts hold on this machine,
    and which change is found?

    To plant a slowdown kvtrail sleeps after the command. For any other metric your benchmark must
    sleep $KVTRAIL_DELAY_S seconds inside the timed part. The noise is kept for comparisons to come.

    Exit code 0: the verdicts hold; 1: a contradiction or another failure; 2: refused; 5: nothing
    could be measured; 130: interrupted, with what was measured written down and no word on whether
    they hold.
    """
    effects = effects_named(planted)
    limits = minutes_named(minutes)
    if not effects and not null:
        raise Refused("--null 0 --planted none leaves nothing to compare.")
    files = outputs.files()
    plan = plan_of(pairs).with_margin(margin / 100)
    measured = asked.choice(command, benchmark, near=(commit,)).subject("calibrate")
    chosen = commit_of(measured, commit)
    record = Record(
        "calibrate",
        {
            "null": null,
            "planted": effects,
            "minutes": limits,
            "commit": chosen.to_json(),
            "subject": measured.to_json(),
            "benchmarks": [metric.name for metric in measured.metrics],
            "devices": list(measured.devices),
            "plan": plan.to_json(),
        },
    )
    files.console.print(measured.sentence())
    record.look_around(files.console, measured.devices)
    pools = NoisePools(record)
    print_sentences(files.console, pools.complaints)
    # A machine for kvtrail's own engine has been chosen for it; users measure where they are.
    is_own = isinstance(measured, OwnSuite)
    trials = Trials(measured.metrics, plan, pools, record, files.console, must_find=is_own)
    is_interrupted = False
    try:
        with termination_as_interrupt(), ground_of(measured, chosen) as ground:
            trials.run(ground, null, effects)
    except KeyboardInterrupt:
        is_interrupted = True
    except CommitUnusable as error:
        raise (NothingMeasured if error.is_lacking else MeasurementFailed)(str(error)) from None
    record.notes += measured.remarks
    noises = noises_of(trials, limits, len(measured.devices))
    report(trials.done, plan, record, files, noises, chosen, is_interrupted=is_interrupted)
    if is_interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)


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


def noises_of(trials: Trials, minutes: Sequence[float], devices: int) -> list[MetricNoise]:
    """The noise of each metric that was compared with itself, and what it allows."""
    by_metric: dict[str, list[Sequence[Pair]]] = defaultdict(list)
    for trial in trials.done:
        if trial.planted == 0 and trial.pairs:
            by_metric[trial.comparison.benchmark].append(trial.pairs)
    return [
        noise_of(
            metric.name,
            by_metric[metric.name],
            trials.plan_of(metric),
            minutes,
            at_once=len(trials.metrics),
            devices=devices,
        )
        for metric in trials.metrics
        if metric.name in by_metric
    ]


def report(
    trials: Sequence[PlantedTrial],
    plan: ComparisonPlan,
    record: Record,
    files: TableFiles,
    noises: Sequence[MetricNoise] = (),
    commit: Commit | None = None,
    *,
    is_interrupted: bool = False,
) -> None:
    """Print and write the trials, and judge them unless an interruption left some out.

    Raises MeasurementFailed if verdicts contradict what was planted.
    """
    is_sound = are_sound(trials)
    record.results |= {
        "trials": [trial.to_json() for trial in trials],
        "noise": [asdict(noise) for noise in noises],
        "is_sound": None if is_interrupted else is_sound,
        "interrupted": is_interrupted,
    }
    record.notes += [INTERRUPTED] if is_interrupted else []
    path = record.write(files.record)
    label = commit.short if commit else record.tree.label
    title = f"compare on {record.machine.gpu or record.machine.cpu}, commit {label}"
    files.show(trial_table(trials, title, INTERRUPTED if is_interrupted else ""))
    reasons = dict.fromkeys(trial.comparison.reason for trial in trials)
    print_sentences(files.console, [reason for reason in reasons if reason])
    print_sentences(files.console, record.notes)
    print_sentences(files.console, [noise.sentence(plan) for noise in noises], "bold")
    files.console.print(f"record: {path}")
    if not is_sound and not is_interrupted:
        wrong = (trial for trial in trials if not trial.holds)
        raise MeasurementFailed(
            "verdicts contradict what was planted: "
            + "; ".join(f"{trial.name}: {trial.comparison.verdict}" for trial in wrong)
            + "."
        )
