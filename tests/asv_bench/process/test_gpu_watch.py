"""What is read of a GPU while a process measures, and which pairs are discarded for it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from asv_bench.measure.samples import GpuConditions
from asv_bench.process import gpu_watch
from asv_bench.process.gpu import GpuState
from asv_bench.process.gpu_watch import conditions_of, why_discarded


def conditions(clock: float, *events: str) -> GpuConditions:
    return GpuConditions(clock, clock, clock, events, 60, 10)


@pytest.mark.parametrize(
    ("base", "head", "sentence"),
    [
        (conditions(1980), conditions(1980), None),
        # A commit may lower the clock, by the power that it draws: that is its doing.
        (conditions(1980), conditions(1500), None),
        (conditions(1755, "sw_power_cap"), conditions(1755, "sw_power_cap"), None),
        (conditions(1980), conditions(1980, "sw_thermal_slowdown"), None),
        (conditions(1980, "hw_slowdown"), conditions(1980), None),
        (
            conditions(1980, "hw_slowdown"),
            conditions(1980, "sw_thermal_slowdown"),
            "throttled during both processes (hw_slowdown, sw_thermal_slowdown)",
        ),
        (conditions(1980), conditions(1980, "hw_power_brake_slowdown"), "The host held the GPU"),
        (conditions(1980, "hw_power_brake_slowdown"), None, "The host held the GPU back"),
        (None, None, None),
        (None, conditions(1980), None),
    ],
)
def test_pairs_are_discarded_for_what_the_machine_does_and_no_commit(
    base: GpuConditions | None, head: GpuConditions | None, sentence: str | None
) -> None:
    discarded = why_discarded(base, head)
    assert (discarded is None) == (sentence is None)
    assert (sentence or "") in (discarded or "")


def state(clock: int, *events: str) -> GpuState:
    return GpuState(clock, 3201, events, 50 + clock // 100, 300.0)


def test_moments_of_idleness_do_not_count() -> None:
    idle = [state(345, "gpu_idle")] * 20
    found = conditions_of([*idle, state(1980), state(1965, "sw_power_cap"), state(1980)])
    assert found == GpuConditions(1980, 1965, 1980, ("sw_power_cap",), 69, 3)
    assert conditions_of(idle) == GpuConditions(345, 345, 345, ("gpu_idle",), 53, 20)
    assert conditions_of([]) is None


def test_a_watch_reads_until_it_is_left_and_tells_moments_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = itertools.count(1000)

    @contextmanager
    def reader(device: str) -> Iterator[Callable[[], GpuState]]:
        assert device == "GPU-a"
        yield lambda: state(next(clocks))

    monkeypatch.setattr(gpu_watch, "gpu_reader", reader)
    monkeypatch.setattr(gpu_watch, "POLL_SECONDS", 0.005)
    begun = time.monotonic()
    with gpu_watch.GpuWatch("GPU-a") as watch:
        time.sleep(0.5)
        middle = time.monotonic()
        time.sleep(0.5)
    early, late = watch.conditions(begun, middle), watch.conditions(middle, time.monotonic())
    assert early is not None
    assert late is not None
    assert early.readings > 3
    assert early.sm_clock_highest_mhz < late.sm_clock_lowest_mhz
    assert watch.conditions(begun - 2, begun - 1) is None
    taken = next(clocks)
    time.sleep(0.05)
    assert next(clocks) == taken + 1
