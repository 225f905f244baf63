"""Two axes at once: commits and labels, two of each, so that a change can be put down to one.

A round is one life of each of the four cells, next to each other in time. What the commits do is
the mean over both labels, what the labels do the mean over both commits; what both do together is
how far the one depends on the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any

from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.measure.rounds import Layout, Rounds, named
from asv_bench.subjects.contrasted import Contrasted
from asv_bench.subjects.declared import DeclaredSubject, under_label

BY_COMMITS, BY_LABELS, BY_BOTH = "by commits", "by labels", "by both together"
CONTRASTS = (BY_COMMITS, BY_LABELS, BY_BOTH)


@dataclass(frozen=True, slots=True)
class Cells:
    """The names of the four cells: base and head commit under the old and the new label."""

    base_old: str
    base_new: str
    head_old: str
    head_new: str

    @classmethod
    def of(cls, base: str, head: str, old: str, new: str) -> Cells:
        """The cells of two commits and two labels."""
        cells = (under_label(commit, label) for commit in (base, head) for label in (old, new))
        return cls(*cells)

    def layout(self) -> Layout:
        """A round of the four cells, and what it contrasts."""
        before, after = (self.base_old, self.base_new), (self.head_old, self.head_new)
        contrasts = {
            BY_COMMITS: (before, after),
            BY_LABELS: (
                (self.base_old, self.head_old),
                (self.base_new, self.head_new),
            ),
            BY_BOTH: ((self.base_new, self.head_old), (self.base_old, self.head_new)),
        }
        order = (self.base_old, self.base_new, self.head_new, self.head_old)
        return Layout((order,), contrasts)


class SwapSubject(Contrasted):
    """A subject that is measured at two commits under two labels in every round.

    Its axis is commits; `labels`, of its file, are the old one and the new one.
    """

    def __init__(self, subject: DeclaredSubject, labels: tuple[str, str]) -> None:
        super().__init__(subject, CONTRASTS)
        self._labels = labels

    def cells(self, base: str, head: str) -> Sequence[str]:
        """The names of all cells of two commits."""
        return astuple(Cells.of(base, head, *self._labels))

    def are_same(self, base: str, head: str) -> bool:
        """See `Subject`: never, since the labels differ."""
        return False

    @contextmanager
    def pairs(self) -> Iterator[Rounds]:
        """See `Subject`."""

        def layout(base: str, head: str) -> Layout:
            return Cells.of(base, head, *self._labels).layout()

        def cells_of(commit: str) -> list[str]:
            return [under_label(commit, label) for label in self._labels]

        with self._subject.pairs() as lives:
            yield Rounds(lives, self._subject.metrics, layout, cells_of, CONTRASTS)

    def sentence(self) -> str:
        """See `Subject`."""
        return f"{self._subject.sentence()}, under {self._labels[0]} and {self._labels[1]}"

    def to_json(self) -> dict[str, Any]:
        """See `Subject`."""
        return {**self._subject.to_json(), "labels": list(self._labels)}


def belonging(comparisons: Sequence[Comparison]) -> list[str]:
    """A sentence a metric that says which axis its change belongs to."""
    verdicts = {comparison.benchmark: comparison.verdict for comparison in comparisons}
    ends = named("", BY_BOTH)
    metrics = [name.removesuffix(ends) for name in verdicts if name.endswith(ends)]
    return [_belongs_to(metric, verdicts) for metric in metrics]


def _belongs_to(metric: str, verdicts: Mapping[str, Verdict]) -> str:
    differs = {
        contrast: verdicts[named(metric, contrast)] in (Verdict.SLOWER, Verdict.FASTER)
        for contrast in CONTRASTS
    }
    if differs[BY_BOTH]:
        return f"{metric}: what the commits do depends on the label; compare under one label alone"
    if differs[BY_COMMITS] and differs[BY_LABELS]:
        return f"{metric}: the change belongs to the commits and to the labels, each on its own"
    if differs[BY_COMMITS] or differs[BY_LABELS]:
        axis, other = ("commits", BY_LABELS) if differs[BY_COMMITS] else ("labels", BY_COMMITS)
        rest = (
            ""
            if verdicts[named(metric, other)] is Verdict.EQUIVALENT
            else (f"; whether the {other.removeprefix('by ')} do something too is not shown")
        )
        return f"{metric}: the change belongs to the {axis}{rest}"
    return f"{metric}: no change was shown along either axis"
