"""What the engines of two ends do in a step, and what their kernels compile to: exact counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from asv_bench.errors import MeasurementFailed
from asv_bench.explain.clue import Clue, Source, more_or_less, number
from asv_bench.explain.counting import Counts, CountTask
from asv_bench.explain.window import ask_engine
from asv_bench.lab.step_counters import MODEL

CPU_PATHS, GPU_PATHS = ("cpu",), ("graph", "fused", "plain")
ALL_PATHS = (*CPU_PATHS, *GPU_PATHS)
_SHOWN = 3
_WHERE = {
    "cpu": "on the CPU",
    "graph": "on a GPU beside the captured graph",
    "fused": "on a GPU in the fused step",
    "plain": "on a GPU in the step without fused kernels",
}
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
_COMPILED = {
    "spill_instructions": (1.0, "spills registers to local memory by {}", "instruction"),
    "registers": (0.02, "takes {} a thread", "register"),
}
"""Figures of compiled kernels: the same, and what is said of them."""
_CODE_US = 0.1

Kernels: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Figures of compiled kernels, by the kernel's name."""


@dataclass(slots=True)
class EngineCounts:
    """What differs in the steps of a model, and sentences of what could not be counted."""

    model: str
    clues: list[Clue] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def stand_in(self, measured: Iterable[str]) -> str:
        """Where it was counted, in words, unless one of the names says that it was measured."""
        if self.model.partition(":")[2] in " ".join(measured):
            return ""
        return f"in {self.model}, a stand-in for the measured model"


def count_ends(
    base: Path,
    head: Path,
    *,
    paths: Sequence[str],
    model: str = MODEL,
    has_kernels: bool = False,
) -> EngineCounts:
    """Count the steps of the engines in two folders, and compile the kernels that are not alike.

    `paths` are names of `step_counters.PATHS`, and `model` is a built-in one that is small. With
    `has_kernels` the kernels are looked at that a Hopper GPU would run.
    """
    found = EngineCounts(model)
    tasks = [CountTask(str(folder), tuple(paths), model, has_kernels) for folder in (base, head)]
    with ThreadPoolExecutor(2) as pool:
        sides = list(pool.map(_counted, tasks))
    found.clues += step_clues(*sides)
    old, new = (side.kernels for side in sides)
    if has_kernels and not any("kernels" in side.failures for side in sides):
        compiled = []
        for folder, mine, other in ((base, old, new), (head, new, old)):
            names = tuple(name for name, one in mine.items() if other.get(name) != one)
            task = CountTask(str(folder), compiled=names)
            compiled.append(_counted(task) if names else Counts())
        sides += compiled
        if not any(side.failures for side in compiled):
            found.clues += figure_clues(*(side.figures for side in compiled))
    for end, side in zip(("base", "head") * 2, sides, strict=False):
        found.notes += [
            f"Not all of the {end} could be counted ({what}): {why.rstrip('.')}."
            for what, why in side.failures.items()
        ]
    return found


def _counted(task: CountTask) -> Counts:
    try:
        # A GPU is only pretended.
        return ask_engine(Path(task.folder), task, Counts, {"CUDA_VISIBLE_DEVICES": ""})
    except MeasurementFailed as error:
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
        where = ", ".join(_WHERE[path] for path in paths)
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
    before, after = (sum(side["lines"].values()) for side in (base, head))
    if before != after:
        # Functions that changed the most are named.
        sign = 1 if after > before else -1
        changed = _changed(base["lines"], head["lines"])
        most = sorted(((sign * (new - old), name) for name, old, new in changed), reverse=True)
        named = ", ".join(f"{name} {number(one)}" for one, name in most[:_SHOWN] if one > 0)
        text = f"the engine runs {{}} a step: {named}"
        yield _step("lines", "Python of the engine", "lines a step", (before, after), text)


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


def figure_clues(base: Kernels, head: Kernels) -> Iterator[Clue]:
    """What compiled kernels differ in, one kernel function after the other."""
    for function in dict.fromkeys(name.partition("-")[0] for name in (*base, *head)):
        sides = (
            {name: one for name, one in side.items() if name.partition("-")[0] == function}
            for side in (base, head)
        )
        yield from _function_clues(function, *sides)


def _function_clues(function: str, base: Kernels, head: Kernels) -> Iterator[Clue]:
    """What the variants of a function differ in, of each figure the variant with the most."""
    make = partial(Clue.of_figures, Source.KERNELS, function, on_gpu=True)
    is_told = False
    for figure, (us, words, noun) in _COMPILED.items() if base and head else ():
        most = [max((one[figure], name) for name, one in side.items()) for side in (base, head)]
        (before, _), (after, _) = most
        if before != after:
            text = words.format(more_or_less(before, after, noun, f"{noun}s"))
            text = f"{function} {text}, as in {max(most)[1]}"
            yield make(figure.replace("_", " "), (before, after), text, us)
            is_told = True
    if base != head and not is_told:
        text = f"{function} runs with other tiles or machine code"
        yield make("variants", (len(base), len(head)), text, 0.0, leaning=0, cost_us=_CODE_US)
