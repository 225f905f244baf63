"""The verb that says why one end is slower than the other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from asv_bench.errors import MeasurementFailed, TimeIsUp
from asv_bench.explain.clue import cell_clues
from asv_bench.explain.engine_counts import CPU_PATHS, GPU_PATHS, MODEL, count_ends, stand_in
from asv_bench.explain.explanation import Effect, Explanation
from asv_bench.explain.functions import FunctionProfiler
from asv_bench.explain.trace import read_traces
from asv_bench.explain.trace_pair import Trace, TracePair
from asv_bench.explain.why import files_between
from asv_bench.explain.window import Window, torch_trace
from asv_bench.git.repository import Commit
from asv_bench.output.console import print_sentences
from asv_bench.output.issue_text import described, lasting_names
from asv_bench.output.markdown import inline
from asv_bench.output.progress import Progress
from asv_bench.process.gpu import NO_GPU
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.session import Judging
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.workloads.named import default_model

STEPS = 32
"""Decode steps in a trace of kvtrail's own engine."""
_SMALL = {"random:llama": "random:llama-tiny", "random:qwen": "random:qwen3-tiny"}
_NO_TRACE = "No trace was taken, as the subject declares none: [trace] run in kvtrail.toml."


class Explaining(Judging):
    """One explanation from its first look, from the cheap to the dear, to its record.

    `ends` are what the user calls base and head, and what they are. `effect` is the change that a
    comparison measured, where one is known, and `traces` how many to take of each end.
    """

    keeps = False

    def __init__(
        self,
        subject: DeclaredSubject,
        ends: Sequence[tuple[str, Commit]],
        effect: Effect | None,
        traces: int,
    ) -> None:
        (_, base), (_, head) = self._named = ends
        settings = {
            "base": base.to_json(),
            "head": head.to_json(),
            "benchmarks": [metric.name for metric in subject.metrics],
        }
        super().__init__("explain", settings, subject)
        self._traces = traces
        self._ends = base.hash, head.hash
        self.found = Explanation(base, head, effect)

    def names(self) -> Sequence[str]:
        return self._ends

    def begin(self) -> list[str]:
        said = [
            f"{role} {commit.short} {commit.subject}".rstrip()
            for role, commit in (("base", self.found.base), ("head", self.found.head))
        ]
        if self.found.effect is None:
            said.append("No comparison of these two is stored; --compare makes one first.")
        return said

    def source(self) -> AbstractContextManager[None]:
        # Both ends are looked at in turn.
        return nullcontext()

    def measure(self, source: None) -> ExitCode:
        try:
            self.look()
        except TimeIsUp as error:
            self._stopped = error
            self.found.notes.append(f"{self._why_stopped()}: what was not looked at is missing.")
        self._record.notes += self.found.notes
        return ExitCode.GOOD

    def print_answer(self) -> None:
        found, answer = self.found, self.found.answer()
        self._console.print()
        self._console.print(found.headline(), style="bold")
        print_sentences(self._console, answer, "bold")
        versus = f"{described(found.head)} against {described(found.base)}"
        tables = [found.table()] if found.clues else []
        page = self._issue(
            found.headline() if found.effect is None else f"Why: {found.headline()}",
            # The causes come before the table that they are taken from.
            "\n\n".join([versus, *map(inline, answer)]),
            tables,
            list(found.context()),
            lasting_names(self._named),
        )
        self._files.show(*tables, page=page)
        print_sentences(self._console, found.context())

    def results(self) -> dict[str, Any]:
        return {} if self._ending else self.found.to_json()

    def look(self) -> None:
        """Look at everything that the subject has.

        Raises CommitUnusable if an end cannot be laid out.
        """
        subject, found = self._subject, self.found
        found.files = files_between(*self._ends, subject)
        found.looked_at += ["files"] if found.files else []
        if folders := subject.engines(self._ends):
            # All ends run in the ruler's own Python, with the same variables.
            self._look_at_engines(folders)
            return
        with subject.ends() as ends:
            found.clues += cell_clues(*map(ends.software, self._ends))
            found.looked_at += ["variables", "packages"]
            if life := subject.traced_life():

                def take(end: str, path: Path) -> Trace:
                    ends.trace(life, end, path)
                    return read_traces(path)

                self._trace(take)
                return
            found.notes.append(_NO_TRACE)
            if measured := subject.work.life.as_command:
                profiler = FunctionProfiler(ends, measured, self._ends)
                self._trace(profiler, ", of functions of Python")

    def _look_at_engines(self, folders: dict[str, Path]) -> None:
        devices, found = self._subject.devices, self.found
        is_gpu = not set(devices) & set(NO_GPU)
        device = "cuda" if is_gpu else "cpu"
        workload, model = self._subject.decoded(found.effect.metric if found.effect else "")
        model = model or default_model(device)
        small = next((small for start, small in _SMALL.items() if model.startswith(start)), MODEL)
        # Of the device that the change was measured on; of both where none is known.
        has_kernels = found.effect is None or found.effect.is_on_gpu
        paths = GPU_PATHS if has_kernels else CPU_PATHS
        paths = paths if found.effect else (*CPU_PATHS, *GPU_PATHS)
        try:
            with Progress(self._console, "counting what a step does"):
                base, head = (folders[end] for end in self._ends)
                clues, notes = count_ends(base, head, paths, model=small, has_kernels=has_kernels)
            found.clues += clues
            found.notes += notes
            kernels = " and kernels compiled for sm_90" if has_kernels else ""
            found.looked_at.append(f"exact counters of a step{stand_in(model, small)}{kernels}")
        except MeasurementFailed as error:
            found.notes.append(f"Nothing was counted: {error}")
        window = Window(
            workload=workload, quick=not is_gpu, model=model, device=device, steps=STEPS
        )
        variables = {"CUDA_VISIBLE_DEVICES": devices[0]} if is_gpu else {}

        def take(end: str, path: Path) -> Trace:
            return [torch_trace(window, path, folder=folders[end], variables=variables)[1]]

        self._trace(take, f" of {STEPS} decode steps of {window.shape().name} with {model}")

    def _trace(self, take: Callable[[str, Path], Trace], what: str = "") -> None:
        """Take traces of both ends in turns; `take` leaves one of an end at a path and reads it."""
        if not self._traces:
            return
        taken: dict[str, list[Trace]] = {end: [] for end in ("base", "head")}
        ends = list(zip(taken, self._ends, strict=True))
        with Progress(self._console, "tracing", 2 * self._traces, "traces") as bar:
            for number in range(self._traces):
                # Every second time in the other order.
                for role, end in ends if number % 2 == 0 else reversed(ends):
                    try:
                        with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
                            taken[role].append(take(end, Path(scratch) / "trace.json"))
                    except MeasurementFailed as error:
                        why = f"the {role} gave no trace: {error}"
                        self.found.notes.append(f"The traces are left out: {why}")
                        return
                    bar.advance()
        self.found.traces = TracePair(taken["base"], taken["head"])
        self.found.clues += self.found.traces.clues()
        count = "a trace" if self._traces == 1 else f"{self._traces} traces"
        self.found.looked_at.append(f"{count} of each end{what}")
        if self._traces == 1:
            self.found.notes.append(
                "One trace of each end has no noise to tell times from: only counts are compared."
            )
