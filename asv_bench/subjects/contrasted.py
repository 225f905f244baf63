"""A subject whose lives run in rounds of several cells, and are judged by contrasts of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from asv_bench.git.repository import Commit
from asv_bench.measure.rounds import named
from asv_bench.subjects.declared import DeclaredSubject


class Contrasted:
    """What such subjects have in common: their metrics are the contrasts of each metric of another.

    `of_lives` names the contrast between single lives of two cells, if there is one. Its seams tell
    the noise of the machine; a mean over cells is less noisy.
    """

    def __init__(
        self, subject: DeclaredSubject, contrasts: Sequence[str], of_lives: str = ""
    ) -> None:
        self._subject = subject
        self.metric_of = {  # by the name of a contrast, the metric that it is of
            named(metric.name, contrast): metric.name
            for metric in subject.metrics
            for contrast in contrasts
        }
        self._of_lives = of_lives
        self.name = subject.name
        self.fixed = subject.fixed
        self.metrics = [
            replace(metric, name=named(metric.name, contrast))
            for metric in subject.metrics
            for contrast in contrasts
        ]

    @property
    def devices(self) -> Sequence[str]:
        """See `Subject`."""
        return self._subject.devices

    @property
    def measured(self) -> DeclaredSubject:
        """See `Subject`."""
        return self._subject

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

    def resolve(self, revision: str) -> Commit:
        """See `Subject`."""
        return self._subject.resolve(revision)

    def between(self, base: str, head: str) -> list[Commit]:
        """See `Subject`."""
        return self._subject.between(base, head)
