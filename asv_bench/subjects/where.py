"""What a declared subject's lives are, and what runs them: this machine, or others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from asv_bench.process.samples import LifeSource, PairSource
from asv_bench.subjects.cell import Cell
from asv_bench.subjects.life import Life
from asv_bench.subjects.subject import Metric
from asv_bench.subjects.subject_file import SubjectTable


@dataclass(frozen=True, slots=True)
class Work:
    """What is measured, apart from the variants.

    Attributes
    ----------
    command
        That whose interpreter runs, for the record of the cell.
    metrics
        Those to be compared.
    folder
        Where in the files of a variant its commands run; "": at their top.
    lists_packages
        Whether variants may run with other packages, so that it is looked which.
    """

    life: Life
    command: str | tuple[str, ...]
    table: SubjectTable
    metrics: tuple[Metric, ...]
    folder: str = ""
    lists_packages: bool = True


class LivesElsewhere(LifeSource, PairSource, Protocol):
    """What runs lives on other machines; they end with `stop`.

    Attributes
    ----------
    cells, others, remarks
        As those of `DeclaredSubject`; they grow while lives are measured.
    """

    cells: dict[str, Cell]
    others: dict[str, dict[str, list[float]]]
    remarks: list[str]
