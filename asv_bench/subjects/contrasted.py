"""A subject whose lives run in rounds of several cells, and are judged by contrasts of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from asv_bench.compare.bench_setup import BenchSetup
from asv_bench.git.repository import Commit
from asv_bench.subjects.cell import Cell
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.rounds import named

S = TypeVar("S", bound=DeclaredSubject | BenchSetup)


class Contrasted(Generic[S]):
    """What such subjects have in common: their metrics are the contrasts of each metric of another.

    Parameters
    ----------
    subject
        The other one, which is measured.
    contrasts
        Their names.
    of_lives
        Of these the one between single lives of two cells, if there is one. Its seams tell the
        noise of the machine; a mean over cells is less noisy.

    Attributes
    ----------
    measured
        The other subject.
    metric_of
        The name of the metric that a contrast is of, by the contrast's.
    """

    def __init__(self, subject: S, contrasts: Sequence[str], of_lives: str = "") -> None:
        self._subject = self.measured = subject
        self.metric_of = {
            named(metric.name, contrast): metric.name
            for metric in subject.metrics
            for contrast in contrasts
        }
        self._of_lives = of_lives
        self.name = subject.name
        self.fixed = subject.fixed
        self.devices = subject.devices
        self.metrics = [
            replace(metric, name=named(metric.name, contrast))
            for metric in subject.metrics
            for contrast in contrasts
        ]

    @property
    def of_lives(self) -> Mapping[str, str]:
        """The names of contrasts between single lives, by metric."""
        return {
            metric: name
            for name, metric in self.metric_of.items()
            if name == named(metric, self._of_lives)
        }

    @property
    def remarks(self) -> Sequence[str]:
        """See `Subject`."""
        return self._subject.remarks

    @property
    def cells(self) -> Mapping[str, Cell]:
        """What each cell ran with, by its name."""
        return self._subject.cells if isinstance(self._subject, DeclaredSubject) else {}

    def resolve(self, revision: str) -> Commit:
        """See `Subject`."""
        return self._subject.resolve(revision)

    def between(self, base: str, head: str) -> list[Commit]:
        """See `Subject`."""
        return self._subject.between(base, head)
