"""The two ends of a comparison as they lie on disk: what they run with, and traces of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from asv_bench.subjects.cell import Cell, cell_of
from asv_bench.subjects.life import Life
from asv_bench.subjects.lives import Place
from asv_bench.subjects.processes import Job, Processes
from asv_bench.subjects.subject_file import SubjectTable
from asv_bench.subjects.trees import Laid, Trees

TRACE = "KVTRAIL_TRACE"
"""Tells a traced life where its trace goes."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Variants of a subject, laid out with their setups made.

    Attributes
    ----------
    trees
        Lays them out.
    processes
        Runs their commands.
    table
        `[subject]`.
    command
        What a life runs, whose interpreter is asked for its packages.
    place
        Where lives run.
    traced
        A life that leaves a trace; None: the subject has no `[trace]`.
    """

    trees: Trees
    processes: Processes
    table: SubjectTable
    command: str | tuple[str, ...]
    place: Place
    traced: Life | None

    def tree(self, name: str) -> Path:
        """The folder with the files of a variant.

        Raises
        ------
        CommitUnusable
            If it cannot be laid out, or its setup fails.
        """
        return self.trees.lay_out(name).top

    def cell(self, name: str) -> Cell:
        """What a variant runs with."""
        laid = self.trees.lay_out(name)
        job = Job(self.command, laid.tree, self._variables(laid))
        return cell_of(self.command, job, self.processes, self.table.env)

    def trace(self, name: str, target: Path) -> None:
        """Run the traced life of a variant, which leaves its trace at `target`.

        Raises
        ------
        LifeFailed
            If it does not end well.
        """
        assert self.traced is not None
        laid = self.trees.lay_out(name)
        variables = self._variables(laid, **{TRACE: str(target)})
        self.traced.live(laid, variables, self.place.cores, self.processes)

    def _variables(self, laid: Laid, **more: str) -> dict[str, str]:
        return laid.environment(self.table, **self.place.variables(), **more)
