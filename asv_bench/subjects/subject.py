"""What is measured, as the ruler sees it: named figures of commits.

A subject may have another axis than commits: ordered labels, such as versions of a dependency. A
label then stands where a commit's hash does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from asv_bench.git.repository import Commit
from asv_bench.measure.samples import PairSource

if TYPE_CHECKING:
    from asv_bench.subjects.declared import DeclaredSubject


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure that a subject has."""

    name: str
    unit: str  # "seconds", or another word to print behind values
    better: Literal["lower", "higher"] = "lower"
    margin: float | None = None  # the difference that matters, as a fraction; None: the command's


class Subject(Protocol):
    """Something that commits of a repository have, and that can be measured."""

    @property
    def name(self) -> str:
        """In one word, for records and folders."""
        ...

    @property
    def metrics(self) -> Sequence[Metric]:
        """The figures that are compared."""
        ...

    @property
    def metric_of(self) -> Mapping[str, str]:
        """By the name of each metric, that of the figure of lives that it is made of."""
        ...

    @property
    def of_lives(self) -> Mapping[str, str]:
        """By figures of lives, the metrics that are differences between two single lives."""
        ...

    @property
    def measured(self) -> DeclaredSubject:
        """The subject whose lives give them."""
        ...

    @property
    def fixed(self) -> str:
        """A hash of the files that all commits take from the working tree; "" without such files.

        Figures taken under another are not those of the same measurement.
        """
        ...

    @property
    def devices(self) -> Sequence[str]:
        """Where it is measured, a pair at a time on each."""
        ...

    @property
    def remarks(self) -> Sequence[str]:
        """Sentences about commits that were laid out so far, for the record."""
        ...

    def resolve(self, revision: str) -> Commit:
        """The commit that a revision names; "." is the working tree as it stands.

        Raises Refused where there is no such commit.
        """
        ...

    def are_same(self, base: str, head: str) -> bool:
        """Whether nothing that is measured differs between two commits."""
        ...

    def between(self, base: str, head: str) -> list[Commit]:
        """The commits after `base` up to and with `head`, given by full hashes, in their order.

        Raises Refused where there is no way from one to the other.
        """
        ...

    def pairs(self) -> AbstractContextManager[PairSource]:
        """What measures; leaving it as a context ends its processes."""
        ...

    def sentence(self) -> str:
        """What is measured and where, for the user to check."""
        ...

    def to_json(self) -> dict[str, Any]:
        """What is measured, for the record."""
        ...
