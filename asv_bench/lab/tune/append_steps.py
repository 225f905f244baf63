"""Captured decode steps with and without the stores of append, on a GPU.

What append costs cannot be timed by itself: alone it is a launch, and in a step it is part of
attention, beside whose reads it writes. So the same step is captured from the same kernel without
its stores. Attention takes a step's own key and value from where the projection left them, never
from the cache, so that such a step chooses the same tokens; a second one would miss them.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from asv_bench.errors import MeasurementFailed
from asv_bench.lab.tune.step_bench import capture_step, step_us
from asv_bench.lab.tune.step_rows import Stepped, StepRows
from kernels.attention.hopper import ring_attention, ring_launch
from kernels.tiles.table import committed_table

_STORE = re.compile(r"^( +)gl\.store\([kv]_cache .*$", re.MULTILINE)


def time_append(
    rows: StepRows, *, captures: int, rounds: int, on_round: Callable[[], None] = lambda: None
) -> tuple[list[list[float]], list[list[float]]]:
    """Microseconds of steps with append's stores and without, each by capture and round.

    Every other round goes through the captures backwards, so that drift falls on all alike.

    Raises
    ------
    Rejected
        If the step is wrong.
    MeasurementFailed
        If what is to append nothing does, or differs from the step in anything else.
    """
    rows.check(rows.fused)
    expected = rows.run(rows.fused)
    timers: list[Callable[[], float]] = []
    for _ in range(captures):
        timers.append(_timer(rows, expected, appends=True))
        with storing_nothing():
            timers.append(_timer(rows, expected, appends=False))
    # A step without stores leaves its slots poisoned, and those after it would compute with NaN.
    rows.run(rows.fused)
    times: list[list[float]] = [[] for _ in timers]
    for number in range(rounds):
        order = list(zip(timers, times, strict=True))
        for timer, taken in order if number % 2 == 0 else reversed(order):
            taken.append(timer())
        on_round()
    return times[::2], times[1::2]


def storing_nothing() -> AbstractContextManager[Any]:
    """Launches of attention's ring within append nothing."""
    return patch.object(ring_launch, "ring_attention", attention_without_stores())


@cache
def attention_without_stores() -> Any:
    """`kernels.attention.hopper.ring_attention.ring_attention` without its stores to the cache.

    Raises
    ------
    MeasurementFailed
        If its source has none that could be taken out.
    """
    source = Path(ring_attention.__file__).read_text(encoding="utf-8")
    text, count = _STORE.subn(r"\1pass", source)
    if not count:
        raise MeasurementFailed(
            "kernels/attention/hopper/ring_attention.py has no line that begins with "
            "gl.store(k_cache or gl.store(v_cache: there is nothing to take out, so append cannot "
            "be told apart."
        )
    with TemporaryDirectory() as folder:
        # Triton reads a kernel's source from its file as the module is executed, and not later.
        path = Path(folder) / "attention_without_stores.py"
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise MeasurementFailed(f"{path} cannot be imported.")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module.ring_attention


def _timer(rows: StepRows, expected: Stepped, *, appends: bool) -> Callable[[], float]:
    """A newly captured step, which must choose what is `expected`."""
    fused = rows.fused.retabled(committed_table())
    stepped = rows.run(fused)
    is_left = stepped.appended.isnan()
    if bool(is_left.any() if appends else not is_left.all()):
        raise MeasurementFailed(
            f"a step at {rows.point} appends {'too little' if appends else 'without its stores'}: "
            "its attention is not launched by kernels.attention.hopper.ring_launch alone."
        )
    if not stepped.chooses_as(expected):
        raise MeasurementFailed(f"a step at {rows.point} without its stores chooses other tokens.")
    graph = capture_step(fused, rows.point.rows)
    return lambda: step_us(rows, graph, fused)
