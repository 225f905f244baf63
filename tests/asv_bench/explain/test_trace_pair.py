"""Two sets of traces: what is beyond their noise is named, and nothing else."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from asv_bench.explain.difference import Difference
from asv_bench.explain.effect import Effect
from asv_bench.explain.ranking import Question, causes, explained
from asv_bench.explain.step_profile import StepProfile, Work, step_profile
from asv_bench.explain.trace_pair import TracePair

KERNELS = 40
TRACES = 3


class Machine:
    """Traces of a step of 40 kernels on a machine that is now and then slower as a whole."""

    def __init__(self, seed: int, *, noise: float = 0.02, pace: float = 0.1) -> None:
        self._random = random.Random(seed)
        self._noise, self._pace = noise, pace

    def trace(self, *, slower: float = 1.0, more: int = 0, idle: float = 1.0) -> StepProfile:
        """One trace; kernel 0 is slower, or launched more often."""
        pace = self._random.lognormvariate(0.0, self._pace)
        work = {}
        for place in range(KERNELS):
            calls = 2 + place % 5 + (more if place == 0 else 0)
            each = 100 * 0.93**place * pace * (slower if place == 0 else 1.0)
            each *= self._random.lognormvariate(0.0, self._noise)
            work[f"kernel_{place}"] = Work(calls, calls * each, calls * each)
        gaps = 400 * idle * pace * self._random.lognormvariate(0.0, self._noise)
        total = gaps + sum(one.own_us for one in work.values())
        return StepProfile(True, True, work, total, gaps)

    def pair(self, **head: float) -> TracePair:
        base = [self.trace() for _ in range(TRACES)]
        return TracePair(base, [self.trace(**head) for _ in range(TRACES)])  # type: ignore[arg-type]


def named(pair: TracePair, effect: Effect | None = None) -> list[Difference]:
    return causes(pair.differences(), Question(effect, pair, is_here_gpu=True))


EFFECT = Effect(
    *("tpot_ms", "ms", "slower", 0.1, (0.09, 0.11), 6, 5.0),
    higher_is_better=False,
    is_on_gpu=True,
    machine="a GPU",
    started="2026-01-01",
)


def test_the_same_against_itself_names_nothing_in_ten() -> None:
    assert [named(Machine(seed).pair()) for seed in range(10)] == [[]] * 10


def test_a_slower_kernel_of_the_same_name_is_told_on_a_machine_whose_pace_moves() -> None:
    pair = Machine(1).pair(slower=1.5)
    (cause,) = named(pair)
    assert (cause.name, cause.what, cause.is_exact) == ("kernel_0", "µs a call", False)
    assert cause.after == pytest.approx(150, rel=0.2)
    # Two calls of 50 µs more, of all that the 40 kernels and the gaps take.
    share = explained(pair.differences(), Question(replace(EFFECT, effect=0.03), pair, True))
    assert share == pytest.approx(100 / (0.03 * pair.base_us), rel=0.2)


def test_more_launches_come_before_longer_ones_and_gaps() -> None:
    machine = Machine(2, pace=0.0)
    base = [machine.trace() for _ in range(TRACES)]
    head = [machine.trace(more=1, idle=1.5) for _ in range(TRACES)]
    first, second = named(TracePair(base, head))
    assert first.sentence == "kernel_0 is launched 1 more time (2 → 3) a step"
    assert second.name == "gaps between device work"


def test_a_machine_slower_by_the_same_everywhere_is_one_difference() -> None:
    machine = Machine(3, pace=0.002)
    base = [machine.trace() for _ in range(TRACES)]
    head = [
        replace(
            one,
            work={
                name: Work(work.calls, 1.3 * work.own_us, 1.3 * work.whole_us)
                for name, work in one.work.items()
            },
        )
        for one in (machine.trace() for _ in range(TRACES))
    ]
    found = named(TracePair(base, head))
    assert found[0].name == "every kernel"
    assert not [one for one in found if one.name.startswith("kernel")]


def test_time_that_is_spent_waiting_is_no_cause() -> None:
    def trace(us: float) -> StepProfile:
        work = {"ncclDevKernel_AllReduce": Work(2, us, us), "gemm": Work(4, 400.0, 400.0)}
        return StepProfile(True, True, work, us + 400, 0.0)

    pair = TracePair([trace(50.0)] * 3, [trace(150.0)] * 3)
    (waiting,) = pair.differences()
    assert (waiting.is_waiting, named(pair)) == (True, [])
    assert "waiting for other devices" in waiting.sentence


def test_a_kernel_that_took_the_place_of_another_is_one_difference() -> None:
    def trace(name: str, us: float) -> StepProfile:
        return StepProfile(True, True, {name: Work(4, us, us)}, us, 0.0)

    (one,) = TracePair([trace("old", 40.0)] * 3, [trace("new", 60.0)] * 3).differences()
    assert one.sentence == "new runs in place of old: a call takes 15 µs in place of 10 (+50 %)"


def test_what_leans_the_other_way_is_no_cause() -> None:
    pair = Machine(4, pace=0.0).pair(slower=0.5)
    assert named(pair, EFFECT) == []
    assert [one.name for one in named(pair, replace(EFFECT, verdict="faster", effect=-0.1))] == [
        "kernel_0"
    ]
    assert named(pair, replace(EFFECT, verdict="equivalent", effect=0.0)) == []


def test_operators_are_told_with_those_that_they_call_and_the_host_beside_them() -> None:
    def event(name: str, ts: float, dur: float, cat: str = "cpu_op") -> dict[str, object]:
        return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1}

    base = [event("aten::mm", 0, 50), event("ProfilerStep#3", 0, 100, "user_annotation")]
    extra = [event("aten::clone", 60, 20), event("aten::copy_", 62, 15)]
    head = [*base[:1], *extra, event("ProfilerStep#3", 0, 120, "user_annotation")]
    before, after = step_profile(base), step_profile(head)
    assert (before.total_us, before.idle_us, after.idle_us) == (100, 50, 50)
    assert after.work["aten::clone"] == Work(1, 5, 20)
    (one,) = TracePair([before] * 3, [after] * 3).differences()
    assert one.sentence == (
        "aten::clone is called 1 more time (0 → 1) a step, and with it aten::copy_"
    )
    assert one.part == pytest.approx(0.2)
