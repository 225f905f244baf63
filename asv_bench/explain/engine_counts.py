"""What the engines of two ends do in a step, and what their kernels compile to: exact counts.

The engine of each end is counted in a process of its own, `python -P -m
asv_bench.explain.engine_counts '{"folder": ...}'` with that engine first on the search path. Only
its public face is used, so every commit can be counted, and counts are the same in every process,
on any machine.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.explain.clue import Clue, Source, more_or_less, number
from asv_bench.explain.trace import ask_engine, leave_answer
from asv_bench.process.environment import MEASURED_PACKAGES

if TYPE_CHECKING:
    from asv_bench.lab.pretend_cuda import Traffic
    from engine import Engine

MODEL = "random:gpt2-tiny"
BLOCK_SIZE = 16
_PROMPT_TOKENS, _LARGEST_BATCH = 4, 64
PATHS: Mapping[str, Mapping[str, Any]] = {
    "cpu": {"device": "cpu", "dtype": "float32"},
    "graph": {"device": "cuda", "decode": "graph"},
    "fused": {"device": "cuda", "decode": "eager"},
    "plain": {"device": "cuda", "decode": "eager", "fuse": False},
}
"""The ways in which the engine decodes, and the options that lead there: one on the CPU, and three
on a pretended GPU, which replay a captured graph, launch fused kernels one by one, or launch a
kernel an operation."""
CPU_PATHS: tuple[str, ...] = ("cpu",)
GPU_PATHS: tuple[str, ...] = ("graph", "fused")
"""Those that are counted. What a graph holds is seen where its kernels run one by one."""
_BATCH, _KERNEL_BATCH = 8, 64
_SHOWN = 3
_WHERE = {
    "cpu": "on the CPU",
    "graph": "on a GPU beside the captured graph",
    "fused": "on a GPU in the fused step",
}
_KINDS = {
    "operators": (4.0, "{} is called {} a step", "time"),
    "launches": (5.0, "{} is launched {} a step", "time"),
    "copies": (20.0, "A {} is made {} a step", "time"),
    "spill_instructions": (1.0, "{} spills registers to local memory by {}", "instruction"),
    "registers": (0.02, "{} takes {} a thread", "register"),
}
"""Kinds of counts: rough microseconds of one more, to order differences that no trace has measured,
and what is said of them. The last two are figures of compiled kernels."""
_LINE_US = 0.03
_COMPILED = ("spill_instructions", "registers")

_Counted: TypeAlias = Mapping[str, Mapping[str, float]]


class CountTask(msgspec.Struct):
    """What to count of the engine that lies in a folder."""

    folder: str
    paths: tuple[str, ...] = ()
    model: str = MODEL
    has_kernels: bool = False  # whether to list the kernels that a Hopper GPU would run
    compiled: tuple[str, ...] = ()  # those of them to compile


class Counts(msgspec.Struct):
    """An answer; `failures` says what could not be counted, and why."""

    # By path, kind and name: each a step, as a mean over the steps of a block.
    paths: dict[str, dict[str, dict[str, float]]] = {}
    kernels: list[str] = []  # that a Hopper GPU would run, see `LaunchedKernel.key`
    # By the name of a compiled kernel, and of the figure: of its variants, that with the most.
    figures: dict[str, dict[str, int]] = {}
    failures: list[str] = []


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
            own = tuple(key for key in mine if key not in other)
            sides.append(_asked(CountTask(str(folder), compiled=own)) if own else Counts())
    notes = [
        f"Not all of the {end} could be counted: {why}"
        for end, side in zip(("base", "head") * 2, sides, strict=False)
        for why in side.failures
    ]
    clues = list(step_clues(*sides[:2]))
    if not any(side.failures for side in sides[2:]):
        clues += figure_clues(*(side.figures for side in sides[-2:]))
    return clues, notes


def _asked(task: CountTask) -> Counts:
    # A GPU is only pretended.
    told, failing = {"CUDA_VISIBLE_DEVICES": ""}, "the counting process failed"
    return ask_engine(Path(task.folder), task, Counts, told, failing=failing)


def step_clues(base: Counts, head: Counts) -> Iterator[Clue]:
    """What steps do more or less often; the same on several paths is told once."""
    found: dict[str, tuple[Clue, list[str]]] = {}
    for path, where in _WHERE.items():
        if path in base.paths and path in head.paths:
            for one in _path_clues(base.paths[path], head.paths[path]):
                found.setdefault(one.sentence, (one, []))[1].append(where)
    for sentence, (one, places) in found.items():
        yield replace(one, sentence=f"{sentence} ({', '.join(places)})")


def _path_clues(base: _Counted, head: _Counted) -> Iterator[Clue]:
    for kind in filter(_KINDS.__contains__, base):
        for name, *counts in _changed(base[kind], head[kind]):
            yield _clue(Source.COUNTERS, name, kind, f"{kind} a step", *counts)
    lines = base.get("lines", {}), head.get("lines", {})
    old, new = (sum(side.values()) for side in lines)
    if old != new:
        # Functions that changed the most are named.
        sign = 1 if new > old else -1
        most = sorted((sign * (before - after), name) for name, before, after in _changed(*lines))
        named = ", ".join(f"{name} {number(-one)}" for one, name in most[:_SHOWN] if one < 0)
        more = more_or_less(old, new, "line of Python", "lines of Python")
        text, name = f"The engine runs {more} a step: {named}", "Python of the engine"
        cost_us = _LINE_US * (new - old)
        yield Clue(Source.COUNTERS, name, "lines a step", old, new, text, cost_us)


def _changed(
    base: Mapping[str, float], head: Mapping[str, float]
) -> Iterator[tuple[str, float, float]]:
    for name in dict.fromkeys((*base, *head)):
        before, after = base.get(name, 0.0), head.get(name, 0.0)
        if before != after:
            yield name, before, after


def figure_clues(base: _Counted, head: _Counted) -> Iterator[Clue]:
    """What the kernels of a name compile to at one end and not at the other."""
    for kernel in sorted(base.keys() & head.keys()):
        for figure, *counts in _changed(base[kernel], head[kernel]):
            yield _clue(Source.KERNELS, kernel, figure, figure.replace("_", " "), *counts)


def _clue(source: Source, name: str, kind: str, what: str, old: float, new: float) -> Clue:
    us, words, noun = _KINDS[kind]
    text = words.format(name, more_or_less(old, new, noun, f"{noun}s"))
    return Clue(source, name, what, old, new, text, us * (new - old))


def count(task: CountTask) -> Counts:
    """Count and compile what was asked for; what fails is noted, the rest goes on."""
    counts = Counts()
    import engine

    if not Path(str(engine.__file__)).is_relative_to(task.folder):
        counts.failures.append("it has no engine to import.")
        return counts
    kernels = ("kernels",) if task.has_kernels or task.compiled else ()
    for what in (*task.paths, *kernels):
        try:
            _add_kernels(counts, task) if what in kernels else _add_path(counts, task, what)
        except Exception as error:  # whatever an engine of any age may raise
            why = " ".join(str(error).split()).rstrip(".")
            counts.failures.append(f"{what}: {type(error).__name__}: {why}.")
    return counts


def _add_path(counts: Counts, task: CountTask, path: str) -> None:
    from asv_bench.lab.pretend_cuda import OperatorLedger

    with warm_engine(path, _BATCH, task.model) as (engine, traffic):
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
    counts.paths[path] = {
        kind: {name: number / BLOCK_SIZE for name, number in one.items()}
        for kind, one in found.items()
    }


@contextmanager
def warm_engine(path: str, batch: int, model: str = MODEL) -> Iterator[tuple[Engine, Traffic]]:
    """An engine in which every request has decoded for more than a block, so all is in place.

    Beside it is what reaches its pretended GPU: nothing on the CPU. Variables with which the engine
    does other things than it does without them are refused.
    """
    from asv_bench.lab.pretend_cuda import Traffic, pretended_cuda
    from engine import Engine, EngineConfig, SamplingParams

    for variable in ("TRITON_INTERPRET", "KVTRAIL_NVTX", "KVTRAIL_CHECK_VALUES"):
        if os.environ.get(variable, "0") not in ("", "0"):
            raise Refused(f"{variable} must not be set: the engine takes another path with it")
    blocks_each = 8
    config: Any = {
        "model": model,
        "block_size": BLOCK_SIZE,
        "max_batch_size": batch,
        "max_model_len": blocks_each * BLOCK_SIZE,
        "num_kv_blocks": blocks_each * batch,
        # All prompts at once, and no captures of larger prefills.
        "prefill_max_tokens": _LARGEST_BATCH * _PROMPT_TOKENS,
        **PATHS[path],
    }
    on_cpu = nullcontext(Traffic())
    with on_cpu if PATHS[path]["device"] == "cpu" else pretended_cuda() as traffic:
        engine = Engine(EngineConfig(**config))
        params = SamplingParams(max_new_tokens=6 * BLOCK_SIZE, ignore_eos=True)
        for request in range(batch):
            # Prompts that share nothing: a request is not another's prefix.
            engine.submit([1 + request, *range(2, 1 + _PROMPT_TOKENS)], params)
        received = 0
        while received < batch * (BLOCK_SIZE + _PROMPT_TOKENS):
            received += len(engine.step())
        yield engine, traffic


def run_steps(engine: Engine, batch: int, steps: int) -> None:
    """Run steps, each of which must deliver a token of every request; else MeasurementFailed."""
    for _ in range(steps):
        delivered = len(engine.step())
        if delivered != batch:
            raise MeasurementFailed(
                f"a steady step of {batch} requests must deliver {batch} tokens, but this one "
                f"delivered {delivered}; nothing was counted."
            )


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
    from asv_bench.lab.launched_kernels import compile_kernel, engine_launches, specialised
    from asv_bench.lab.pretend_cuda import HOPPER

    launches = engine_launches(_KERNEL_BATCH, HOPPER)
    kernels = {kernel.key: kernel for kernel in map(specialised, launches)}
    counts.kernels = list(kernels)
    for key in task.compiled:
        made = compile_kernel(kernels[key]).figures
        most = counts.figures.setdefault(kernels[key].name, dict.fromkeys(_COMPILED, 0))
        most |= {figure: max(value, made[figure]) for figure, value in most.items()}


if __name__ == "__main__":
    leave_answer(count(msgspec.json.decode(sys.argv[1], type=CountTask)))
