"""kvtrail's own engine on a named workload as the subject, with model and sizes as parameters.

A life is `run WORKLOAD` by today's ruler in the files of the commit.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from asv_bench.process.environment import borrowed_paths, search_path
from asv_bench.process.machine import chosen_device, has_cuda_gpu
from asv_bench.subjects.own_suite import ENGINE_NEEDS, EngineSubject
from asv_bench.subjects.subject_file import MetricTable, SubjectTable, SubjectText
from asv_bench.workloads.named import workload_named

RULER = "asv_bench"
RUNS = 5
"""Windows of a life, after a warm-up; processes differ more than these do."""
_METRICS = {
    "step_ms": MetricTable("results.runs.step_ms", unit="ms"),
    "tpot_ms": MetricTable("results.runs.tpot_ms", unit="ms"),
    "ttft_ms": MetricTable("results.runs.ttft_ms", unit="ms"),
    "tokens_per_s": MetricTable("results.runs.tokens_per_s", unit="tokens/s", better="higher"),
}


@dataclass(frozen=True, slots=True)
class EngineWorkload:
    """A workload of `workloads.named`, and what is changed of it; None: the workload's own."""

    name: str
    model: str | None = None
    batch: int | None = None
    prompt_len: int | None = None
    new_tokens: int | None = None

    def options(self) -> list[tuple[str, str]]:
        """The options that name it, with their values."""
        return [
            (f"--{'workload' if key == 'name' else key.replace('_', '-')}", str(value))
            for key, value in asdict(self).items()
            if value is not None
        ]

    def line(self) -> str:
        """The command that measures it."""
        name = workload_named(self.name).name
        words = [sys.executable, "-P", "-m", RULER, "run", name, "--quiet"]
        words += ["--repeat-runs", str(RUNS), *([] if has_cuda_gpu() else ["--quick"])]
        words += chain.from_iterable(self.options()[1:])
        return f'{shlex.join(words)} --json "$KVTRAIL_RESULT"'


class EngineRuns(EngineSubject):
    """Runs of the engine that a commit of kvtrail has; `root` is the checkout."""

    def __init__(self, root: Path, workload: EngineWorkload) -> None:
        self.workload = workload
        paths = search_path(["$KVTRAIL_TREE", *borrowed_paths()])
        table = SubjectTable(
            name=f"kvtrail-{workload.name}",
            measure=workload.line(),
            devices=1 if has_cuda_gpu() else None,
            # Lives of a commit share its folder, and what is compiled there.
            env={"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""},
            pinned=(RULER,),
            preload=(*ENGINE_NEEDS, "msgspec", "typer", "rich.console", "rich.table"),
        )
        super().__init__(root, SubjectText(table, metrics=_METRICS))

    @property
    def models(self) -> Sequence[str]:
        device = chosen_device("auto")
        own = workload_named(self.workload.name).default_model(device, is_quick=device == "cpu")
        return [self.workload.model or own]

    def decoded(self, metric: str) -> tuple[str, str | None]:
        """See `DeclaredSubject`."""
        return self.workload.name, self.models[0]

    def choose(self, patterns: Sequence[str], devices: str | None) -> None:
        """Choose metrics; without patterns the step time alone is compared."""
        super().choose(patterns or ("^step_ms$",), devices)
