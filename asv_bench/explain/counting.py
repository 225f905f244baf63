"""The process that counts what the engine of one end does, and compiles its kernels.

Run as `python -P -m asv_bench.explain.counting '{"folder": ...}'` with the end's engine first on
the search path; it prints its answer as JSON.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from asv_bench.errors import BenchError
from asv_bench.lab.step_counters import (
    BLOCK_SIZE,
    MODEL,
    device_of,
    refuse_what_changes_the_path,
    run_steps,
    warm_engine,
)
from asv_bench.process.environment import MEASURED_PACKAGES

BATCH, KERNEL_BATCH = 8, 64


class CountTask(msgspec.Struct):
    """What to count of the engine that lies in a folder."""

    folder: str
    paths: tuple[str, ...] = ()  # names of `step_counters.PATHS`
    model: str = MODEL
    has_kernels: bool = False  # whether to list the kernels that a Hopper GPU would run
    compiled: tuple[str, ...] = ()  # those of them to compile


class Counts(msgspec.Struct):
    """An answer; what could not be counted is in `failures`, with a sentence."""

    # By path, kind and name: each a step, as a mean over the steps of a block.
    paths: dict[str, dict[str, dict[str, float]]] = {}
    kernels: dict[str, str] = {}  # a hash of what is compiled, by the kernel's name
    figures: dict[str, dict[str, Any]] = {}  # of compiled kernels
    failures: dict[str, str] = {}


def count(task: CountTask) -> Counts:
    """Count and compile what was asked for; what fails is noted, the rest goes on."""
    counts = Counts()
    import engine

    if not Path(str(engine.__file__)).is_relative_to(task.folder):
        counts.failures["engine"] = "it has no engine to import"
        return counts
    for name in task.paths:
        with _noted(counts, name):
            counts.paths[name] = _path_counts(name, task)
    if task.has_kernels or task.compiled:
        with _noted(counts, "kernels"):
            _add_kernels(counts, task)
    return counts


@contextmanager
def _noted(counts: Counts, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever an engine of any age may raise
        said = " ".join(str(error).split())
        is_ours = isinstance(error, BenchError)
        counts.failures[what] = said if is_ours else f"{type(error).__name__}: {said}"


def _path_counts(name: str, task: CountTask) -> dict[str, dict[str, float]]:
    from asv_bench.lab.pretend_cuda import OperatorLedger

    refuse_what_changes_the_path()
    with device_of(name) as traffic:
        engine = warm_engine(name, BATCH, task.model)
        traffic.clear()
        with OperatorLedger() as ledger:
            run_steps(engine, BATCH, BLOCK_SIZE)
        found: dict[str, Mapping[str, int]] = {
            "operators": ledger.by_name,
            "launches": Counter(launch.name for launch in traffic.launches),
            "traffic": {
                "copies to the device": traffic.copies_to_device,
                "copies to the host": traffic.copies_to_host,
                "graph replays": traffic.graph_replays,
                "new tensors": ledger.new_tensors,
                "new bytes": ledger.new_bytes,
            },
        }
        with _engine_lines(task.folder) as lines:
            run_steps(engine, BATCH, BLOCK_SIZE)
    found["lines"] = lines
    return {
        kind: {name: number / BLOCK_SIZE for name, number in one.items()}
        for kind, one in found.items()
    }


@contextmanager
def _engine_lines(folder: str) -> Iterator[Counter[str]]:
    """Lines that are run inside, by the function of the packages in a folder that holds them.

    A function that moved to another file is the same function.
    """
    lines: Counter[str] = Counter()
    packages = tuple(f"{Path(folder) / name}{os.sep}" for name in MEASURED_PACKAGES)

    def on_event(frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        # The ruler itself may lie in the same folder.
        if not code.co_filename.startswith(packages):
            return None
        lines[code.co_qualname] += event == "line"
        return on_event

    before = sys.gettrace()
    sys.settrace(on_event)
    try:
        yield lines
    finally:
        sys.settrace(before)


def _add_kernels(counts: Counts, task: CountTask) -> None:
    from asv_bench.lab.compiled import compile_kernels
    from asv_bench.lab.launched_kernels import launched_kernels

    for kernel in (kernels := launched_kernels(batch_sizes=(KERNEL_BATCH,))):
        # All that decides what a kernel compiles to.
        content = repr((kernel.source.hash(), sorted(kernel.options.items())))
        counts.kernels[kernel.name] = hashlib.sha256(content.encode()).hexdigest()[:16]
    wanted = [kernel for kernel in kernels if kernel.name in task.compiled]
    counts.figures |= {one.name: one.figures() for one in compile_kernels(wanted)}


if __name__ == "__main__":
    answer = count(msgspec.json.decode(sys.argv[1], type=CountTask))
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
