"""Looking at both ends: files, what they run with, exact counters, traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from asv_bench.compare.bench_setup import BenchSetup
from asv_bench.errors import MeasurementFailed
from asv_bench.explain.cell_differences import cell_differences
from asv_bench.explain.commit_files import changes_between
from asv_bench.explain.effect import Effect
from asv_bench.explain.engine_counts import ALL_PATHS, CPU_PATHS, GPU_PATHS, count_ends
from asv_bench.explain.explanation import FILES, Explanation
from asv_bench.explain.profile_child import Window
from asv_bench.explain.ranking import Question
from asv_bench.explain.step_profile import StepProfile
from asv_bench.explain.trace_pair import TracePair
from asv_bench.explain.traces import engine_trace, in_turns, subject_trace
from asv_bench.git.repository import Commit
from asv_bench.output.progress import Progress
from asv_bench.process.gpu import NO_GPU
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.engine_runs import EngineRuns
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


class Looking:
    """Looks at two ends of a subject, from the cheap to the dear.

    Parameters
    ----------
    subject
        What is measured.
    base, head
        The ends.
    effect
        The change that a comparison measured; None: none is known.
    traces
        Of each end.
    progress
        Makes a bar of what is being done, how many of it, and their unit.
    """

    def __init__(
        self,
        subject: DeclaredSubject | BenchSetup,
        base: Commit,
        head: Commit,
        effect: Effect | None,
        traces: int,
        progress: Callable[[str, int, str], Progress],
    ) -> None:
        self._subject = subject
        self._ends = base.hash, head.hash
        self._effect = effect
        self._count = traces
        self._progress = progress
        self._is_here_gpu = not set(subject.devices) & set(NO_GPU)
        self.found = Explanation(base, head, Question(effect, None, self._is_here_gpu), None)

    def run(self, *, anyway: bool = False) -> Explanation:
        """Look at everything that the subject has.

        Nothing but files is looked at where these are the same at both ends, unless `anyway`.

        Raises
        ------
        CommitUnusable
            If an end cannot be laid out.
        """
        subject = self._subject
        if not (isinstance(subject, DeclaredSubject) and subject.labels):
            self.found.changes = changes_between(*self._ends, subject)
            self.found.looked_at.append(FILES)
        if not anyway and subject.are_same(*self._ends):
            self.found.notes.append(_SAME)
            return self.found
        if isinstance(subject, BenchSetup):
            self._look_at_engines([subject.sources.checkout(end) for end in self._ends])
            return self.found
        with subject.ends() as ends:
            folders = [ends.tree(end) for end in self._ends]
            self.found.differences += cell_differences(*(ends.cell(end) for end in self._ends))
            self.found.looked_at += ["variables", "packages"]
            if isinstance(subject, EngineRuns):
                self._look_at_engines(folders)
            elif ends.traced is not None:
                self._trace(lambda end: subject_trace(ends, end))
            else:
                self.found.notes.append(_NO_TRACE)
        return self.found

    def _look_at_engines(self, folders: list[Path]) -> None:
        self._count_engines(folders)
        window = self._window()
        of_end = dict(zip(self._ends, folders, strict=True))
        variables = {"CUDA_VISIBLE_DEVICES": self._subject.devices[0]} if self._is_here_gpu else {}

        def take(end: str) -> StepProfile:
            return engine_trace(of_end[end], window, variables)

        if self._count:
            self._note_what_the_traces_are_not(window)
        what = f"{STEPS} decode steps of {window.shape().name} with {window.model}"
        self._trace(take, f" of {what}")

    def _count_engines(self, folders: list[Path]) -> None:
        measured = self._effect.is_on_gpu if self._effect is not None else None
        paths = CPU_PATHS if measured is False else GPU_PATHS if measured else ALL_PATHS
        model = self._window().model
        small = next((small for start, small in _SMALL.items() if model.startswith(start)), None)
        with self._progress("counting what a step does", 2, "ends") as bar:
            try:
                counted = count_ends(
                    *folders,
                    model=small or "random:gpt2-tiny",
                    paths=paths,
                    has_kernels=measured is not False,
                    on_end=bar.advance,
                )
            except MeasurementFailed as error:
                self.found.notes.append(f"Nothing was counted: {error}")
                return
        self.found.differences += counted.differences
        self.found.notes += counted.notes
        if stand_in := counted.stand_in([model]):
            self.found.notes.append(f"Steps were counted {stand_in}.")
        kernels = " and kernels compiled for sm_90" if measured is not False else ""
        self.found.looked_at.append(f"exact counters of a step{kernels}")

    def _note_what_the_traces_are_not(self, window: Window) -> None:
        """Say where the traced steps are not those that were measured."""
        effect, subject = self._effect, self._subject
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

    def _trace(self, take: Callable[[str], StepProfile], what: str = "") -> None:
        if not self._count:
            return
        with self._progress("tracing", 2 * self._count, "traces") as bar:
            try:
                traces = in_turns(take, self._ends, self._count, bar.advance)
            except MeasurementFailed as error:
                self.found.notes.append(f"The traces are left out: {error}")
                return
        self._take(traces)
        count = "a trace" if self._count == 1 else f"{self._count} traces"
        self.found.looked_at.append(f"{count} of each end{what}")

    def _take(self, traces: TracePair) -> None:
        self.found.question = Question(self._effect, traces, self._is_here_gpu)
        self.found.differences += traces.differences()
        if self._count == 1:
            self.found.notes.append(
                "One trace of each end has no noise to tell times from: only counts are compared."
            )

    def _window(self) -> Window:
        """What is decoded under the profiler: the workload that was measured."""
        device = "cuda" if self._is_here_gpu else "cpu"
        workload, model = "scheduler", None
        if isinstance(self._subject, EngineRuns):
            workload, model = self._subject.workload.name, self._subject.workload.model
        elif self._effect is not None:
            words = self._effect.metric.lower().replace("(", ".").split(".")
            workload = next((word for word in words if word in WORKLOADS), workload)
        return Window(
            workload=workload,
            quick=not self._is_here_gpu,
            model=model or default_model(device),
            device=device,
            decode="auto",
            steps=STEPS,
            trace=None,
        )
