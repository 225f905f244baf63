"""Three commits at once: a base, one between, and a head, all measured in the same rounds.

A round is one life of each, so that every two of them are compared by pairs of the same moments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from asv_bench.git.repository import Commit
from asv_bench.measure.rounds import Layout, Rounds, RoundSource
from asv_bench.subjects.contrasted import Contrasted
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.subject import Metric


@dataclass(frozen=True, slots=True)
class Roles:
    """What the three commits are called; contrasts are named by two of them, the head first."""

    base: str
    between: str
    head: str

    @property
    def first_step(self) -> str:
        """From the base to the one between."""
        return f"{self.between}/{self.base}"

    @property
    def whole_way(self) -> str:
        """From the base to the head."""
        return f"{self.head}/{self.base}"

    @property
    def second_step(self) -> str:
        """From the one between to the head."""
        return f"{self.head}/{self.between}"

    @property
    def contrasts(self) -> tuple[str, str, str]:
        """All three."""
        return self.first_step, self.whole_way, self.second_step


class ThreeCells(Contrasted):
    """A subject that is measured at three commits in every round.

    `between` is the commit, or label, between base and head. With `is_head` it is the head itself:
    a round is then a life of it and one of the base.
    """

    def __init__(
        self,
        subject: DeclaredSubject,
        between: Commit,
        roles: Roles,
        *,
        is_head: bool = False,
    ) -> None:
        if is_head:
            super().__init__(subject, [roles.first_step], of_lives=roles.first_step)
        else:
            super().__init__(subject, roles.contrasts, of_lives=roles.whole_way)
        self._between = between
        self._is_head = is_head
        self.roles = roles

    def are_same(self, base: str, head: str) -> bool:
        """See `Subject`."""
        return self._subject.are_same(base, head)

    @contextmanager
    def pairs(self) -> Iterator[Rounds]:
        """See `Subject`."""
        metrics, roles = self._subject.metrics, self.roles
        with self._subject.pairs() as lives:
            if self._is_head:
                yield Rounds(lives, metrics, self._two, lambda one: [one], [roles.first_step])
            else:
                yield three_cells(lives, metrics, self._between.hash, roles)

    def _two(self, base: str, head: str) -> Layout:
        return Layout(((base, head),), {self.roles.first_step: ((base,), (head,))})

    def sentence(self) -> str:
        """See `Subject`."""
        return f"{self._subject.sentence()}, of all {2 if self._is_head else 3} in every round"

    def to_json(self) -> dict[str, Any]:
        """See `Subject`."""
        return {**self._subject.to_json(), self.roles.between: self._between.to_json()}


def three_cells(
    lives: RoundSource, metrics: Sequence[Metric], between: str, roles: Roles
) -> Rounds:
    """Rounds of a base, this commit (or label) and a head."""

    def layout(base: str, head: str) -> Layout:
        return Layout(
            # Each with its opposite: all six orders, so that every cell has every place.
            orders=((base, between, head), (between, base, head), (base, head, between)),
            contrasts={
                roles.first_step: ((base,), (between,)),
                roles.whole_way: ((base,), (head,)),
                roles.second_step: ((between,), (head,)),
            },
        )

    def cells_of(commit: str) -> tuple[str, ...]:
        # The one between is made ready with either: without it there is nothing to say.
        return commit, between

    return Rounds(lives, metrics, layout, cells_of, roles.contrasts)
