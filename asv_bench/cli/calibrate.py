"""`calibrate`: do the verdicts of `compare` hold on this machine, against truths that are known."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from asv_bench.cli.exit_codes import ExitCode
from asv_bench.cli.options import Devices, RecordPath
from asv_bench.compare.bench_setup import BenchSetup, set_up, termination_as_interrupt
from asv_bench.compare.comparison import Progress as Compared
from asv_bench.compare.comparison import compare_commits
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.tables import STYLES, interval_text, percentage
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.git.commit_sources import CommitSources
from asv_bench.lab.calibration.planting import Planted, ScratchClone
from asv_bench.output.console import add_figure_columns, make_console, print_table
from asv_bench.output.destinations import write_text
from asv_bench.output.progress import Progress
from asv_bench.output.record import REPOSITORY, Record, require_places
from asv_bench.output.tables import MISSING
from asv_bench.process.process_pairs import ProcessPairs, shared_out
from asv_bench.process.samples import Pair

DIFFERENT = (Verdict.SLOWER, Verdict.FASTER)
SEEN_FROM = 1.5
"""Planted effects of at least so many times the minimum effect must be found; smaller ones may be
inconclusive, and only those below the margin may be called equivalent."""
FALSE_ALARMS_ALLOWED = 0.05
INTERRUPTED = "Interrupted: trials are missing, so whether the verdicts hold is unknown."
_STEP_PAIRS = 2
HELP = (
    "Compare a commit with itself and with planted slowdowns, and see what compare says.\n\n"
    "Exit code 0: the verdicts hold; 1: a contradiction or another failure; 2: refused; "
    "130: interrupted, with what was measured written down and no word on whether they hold."
)
_HEADERS = ("planted", "verdict", "effect", "interval", "pairs", "discarded", "seconds")


@dataclass(frozen=True, slots=True)
class Trial:
    """One comparison whose truth is known.

    Attributes
    ----------
    name
        What it is, for the table.
    planted
        The true effect as a fraction of the base's step, from the length of what was planted,
        measured by itself; 0 for a commit against itself.
    comparison
        What the procedure said.
    seconds
        How long that took.
    """

    name: str
    planted: float
    comparison: Comparison
    seconds: float

    def holds(self, plan: ComparisonPlan) -> bool:
        """Whether the verdict is one that the truth allows."""
        verdict = self.comparison.verdict
        if self.planted == 0:
            return verdict in (Verdict.EQUIVALENT, Verdict.INCONCLUSIVE)
        if self.planted >= SEEN_FROM * plan.minimum_effect:
            return verdict is Verdict.SLOWER
        if self.planted >= 0.9 * plan.margin:
            return verdict in (Verdict.SLOWER, Verdict.INCONCLUSIVE)
        return verdict in (Verdict.SLOWER, Verdict.INCONCLUSIVE, Verdict.EQUIVALENT)

    def to_json(self, plan: ComparisonPlan) -> dict[str, Any]:
        """The trial as JSON-ready values."""
        return {
            "name": self.name,
            "planted": self.planted,
            "holds": self.holds(plan),
            "seconds": self.seconds,
            **self.comparison.to_json(),
        }


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("calibrate", help=HELP)(calibrate)


def calibrate(
    null: Annotated[
        int, typer.Option("--null", min=0, help="Comparisons of a commit with itself.")
    ] = 8,
    planted: Annotated[
        str,
        typer.Option("--planted", help="Slowdowns in per cent, separated by commas, or none."),
    ] = "1,2,3,5",
    benchmark: Annotated[
        str | None,
        typer.Option(
            "--benchmark", "-b", help="Step time to compare (default: of the workload scheduler)."
        ),
    ] = None,
    pairs: Annotated[
        int | None, typer.Option("--pairs", help="Pairs of processes at most (default: 24).")
    ] = None,
    devices: Devices = None,
    json: RecordPath = None,
    markdown_path: Annotated[
        Path | None, typer.Option("--markdown", help="Where the table goes as markdown.")
    ] = None,
) -> None:
    """Run the trials, print what came of them and write it down, also after Ctrl-C.

    Raises
    ------
    Refused
        If the options name nothing to do, or more than one benchmark.
    MeasurementFailed
        If a verdict contradicts what was planted.
    typer.Exit
        With 130 after an interruption.
    """
    effects = effects_named(planted)
    if not effects and not null:
        raise Refused("--null 0 --planted none leaves nothing to compare.")
    require_places(json, markdown_path)
    plan = ComparisonPlan() if pairs is None else ComparisonPlan.with_cap(pairs)
    console = make_console()
    setup = set_up(REPOSITORY, (benchmark,) if benchmark else (), devices)
    if len(setup.entries) != 1 or "step_time" not in setup.entries[0].name:
        raise Refused(
            f"--benchmark names {', '.join(setup.benchmarks)}; calibrate plants a time in each "
            f"decode step, so it takes one benchmark of step time."
        )
    record = Record(
        "calibrate",
        {
            "null": null,
            "planted": effects,
            "benchmark": setup.benchmarks[0],
            "devices": list(setup.devices),
            "plan": plan.to_json(),
        },
    )
    console.print(setup.sentence(), highlight=False, soft_wrap=True)
    record.look_around(console, setup.devices)
    trials: list[Trial] = []
    is_interrupted = False
    try:
        with (
            termination_as_interrupt(),
            tempfile.TemporaryDirectory(prefix="kvtrail-calibrate-") as scratch,
        ):
            calibration = Calibration(Path(scratch) / "clone", setup, plan, record, console)
            calibration.run(null, effects, trials)
    except KeyboardInterrupt:
        is_interrupted = True
    report(trials, plan, record, console, json, markdown_path, is_interrupted=is_interrupted)
    if is_interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)


def effects_named(text: str) -> list[float]:
    """Per cents, separated by commas, as fractions.

    Raises
    ------
    Refused
        If one is no positive number.
    """
    if text.strip() == "none":
        return []
    try:
        effects = [float(part) / 100 for part in text.split(",")]
    except ValueError:
        effects = [0.0]
    if not all(0 < effect < 10 for effect in effects):
        raise Refused(f"--planted {text!r} must be per cents, such as 1,2,3,5, or none.")
    return effects


class Calibration:
    """Trials in a scratch clone, with one set of prepared commits."""

    def __init__(
        self,
        directory: Path,
        setup: BenchSetup,
        plan: ComparisonPlan,
        record: Record,
        console: Console,
    ) -> None:
        self._place = shared_out(setup.devices)[0]
        self._clone = ScratchClone(directory, self._place)
        # Today's ruler, on the clone's commits.
        self._setup = replace(setup, sources=CommitSources(directory))
        self._plan = plan
        self._record = record
        self._console = console

    def run(self, null: int, effects: Sequence[float], trials: list[Trial]) -> None:
        """Run the trials one after the other, adding each to `trials` as it ends."""
        base = self._clone.plant(0.0)
        with self._setup.pairs() as source:
            with Progress(self._console, "measuring a step"):
                step = self._step_seconds(source, base)
            self._record.results["step_s"] = step
            commits = [self._clone.plant(effect * step) for effect in effects]
            self._record.results["planted"] = [asdict(commit) for commit in (base, *commits)]
            for number in range(null):
                self._try(source, f"itself, {number + 1} of {null}", base, base, trials)
            for effect, commit in zip(effects, commits, strict=True):
                self._try(source, f"planted {percentage(effect, 1)}", base, commit, trials)

    def _step_seconds(self, source: ProcessPairs, base: Planted) -> float:
        readings = [
            reading.value
            for number in range(_STEP_PAIRS)
            for pair in source.pair(base.hash, base.hash, head_first=bool(number)).values()
            for reading in (pair.base, pair.head)
        ]
        return statistics.median(readings)

    def _try(
        self, source: ProcessPairs, name: str, base: Planted, head: Planted, trials: list[Trial]
    ) -> None:
        begun = time.monotonic()
        what = f"{name} ({len(trials)} trials done)"
        with Progress(self._console, what, self._plan.cap, "pairs at most") as progress:

            def on_pair(now: Compared, pairs: Mapping[str, Pair]) -> None:
                self._record.samples.extend(
                    {"trial": name, **pair.to_json()} for pair in pairs.values()
                )
                progress.show(now.kept)

            (comparison,) = compare_commits(
                source,
                base.hash,
                head.hash,
                self._setup.benchmarks,
                self._plan,
                on_pair,
            )
        step = comparison.base_value
        effect = head.seconds / step if step and head.hash != base.hash else 0.0
        trial = Trial(name, effect, comparison, time.monotonic() - begun)
        trials.append(trial)
        if not self._console.is_terminal:
            self._console.print(" ".join(_cells(trial)), highlight=False)


def report(
    trials: Sequence[Trial],
    plan: ComparisonPlan,
    record: Record,
    console: Console,
    json: Path | None,
    markdown_path: Path | None,
    *,
    is_interrupted: bool = False,
) -> None:
    """Print the trials, write them down, and raise a MeasurementFailed where verdicts are wrong.

    After an interruption trials are missing: those that were made say nothing about soundness.
    """
    title = f"compare on {record.machine.gpu or record.machine.cpu}, commit {record.tree.label}"
    print_table(console, trial_table(trials, plan, title))
    record.results["trials"] = [trial.to_json(plan) for trial in trials]
    wrong = [trial for trial in trials if not trial.holds(plan)]
    alarms = [trial for trial in wrong if trial.planted == 0]
    nulls = sum(trial.planted == 0 for trial in trials)
    is_sound: bool | None = None
    if is_interrupted:
        record.notes.append(INTERRUPTED)
        console.print(INTERRUPTED, highlight=False, soft_wrap=True)
    else:
        is_sound = len(alarms) <= FALSE_ALARMS_ALLOWED * nulls and len(wrong) == len(alarms)
    record.results |= {"is_sound": is_sound, "interrupted": is_interrupted}
    path = record.write(json)
    console.print(f"record: {path}", highlight=False, soft_wrap=True)
    if markdown_path is not None:
        page = trial_markdown(trials, plan, title)
        text = f"{page}\n{INTERRUPTED}\n" if is_interrupted else page
        write_text(markdown_path, text, suffix=".md")
    if is_sound is False:
        raise MeasurementFailed(
            "verdicts contradict what was planted: "
            + "; ".join(f"{trial.name}: {trial.comparison.verdict}" for trial in wrong)
            + "."
        )


def trial_table(trials: Sequence[Trial], plan: ComparisonPlan, title: str) -> Table:
    """A row for each trial."""
    table = Table(title=title, title_justify="left")
    table.add_column("compared with", overflow="fold")
    add_figure_columns(table, *_HEADERS)
    for trial in trials:
        name, planted, verdict, *rest = _cells(trial)
        style = STYLES[trial.comparison.verdict] if trial.holds(plan) else "reverse red"
        table.add_row(name, planted, Text(verdict, style), *rest)
    return table


def trial_markdown(trials: Sequence[Trial], plan: ComparisonPlan, title: str) -> str:
    """The same table as markdown."""
    lines = [
        f"{title}. A verdict that the truth does not allow is marked with an exclamation mark.",
        "",
        f"| compared with | {' | '.join(_HEADERS)} |",
        f"| --- |{' ---: |' * len(_HEADERS)}",
    ]
    for trial in trials:
        name, planted, verdict, *rest = _cells(trial)
        mark = "" if trial.holds(plan) else " (!)"
        lines.append(f"| {' | '.join((name, planted, verdict + mark, *rest))} |")
    return "\n".join([*lines, ""])


def _cells(trial: Trial) -> tuple[str, ...]:
    found = trial.comparison
    return (
        trial.name,
        percentage(trial.planted, 2, signed=True) if trial.planted else "0",
        str(found.verdict),
        MISSING if found.effect is None else percentage(found.effect, 2, signed=True),
        interval_text(found),
        str(found.pairs_used),
        str(found.pairs_discarded),
        f"{trial.seconds:.0f}",
    )
