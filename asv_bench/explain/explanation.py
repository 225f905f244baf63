"""Why one end is slower than the other: its causes, as a person and a program read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from asv_bench.explain.clue import Clue, Source, number
from asv_bench.explain.commit_files import CommitFiles
from asv_bench.explain.effect import Effect
from asv_bench.explain.trace import short_kernel_name
from asv_bench.explain.trace_pair import TracePair
from asv_bench.git.repository import Commit
from asv_bench.output.table import Cell, Column, Table, percent, percentage
from asv_bench.words import first_of

MOST = 3
"""Causes that are named."""
_MINOR, _FULLY, _BEYOND_WHOLE = 0.05, 0.8, 3.0
"""Of the change: an exact clue that costs less comes last; causes that add up to as much explain
all of it; and a cause of more than so many times the whole is said by itself."""
_PYTHON = "lines a step"
_PACKAGES, _ROWS = 6, 12
_NAME = 44
FILES = "files"
"""Looked at of all commits; that they differ is no cause by itself."""

COLUMNS = (
    Column("name", "what differs", kind="text"),
    Column("figure", "figure", kind="data"),
    Column("base", "base", kind="text"),
    Column("head", "head", kind="text"),
    Column("cost_us", "costs", "µs", kind="data"),
    Column("part", "of the", "base", percent(1, signed=True)),
    Column("source", "seen in", kind="text"),
)


@dataclass(slots=True)
class Explanation:
    """All that was found out about two ends."""

    base: Commit
    head: Commit
    is_here_gpu: bool  # whether this machine measures on a GPU
    effect: Effect | None = None  # the change that a comparison measured; None: none is known
    traces: TracePair | None = None  # None: none were taken
    files: CommitFiles | None = None  # and commits between the ends; None along labels
    clues: list[Clue] = field(default_factory=list)
    looked_at: list[str] = field(default_factory=list)  # each in a few words
    notes: list[str] = field(default_factory=list)  # sentences: what could not be looked at

    @property
    def sign(self) -> int:
        """1 where the head is slower, -1 where it is faster, 0 where nothing says so."""
        if self.effect is not None:
            return self.effect.sign
        if self.traces is not None and self.traces.shows_effect:
            return 1 if self.traces.effect > 0 else -1
        return 0

    @property
    def is_without_change(self) -> bool:
        """Whether a comparison has shown that there is nothing to explain."""
        return self.effect is not None and self.effect.verdict in ("equivalent", "same")

    @property
    def change(self) -> float | None:
        """How much longer the head takes, as a fraction, where that is measured."""
        if self.effect is not None:
            return self.effect.cost
        return self.traces.effect if self.traces is not None and self.sign else None

    @property
    def causes(self) -> list[Clue]:
        """The clues that explain the change best, the best first; none where there is no change."""
        if self.is_without_change:
            return []
        return sorted(filter(self._admits, _told_once(self.clues)), key=self._rank)[:MOST]

    @property
    def explained(self) -> float | None:
        """How much of the change the clues of the traces add up to; None where that is unknown.

        Waiting is left out.
        """
        if self.traces is None or not self.change or self.is_without_change:
            return None
        parts = [one.part for one in self.clues if one.part is not None and not one.is_waiting]
        return sum(parts) / self.change

    def _admits(self, clue: Clue) -> bool:
        """Whether a clue leans as the change does, or no way, and is of what was measured.

        A trace is of what is measured; counters are of any device. Kernels that wait for others
        explain nothing.
        """
        is_elsewhere = self.effect is not None and clue.on_gpu not in (None, self.effect.is_on_gpu)
        if clue.is_waiting or (is_elsewhere and clue.source is not Source.TRACE):
            return False
        return not self.sign or clue.leaning in (0, self.sign)

    def _rank(self, clue: Clue) -> tuple[int, bool, bool, float]:
        """In this order causes are named, and of one kind the most expensive first."""
        if clue.source is Source.VARIABLES:
            kind = 0
        elif clue.source is Source.PACKAGES:
            kind = 2
        elif not clue.is_exact:
            kind = 3
        else:
            kind = 4 if self._is_minor(clue) else 1
        here = (None, self.is_here_gpu)
        is_elsewhere = clue.source is not Source.TRACE and clue.on_gpu not in here
        is_other_way = clue.leaning < 0 and not self.sign
        return kind, is_elsewhere, is_other_way, -clue.size_us

    def _is_minor(self, clue: Clue) -> bool:
        """Whether a clue costs next to nothing of the change, as far as both are known."""
        if self.traces is None or not self.change:
            return False
        return clue.size_us < _MINOR * abs(self.traces.base_us * self.change)

    def headline(self) -> str:
        """What is explained, in a line."""
        if self.effect is not None:
            return self.effect.sentence()
        differ = f"What differs between {self.base.short} and {self.head.short}"
        if self.traces is None:
            return differ
        seen = percentage(self.traces.effect, 1, signed=True)
        beyond = "beyond" if self.traces.shows_effect else "within"
        return f"{differ}; their traces differ by {seen}, {beyond} noise"

    def answer(self) -> list[str]:
        """The causes in words, numbered, or that there is none."""
        found = [
            f"{place}. {_capital(one.sentence)}{self._worth(one)}"
            for place, one in enumerate(self.causes, 1)
        ]
        share = self.explained
        if found and share is not None:
            whole = percentage(share, 0)
            text = f"What differs in the traces beyond noise adds up to {whole} of the change"
            rest = f"; the rest was not found in {_listed(self.looked_at)}"
            found.append(f"{text}{rest if share < _FULLY else ''}.")
        return found or [self._nothing()]

    def _worth(self, one: Clue) -> str:
        """How much of the change a cause explains, as far as it is measured."""
        if one.part is None:
            return "."
        # A part of almost nothing says nothing.
        if not self.change or abs(one.part / self.change) > _BEYOND_WHOLE:
            return f": {percentage(one.part, 1, signed=True)} of the base's time."
        return f": {percentage(one.part / self.change, 0)} of the change."

    def _nothing(self) -> str:
        text = "Nothing differs that was looked at"
        if self.is_without_change:
            text = "There is no change to explain. Looked at"
        elif self.clues:
            text = "What differs does not explain the change. Looked at"
        elif self.files is not None and self.files.file_count and self.looked_at != [FILES]:
            text = "Nothing but files differs. Looked at"
        return f"{text}: {_listed(self.looked_at)}."

    def context(self, shown: int = 4) -> list[str]:
        """So many files and commits between the ends, in sentences."""
        return [] if self.files is None else list(self.files.sentences(shown))

    def table(self, rows: int | None = _ROWS) -> Table:
        """At most so many clues: what was run with, then what costs the most, guesses last."""
        clues = sorted(
            self.clues, key=lambda one: (not one.is_cell, one.part is None, -one.size_us)
        )
        shown = [_row(one) for one in clues[:rows]]
        left = len(clues) - len(shown)
        caption = f"{left} more differences are in the record. " if left else ""
        if any(one.part is not None for one in self.clues):
            caption += "Of the base: what it costs, of the base's traced time."
        return Table(COLUMNS, shown, "what differs besides time", caption)

    def to_json(self) -> dict[str, Any]:
        """The explanation as JSON-ready values."""
        return {
            "effect": self.effect and asdict(self.effect),
            "causes": list(map(asdict, self.causes)),
            "answer": self.answer(),
            "differences": list(map(asdict, self.clues)),
            "explained": self.explained,
            "changes": self.files and self.files.to_json(),
            "traced": self.traces and self.traces.to_json(),
            "looked_at": self.looked_at,
        }


def _told_once(clues: Sequence[Clue]) -> list[Clue]:
    """What several sources saw as one clue each, as the trace has it where that is exact."""
    exact = [one for one in clues if one.source is Source.TRACE and one.is_exact]
    named = {name for one in exact for name in (one.name, *one.also)}
    seen = [one for one in clues if one.source is not Source.COUNTERS or one.name not in named]
    # What operators make new is told by the operators.
    operators = {one.leaning for one in seen if one in exact or one.what == "operators a step"}
    packages = [one for one in seen if one.source is Source.PACKAGES]
    # Of the engine's Python the most on each kind of device.
    python = sorted((one for one in seen if one.what == _PYTHON), key=lambda one: one.size_us)
    told = [
        one
        for one in seen
        if one.what != _PYTHON
        and one.source is not Source.PACKAGES
        and not (one.name.startswith("new ") and one.leaning in operators)
    ]
    return [*told, *{one.on_gpu: one for one in python}.values(), *_as_one(packages)]


def _as_one(packages: Sequence[Clue]) -> list[Clue]:
    if not packages:
        return []
    count = len(packages)
    text = "another version of " if count == 1 else f"other versions of {count} packages: "
    text += first_of([one.sentence for one in packages], _PACKAGES)
    return [replace(packages[0], sentence=text, also=tuple(one.name for one in packages[1:]))]


def _row(one: Clue) -> Sequence[Any]:
    name = one.name if len(one.name) <= _NAME else short_kernel_name(one.name, _NAME)
    note = one.what + (", waits for others" if one.is_waiting else "")
    sides = [
        value if isinstance(value, str | None) else Cell(value, text=number(value))
        for value in (one.before, one.after)
    ]
    return Cell(one.name, text=name, note=note), one.what, *sides, one.cost_us, one.part, one.source


def _listed(names: Sequence[str]) -> str:
    *first, last = names or ["nothing"]
    return f"{', '.join(first)} and {last}" if first else last


def _capital(sentence: str) -> str:
    """Names of kernels and operators stay as they are."""
    first = sentence.split(" ", 1)[0]
    is_word = first.islower() and first.isalpha()
    return f"{sentence[0].upper()}{sentence[1:]}" if is_word else sentence
