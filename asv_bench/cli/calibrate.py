"""`calibrate`: test the verdicts of `compare` on this machine with known slowdowns."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from asv_bench.cli.exit_codes import ExitCode
from asv_bench.cli.options import CsvPath, Devices, MarkdownPath, RecordPath
from asv_bench.compare.bench_setup import BenchSetup, set_up, termination_as_interrupt
from asv_bench.compare.comparison import CommitComparison
from asv_bench.compare.comparison import Progress as Compared
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.tables import STYLES
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.git.commit_sources import CommitSources
from asv_bench.lab.calibration.planting import Planted, ScratchClone
from asv_bench.output.progress import Progress
from asv_bench.output.record import REPOSITORY, Record
from asv_bench.output.table import Cell, Column, Table, digits, interval, percent, percentage
from asv_bench.output.table_files import TableFiles
from asv_bench.process.process_pairs import ProcessPairs, shared_out
from asv_bench.process.samples import Pair

SEEN_FROM = 1.5
"""Planted effects of at least so many times the minimum effect must be found. Smaller ones may be
inconclusive, and only those below the margin may be called equivalent."""
FALSE_ALARMS_ALLOWED = 0.05
INTERRUPTED = "Interrupted: trials are missing, so whether the verdicts hold is unknown."
_STEP_PAIRS = 2
_COLUMNS = (
    Column("name", "compared with", kind="text"),
    Column("planted", "planted", show=percent(2, signed=True)),
    Column("verdict", "verdict"),
    Column("effect", "effect", show=percent(2, signed=True)),
    Column("interval", "interval", show=interval(2), parts=("low", "high")),
    Column("pairs", "pairs"),
    Column("discarded", "discarded"),
    Column("seconds", "seconds", show=digits(0)),
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One comparison whose truth is known."""

    name: str  # for the table
    # The true effect as a fraction of the base's step; 0 for a commit against itself.
    planted: float
    comparison: Comparison
    seconds: float

    def holds(self, plan: ComparisonPlan) -> bool:
        """Whether the verdict is one that the truth allows."""
        verdict = self.comparison.verdict
        if self.planted == 0:
            return verdict in (Verdict.EQUIVALENT, Verdict.INCONCLUSIVE)
        if verdict is Verdict.INCONCLUSIVE:
            return self.planted < SEEN_FROM * plan.minimum_effect
        if verdict is Verdict.EQUIVALENT:
            return self.planted < 0.9 * plan.margin
        return verdict is Verdict.SLOWER

    def to_json(self, plan: ComparisonPlan) -> dict[str, Any]:
        """The trial as JSON-ready values."""
        return {
            "name": self.name,
            "planted": self.planted,
            "holds": self.holds(plan),
            "seconds": self.seconds,
            **self.comparison.to_json(),
        }


def calibrate(
    null: Annotated[int, typer.Option(min=0, help="Comparisons of a commit with itself.")] = 8,
    planted: Annotated[
        str, typer.Option(help="Slowdowns in per cent, separated by commas, or none.")
    ] = "1,2,3,5",
    benchmark: Annotated[
        str | None,
        typer.Option(
            "--benchmark", "-b", help="Step time to compare (default: of the workload scheduler)."
        ),
    ] = None,
    pairs: Annotated[
        int | None, typer.Option(help="Pairs of processes at most (default: 24).")
    ] = None,
    devices: Devices = None,
    json: RecordPath = None,
    markdown: MarkdownPath = None,
    csv: CsvPath = None,
) -> None:
    """Compare a commit with itself and with planted slowdowns, and check the verdicts.

    Exit code 0: the verdicts hold; 1: a contradiction or another failure; 2: refused; 130:
    interrupted, with what was measured written down and no word on whether they hold.
    """
    effects = effects_named(planted)
    if not effects and not null:
        raise Refused("--null 0 --planted none leaves nothing to compare.")
    files = TableFiles.beside_record(json, markdown=markdown, csv=csv)
    plan = ComparisonPlan() if pairs is None else ComparisonPlan.with_cap(pairs)
    setup = set_up(REPOSITORY, (benchmark,) if benchmark else (), devices)
    if len(setup.entries) != 1 or "step_time" not in setup.entries[0].name:
        raise Refused(
            f"--benchmark names {', '.join(setup.benchmarks)}; calibrate plants a time in each "
            f"decode step, so it takes one benchmark of step time."
        )
    settings = {"null": null, "planted": effects, "benchmark": setup.benchmarks[0]}
    settings |= {"devices": list(setup.devices), "plan": plan.to_json()}
    record = Record("calibrate", settings)
    files.console.print(setup.sentence())
    record.look_around(files.console, setup.devices)
    trials: list[Trial] = []
    is_interrupted = False
    try:
        with (
            termination_as_interrupt(),
            tempfile.TemporaryDirectory(prefix="kvtrail-calibrate-") as scratch,
        ):
            clone = Path(scratch) / "clone"
            for trial in run_trials(clone, setup, plan, record, files.console, null, effects):
                trials.append(trial)
    except KeyboardInterrupt:
        is_interrupted = True
    report(trials, plan, record, files, is_interrupted=is_interrupted)
    if is_interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)


def effects_named(text: str) -> list[float]:
    """Per cents, separated by commas, as fractions. Raises Refused if one is no positive number."""
    if text.strip() == "none":
        return []
    try:
        effects = [float(part) / 100 for part in text.split(",")]
    except ValueError:
        effects = [0.0]
    if not all(0 < effect < 10 for effect in effects):
        raise Refused(f"--planted {text!r} must be per cents, such as 1,2,3,5, or none.")
    return effects


def run_trials(
    directory: Path,
    setup: BenchSetup,
    plan: ComparisonPlan,
    record: Record,
    console: Console,
    null: int,
    effects: Sequence[float],
) -> Iterator[Trial]:
    """Run trials one after the other, in a scratch clone with one set of prepared commits."""
    clone = ScratchClone(directory, shared_out(setup.devices)[0])
    base = clone.plant(0.0)
    # Today's ruler, on the clone's commits.
    with replace(setup, sources=CommitSources(directory)).pairs() as source:

        def trial(name: str, head: Planted) -> Trial:
            begun = time.monotonic()
            with Progress(console, name, plan.cap, "pairs at most") as progress:

                def on_pair(now: Compared, pairs: Mapping[str, Pair]) -> None:
                    record.samples += [{"trial": name, **one.to_json()} for one in pairs.values()]
                    progress.show(now.kept)

                comparing = CommitComparison(base.hash, head.hash, setup.benchmarks, plan)
                (comparison,) = comparing.run(source, on_pair)
            console.print(f"{name}: {comparison.verdict}")
            value = comparison.base_value
            effect = head.seconds / value if value and head is not base else 0.0
            return Trial(name, effect, comparison, time.monotonic() - begun)

        with Progress(console, "measuring a step"):
            step = _step_seconds(source, base)
        commits = [clone.plant(effect * step) for effect in effects]
        planted = [asdict(commit) for commit in (base, *commits)]
        record.results |= {"step_s": step, "planted": planted}
        for number in range(null):
            yield trial(f"itself, {number + 1} of {null}", base)
        for effect, commit in zip(effects, commits, strict=True):
            yield trial(f"planted {percentage(effect, 1)}", commit)


def _step_seconds(source: ProcessPairs, base: Planted) -> float:
    return statistics.median(
        reading.value
        for number in range(_STEP_PAIRS)
        for pair in source.pair(base.hash, base.hash, head_first=bool(number)).values()
        for reading in (pair.base, pair.head)
    )


def report(
    trials: Sequence[Trial],
    plan: ComparisonPlan,
    record: Record,
    files: TableFiles,
    *,
    is_interrupted: bool = False,
) -> None:
    """Print and write the trials, and judge them unless an interruption left some out.

    Raises MeasurementFailed if verdicts contradict what was planted.
    """
    wrong = [trial for trial in trials if not trial.holds(plan)]
    alarms = sum(trial.planted == 0 for trial in wrong)
    nulls = sum(trial.planted == 0 for trial in trials)
    is_sound = alarms <= FALSE_ALARMS_ALLOWED * nulls and len(wrong) == alarms
    record.results["trials"] = [trial.to_json(plan) for trial in trials]
    record.results |= {
        "is_sound": None if is_interrupted else is_sound,
        "interrupted": is_interrupted,
    }
    record.notes += [INTERRUPTED] if is_interrupted else []
    path = record.write(files.record)
    title = f"compare on {record.machine.gpu or record.machine.cpu}, commit {record.tree.label}"
    files.show(trial_table(trials, plan, title, INTERRUPTED if is_interrupted else ""))
    files.console.print(f"record: {path}")
    if not is_sound and not is_interrupted:
        raise MeasurementFailed(
            "verdicts contradict what was planted: "
            + "; ".join(f"{trial.name}: {trial.comparison.verdict}" for trial in wrong)
            + "."
        )


def trial_table(trials: Sequence[Trial], plan: ComparisonPlan, title: str, note: str = "") -> Table:
    """A row for each trial; a verdict that the truth does not allow is marked."""
    rows = []
    for trial in trials:
        found, holds = trial.comparison, trial.holds(plan)
        verdict = str(found.verdict)
        rows.append(
            (
                trial.name,
                trial.planted,
                Cell(verdict, STYLES[found.verdict])
                if holds
                else Cell(verdict, "reverse red", text=f"{verdict} (!)"),
                found.effect,
                found.interval,
                found.pairs_used,
                found.pairs_discarded,
                trial.seconds,
            )
        )
    caption = f"(!): a verdict that the truth does not allow. {note}".strip()
    return Table(_COLUMNS, rows, title, caption)
