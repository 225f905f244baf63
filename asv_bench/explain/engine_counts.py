"""What the engines of two ends do in a step, and what their kernels compile to: exact counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from asv_bench.errors import MeasurementFailed
from asv_bench.explain.clue import Clue, Source, leaning, more_or_less, number
from asv_bench.explain.count_child import Counts, CountTask
from asv_bench.explain.traced import ask_engine
from asv_bench.lab.step_counters import MODEL
from asv_bench.words import first_of

CPU_PATHS, GPU_PATHS = ("cpu",), ("graph", "fused", "plain")
ALL_PATHS = (*CPU_PATHS, *GPU_PATHS)
_SHOWN = 3
_NAMES = {
    "engine": ("The engine", ""),
    "kernels": ("Kernels", ""),
    "cpu": ("Steps on the CPU", "on the CPU"),
    "graph": ("Steps with a captured graph", "on a GPU beside the captured graph"),
    "fused": ("Fused steps", "on a GPU in the fused step"),
    "plain": ("Steps without fused kernels", "on a GPU in the step without fused kernels"),
}
"""What could not be counted, and where a difference is."""


_KINDS = {
    "operators": (4.0, "time", "times"),
    "launches": (5.0, "time", "times"),
    "copies to the device": (20.0, "copy to the device", "copies to the device"),
    "copies to the host": (20.0, "copy to the host", "copies to the host"),
    "graph replays": (10.0, "graph replay", "graph replays"),
    "new tensors": (0.5, "new tensor", "new tensors"),
    "new bytes": (1e-4, "new byte", "new bytes"),
    "lines": (0.03, "line of Python", "lines of Python"),
}
"""Kinds of counts: rough microseconds of one more a step, to order differences that no trace has
measured, and how one and many are called."""
_SPILL_US, _REGISTER_US, _TILES_US, _CODE_US = 1.0, 0.02, 0.5, 0.1

Kernels: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Figures of compiled kernels, by the kernel's name."""


@dataclass(slots=True)
class EngineCounts:
    """What differs in the steps of a model of so many layers, and what could not be counted."""

    model: str
    layers: int = 0  # 0: unknown
    clues: list[Clue] = field(default_factory=list)
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
    model: str = MODEL,
    has_kernels: bool = False,
    on_end: Callable[[], object] = lambda: None,
) -> EngineCounts:
    """Count the steps of the engines in two folders, and compile the kernels that are not alike.

    `paths` are names of `step_counters.PATHS`, and `model` is a built-in one that is small. With
    `has_kernels` the kernels are looked at that a Hopper GPU would run. `on_end` is called after
    each end.
    """
    task = partial(_counted, paths=tuple(paths), model=model, has_kernels=has_kernels)
    sides = []
    with ThreadPoolExecutor(2) as pool:
        for side in pool.map(task, (base, head)):
            sides.append(side)
            on_end()
    found = EngineCounts(model, max(side.layers for side in sides))
    for end, side in zip(("base", "head"), sides, strict=True):
        found.notes += [
            f"{_NAMES[what][0]} of the {end} could not be counted: {why.rstrip('.')}."
            for what, why in side.failures.items()
        ]
    found.clues += step_clues(*sides)
    if has_kernels and not any("kernels" in side.failures for side in sides):
        found.clues += _kernel_clues((base, head), sides, found.notes)
    return found


def _counted(folder: Path, **task: Any) -> Counts:
    asked = msgspec.json.encode(CountTask(str(folder), **task)).decode()
    try:
        # A GPU is only pretended.
        quiet = {"CUDA_VISIBLE_DEVICES": ""}
        said = ask_engine(folder, "asv_bench.explain.count_child", asked, quiet)
        return msgspec.json.decode(said, type=Counts)
    except (MeasurementFailed, msgspec.DecodeError) as error:
        raise MeasurementFailed(f"the counting process failed: {error}") from None


def step_clues(base: Counts, head: Counts) -> Iterator[Clue]:
    """What steps do more or less often; the same on several paths is told once."""
    found: dict[tuple[str, str, float], list[tuple[str, Clue]]] = {}
    for path in ALL_PATHS:
        if path in base.paths and path in head.paths:
            for one in _path_clues(base.paths[path], head.paths[path]):
                found.setdefault((one.what, one.name, one.change), []).append((path, one))
    for alike in found.values():
        paths, first = [path for path, _ in alike], alike[0][1]
        sides = {path in GPU_PATHS for path in paths}
        where = ", ".join(_NAMES[path][1] for path in paths)
        yield replace(
            first,
            on_gpu=sides.pop() if len(sides) == 1 else None,
            sentence=f"{first.sentence} ({where if len(paths) <= 3 else 'on every path'})",
        )


def _path_clues(
    base: Mapping[str, Mapping[str, float]], head: Mapping[str, Mapping[str, float]]
) -> Iterator[Clue]:
    for kind, verb in (("operators", "called"), ("launches", "launched")):
        for name, *sides in _changed(base[kind], head[kind]):
            yield _step(kind, name, f"{kind} a step", sides, f"{name} is {verb} {{}} a step")
    for kind, *sides in _changed(base["traffic"], head["traffic"]):
        yield _step(kind, kind, "a step", sides, "a step makes {}")
    sides = [sum(side["lines"].values()) for side in (base, head)]
    if sides[0] != sides[1]:
        # Functions that changed the most are named.
        sign = leaning(*sides)
        moved = [
            (sign * (new - old), name) for name, old, new in _changed(base["lines"], head["lines"])
        ]
        most = sorted((one for one in moved if one[0] > 0), reverse=True)[:_SHOWN]
        named = ", ".join(f"{name} {number(sign * change)}" for change, name in most)
        text = f"the engine runs {{}} a step: {named}"
        yield _step("lines", "Python of the engine", "lines a step", sides, text)


def _changed(
    base: Mapping[str, float], head: Mapping[str, float]
) -> Iterator[tuple[str, float, float]]:
    for name in dict.fromkeys((*base, *head)):
        before, after = base.get(name, 0.0), head.get(name, 0.0)
        if before != after:
            yield name, before, after


def _step(kind: str, name: str, what: str, sides: Sequence[float], sentence: str) -> Clue:
    (before, after), (us, one, many) = sides, _KINDS[kind]
    text = sentence.replace("{}", more_or_less(before, after, one, many), 1)
    return Clue.of_figures(Source.COUNTERS, name, what, sides, text, us)


def _kernel_clues(
    folders: Sequence[Path], sides: Sequence[Counts], notes: list[str]
) -> Iterator[Clue]:
    """Kernels that are not alike at both ends, a function at a time."""
    base, head = (side.kernels for side in sides)
    names = [
        tuple(name for name, one in mine.items() if other.get(name) != one)
        for mine, other in ((base, head), (head, base))
    ]
    figures: list[Kernels] = []
    for folder, end, compiled in zip(folders, ("base", "head"), names, strict=True):
        answer = _counted(folder, compiled=compiled) if compiled else Counts()
        if why := answer.failures.get("kernels"):
            notes.append(f"Kernels of the {end} could not be compiled: {why.rstrip('.')}.")
            return
        figures.append(answer.figures)
    yield from figure_clues(*figures)


def figure_clues(base: Kernels, head: Kernels) -> Iterator[Clue]:
    """What compiled kernels differ in, one kernel function after the other."""
    for function in dict.fromkeys(name.partition("-")[0] for name in (*base, *head)):
        sides = (
            {name: one for name, one in side.items() if name.partition("-")[0] == function}
            for side in (base, head)
        )
        yield from _function_clues(function, *sides)


def _function_clues(function: str, base: Kernels, head: Kernels) -> Iterator[Clue]:
    spills = _sum(base, "spill_instructions"), _sum(head, "spill_instructions")
    sizes = _sum(base, "instructions"), _sum(head, "instructions")
    registers = _most_registers(base), _most_registers(head)
    instructions = ("instruction", "instructions")
    if spills[0] != spills[1]:
        every = (*head.items(), *base.items())
        worst, _ = max(every, key=lambda one: one[1]["spill_instructions"])
        text = f"spills registers to local memory by {more_or_less(*spills, *instructions)}"
        text = f"{text}, as in {worst}"
        yield _compiled(function, "spill instructions", spills, text, _SPILL_US)
    if base.keys() != head.keys():
        gone = first_of(sorted(base.keys() - head.keys()), _SHOWN)
        new = first_of(sorted(head.keys() - base.keys()), _SHOWN)
        text = f"{new or gone} is {'new' if new else 'no longer run'}"
        text = f"runs with other tiles: {f'{new} in place of {gone}' if gone and new else text}"
        found = _compiled(function, "tiles", (0, 1), text, _TILES_US, leaning=0)
        yield replace(found, before=gone, after=new)
    if base and head and registers[0] != registers[1]:
        text = f"takes {more_or_less(*registers, 'register', 'registers')} a thread"
        yield _compiled(function, "registers", registers, text, _REGISTER_US)
    both = base.keys() & head.keys()
    other = [name for name in both if base[name]["cubin"] != head[name]["cubin"]]
    if other and spills[0] == spills[1] and registers[0] == registers[1]:
        text = f"compiles to other machine code in {len(other)} of its variants"
        if sizes[0] != sizes[1]:
            text += f", {more_or_less(*sizes, *instructions)}"
        more = {"leaning": 0, "cost_us": _CODE_US}
        yield _compiled(function, "machine code", sizes, text, 0.0, **more)


def _sum(side: Kernels, figure: str) -> int:
    return sum(one[figure] for one in side.values())


def _most_registers(side: Kernels) -> int:
    return max((one["registers"] for one in side.values()), default=0)


def _compiled(
    function: str, what: str, sides: tuple[int, int], sentence: str, us: float, **more: Any
) -> Clue:
    text, more = f"{function} {sentence}", {"on_gpu": True, **more}
    return Clue.of_figures(Source.KERNELS, function, what, sides, text, us, **more)
