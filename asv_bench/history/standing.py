"""What stands of changes: what comparing said of them, and which of them people live with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from asv_bench.compare.confirmation import Standing
from asv_bench.compare.verdict import Comparison
from asv_bench.errors import Refused
from asv_bench.git.repository import kind_of
from asv_bench.history.asv_results import EnvironmentFacts, Series, differing
from asv_bench.history.change_points import Change
from asv_bench.output.record import write_json
from asv_bench.output.stored_json import Text, UnreadableFile, read_stored
from asv_bench.output.table import Cell, Column, Row, Table, interval, percent, percentage

ACKNOWLEDGED = "acknowledged.toml"
ANSWERS = "asv-changes"
"""The folder beside asv's results that keeps what `changes` found out by comparing."""
_STYLES = {
    Standing.REGRESSION: "bold red",
    Standing.IMPROVEMENT: "bold green",
    Standing.UNRESOLVED: "yellow",
    Standing.CANDIDATE: "yellow",
}
_COLUMNS = (
    Column("benchmark", "benchmark and commit", kind="name"),
    Column("commit", "commit", kind="data"),
    Column("after", "after", kind="data"),
    Column("up_to", "up to", kind="data"),
    Column("machine", "machine"),
    Column("change", "change", show=percent(1, signed=True)),
    Column("interval", "interval", show=interval(1), parts=("low", "high")),
    Column("compared", "compared", show=percent(2, signed=True)),
    Column("standing", "standing"),
)


class Acknowledgement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table `[[acknowledged]]`: a change that somebody has looked at and lives with.

    `commit` is the beginning of the hash of a change's commit, or a label; `benchmark` a text in
    the name of the benchmark, by default any; `why` is shown.
    """

    commit: Annotated[str, msgspec.Meta(min_length=1)]
    why: Annotated[str, msgspec.Meta(min_length=1)]
    benchmark: str = ""

    def covers(self, change: Change) -> bool:
        """Whether a change is meant."""
        name = change.commit.hash
        is_label = kind_of(name) == "label"
        is_its_commit = name == self.commit if is_label else name.startswith(self.commit)
        return is_its_commit and self.benchmark in change.series.benchmark


class AcknowledgedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file may hold."""

    acknowledged: list[Acknowledgement] = []


@dataclass(frozen=True, slots=True)
class JudgedChange:
    """A change, the newest comparison of its commits if any, and why somebody lives with it."""

    change: Change
    answer: Comparison | None = None
    acknowledged: str = ""

    @property
    def standing(self) -> Standing:
        """The standing of the change after the comparison."""
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

    @property
    def bisection(self) -> str:
        """How to find its commit; empty but where a regression may lie at several commits."""
        change, is_regression = self.change, self.standing is Standing.REGRESSION
        if self.answer is None or not is_regression or change.is_placed:
            return ""
        # Quotes around texts would end the shell's own; a dot finds them too.
        pattern = re.escape(self.answer.benchmark).replace("'", ".")
        command = "kvtrail bisect" if change.better else "nox -s bisect --"
        return (
            f"which one it was: {command} {change.since.short} {change.until.short} --metric "
            f"'^{pattern}$'"
        )

    def to_json(self) -> dict[str, Any]:
        """The change as JSON-ready values."""
        told = {"change": self.change.effect, "standing": self.standing}
        return {
            **self.change.to_json(),
            "author": self.change.commit.author or None,
            "standing": self.standing,
            "acknowledged": self.acknowledged or None,
            "confirmation": None if self.answer is None else told | self.answer.to_json(),
        }


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
    return next((one.why for one in acknowledged if one.covers(change)), "")


class _KeptAnswer(msgspec.Struct):
    """What is read again of a `JudgedChange`."""

    benchmark: Text
    params: dict[Text, str]
    environment: dict[Text, str]
    commit: Text
    confirmation: Comparison


class _KeptAnswers(msgspec.Struct):
    schema: Literal[1]
    changes: list[_KeptAnswer]


AnswerKey = tuple[Series, EnvironmentFacts, str]
"""What the answer to a change is kept under; the text is the hash of its commit, or a label."""


def key_of(change: Change) -> AnswerKey:
    """What the answer to a change is kept under."""
    return change.series, change.environment, change.commit.hash


def keep_answers(folder: Path, started: str, judged: Sequence[JudgedChange]) -> None:
    """Write the changes that were compared, a file a machine; `started` tells runs apart.

    `started` is a time as ISO writes it, so that files in the order of their names are in the order
    of time.
    """
    by_machine: dict[str, list[dict[str, Any]]] = {}
    for entry in judged:
        if entry.answer is not None:
            by_machine.setdefault(entry.change.machine, []).append(entry.to_json())
    moment = started.replace(":", "").replace("-", "").split("+")[0]
    for machine, rows in by_machine.items():
        write_json(folder / machine / f"{moment}.json", {"schema": 1, "changes": rows})


def read_answers(
    folder: Path, machine: str, complaints: list[str]
) -> Mapping[AnswerKey, Comparison]:
    """What was found out last about the changes of a machine.

    A file that is not one of ours is left out with a sentence in `complaints`.
    """
    answers: dict[AnswerKey, Comparison] = {}
    for path in sorted((folder / machine).glob("*.json")):
        try:
            kept = read_stored(path, "a file of `changes`", _KeptAnswers)
        except UnreadableFile as error:
            complaints.append(f"{error} It is left out.")
            continue
        for row in kept.changes:
            series = Series(row.benchmark, tuple(row.params.items()))
            environment = tuple(sorted(row.environment.items()))
            answers[series, environment, row.commit] = row.confirmation
    return answers


def change_table(judged: Sequence[JudgedChange]) -> Table:
    """A row for each change; of a machine with changes in several environments, with which."""
    return Table(
        _COLUMNS,
        [_row(entry, judged) for entry in judged],
        title="changes in the stored histories",
        caption="A candidate is a change of level in stored figures; only a comparison of the "
        "commits around it makes it a regression or an improvement.",
    )


def _row(entry: JudgedChange, all_of_them: Sequence[JudgedChange]) -> Row:
    change, series = entry.change, entry.change.series
    note = f"{change.commit.short} {change.commit.subject}"
    if not change.is_placed:
        note += f"\nor one of {change.since.short}..{change.until.short}"
    others = [one.change for one in all_of_them if one.change.machine == change.machine]
    if environment := differing(change.environment, [one.environment for one in others]):
        note += f"\nwith {environment}"
    standing = Cell(str(entry.standing), _STYLES.get(entry.standing, "dim"))
    if entry.acknowledged:
        standing = Cell(f"acknowledged: {entry.acknowledged}", "dim")
    return (
        Cell(
            f"{series.benchmark}, {series.label}" if series.label else series.benchmark, note=note
        ),
        change.commit.hash,
        change.since.hash,
        change.until.hash,
        change.machine,
        change.effect,
        change.interval,
        entry.answer.effect if entry.answer else None,
        standing,
    )
