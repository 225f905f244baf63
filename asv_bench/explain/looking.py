"""Looking at both ends: files, what they run with, exact counters, traces."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from asv_bench.errors import MeasurementFailed
from asv_bench.explain.clue import cell_clues
from asv_bench.explain.commit_files import files_between
from asv_bench.explain.effect import Effect
from asv_bench.explain.engine_counts import ALL_PATHS, CPU_PATHS, count_ends
from asv_bench.explain.explanation import FILES, Explanation
from asv_bench.explain.trace import read_traces
from asv_bench.explain.trace_pair import Trace, TracePair
from asv_bench.explain.window import Window, torch_trace
from asv_bench.git.repository import Commit
from asv_bench.lab.step_counters import MODEL
from asv_bench.output.progress import Progress
from asv_bench.process.gpu import NO_GPU
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.own_suite import engine_of
from asv_bench.workloads.named import default_model

STEPS = 32
"""Decode steps in a trace of kvtrail's own engine."""
_SMALL = {"random:llama": "random:llama-tiny", "random:qwen": "random:qwen3-tiny"}
_SAME = (
    "Both ends hold the same files in what is measured, so nothing more was looked at; --anyway "
    "looks all the same."
)
_NO_TRACE = (
    "No trace was taken, as the subject declares none: [trace] run in kvtrail.toml names a command "
    "that leaves one, by which kernels and operators are told apart."
)


@dataclass
class Looking:
    """Looks at two ends of a subject, from the cheap to the dear."""

    subject: DeclaredSubject
    base: Commit
    head: Commit
    effect: Effect | None  # the change that a comparison measured; None: none is known
    traces: int  # to take of each end
    console: Console  # shows what is being done

    def __post_init__(self) -> None:
        self._ends = self.base.hash, self.head.hash
        self._is_here_gpu = not set(self.subject.devices) & set(NO_GPU)
        self.found = Explanation(self.base, self.head, self._is_here_gpu, self.effect)

    def run(self, *, anyway: bool = False) -> Explanation:
        """Look at everything that the subject has.

        Nothing but files is looked at where these are the same at both ends, unless `anyway`.

        Raises CommitUnusable if an end cannot be laid out.
        """
        subject, found = self.subject, self.found
        found.files = files_between(*self._ends, subject)
        found.looked_at += [FILES] if found.files else []
        if not anyway and subject.are_same(*self._ends):
            found.notes.append(_SAME)
        elif subject.has_engine:
            # All ends run in the ruler's own Python, with the same variables.
            self._look_at_engines({end: engine_of(subject, end) for end in self._ends})
        else:
            with subject.ends() as ends:
                cells = [ends.cell(end) for end in self._ends]
                found.clues += cell_clues(*cells)
                found.looked_at += ["variables", "packages"]

                def take(end: str, path: Path) -> Trace:
                    ends.trace(end, path)
                    return read_traces(path)

                if ends.traced is None:
                    found.notes.append(_NO_TRACE)
                else:
                    self._trace(take)
        return found

    def _look_at_engines(self, folders: dict[str, Path]) -> None:
        device = "cuda" if self._is_here_gpu else "cpu"
        workload, model = self.subject.decoded(self.effect.metric if self.effect else "")
        window = Window(
            workload=workload,
            quick=not self._is_here_gpu,
            model=model or default_model(device),
            device=device,
            steps=STEPS,
        )
        self._count(folders, window.model)
        variables = {"CUDA_VISIBLE_DEVICES": self.subject.devices[0]} if self._is_here_gpu else {}

        def take(end: str, path: Path) -> Trace:
            traced = torch_trace(window, path, folder=folders[end], variables=variables)
            return [traced.summary]

        self._trace(take, f" of {STEPS} decode steps of {window.shape().name} with {window.model}")

    def _count(self, folders: dict[str, Path], model: str) -> None:
        base, head = (folders[end] for end in self._ends)
        # What a comparison on the CPU shows is no kernel's of a GPU.
        has_kernels = self.effect is None or self.effect.is_on_gpu
        paths = ALL_PATHS if has_kernels else CPU_PATHS
        small = next((small for start, small in _SMALL.items() if model.startswith(start)), MODEL)
        found = self.found
        try:
            with Progress(self.console, "counting what a step does"):
                counted = count_ends(base, head, model=small, paths=paths, has_kernels=has_kernels)
        except MeasurementFailed as error:
            found.notes.append(f"Nothing was counted: {error}")
            return
        found.clues += counted.clues
        found.notes += counted.notes
        if stand_in := counted.stand_in([model]):
            found.notes.append(f"Steps were counted {stand_in}.")
        kernels = " and kernels compiled for sm_90" if has_kernels else ""
        found.looked_at.append(f"exact counters of a step{kernels}")

    def _trace(self, take: Callable[[str, Path], Trace], what: str = "") -> None:
        """Take traces of both ends in turns; `take` leaves one of an end at a path and reads it."""
        if not self.traces:
            return
        found, taken = self.found, dict[str, list[Trace]](base=[], head=[])
        hashes = dict(zip(taken, self._ends, strict=True))
        with Progress(self.console, "tracing", 2 * self.traces, "traces") as bar:
            for number in range(self.traces):
                # Every second time in the other order.
                for end in taken if number % 2 == 0 else reversed(taken):
                    try:
                        with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
                            taken[end].append(take(hashes[end], Path(scratch) / "trace.json"))
                    except MeasurementFailed as error:
                        why = f"the {end} gave no trace: {error}"
                        found.notes.append(f"The traces are left out: {why}")
                        return
                    bar.advance()
        found.traces = TracePair(taken["base"], taken["head"])
        found.clues += found.traces.clues()
        count = "a trace" if self.traces == 1 else f"{self.traces} traces"
        found.looked_at.append(f"{count} of each end{what}")
        if what:
            found.notes.append(f"Traced were {count} of each end{what}.")
        if self.traces == 1:
            found.notes.append(
                "One trace of each end has no noise to tell times from: only counts are compared."
            )
