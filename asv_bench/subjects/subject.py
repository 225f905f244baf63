"""What is measured: figures of commits, and the lives that give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from asv_bench.measure.life import Life
    from asv_bench.subjects.subject_file import SubjectTable


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure that a subject has."""

    name: str
    unit: str  # "seconds", or another word to print behind values
    better: Literal["lower", "higher"] = "lower"
    margin: float | None = None  # the difference that matters, as a fraction; None: the command's


@dataclass(frozen=True, slots=True)
class Work:
    """What is measured, apart from the variants."""

    life: Life
    command: str | tuple[str, ...]
    """Whose interpreter runs, for the record of what variants ran with."""
    table: SubjectTable
    metrics: tuple[Metric, ...]  # those to be compared
    folder: str = ""  # where in a variant's files its commands run; "": at their top
    lists_packages: bool = True
    """Whether variants may run with other packages, so that it is looked which."""
