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
    """

    def __init__(self, subject: S, contrasts: Sequence[str]) -> None:
        self._subject = subject
        self.name = subject.name
        self.fixed = subject.fixed
        self.devices = subject.devices
        self.metrics = [
            replace(metric, name=named(metric.name, contrast))
            for metric in subject.metrics
            for contrast in contrasts
        ]

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
