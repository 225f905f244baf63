"""The process that counts what the engine of one end does, and compiles its kernels.

Run as `python -P -m asv_bench.explain.count_child '{"folder": ...}'` with the end's engine first on
the search path; it leaves its answer as JSON in a file.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from asv_bench.errors import BenchError
from asv_bench.lab.counters.operator_ledger import OperatorLedger
from asv_bench.lab.counters.pretend_cuda import Traffic
from asv_bench.lab.counters.step_counters import (
    BLOCK_SIZE,
    StepPath,
    device_of,
    path_named,
    refuse_what_changes_the_path,
    run_steps,
    warm_engine,
)
from asv_bench.process.contract import MEASURED_PACKAGES

if TYPE_CHECKING:
    from asv_bench.lab.codegen.launched_kernels import LaunchedKernel

KERNEL_BATCH = 64


@dataclass(frozen=True, slots=True)
class Task:
    """What to count, and where the answer goes.

    Attributes
    ----------
    folder
        Where the end's engine lies.
    paths
        Names of `step_counters.PATHS`.
    model
        A built-in one, small enough for the CPU.
    batch
        Requests that decode.
    has_kernels
        Whether to list the kernels that a Hopper GPU would run.
    compiled
        Of these kernels, those to compile.
    """

    folder: str
    answer: str
    paths: tuple[str, ...] = ()
    model: str = "random:gpt2-tiny"
    batch: int = 8
    has_kernels: bool = False
    compiled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PathCounts:
    """Counts of one path, each a step, as a mean over the steps of a block.

    `traffic` are copies, their bytes, replays and new memory. Functions are the engine's own.
    """

    operators: dict[str, float]
    launches: dict[str, float]
    traffic: dict[str, float]
    calls: dict[str, float]
    lines: dict[str, float]


@dataclass(slots=True)
class Counts:
    """An answer.

    Attributes
    ----------
    paths
        By name; those that could not be counted are in `failures`, with a sentence.
    kernels
        A hash of what is compiled, by the kernel's name.
    figures
        Of compiled kernels.
    layers
        Of the model; 0 where the engine does not tell.
    """

    paths: dict[str, PathCounts] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    layers: int = 0
    failures: dict[str, str] = field(default_factory=dict)


def count(task: Task) -> Counts:
    """Count and compile what was asked for; what fails is noted, the rest goes on."""
    counts = Counts()
    import engine

    if not Path(str(engine.__file__)).is_relative_to(task.folder):
        counts.failures["engine"] = "it has no engine to import"
        return counts
    with suppress(Exception):  # engines of other ages hold their models elsewhere
        from engine.models.registry import RANDOM_CONFIGS

        counts.layers = RANDOM_CONFIGS[task.model.partition(":")[2]].num_layers
    for name in task.paths:
        try:
            counts.paths[name] = _path_counts(path_named(name), task)
        except Exception as error:  # whatever an engine of any age may raise
            counts.failures[name] = _words(error)
    if task.has_kernels or task.compiled:
        try:
            _add_kernels(counts, task)
        except Exception as error:
            counts.failures["kernels"] = _words(error)
    return counts


def _words(error: Exception) -> str:
    said = " ".join(str(error).split())
    return said if isinstance(error, BenchError) else f"{type(error).__name__}: {said}"


def _path_counts(path: StepPath, task: Task) -> PathCounts:
    refuse_what_changes_the_path()
    with device_of(path) as pretended:
        traffic = pretended or Traffic()
        engine = warm_engine(path, task.batch, task.model)
        traffic.clear()
        with OperatorLedger() as ledger:
            run_steps(engine, task.batch, BLOCK_SIZE)
        launches = Counter(launch.name for launch in traffic.launches)
        moved = {
            "copies to the device": traffic.copies_to_device,
            "copies to the host": traffic.copies_to_host,
            "graph replays": traffic.graph_replays,
            "new tensors": ledger.new_tensors,
            "new bytes": ledger.new_bytes,
        }
        with engine_lines(task.folder) as (calls, lines):
            run_steps(engine, task.batch, BLOCK_SIZE)
    every = (ledger.by_name, launches, moved, calls, lines)
    return PathCounts(*({name: n / BLOCK_SIZE for name, n in one.items()} for one in every))


@contextmanager
def engine_lines(folder: str) -> Iterator[tuple[Counter[str], Counter[str]]]:
    """Calls of functions of the packages in a folder, and lines of theirs that are run, inside."""
    calls: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    names: dict[Any, str | None] = {}

    def name_of(frame: FrameType) -> str | None:
        code = frame.f_code
        if code not in names:
            path = Path(code.co_filename)
            place = path.relative_to(folder) if path.is_relative_to(folder) else Path("elsewhere")
            # The ruler itself may lie in the same folder.
            is_ours = place.parts[0] in MEASURED_PACKAGES
            names[code] = f"{place.as_posix()}:{code.co_qualname}" if is_ours else None
        return names[code]

    def on_call(frame: FrameType, event: str, argument: object) -> Any:
        name = name_of(frame)
        if name is None:
            return None
        calls[name] += 1

        def on_line(frame: FrameType, event: str, argument: object) -> Any:
            if event == "line":
                lines[name] += 1
            return on_line

        return on_line

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield calls, lines
    finally:
        sys.settrace(before)


def _add_kernels(counts: Counts, task: Task) -> None:
    from asv_bench.lab.codegen.check import fresh_compiler
    from asv_bench.lab.codegen.compiled import compile_launched, figures_of
    from asv_bench.lab.codegen.launched_kernels import launched_kernels

    with fresh_compiler():
        kernels = launched_kernels(batch_sizes=(KERNEL_BATCH,))
        counts.kernels |= {kernel.name: _identity(kernel) for kernel in kernels}
        wanted = [compile_launched(kernel) for kernel in kernels if kernel.name in task.compiled]
        counts.figures |= {one.name: asdict(one) for one in figures_of(wanted)}


def _identity(kernel: LaunchedKernel) -> str:
    """A hash of all that decides what a kernel compiles to."""
    content = repr((kernel.source.hash(), sorted(kernel.options.items())))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def main(arguments: list[str]) -> None:
    """Count what the argument asks for."""
    fields = json.loads(arguments[0])
    fields |= {name: tuple(fields[name]) for name in ("paths", "compiled")}
    task = Task(**fields)
    Path(task.answer).write_text(json.dumps(asdict(count(task))), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
