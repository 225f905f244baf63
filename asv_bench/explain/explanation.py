"""Why one end is slower than the other, as a person reads it: sentences, a table, a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from asv_bench.explain.clue import Clue, Source, number
from asv_bench.explain.commit_files import CommitFiles
from asv_bench.explain.profile_tables import short_kernel_name
from asv_bench.explain.ranking import TimeChange, causes, explained
from asv_bench.git.repository import Commit
from asv_bench.output.issue_text import IssueText, described
from asv_bench.output.markdown import inline
from asv_bench.output.table import Cell, Column, Table, percent, percentage

_ROWS, _FILES, _ON_PAGE = 12, 4, 12
_NAME, _VALUE = 44, 22
_FULLY, _BEYOND_WHOLE = 0.8, 3.0

FILES = "files"
"""Looked at of all commits; that they differ is no cause by itself."""

COLUMNS = (
    Column("name", "what differs", kind="text"),
    Column("figure", "figure", kind="data"),
    Column("base", "base"),
    Column("head", "head"),
    Column("cost_us", "costs", "µs", kind="data"),
    Column("part", "of the", "base", percent(1, signed=True)),
    Column("source", "seen in", kind="text"),
)


@dataclass(slots=True)
class Explanation:
    """All that was found out about two ends."""

    base: Commit
    head: Commit
    change: TimeChange  # what is to be explained
    files: CommitFiles | None = None  # and commits between the ends; None along labels
    clues: list[Clue] = field(default_factory=list)
    looked_at: list[str] = field(default_factory=list)  # each in a few words
    notes: list[str] = field(default_factory=list)  # sentences: what could not be looked at

    @property
    def causes(self) -> list[Clue]:
        """Those that explain the change best, the best first."""
        return causes(self.clues, self.change)

    def headline(self) -> str:
        """What is explained, in a line."""
        effect, traces = self.change.effect, self.change.traces
        if effect is not None:
            return effect.sentence()
        differ = f"What differs between {self.base.short} and {self.head.short}"
        if traces is None:
            return differ
        seen = percentage(traces.effect, 1, signed=True)
        beyond = "beyond" if traces.shows_effect else "within"
        return f"{differ}; their traces differ by {seen}, {beyond} noise"

    def answer(self) -> list[str]:
        """The causes in words, numbered, or that there is none."""
        found = [
            f"{place}. {_capital(one.sentence)}{self._worth(one)}"
            for place, one in enumerate(self.causes, 1)
        ]
        if not found:
            return [self._nothing()]
        share = explained(self.clues, self.change)
        if share is not None:
            found.append(self._shared(share))
        return found

    def _worth(self, one: Clue) -> str:
        """How much of the change a cause explains, as far as it is measured."""
        change = self.change.size
        if one.part is None:
            return "."
        # A part of almost nothing says nothing.
        if not change or abs(one.part / change) > _BEYOND_WHOLE:
            return f": {percentage(one.part, 1, signed=True)} of the base's time."
        return f": {percentage(one.part / change, 0)} of the change."

    def _shared(self, share: float) -> str:
        whole = percentage(share, 0)
        found = f"What differs in the traces beyond noise adds up to {whole} of the change"
        if share < _FULLY:
            return f"{found}; the rest was not found in {_listed(self.looked_at)}."
        return f"{found}."

    def _nothing(self) -> str:
        looked = _listed(self.looked_at)
        if self.change.is_none:
            return f"There is no change to explain. Looked at: {looked}."
        if self.clues:
            return f"What differs does not explain the change. Looked at: {looked}."
        others = [one for one in self.looked_at if one != FILES]
        if self.files is not None and self.files.file_count and others:
            return f"Nothing but files differs; looked at: {_listed(others)}."
        return f"Nothing differs that was looked at: {looked}."

    def context(self, shown: int = _FILES) -> list[str]:
        """Files and commits between the ends, in sentences."""
        return [] if self.files is None else list(self.files.sentences(shown))

    def table(self, rows: int = _ROWS) -> Table:
        """The differences, those that cost the most first, at most so many."""
        traced = {one.name for one in self.clues if one.source is Source.TRACE}
        shown = [
            one
            for one in self.clues
            # An operator that both counted is shown with the time that the trace has of it.
            if one.source is not Source.COUNTERS or one.name not in traced
        ]
        ordered = sorted(shown, key=_importance)
        left = len(ordered) - rows
        caption = f"{left} more differences are in the record. " if left > 0 else ""
        if any(one.part is not None for one in self.clues):
            caption += "Of the base: what it costs, of the base's traced time."
        return Table(
            COLUMNS, [_row(one) for one in ordered[:rows]], "what differs besides time", caption
        )

    def page(self, environment: Mapping[str, str], command: str) -> str:
        """The explanation in Markdown for an issue or a pull request, within its limit.

        `command` repeats it, and `environment` are facts by their name.
        """
        answer = "\n".join(_in_markdown(line) for line in self.answer())
        versus = f"{described(self.head)} against {described(self.base)}"
        return IssueText(
            heading=self.headline() if self.change.effect is None else f"Why: {self.headline()}",
            # The causes come before the table that they are taken from.
            commits=f"{versus}\n\n{answer}",
            tables=[self.table(len(self.clues))] if self.clues else [],
            remarks=[*self.context(_ON_PAGE), *self.notes],
            environment=environment,
            command=command,
        ).render()

    def to_json(self) -> dict[str, Any]:
        """The explanation as JSON-ready values."""
        effect, traces = self.change.effect, self.change.traces
        return {
            "effect": effect and asdict(effect),
            "causes": [one.to_json() for one in self.causes],
            "answer": self.answer(),
            "differences": [one.to_json() for one in self.clues],
            "explained": explained(self.clues, self.change),
            "changes": self.files and self.files.to_json(),
            "traced": traces and traces.to_json(),
            "looked_at": self.looked_at,
        }


def _importance(one: Clue) -> tuple[bool, bool, float]:
    """Measured costs before guessed ones, and what is no cost at all first."""
    order = one.source in (Source.VARIABLES, Source.PACKAGES)
    return not order, one.part is None, -abs(one.cost_us or 0.0)


def _row(one: Clue) -> Sequence[Any]:
    name = one.name if len(one.name) <= _NAME else short_kernel_name(one.name, _NAME)
    note = one.what + (", waits for others" if one.is_waiting else "")
    return (
        Cell(one.name, text=name, note=note),
        one.what,
        _value(one.before),
        _value(one.after),
        one.cost_us,
        one.part,
        str(one.source),
    )


def _value(value: float | str | None) -> Cell:
    if isinstance(value, str):
        text = value if len(value) <= _VALUE else f"{value[: _VALUE - 1]}…"
        return Cell(value, text=text)
    return Cell(value, text=None if value is None else number(value))


def _listed(names: Sequence[str]) -> str:
    *first, last = names or ["nothing"]
    return f"{', '.join(first)} and {last}" if first else last


def _capital(sentence: str) -> str:
    """Names of kernels and operators stay as they are."""
    first = sentence.split(" ", 1)[0]
    is_word = first.islower() and first.isalpha()
    return f"{sentence[0].upper()}{sentence[1:]}" if is_word else sentence


def _in_markdown(line: str) -> str:
    """A line of the answer; its number stays a list's."""
    place, dot, rest = line.partition(". ")
    return f"{place}. {inline(rest)}" if place.isdigit() and dot else f"\n{inline(line)}"
