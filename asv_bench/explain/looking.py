"""Looking at both ends: files, what they run with, exact counters, traces."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from asv_bench.errors import MeasurementFailed
from asv_bench.explain.clue import cell_clues
from asv_bench.explain.commit_files import files_between
from asv_bench.explain.effect import Effect
from asv_bench.explain.engine_counts import ALL_PATHS, CPU_PATHS, GPU_PATHS, count_ends
from asv_bench.explain.explanation import FILES, Explanation
from asv_bench.explain.profile_child import Window
from asv_bench.explain.trace import read_traces, require_work
from asv_bench.explain.trace_pair import Trace, TracePair
from asv_bench.explain.traced import torch_trace
from asv_bench.git.repository import Commit
from asv_bench.lab.step_counters import MODEL
from asv_bench.output.progress import Progress
from asv_bench.process.gpu import NO_GPU
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.engine_runs import EngineRuns
from asv_bench.subjects.own_suite import OwnSuite
from asv_bench.workloads.named import WORKLOADS, default_model

STEPS = 32
"""Decode steps in a trace of kvtrail's own engine."""
_SMALL = {"random:llama": "random:llama-tiny", "random:qwen": "random:qwen3-tiny"}
_OF_STEPS = ("step", "tpot", "tokens")
"""In names of metrics that decode steps decide."""
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
    # Makes a bar of what is being done, how many of it, and their unit.
    progress: Callable[[str, int, str], Progress]

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
            return found
        if isinstance(subject, OwnSuite):
            self._look_at_engines([subject.folder_of(end) for end in self._ends])
            return found
        with subject.ends() as ends:
            folders = [ends.tree(end) for end in self._ends]
            found.clues += cell_clues(*(ends.cell(end) for end in self._ends))
            found.looked_at += ["variables", "packages"]
            if isinstance(subject, EngineRuns):
                self._look_at_engines(folders)
            elif ends.traced is not None:

                def take(end: str, path: Path) -> Trace:
                    ends.trace(end, path)
                    return read_traces(path)

                self._trace(take)
            else:
                found.notes.append(_NO_TRACE)
        return found

    def _look_at_engines(self, folders: list[Path]) -> None:
        window = self._window()
        self._count_engines(folders, window.model)
        of_end = dict(zip(self._ends, folders, strict=True))
        variables = {"CUDA_VISIBLE_DEVICES": self.subject.devices[0]} if self._is_here_gpu else {}

        def take(end: str, path: Path) -> Trace:
            traced = torch_trace(window, path, folder=of_end[end], variables=variables)
            return [require_work(traced.summary)]

        if self.traces:
            self._note_what_the_traces_are_not(window)
        self._trace(take, f" of {STEPS} decode steps of {window.shape().name} with {window.model}")

    def _count_engines(self, folders: list[Path], model: str) -> None:
        measured = self.effect.is_on_gpu if self.effect is not None else None
        paths = CPU_PATHS if measured is False else GPU_PATHS if measured else ALL_PATHS
        small = next((small for start, small in _SMALL.items() if model.startswith(start)), MODEL)
        with self.progress("counting what a step does", 2, "ends") as bar:
            try:
                counted = count_ends(
                    *folders,
                    model=small,
                    paths=paths,
                    has_kernels=measured is not False,
                    on_end=bar.advance,
                )
            except MeasurementFailed as error:
                self.found.notes.append(f"Nothing was counted: {error}")
                return
        self.found.clues += counted.clues
        self.found.notes += counted.notes
        if stand_in := counted.stand_in([model]):
            self.found.notes.append(f"Steps were counted {stand_in}.")
        kernels = " and kernels compiled for sm_90" if measured is not False else ""
        self.found.looked_at.append(f"exact counters of a step{kernels}")

    def _note_what_the_traces_are_not(self, window: Window) -> None:
        """Say where the traced steps are not those that were measured."""
        effect, subject = self.effect, self.subject
        if effect is not None and not any(word in effect.metric for word in _OF_STEPS):
            self.found.notes.append(
                f"The traces are of decode steps, and the change is of {effect.metric}."
            )
        sizes = ("batch", "prompt_len", "new_tokens")
        if isinstance(subject, EngineRuns) and any(
            getattr(subject.workload, size) is not None for size in sizes
        ):
            self.found.notes.append(
                f"The traced steps have the sizes of {window.shape().name}, not those given."
            )

    def _trace(self, take: Callable[[str, Path], Trace], what: str = "") -> None:
        """Take traces of both ends in turns; `take` leaves one of an end at a path and reads it."""
        if not self.traces:
            return
        found, taken = self.found, dict[str, list[Trace]](base=[], head=[])
        hashes = dict(zip(taken, self._ends, strict=True))
        with self.progress("tracing", 2 * self.traces, "traces") as bar:
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
        if self.traces == 1:
            found.notes.append(
                "One trace of each end has no noise to tell times from: only counts are compared."
            )
        count = "a trace" if self.traces == 1 else f"{self.traces} traces"
        found.looked_at.append(f"{count} of each end{what}")

    def _window(self) -> Window:
        """What is decoded under the profiler: the workload that was measured."""
        device = "cuda" if self._is_here_gpu else "cpu"
        workload, model = "scheduler", None
        if isinstance(self.subject, EngineRuns):
            workload, model = self.subject.workload.name, self.subject.workload.model
        elif self.effect is not None:
            words = self.effect.metric.lower().replace("(", ".").split(".")
            workload = next((word for word in words if word in WORKLOADS), workload)
        return Window(
            workload=workload,
            quick=not self._is_here_gpu,
            model=model or default_model(device),
            device=device,
            decode="auto",
            steps=STEPS,
        )
