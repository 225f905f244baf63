"""Where stored histories moved, and what stands of it: compared, or lived with by somebody."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from asv_bench.compare.comparison import Headway, Suspicion, confirm
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Comparison, Standing, Verdict
from asv_bench.errors import NothingMeasured, NothingSelected, Refused
from asv_bench.git.repository import GitError, kind_of
from asv_bench.history.asv_results import EnvironmentFacts, Figure, Series, differing, read_each
from asv_bench.history.change_points import Change
from asv_bench.history.histories import Beginning, Histories, MachineHistory
from asv_bench.measure.log import Logged
from asv_bench.measure.samples import Pair, RoundSource
from asv_bench.output.console import Progress, print_sentences
from asv_bench.output.markdown import inline
from asv_bench.output.record import write_json
from asv_bench.output.stored_json import Text
from asv_bench.output.table import Cell, Column, Row, Table, interval, percent, percentage
from asv_bench.process.machine import machine_facts
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.options import MeasuringOptions
from asv_bench.session.session import Judging
from asv_bench.subjects.choose import Choice
from asv_bench.subjects.declared import DeclaredSubject

ACKNOWLEDGED = "acknowledged.toml"
ANSWERS = "asv-changes"
"""The folder beside asv's results that keeps what `changes` found out by comparing."""
UNFINISHED = "some changes were not compared to the end, or not at all."
_QUOTES = str.maketrans("", "", "'\"")
AnswerKey: TypeAlias = tuple[Series, EnvironmentFacts, str]
"""What the answer to a change is kept under; the text is the hash of its commit, or a label."""


def stored_changes(
    histories: Histories, patterns: Sequence[str], tip: str = "HEAD"
) -> tuple[list[Change], list[str], list[Beginning]]:
    """The changes in the stored results, largest first; what of these was left out; new series.

    `patterns` are looked for in names; none: all. Raises NothingMeasured if nothing is stored.
    """
    results = histories.read()
    notes = list(results.complaints)
    if not results.figures:
        raise NothingMeasured(
            " ".join(["no history is stored; `history` measures a range of commits.", *notes])
        )
    found: list[Change] = []
    begun: list[Beginning] = []
    for name in sorted(results.machines):
        stored = MachineHistory(name, results, histories, notes, tip)
        by_series: dict[tuple[Series, EnvironmentFacts], list[Figure]] = {}
        for figure in stored.figures:
            if any(re.search(pattern, figure.series.name) for pattern in patterns or [""]):
                by_series.setdefault((figure.series, figure.environment), []).append(figure)
        found += [change for members in by_series.values() for change in stored.changes(members)]
        names = {series.name for series, _ in by_series}
        begun += [one for one in stored.beginnings if names.intersection(one.benchmarks)]
    return sorted(found, key=lambda change: -abs(change.effect)), notes, begun


def is_with(
    environment: EnvironmentFacts, python: str, torch: str | None, triton: str | None
) -> bool:
    """Whether figures of an environment were measured with these versions, as far as it says."""
    minor = ".".join(python.split(".")[:2])
    software = {"python": minor, "torch": torch or "none", "triton": triton or "none"}
    stored = dict(environment)
    return all(stored.get(name, version) == version for name, version in software.items())


class Acknowledgement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table `[[acknowledged]]`: a change that somebody has looked at and lives with."""

    commit: Text  # the beginning of the hash of a change's commit, or a label
    why: Text
    benchmark: str = ""  # a text in the name of the benchmark


class AcknowledgedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file may hold."""

    acknowledged: list[Acknowledgement] = []


def read_acknowledged(folder: Path) -> list[Acknowledgement]:
    """What is acknowledged in a folder of histories; Refused if the file there is another."""
    path = folder / ACKNOWLEDGED
    if not path.exists():
        return []
    try:
        return msgspec.toml.decode(path.read_bytes(), type=AcknowledgedFile).acknowledged
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise Refused(f"{path} cannot be read: {str(error).removesuffix('.')}.") from None


def reason_for(change: Change, acknowledged: Sequence[Acknowledgement]) -> str:
    """Why a change is acknowledged; empty where it is not."""
    name = change.commit.hash
    matches = str.__eq__ if kind_of(name) == "label" else str.startswith
    whys = (
        one.why
        for one in acknowledged
        if matches(name, one.commit) and one.benchmark in change.series.benchmark
    )
    return next(whys, "")


@dataclass(frozen=True, slots=True)
class JudgedChange:
    """A change, the newest comparison of its commits if any, and why somebody lives with it."""

    change: Change
    answer: Comparison | None = None
    acknowledged: str = ""

    @property
    def standing(self) -> Standing:
        return Standing.of(self.answer, is_worse=self.change.is_worse)

    @property
    def state(self) -> str:
        """Its standing as pages say it, or that it is acknowledged."""
        if self.acknowledged:
            return "acknowledged"
        is_confirmed = self.standing in (Standing.REGRESSION, Standing.IMPROVEMENT)
        return f"confirmed {self.standing}" if is_confirmed else str(self.standing)

    @property
    def is_bad_news(self) -> bool:
        """Whether somebody should look at it: for the worse, not refuted and not acknowledged."""
        is_open = not self.acknowledged and self.standing is not Standing.REFUTED
        return self.change.is_worse and is_open

    @property
    def sentence(self) -> str:
        """Its size by the stored figures and, where there is one, by the comparison."""
        said = f"{percentage(self.change.effect, 1, signed=True)}, {self.state}"
        answer = self.answer
        if answer is not None and answer.effect is not None:
            said += f": {percentage(answer.effect, 2, signed=True)} in {answer.pairs_used} pairs"
        return f"{said}. {self.acknowledged}" if self.acknowledged else said

    def to_json(self) -> dict[str, Any]:
        """The change as JSON-ready values."""
        return {
            **self.change.to_json(),
            "standing": self.standing,
            "acknowledged": self.acknowledged or None,
            "confirmation": self.answer and asdict(self.answer),
        }


class _KeptAnswer(msgspec.Struct):
    benchmark: Text
    params: dict[Text, str]
    environment: dict[Text, str]
    commit: Text
    confirmation: Comparison


class _KeptAnswers(msgspec.Struct):
    schema: Literal[1]
    changes: list[_KeptAnswer]


def keep_answers(folder: Path, started: str, judged: Sequence[JudgedChange]) -> None:
    """Write the changes that were compared, all of one machine, by the time as ISO writes it."""
    compared = [entry for entry in judged if entry.answer is not None]
    if compared:
        moment = started.replace(":", "").replace("-", "").split("+")[0]
        rows = [entry.to_json() for entry in compared]
        path = folder / compared[0].change.machine / f"{moment}.json"
        write_json(path, {"schema": 1, "changes": rows})


def read_answers(folder: Path, machine: str, notes: list[str]) -> Mapping[AnswerKey, Comparison]:
    """What was found out last about the changes of a machine; see `read_each`."""
    answers: dict[AnswerKey, Comparison] = {}
    for kept in read_each(folder / machine, "a file of `changes`", _KeptAnswers, notes):
        for row in kept.changes:
            series = Series(row.benchmark, tuple(row.params.items()))
            environment = tuple(sorted(row.environment.items()))
            answers[series, environment, row.commit] = row.confirmation
    return answers


def change_table(judged: Sequence[JudgedChange]) -> Table:
    rows: list[Row] = []
    for entry in judged:
        change, series = entry.change, entry.change.series
        note = f"{change.commit.short} {change.commit.subject}"
        if not change.is_placed:
            note += f"\nor one of {change.since.short}..{change.until.short}"
        others = [one.change for one in judged if one.change.machine == change.machine]
        if environment := differing(change.environment, [one.environment for one in others]):
            note += f"\nwith {environment}"
        stands = f"acknowledged: {entry.acknowledged}" if entry.acknowledged else entry.standing
        name = ", ".join(filter(None, [series.benchmark, series.label]))
        compared = entry.answer.effect if entry.answer else None
        sizes = (change.effect, change.interval, compared)
        rows.append((Cell(name, note=note), change.machine, *sizes, str(stands)))
    columns = (
        Column("benchmark", "benchmark and commit", kind="name"),
        Column("machine", "machine"),
        Column("change", "change", show=percent(1, signed=True)),
        Column("interval", "interval", show=interval(1), parts=("low", "high")),
        Column("compared", "compared", show=percent(2, signed=True)),
        Column("standing", "standing"),
    )
    caption = "Only a comparison of the commits around a change confirms or refutes it."
    return Table(columns, rows, "changes in the stored histories", caption)


class Confirming(Judging):
    """Which changes stand, once those measured here with this software are compared."""

    _how: MeasuringOptions

    def __init__(
        self,
        histories: Histories,
        patterns: Sequence[str],  # see `stored_changes`
        tip: str,  # the last commit of the line to judge; "" where labels are judged
        choice: Choice,
        subject: DeclaredSubject,
        *,
        compares: bool,
    ) -> None:
        super().__init__("changes", {"benchmark": list(patterns), "branch": tip}, subject)
        self._histories, self._choice = histories, choice
        found, self._notes, self._begun = stored_changes(histories, patterns, tip)
        self._notes += [one.sentence for one in self._begun]
        acknowledged = read_acknowledged(histories.folder)
        self._reasons = {change: reason_for(change, acknowledged) for change in found}
        here = machine_facts()
        self._wanted = [
            one
            for one, reason in self._reasons.items()
            if compares and not reason and one.machine == here.name
            if is_with(one.environment, here.python, here.torch, here.triton)
        ]
        self._suspicions: dict[Change, Suspicion] = {}
        self._answers: dict[Suspicion, Comparison] = {}

    def known(self) -> ExitCode | None:
        print_sentences(self._console, self._notes)
        if self._wanted:
            self._suspect()
        for one in () if self._how.anyway else self._suspicions.values():
            # A commit that the repository lacks is compared, and said to be lacking then.
            with contextlib.suppress(GitError):
                if self._subject.are_same(one.before, one.after):
                    self._answers[one] = Comparison.of_same(one.benchmark, one.before, one.after)
        return None if self._left() else self._code()

    def _suspect(self) -> None:
        """Find what to compare for each change; say of which the benchmark is gone."""
        self._subject.near = [self._wanted[0].since.hash, self._wanted[0].until.hash]
        names = "|".join(sorted({re.escape(change.series.benchmark) for change in self._wanted}))
        # Stored results are read without the quotes of texts (`asv_results.Series`).
        today: dict[str, str] = {}
        with contextlib.suppress(NothingSelected):
            # Names of benchmarks may have parameters behind them.
            self._choice.choose(self._subject, [rf"^({names})(\(|$)"])
            today = {one.name.translate(_QUOTES): one.name for one in self._subject.metrics}
        for change in self._wanted:
            since, until = change.since.hash, change.until.hash
            if found := today.get(change.series.name.translate(_QUOTES)):
                self._suspicions[change] = Suspicion(since, until, found)
            else:
                gone = f"{change.series.name} is gone from today's benchmarks and is not compared."
                print_sentences(self._console, [gone])

    def _left(self) -> list[Suspicion]:
        return [one for one in self._suspicions.values() if one not in self._answers]

    def names(self) -> Sequence[str]:
        return list({end: None for one in self._left() for end in (one.before, one.after)})

    def devices(self) -> Sequence[str]:
        return super().devices() if self._left() else ()

    def begin(self) -> list[str]:
        return [f"comparing the commits around {len(self._left())} changes"]

    def measure(self, source: RoundSource) -> ExitCode:
        def on_pair(_: Headway, measured: Mapping[str, Pair]) -> None:
            self._record.samples.extend(pair.to_json() for pair in measured.values())
            bar.show(len(self._record.samples))

        kept = Logged(source, self._log, "changes")
        plan = ComparisonPlan().with_margin(self._how.margin / 100)
        metrics = {metric.name: metric for metric in self._subject.metrics}
        with Progress(self._console, "comparing", unit="pairs") as bar:
            found = confirm(self._left(), metrics, kept, on_pair, plan, self._noise)
        answers, self._stopped = found
        self._answers |= answers
        return self._code()

    def _judged(self) -> list[JudgedChange]:
        answers = {change: self._answers.get(one) for change, one in self._suspicions.items()}
        return [
            JudgedChange(change, answers.get(change), reason)
            for change, reason in self._reasons.items()
        ]

    def _code(self) -> ExitCode:
        """A confirmed regression outweighs a comparison that failed."""
        judged = self._judged()
        verdicts = {entry.answer.verdict for entry in judged if entry.answer}
        if any(entry.standing is Standing.REGRESSION for entry in judged):
            return ExitCode.REGRESSION
        if Verdict.FAILED in verdicts:
            return ExitCode.FAILED
        return ExitCode.INCONCLUSIVE if Verdict.VOID in verdicts else ExitCode.GOOD

    def print_answer(self) -> None:
        """See `Session`; the answers are kept, and the page is built anew."""
        judged = self._judged()
        interrupted = [f"{self._why_stopped()}: {UNFINISHED}"] if self._stopped else []
        self._record.notes += [*self._notes, *interrupted]
        print_sentences(self._console, interrupted)
        table, page = change_table(judged), None
        if self._record.samples:
            counts = Counter(str(entry.standing) for entry in judged)
            heading = ", ".join(f"{count} {standing}" for standing, count in counts.items())
            where = f"Changes in the stored histories of {inline(self._subject.name)}"
            remarks = [*self._notes, *self._record.warnings]
            page = self._issue(heading, where, [table], remarks, names={})
        if judged or self._files.markdown or self._files.csv:
            self._files.show(table, page=page)
        else:
            self._console.print("no series moved by 1 % or more")
        reasons = [entry.answer.reason for entry in judged if entry.answer]
        print_sentences(self._console, filter(None, reasons))
        keep_answers(self._histories.folder / ANSWERS, self._record.started, judged)
        # Not at the top: every command would wait for jinja2.
        from asv_bench.pages.site import build_page

        self._console.print(f"page: {build_page(self._histories, self._console)}")

    def results(self) -> dict[str, Any]:
        return {
            "changes": [entry.to_json() for entry in self._judged()],
            "new_series": list(map(asdict, self._begun)),
        }
