"""The two ends of a comparison as they lie on disk: what they run with, and traces of them."""

from __future__ import annotations

import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from asv_bench.measure.interpreter import Watched
from asv_bench.measure.life import Life, Setting
from asv_bench.measure.lives import Place
from asv_bench.measure.processes import Job, LifeFailed, Processes
from asv_bench.measure.software import Software, software_of
from asv_bench.measure.trees import Laid, Trees
from asv_bench.subjects.subject_file import SubjectTable

_GLANCE_S, _POLL_S = 5.0, 0.02
"""For a life to come to the Python that does its work."""
TRACE = "KVTRAIL_TRACE"
"""Tells a traced life where its trace goes."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Variants of a subject, laid out with their setups made."""

    trees: Trees  # lays variants out
    processes: Processes  # runs their commands
    table: SubjectTable  # `[subject]`
    command: str | tuple[str, ...]  # what a life runs, whose interpreter is asked for its packages
    place: Place  # where lives run
    traced: Life | None  # a life that leaves a trace; None: the subject has no `[trace]`

    def tree(self, name: str) -> Path:
        """The folder with the files of a variant.

        Raises CommitUnusable where it cannot be laid out, or its setup fails.
        """
        return self.trees.lay_out(name).top

    def cell(self, name: str) -> Software:
        """What a variant runs with, as a life of it shows, which is ended once that is known."""
        laid = self.trees.lay_out(name)
        watched = Watched(self.processes)
        with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch, suppress(LifeFailed):
            # Port 0 is any that is free.
            told = {"KVTRAIL_RESULT": str(Path(scratch) / "result.json"), "KVTRAIL_PORT": "0"}
            job = Job(self.command, laid.tree, self._variables(laid, **told), self.place.cores)
            with watched.started(job) as life:
                seconds = 0.0
                while not life.has_ended() and seconds < self.table.timeout_s:
                    if watched.python and seconds > _GLANCE_S:
                        break
                    time.sleep(_POLL_S)
                    seconds = time.perf_counter() - life.begun
        job = Job(self.command, laid.tree, self._variables(laid))
        return software_of(watched.python, job, self.processes, self.table.env)

    def trace(self, name: str, target: Path) -> None:
        """Run the traced life of a variant, which leaves its trace at `target`.

        Raises LifeFailed where it does not end well.
        """
        assert self.traced is not None
        laid = self.trees.lay_out(name)
        variables = self._variables(laid, **{TRACE: str(target)})
        self.traced.live(Setting(laid, variables, self.place.cores, self.processes), ())

    def _variables(self, laid: Laid, **more: str) -> dict[str, str]:
        return laid.environment(self.table, **self.place.variables(), **more)
