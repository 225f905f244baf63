"""What the engines of two ends do in a step, and what their kernels compile to: exact counts."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from asv_bench.errors import MeasurementFailed
from asv_bench.explain.difference import Difference, Source, more_or_less, number
from asv_bench.explain.engine_process import run_on_engine
from asv_bench.process.run_apart import last_words

CPU_PATHS, GPU_PATHS = ("cpu",), ("graph", "fused", "plain")
ALL_PATHS = (*CPU_PATHS, *GPU_PATHS)
_MODULE = "asv_bench.explain.count_child"
_SHOWN = 3

# Rough microseconds of one more a step. They order differences by what they may cost, where no
# trace has measured it.
_US_OF = {
    "operators": 4.0,
    "launches": 5.0,
    "copies to the device": 20.0,
    "copies to the host": 20.0,
    "graph replays": 10.0,
    "new tensors": 0.5,
    "new bytes": 1e-4,
    "calls": 0.1,
    "lines": 0.03,
}
_SPILL_US, _REGISTER_US, _TILES_US, _CODE_US = 1.0, 0.02, 0.5, 0.1

_NOTED = {
    "engine": "The engine",
    "kernels": "Kernels",
    "cpu": "Steps on the CPU",
    "graph": "Steps with a captured graph",
    "fused": "Fused steps",
    "plain": "Steps without fused kernels",
}

Counted: TypeAlias = Mapping[str, Any]
"""An answer of `count_child`, as JSON has it."""


@dataclass(slots=True)
class EngineCounts:
    """What was counted of both ends, and sentences about what could not be.

    `model` is the one whose steps were counted, and `layers` how many it has; 0: unknown.
    """

    model: str
    layers: int = 0
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def stand_in(self, measured: Iterable[str]) -> str:
        """Where it was counted, in words, unless one of the names says that it was measured."""
        names = re.split(r"[\s(),']+", " ".join(measured))
        if {self.model, self.model.partition(":")[2]} & set(names):
            return ""
        size = f" of {self.layers} layers" if self.layers else ""
        return f"in {self.model}, a stand-in{size} for the measured model"


def count_ends(
    base: Path,
    head: Path,
    *,
    paths: Sequence[str],
    model: str = "random:gpt2-tiny",
    has_kernels: bool = False,
    on_end: Callable[[], object] = lambda: None,
) -> EngineCounts:
    """Count the steps of both ends, and compile the kernels that are not alike.

    Parameters
    ----------
    base, head
        Folders with an engine and kernels.
    paths
        Names of `step_counters.PATHS`.
    model
        A built-in one that is small.
    has_kernels
        Whether to look at the kernels that a Hopper GPU would run.
    on_end
        Called after each end.
    """
    task = partial(_counted, paths=paths, model=model, has_kernels=has_kernels)
    sides = []
    with ThreadPoolExecutor(2) as pool:
        for side in pool.map(task, (base, head)):
            sides.append(side)
            on_end()
    found = EngineCounts(model, max(side.get("layers", 0) for side in sides))
    for end, side in zip(("base", "head"), sides, strict=True):
        found.notes += [
            f"{_NOTED.get(what, what)} of the {end} could not be counted: {why.rstrip('.')}."
            for what, why in side["failures"].items()
        ]
    found.differences += step_differences(*sides)
    if has_kernels and not any("kernels" in side["failures"] for side in sides):
        found.differences += _kernel_differences((base, head), sides, found.notes)
    return found


def _counted(folder: Path, **task: Any) -> Counted:
    with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
        answer = Path(scratch) / "answer.json"
        asked = {"folder": str(folder), "answer": str(answer), "paths": (), "compiled": (), **task}
        # Ranges would add calls, and a GPU is only pretended.
        quiet = {"KVTRAIL_NVTX": "0", "CUDA_VISIBLE_DEVICES": ""}
        done = run_on_engine(folder, _MODULE, json.dumps(asked), quiet)
        if done.returncode or not answer.is_file():
            words = last_words(done.stdout + done.stderr, 3)
            raise MeasurementFailed(f"the counting process failed: {words}")
        counted: Counted = json.loads(answer.read_text(encoding="utf-8"))
        return counted


def step_differences(base: Counted, head: Counted) -> Iterator[Difference]:
    """What steps do more or less often; the same on several paths is told once."""
    found: dict[tuple[str, str, float], list[tuple[str, Difference]]] = {}
    for path in base["paths"].keys() & head["paths"].keys():
        for one in _path_differences(path, base["paths"][path], head["paths"][path]):
            found.setdefault((one.what, one.name, one.change), []).append((path, one))
    for alike in found.values():
        alike.sort(key=lambda entry: ALL_PATHS.index(entry[0]))
        paths = [path for path, _ in alike]
        sides = {path in GPU_PATHS for path in paths}
        first = alike[0][1]
        yield replace(
            first,
            on_gpu=sides.pop() if len(sides) == 1 else None,
            sentence=f"{first.sentence} ({_where(paths)})",
        )


_WHERE = {
    "cpu": "on the CPU",
    "graph": "on a GPU beside the captured graph",
    "fused": "on a GPU in the fused step",
    "plain": "on a GPU in the step without fused kernels",
}


def _where(paths: Sequence[str]) -> str:
    return "on every path" if len(paths) > 3 else ", ".join(_WHERE[path] for path in paths)


_ONE_OF = {
    "copies to the device": "copy to the device",
    "copies to the host": "copy to the host",
    "graph replays": "graph replay",
    "new tensors": "new tensor",
    "new bytes": "new byte",
}


def _path_differences(
    path: str, base: Mapping[str, Mapping[str, float]], head: Mapping[str, Mapping[str, float]]
) -> Iterator[Difference]:
    for name, before, after in _changed(base["operators"], head["operators"]):
        times = more_or_less(before, after, "time", "times")
        yield _step(name, "operators", before, after, f"{name} is called {times} a step")
    for name, before, after in _changed(base["launches"], head["launches"]):
        times = more_or_less(before, after, "time", "times")
        yield _step(name, "launches", before, after, f"{name} is launched {times} a step")
    for name, before, after in _changed(base["traffic"], head["traffic"]):
        many = more_or_less(before, after, _ONE_OF[name], name)
        one = _step(name, name, before, after, f"a step makes {many}")
        yield replace(one, what="a step")
    for what in ("lines", "calls"):
        yield from _python(what, base[what], head[what])


def _python(
    what: str, base: Mapping[str, float], head: Mapping[str, float]
) -> Iterator[Difference]:
    """All functions of the engine together; the sentence names those that changed the most."""
    before, after = sum(base.values()), sum(head.values())
    if before == after:
        return
    many = more_or_less(before, after, *_PYTHON[what])
    sign = 1 if after > before else -1
    # A function that moved to another file is the same function.
    sides = [_by_function(side) for side in (base, head)]
    moved = [(sign * (new - old), name) for name, old, new in _changed(*sides)]
    most = sorted((one for one in moved if one[0] > 0), reverse=True)[:_SHOWN]
    named = ", ".join(f"{name} {number(sign * change)}" for change, name in most)
    yield _step(
        "Python of the engine", what, before, after, f"the engine runs {many} a step: {named}"
    )


def _by_function(side: Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in side.items():
        function = name.partition(":")[2]
        found[function] = found.get(function, 0.0) + value
    return found


_PYTHON = {
    "lines": ("line of Python", "lines of Python"),
    "calls": ("Python function", "Python functions"),
}


def _changed(
    base: Mapping[str, float], head: Mapping[str, float]
) -> Iterator[tuple[str, float, float]]:
    for name in dict.fromkeys((*base, *head)):
        before, after = float(base.get(name, 0)), float(head.get(name, 0))
        if before != after:
            yield name, before, after


def _step(name: str, kind: str, before: float, after: float, sentence: str) -> Difference:
    return Difference(
        source=Source.COUNTERS,
        name=name,
        what=f"{kind} a step",
        before=before,
        after=after,
        sentence=sentence,
        leaning=1 if after > before else -1,
        cost_us=(after - before) * _US_OF[kind],
    )


def _kernel_differences(
    folders: tuple[Path, Path], sides: Sequence[Counted], notes: list[str]
) -> Iterator[Difference]:
    """Kernels that are not alike at both ends, a function at a time."""
    kernels = [side["kernels"] for side in sides]
    names = [
        tuple(name for name, one in mine.items() if other.get(name) != one)
        for mine, other in (kernels, reversed(kernels))
    ]
    if not any(names):
        return
    figures: list[Mapping[str, Mapping[str, Any]]] = []
    for folder, end, compiled in zip(folders, ("base", "head"), names, strict=True):
        answer = _counted(folder, compiled=compiled) if compiled else {"figures": {}}
        if why := answer.get("failures", {}).get("kernels"):
            notes.append(f"Kernels of the {end} could not be compiled: {why.rstrip('.')}.")
            return
        figures.append(answer["figures"])
    yield from figure_differences(*figures)


def figure_differences(
    base: Mapping[str, Mapping[str, Any]], head: Mapping[str, Mapping[str, Any]]
) -> Iterator[Difference]:
    """What compiled kernels differ in, one kernel function after the other."""
    functions = dict.fromkeys(name.partition("-")[0] for name in (*base, *head))
    for function in functions:
        sides = [
            {name: one for name, one in side.items() if name.partition("-")[0] == function}
            for side in (base, head)
        ]
        yield from _function_differences(function, *sides)


def _function_differences(
    function: str, base: Mapping[str, Mapping[str, Any]], head: Mapping[str, Mapping[str, Any]]
) -> Iterator[Difference]:
    spills = _sum(base, "spill_instructions"), _sum(head, "spill_instructions")
    if spills[0] != spills[1]:
        worst = max((*head.values(), *base.values()), key=lambda one: one["spill_instructions"])
        text = more_or_less(*spills, "instruction", "instructions")
        yield _compiled(
            function,
            "spill instructions",
            spills,
            f"{function} spills registers to local memory by {text}, as in {worst['name']}",
            (spills[1] - spills[0]) * _SPILL_US,
        )
    if base.keys() != head.keys():
        gone, new = (
            sorted(one.keys() - other.keys()) for one, other in ((base, head), (head, base))
        )
        text = (
            f"{_listed(new)} in place of {_listed(gone)}" if gone and new else _listed(new or gone)
        )
        text = text if gone and new else f"{text} is {'new' if new else 'no longer run'}"
        yield replace(
            _compiled(function, "tiles", (_listed(gone), _listed(new)), "", _TILES_US),
            sentence=f"{function} runs with other tiles: {text}",
        )
    registers = _most_registers(base), _most_registers(head)
    if base and head and registers[0] != registers[1]:
        yield _compiled(
            function,
            "registers",
            registers,
            f"{function} takes {more_or_less(*registers, 'register', 'registers')} a thread",
            (registers[1] - registers[0]) * _REGISTER_US,
        )
    other = [
        name
        for name in base.keys() & head.keys()
        if base[name]["cubin_sha256"] != head[name]["cubin_sha256"]
    ]
    if other and spills[0] == spills[1] and registers[0] == registers[1]:
        sizes = _sum(base, "instructions"), _sum(head, "instructions")
        text = f"{function} compiles to other machine code in {len(other)} of its variants"
        if sizes[0] != sizes[1]:
            text += f", {more_or_less(*sizes, 'instruction', 'instructions')}"
        yield replace(
            _compiled(function, "machine code", sizes, text, _CODE_US),
            leaning=0,
        )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else ""
    return ", ".join(names[:_SHOWN]) + more


def _sum(side: Mapping[str, Mapping[str, Any]], figure: str) -> int:
    return sum(int(one[figure]) for one in side.values())


def _most_registers(side: Mapping[str, Mapping[str, Any]]) -> int:
    return max((int(one["registers"]) for one in side.values()), default=0)


def _compiled(
    function: str, what: str, values: tuple[Any, ...], sentence: str, cost_us: float
) -> Difference:
    before, after = values
    is_more = None if isinstance(before, str) or before == after else after > before
    return Difference(
        source=Source.KERNELS,
        name=function,
        what=what,
        before=before,
        after=after,
        sentence=sentence,
        leaning=0 if is_more is None else 1 if is_more else -1,
        cost_us=cost_us,
        on_gpu=True,
    )
