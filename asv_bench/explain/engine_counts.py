"""What the engines of two ends do in a step, and what their kernels compile to: exact counts.

The engine of each end is counted in a process of its own, `python -P -m
asv_bench.explain.engine_counts '{"folder": ...}'` with that engine first on the search path.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import msgspec

from asv_bench.errors import BenchError, MeasurementFailed
from asv_bench.explain.clue import Clue, Source, more_or_less, number
from asv_bench.explain.window import ask_engine
from asv_bench.lab.step_counters import (
    BLOCK_SIZE,
    MODEL,
    device_of,
    refuse_what_changes_the_path,
    run_steps,
    warm_engine,
)
from asv_bench.process.environment import MEASURED_PACKAGES

CPU_PATHS: tuple[str, ...] = ("cpu",)
GPU_PATHS: tuple[str, ...] = ("graph", "fused")
"""Names of `step_counters.PATHS`. What a graph holds is seen where its kernels run one by one."""
_BATCH, _KERNEL_BATCH = 8, 64
_SHOWN = 3
_WHERE = {
    "cpu": "on the CPU",
    "graph": "on a GPU beside the captured graph",
    "fused": "on a GPU in the fused step",
}
_KINDS = {
    "operators": (4.0, "{} is called"),
    "launches": (5.0, "{} is launched"),
    "copies": (20.0, "A {} is made"),
}
"""Kinds of counts: rough microseconds of one more a step, to order differences that no trace has
measured, and what is said of them."""
_LINE_US = 0.03
_COMPILED = {
    "spill_instructions": (1.0, "spills registers to local memory by {}", "instruction"),
    "registers": (0.02, "takes {} a thread", "register"),
}
"""Figures of compiled kernels: the same."""

PathCounts: TypeAlias = Mapping[str, Mapping[str, float]]
"""By kind and name: each a step, as a mean over the steps of a block."""


class CountTask(msgspec.Struct):
    """What to count of the engine that lies in a folder."""

    folder: str
    paths: tuple[str, ...] = ()
    model: str = MODEL
    has_kernels: bool = False  # whether to list the kernels that a Hopper GPU would run
    compiled: tuple[str, ...] = ()  # those of them to compile


class Counts(msgspec.Struct):
    """An answer; what could not be counted is in `failures`, with a sentence."""

    paths: dict[str, dict[str, dict[str, float]]] = {}
    kernels: dict[str, str] = {}  # a hash of what is compiled, by the kernel's name
    figures: dict[str, dict[str, Any]] = {}  # of compiled kernels
    failures: dict[str, str] = {}


def stand_in(measured: str, model: str = MODEL) -> str:
    """Where it was counted, in words, unless the name of what was measured says so."""
    if model.partition(":")[2] in measured:
        return ""
    return f" in {model}, a stand-in for the measured model"


def count_ends(
    base: Path, head: Path, paths: Sequence[str], *, model: str = MODEL, has_kernels: bool = False
) -> tuple[list[Clue], list[str]]:
    """Count the steps of the engines in two folders, and compile the kernels that are not alike.

    `model` is a built-in one that is small. With `has_kernels` the kernels are looked at that a
    Hopper GPU would run. Returns what differs, and sentences of what could not be counted.
    """
    tasks = [CountTask(str(folder), tuple(paths), model, has_kernels) for folder in (base, head)]
    with ThreadPoolExecutor(2) as pool:
        sides = list(pool.map(_asked, tasks))
    old, new = (side.kernels for side in sides)
    if old and new:
        for folder, mine, other in ((base, old, new), (head, new, old)):
            names = tuple(name for name, one in mine.items() if other.get(name) != one)
            task = CountTask(str(folder), compiled=names)
            sides.append(_asked(task) if names else Counts())
    notes = [
        f"Not all of the {end} could be counted ({what}): {why.rstrip('.')}."
        for end, side in zip(("base", "head") * 2, sides, strict=False)
        for what, why in side.failures.items()
    ]
    clues = [*step_clues(*sides[:2]), *figure_clues(*(one.figures for one in sides[-2:]))]
    return clues, notes


def _asked(task: CountTask) -> Counts:
    try:
        # A GPU is only pretended.
        return ask_engine(Path(task.folder), task, Counts, {"CUDA_VISIBLE_DEVICES": ""})
    except MeasurementFailed as error:
        raise MeasurementFailed(f"the counting process failed: {error}") from None


def step_clues(base: Counts, head: Counts) -> Iterator[Clue]:
    """What steps do more or less often; the same on several paths is told once."""
    told: dict[tuple[str, str, float], list[str]] = defaultdict(list)
    sides: dict[tuple[str, str, float], tuple[float, float]] = {}
    for path in _WHERE:
        if path not in base.paths or path not in head.paths:
            continue
        before, after = base.paths[path], head.paths[path]
        for kind in _KINDS:
            for name, old, new in _changed(before[kind], after[kind]):
                told[kind, name, new - old].append(path)
                sides.setdefault((kind, name, new - old), (old, new))
        yield from _python(before.get("lines", {}), after.get("lines", {}), path)
    for (kind, name, change), paths in told.items():
        us, words = _KINDS[kind]
        old, new = sides[kind, name, change]
        where = ", ".join(_WHERE[path] for path in paths)
        more = more_or_less(old, new, "time", "times")
        text = f"{words.format(name)} {more} a step ({where})"
        yield Clue(Source.COUNTERS, name, f"{kind} a step", old, new, text, change * us)


def _python(base: Mapping[str, float], head: Mapping[str, float], path: str) -> Iterator[Clue]:
    """More or fewer lines of Python, with the functions that changed the most."""
    before, after = (sum(side.values()) for side in (base, head))
    if before == after:
        return
    sign = 1 if after > before else -1
    most = sorted(((sign * (new - old), name) for name, old, new in _changed(base, head)))
    named = ", ".join(f"{name} {number(one)}" for one, name in most[: -_SHOWN - 1 : -1] if one > 0)
    more = more_or_less(before, after, "line of Python", "lines of Python")
    text = f"The engine runs {more} a step: {named} ({_WHERE[path]})"
    name, cost_us = "Python of the engine", (after - before) * _LINE_US
    yield Clue(Source.COUNTERS, name, "lines a step", before, after, text, cost_us)


def _changed(
    base: Mapping[str, float], head: Mapping[str, float]
) -> Iterator[tuple[str, float, float]]:
    for name in dict.fromkeys((*base, *head)):
        before, after = base.get(name, 0.0), head.get(name, 0.0)
        if before != after:
            yield name, before, after


def figure_clues(
    base: Mapping[str, Mapping[str, Any]], head: Mapping[str, Mapping[str, Any]]
) -> Iterator[Clue]:
    """What compiled kernels differ in; of the variants of a function, the one with the most."""

    def by_function(side: Mapping[str, Mapping[str, Any]]) -> Mapping[str, list[Mapping[str, Any]]]:
        found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for name, figures in side.items():
            found[name.partition("-")[0]].append(figures)
        return found

    olds, news = by_function(base), by_function(head)
    for function in olds.keys() & news.keys():
        for figure, (us, words, noun) in _COMPILED.items():
            before, after = (max(one[figure] for one in side[function]) for side in (olds, news))
            if before != after:
                more = words.format(more_or_less(before, after, noun, f"{noun}s"))
                text, what = f"{function} {more}", figure.replace("_", " ")
                cost_us = (after - before) * us
                yield Clue(Source.KERNELS, function, what, before, after, text, cost_us)


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


def _path_counts(path: str, task: CountTask) -> dict[str, dict[str, float]]:
    from asv_bench.lab.pretend_cuda import OperatorLedger

    refuse_what_changes_the_path()
    with device_of(path) as traffic:
        engine = warm_engine(path, _BATCH, task.model)
        traffic.clear()
        with OperatorLedger() as ledger:
            run_steps(engine, _BATCH, BLOCK_SIZE)
        found: dict[str, Mapping[str, int]] = {
            "operators": ledger.by_name,
            "launches": Counter(launch.name for launch in traffic.launches),
            "copies": {
                "copy to the device": traffic.copies_to_device,
                "copy to the host": traffic.copies_to_host,
            },
        }
        # The host does not launch fused kernels one by one where it replays a graph.
        if path != "fused":
            with _engine_lines(task.folder) as found["lines"]:
                run_steps(engine, _BATCH, BLOCK_SIZE)
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
    from asv_bench.lab.compiled import compile_kernel
    from asv_bench.lab.launched_kernels import launched_kernels

    kernels = launched_kernels(batch_sizes=(_KERNEL_BATCH,))
    for kernel in kernels:
        # All that decides what a kernel compiles to.
        content = repr((kernel.source.hash(), sorted(kernel.options.items())))
        counts.kernels[kernel.name] = hashlib.sha256(content.encode()).hexdigest()[:16]
    wanted = [kernel for kernel in kernels if kernel.name in task.compiled]
    counts.figures = {one.name: compile_kernel(one).figures() for one in wanted}


if __name__ == "__main__":
    answer = count(msgspec.json.decode(sys.argv[1], type=CountTask))
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
