"""What a declared subject's lives are, and what runs them: this machine, or others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from asv_bench.measure.life import Life
from asv_bench.measure.samples import RoundSource
from asv_bench.measure.software import Software
from asv_bench.subjects.subject import Metric
from asv_bench.subjects.subject_file import SubjectTable


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


class LivesElsewhere(RoundSource, Protocol):
    """What runs lives on other machines; they end with `stop`.

    The fields are as those of `DeclaredSubject`; they grow while lives are measured.
    """

    cells: dict[str, Software]
    others: dict[str, dict[str, list[float]]]
    remarks: list[str]
