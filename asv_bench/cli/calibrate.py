"""`calibrate`: test the verdicts of `compare` on this machine with known slowdowns."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from asv_bench.cli.compare import plan_of
from asv_bench.compare.comparison import CommitComparison, Headway
from asv_bench.compare.noise_pools import MetricNoise, noise_of
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.tables import STYLES
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import Refused
from asv_bench.git.repository import Commit
from asv_bench.measure.delay import VARIABLE, Delay
from asv_bench.measure.lives import WALL
from asv_bench.measure.log import Logged
from asv_bench.measure.rounds import two_cells
from asv_bench.measure.samples import Metric, Pair, RoundSource
from asv_bench.output.console import Progress, print_sentences
from asv_bench.output.issue_text import described, place_of
from asv_bench.output.table import Cell, Column, Table, digits, interval, percent, percentage
from asv_bench.session import options
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.session import Judging
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.words import numbers_of

UNFINISHED = "trials are missing, so whether the verdicts hold is unknown."
SECONDS_OF = {"seconds": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
"""Units of metrics that a delay can lengthen."""
OBEYED = 0.5
"""By this fraction of a delay a metric grows at least, if the benchmark obeys the delay."""
FALSE_ALARMS_ALLOWED = 0.05
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
class PlantedTrial:
    """One comparison whose truth is known."""

    name: str
    # The true effect as a fraction of the base's figure; 0 for a commit against itself.
    planted: float
    comparison: Comparison
    seconds: float
    margin: float  # by which it was decided
    pairs: Sequence[Pair] = ()  # those that were not discarded

    @property
    def holds(self) -> bool:
        """Whether the verdict is one that the truth allows.

        A slowdown that the machine is too noisy to find is inconclusive, which contradicts nothing.
        """
        verdict = self.comparison.verdict
        if verdict is Verdict.EQUIVALENT:
            return self.planted < 0.9 * self.margin
        is_slower = verdict is Verdict.SLOWER and self.planted > 0
        return is_slower or verdict is Verdict.INCONCLUSIVE

    def row(self) -> tuple[Any, ...]:
        """The trial in a table; a verdict that the truth does not allow is marked."""
        found, verdict = self.comparison, str(self.comparison.verdict)
        style = STYLES[found.verdict] if self.holds else "reverse red"
        shown = Cell(verdict, style, text=verdict + " (!)" * (not self.holds))
        counts = found.pairs_used, found.pairs_discarded, self.seconds
        return self.name, self.planted, shown, found.effect, found.interval, *counts

    def to_json(self) -> dict[str, Any]:
        """The trial as JSON-ready values."""
        own = {name: getattr(self, name) for name in ("name", "planted", "holds", "seconds")}
        return {**own, **asdict(self.comparison)}


def are_sound(trials: Sequence[PlantedTrial]) -> bool:
    """Whether nothing contradicts the truth but as many false alarms as are allowed."""
    wrong = [trial for trial in trials if not trial.holds]
    alarms = sum(trial.planted == 0 for trial in wrong)
    nulls = sum(trial.planted == 0 for trial in trials)
    return alarms <= FALSE_ALARMS_ALLOWED * nulls and len(wrong) == alarms


class Calibrating(Judging):
    """Trials of a commit with itself and with slowdowns, from the first to the record.

    All metrics are compared where the commit is compared with itself, and each by itself where
    something is planted in it. For the wall time kvtrail sleeps after the command. Any other metric
    moves only if the benchmark waits $KVTRAIL_DELAY_S seconds in its timed part, as kvtrail's
    engine does: one life that is told to wait as long as the metric itself shows whether it does.
    """

    def __init__(
        self,
        subject: DeclaredSubject,
        given: tuple[str | None, Commit],  # what the user calls the commit, and what it is
        plan: ComparisonPlan,  # of every comparison; metrics may have margins of their own
        *,
        null: int,  # comparisons of the commit with itself
        effects: Sequence[float],  # to plant, as fractions
        minutes: Sequence[float],  # of comparisons to come
    ) -> None:
        self._given, self._commit = given
        self._plan, self._null, self._effects, self._minutes = plan, null, effects, minutes
        self._planted: dict[str, Delay] = {}  # by the name of what has it
        self._trials: list[PlantedTrial] = []  # those that have a verdict
        settings = {
            "null": null,
            "planted": effects,
            "minutes": minutes,
            "commit": self._commit.to_json(),
            "benchmarks": [metric.name for metric in subject.metrics],
            "plan": plan.to_json(),
        }
        super().__init__("calibrate", settings, subject)

    def names(self) -> Sequence[str]:
        return [self._commit.hash]

    def measure(self, source: RoundSource) -> ExitCode:
        """See `Session`: also after Ctrl-C, with the trials that were over."""
        try:
            self._try_all(source)
        except KeyboardInterrupt as error:
            self._stopped = error
            self._record.notes.append(f"{self._why_stopped()}: {UNFINISHED}")
            return ExitCode.INCONCLUSIVE
        return ExitCode.GOOD if are_sound(self._trials) else ExitCode.FAILED

    def _try_all(self, source: RoundSource) -> None:
        """Compare the commit with itself, then with what is slower by each effect."""
        for number in range(self._null):
            name, ends = f"itself, {number + 1} of {self._null}", (self._commit.hash,) * 2
            self._compare(source, name, ends, self._subject.metrics)
        for metric in self._subject.metrics if self._effects else ():
            value = self._value_to_lengthen(metric, source)
            for effect in self._effects if value is not None else ():
                added = effect * (value or 0.0)
                ends = self._delayed(metric, 0.0), self._delayed(metric, added)
                self._compare(source, f"planted {percentage(effect, 1)}", ends, [metric], added)

    def _delayed(self, metric: Metric, added: float) -> str:
        """The name of lives in which so much is added to a metric."""
        delay = Delay(added * SECONDS_OF[metric.unit], is_told=metric.name != WALL)
        name = delay.named(self._commit.hash)
        self._planted[name] = delay
        return name

    def _value_to_lengthen(self, metric: Metric, source: RoundSource) -> float | None:
        """The metric of one life; None, with a note, if no delay lengthens it."""
        commit = self._commit.hash
        absence = source.prepare(commit).get(metric.name)
        if absence is not None:
            self._record.notes.append(f"{metric.name} is not measured: {absence.reason}")
            return None
        if metric.unit not in SECONDS_OF or metric.better != "lower":
            self._record.notes.append(
                f"{metric.name}: no delay was planted; only what is measured in "
                f"{', '.join(SECONDS_OF)}, lower being better, grows by one."
            )
            return None

        def value_of(name: str) -> float:
            return source.round([name], [0], [metric.name]).readings[0][metric.name].value

        # Twice: the first life may have been disturbed, and look long enough to hide the wait.
        for _ in range(2):
            value = value_of(commit)
            if metric.name == WALL:
                return value
            if value_of(self._delayed(metric, value)) - value >= OBEYED * value:
                return value
        self._record.notes.append(
            f"{metric.name}: no delay was planted, as a life that was told to wait by "
            f"${VARIABLE} did not move it. A benchmark that waits so many seconds within what "
            f"it times, once for each figure, can be tried."
        )
        return None

    def _compare(
        self,
        source: RoundSource,
        name: str,
        ends: tuple[str, str],
        metrics: Sequence[Metric],
        added: float = 0.0,  # what the head's figure has more than the base's
    ) -> None:
        """Compare, and say and keep the trials."""
        plan, begun = self._plan, time.monotonic()
        with Progress(self._console, name, plan.cap, "pairs at most") as progress:

            def on_pair(now: Headway, pairs: Mapping[str, Pair]) -> None:
                self._record.samples += [{"trial": name, **one.to_json()} for one in pairs.values()]
                progress.show(now.kept)

            pools = self._noise.of([one.name for one in metrics])
            comparing = CommitComparison(two_cells(*ends), metrics, plan, pools)
            logged = Logged(source, self._log, name)
            found = comparing.run(logged, on_pair)
        seconds = time.monotonic() - begun
        pairs = {one.name: comparing.kept_pairs(one.name) for one in metrics}
        # The noise of what is kept wholly was added when it was measured.
        if logged.measured and ends[0] == ends[1]:
            self._noise.add(pairs, are_same=True)
        for one, comparison in zip(metrics, found, strict=True):
            if comparison.verdict in (Verdict.NOT_MEASURED, Verdict.VOID):
                if comparison.verdict is Verdict.VOID:
                    self._record.notes = [*dict.fromkeys([*self._record.notes, comparison.reason])]
                continue
            shown = name if len(self._subject.metrics) == 1 else f"{name}, {one.name}"
            self._console.print(f"{shown}: {comparison.verdict}")
            planted = added / comparison.base_value if comparison.base_value else 0.0
            margin, own = one.margin or plan.margin, pairs[one.name]
            self._trials.append(PlantedTrial(shown, planted, comparison, seconds, margin, own))

    def print_answer(self) -> None:
        """See `Session`; verdicts that contradict what was planted are named."""
        trials, commit, given = self._trials, self._commit, self._given
        place = place_of(self._record.machine, self._subject.devices)
        title = f"compare on {place}, commit {commit.short}"
        caption = "(!): a verdict that the truth does not allow."
        table = Table(_COLUMNS, [trial.row() for trial in trials], title, caption)
        answers = [noise.sentence() for noise in self._noises()]
        if self._stopped is None and not are_sound(trials):
            wrong = [f"{one.name}: {one.comparison.verdict}" for one in trials if not one.holds]
            answers.append(f"Verdicts contradict what was planted: {'; '.join(wrong)}.")
        reasons = dict.fromkeys(trial.comparison.reason for trial in trials)
        said = [*filter(None, reasons), *self._record.notes]
        names = {} if given is None else {given: (commit.short,)}
        heading = answers[-1] if answers else title
        page = self._issue(heading, described(commit), [table], [*said, *answers], names)
        self._files.show(table, page=page)
        print_sentences(self._console, said)
        print_sentences(self._console, answers, "bold")

    def _noises(self) -> Iterator[MetricNoise]:
        """The noise of each metric that was compared with itself, and what it allows."""
        subject = self._subject
        shared = {"at_once": len(subject.metrics), "devices": len(subject.devices)}
        for metric in subject.metrics:
            pairs = [
                trial.pairs
                for trial in self._trials
                if trial.comparison.benchmark == metric.name and trial.planted == 0 and trial.pairs
            ]
            if pairs:
                plan = self._plan.with_margin(metric.margin or self._plan.margin)
                yield noise_of(metric.name, pairs, plan, self._minutes, **shared)

    def results(self) -> dict[str, Any]:
        planted = {name: str(delay) for name, delay in self._planted.items()}
        if self._ending:
            return {"planted": planted}
        return {
            "planted": planted,
            "trials": [trial.to_json() for trial in self._trials],
            "noise": [asdict(noise) for noise in self._noises()],
            "is_sound": are_sound(self._trials) if self._stopped is None else None,
        }


def calibrate(
    command: options.MeasuredCommand = None,
    benchmark: options.ComparedMetrics = None,
    *,
    asked: options.EngineOptions,
    commit: Annotated[
        str | None,
        typer.Option(
            help="The commit or label that is measured; . is the working tree as it stands "
            "(default: HEAD, or the first label)."
        ),
    ] = None,
    null: Annotated[
        int, typer.Option(min=0, max=options.MOST, help="Comparisons of a commit with itself.")
    ] = 8,
    planted: Annotated[
        str, typer.Option(help="Slowdowns in per cent, separated by commas, or none.")
    ] = "1,2,3,5",
    within: Annotated[
        str,
        typer.Option(
            help="Minutes of a comparison, separated by commas: for each the smallest change is "
            "said that it finds."
        ),
    ] = "1,5,15",
    pairs: options.MostPairs = None,
    how: options.MeasuringOptions,
    files: options.Outputs,
) -> None:
    """Compare a commit with itself and with known slowdowns: do the verdicts hold on this machine,
    and which change is found?

    To plant a slowdown kvtrail sleeps after the command. For any other metric your benchmark must
    wait $KVTRAIL_DELAY_S seconds inside the timed part. The noise is kept for comparisons to come.

    Exit code 0: the verdicts hold; 1: a contradiction or another failure; 2: refused; 5: nothing
    could be measured; 130: interrupted, with no word on whether they hold; the same command goes on
    with the pairs of the commit with itself.
    """
    effects: list[float] = []
    if planted.strip() != "none":
        what = "per cents, such as 1,2,3,5, or none"
        per_cents = numbers_of("--planted", planted, what, lambda one: 0 < one < 1000)
        effects = [one / 100 for one in per_cents]
    limits = numbers_of("--within", within, "minutes, such as 1,5,15", lambda one: 0 < one < 1e9)
    if not effects and not null:
        raise Refused("--null 0 --planted none leaves nothing to compare.")
    plan = plan_of(pairs, how.margin)
    subject = asked.choice(command, benchmark, how, near=(commit,)).subject("calibrate")
    given = commit, subject.resolve(commit or (*subject.labels, "HEAD")[0])
    calibrating = Calibrating(subject, given, plan, null=null, effects=effects, minutes=limits)
    calibrating.with_options(files, how).answer()
