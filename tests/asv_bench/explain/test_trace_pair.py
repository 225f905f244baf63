"""Two sets of traces: what is beyond their noise is named, and nothing else."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from asv_bench.compare.verdict import Verdict
from asv_bench.explain.clue import Clue
from asv_bench.explain.explanation import Effect
from asv_bench.explain.trace import Event, TraceSummary, WorkTime, summarize_trace
from asv_bench.explain.trace_pair import TracePair
from tests.explanations import explanation_of, slower

KERNELS = 40
TRACES = 3


def step_of(work: dict[str, tuple[int, float]], gaps: float = 0.0) -> TraceSummary:
    """A trace of one step on a device: calls and microseconds of its kernels, and its gaps."""
    kernels = [WorkTime(name, calls, us) for name, (calls, us) in work.items()]
    busy = sum(one.total_us for one in kernels)
    return TraceSummary(kernels, True, busy + gaps, gaps, steps=1)


def pair_of(base: list[TraceSummary], head: list[TraceSummary]) -> TracePair:
    return TracePair([[one] for one in base], [[one] for one in head])


class Machine:
    """Traces of a step of 40 kernels on a machine that is now and then slower as a whole."""

    def __init__(self, seed: int, *, noise: float = 0.02, pace: float = 0.1) -> None:
        self._random = random.Random(seed)
        self._noise, self._pace = noise, pace

    def trace(self, *, slower: float = 1.0, more: int = 0, idle: float = 1.0) -> TraceSummary:
        """One trace; kernel 0 is slower, or launched more often."""
        pace = self._random.lognormvariate(0.0, self._pace)
        work = {}
        for place in range(KERNELS):
            calls = 2 + place % 5 + (more if place == 0 else 0)
            each = 100 * 0.93**place * pace * (slower if place == 0 else 1.0)
            each *= self._random.lognormvariate(0.0, self._noise)
            work[f"kernel_{place}"] = (calls, calls * each)
        gaps = 400 * idle * pace * self._random.lognormvariate(0.0, self._noise)
        return step_of(work, gaps)

    def pair(self, **head: float) -> TracePair:
        base = [self.trace() for _ in range(TRACES)]
        return pair_of(base, [self.trace(**head) for _ in range(TRACES)])  # type: ignore[arg-type]


def on_device(*kernels: tuple[str, float, float], launches: float = 0.0) -> TraceSummary:
    """A step of kernels that begin and end so, which the host launches one behind the other."""
    events = [
        Event(name, begin, end - begin, "kernel", 0, number % 2)
        for number, (name, begin, end) in enumerate(kernels)
    ]
    host = [Event("cudaLaunchKernel", 4.0 * one, launches, "cuda_runtime", 9, 9) for one in (0, 5)]
    span = Event("ProfilerStep#1", 0, max(end for *_, end in kernels), "user_annotation", 9, 9)
    return summarize_trace([*events, span, *(host if launches else [])])


def named(pair: TracePair, effect: Effect | None = None) -> list[Clue]:
    return explanation_of(pair.clues(), traces=pair, effect=effect).causes


def test_the_same_against_itself_names_nothing_in_ten() -> None:
    assert [named(Machine(seed).pair()) for seed in range(10)] == [[]] * 10


def test_a_slower_kernel_of_the_same_name_is_told_on_a_machine_whose_pace_moves() -> None:
    pair = Machine(1).pair(slower=1.5)
    (cause,) = named(pair)
    assert (cause.name, cause.what, cause.is_exact) == ("kernel_0", "µs a call", False)
    assert cause.after == pytest.approx(150, rel=0.2)
    # Two calls of 50 µs more, of all that the 40 kernels and the gaps take.
    share = explanation_of(pair.clues(), traces=pair, effect=slower(0.03)).to_json()["explained"]
    assert share == pytest.approx(100 / (0.03 * pair.base_us), rel=0.2)


def test_more_launches_come_before_longer_ones_and_gaps() -> None:
    first, second = named(Machine(2, pace=0.0).pair(more=1, idle=1.5))
    assert first.sentence == "kernel_0 is launched 1 more time (2 → 3) a step"
    assert second.name == "gaps between device work"


def test_a_kernel_that_waits_for_others_in_its_own_time_is_not_blamed() -> None:
    # Each kernel begins before the one before it has ended, and waits within. In the head a copy
    # comes between, so that the norm begins when it can run.
    base = [("gemm", 0, 40), ("norm", 10, 50), ("gemm", 45, 90)]
    head = [("gemm", 0, 40), ("copy", 38, 60), ("norm", 60, 70), ("gemm", 65, 110)]
    pair = pair_of(3 * [on_device(*base)], 3 * [on_device(*head)])
    found = explanation_of(pair.clues(), traces=pair, effect=slower(20 / 90))
    assert [one.name for one in found.causes] == ["copy"]
    assert found.account == pytest.approx(
        {"beyond noise": 1, "waiting for others": 0, "within noise": 0, "not in the traces": 0}
    )
    # A step that is slower by more than the traces show.
    found = explanation_of(pair.clues(), traces=pair, effect=slower(40 / 90))
    assert found.account is not None
    assert found.account["not in the traces"] == pytest.approx(0.5)
    assert found.answer()[-2].endswith("50 % of the change; the rest: 50 % not in the traces.")


def test_what_runs_in_the_shadow_of_another_costs_nothing() -> None:
    base = on_device(("gemm", 0, 100), ("copy", 10, 30))
    head = on_device(("gemm", 0, 100), ("copy", 10, 90))
    assert named(pair_of(3 * [base], 3 * [head])) == []
    longer = on_device(("gemm", 0, 100), ("copy", 10, 150))
    (cause,) = named(pair_of(3 * [base], 3 * [longer]))
    assert (cause.name, cause.part) == ("copy", pytest.approx(0.5))
    assert "beside what runs before it" in cause.sentence


def test_gaps_are_those_of_launches_and_others() -> None:
    kernels = ("gemm", 10.0, 20.0), ("gemm", 40.0, 50.0)
    base = on_device(*kernels, launches=4.0)
    head = on_device(("gemm", 10.0, 20.0), ("gemm", 50.0, 60.0), launches=8.0)
    launch, gaps = named(pair_of(3 * [base], 3 * [head]))
    # The first launch is before any work; while the second begins the device works no longer.
    assert (launch.name, launch.part) == ("launch on the host", pytest.approx(8 / 50))
    assert (gaps.name, gaps.part) == ("gaps between device work", pytest.approx(2 / 50))


def test_nothing_is_named_that_traces_of_the_same_show_as_well() -> None:
    # Kernels scatter by 1 % to 20 %, each in its own way.
    def traces(rng: random.Random, scatter: list[float]) -> list[TraceSummary]:
        def work() -> dict[str, tuple[int, float]]:
            return {
                f"kernel_{place}": (4, 400 * 0.93**place * rng.lognormvariate(0.0, one))
                for place, one in enumerate(scatter)
            }

        return [step_of(work(), 400 * rng.lognormvariate(0.0, 0.2)) for _ in range(2)]

    false = 0
    for seed in range(60):
        rng = random.Random(seed)
        scatter = [0.05 * rng.lognormvariate(0.0, 1.0) for _ in range(KERNELS)]
        false += bool(named(pair_of(traces(rng, scatter), traces(rng, scatter))))
    assert false <= 1


def test_a_machine_slower_by_the_same_everywhere_is_no_cause() -> None:
    machine = Machine(3, pace=0.002)
    base, head = ([machine.trace() for _ in range(TRACES)] for _ in range(2))
    slower = [
        step_of({one.name: (one.calls, 1.3 * one.total_us) for one in trace.work}, 1.3 * 400)
        for trace in head
    ]
    pair = pair_of(base, slower)
    assert (named(pair), pair.shows_effect) == ([], False)


def test_time_that_is_spent_waiting_is_no_cause() -> None:
    def traces(us: float) -> list[TraceSummary]:
        return 3 * [step_of({"ncclDevKernel_AllReduce<{lambda()#1}>": (2, us), "gemm": (4, 400.0)})]

    pair = pair_of(traces(50.0), traces(150.0))
    (waiting,) = pair.clues()
    assert (waiting.is_waiting, named(pair)) == (True, [])
    assert "waiting for others" in waiting.sentence


def test_traces_of_ranks_are_added_up() -> None:
    first, second = step_of({"gemm": (2, 20.0)}), step_of({"gemm": (4, 40.0), "copy": (1, 5.0)})
    two = replace(second, steps=2)
    pair = TracePair(3 * [[first, two]], 3 * [[first, second]])
    assert pair.to_json() == {"unit": "step", "base_us": 3 * [42.5], "head_us": 3 * [65.0]}
    sentences = [one.sentence for one in pair.clues()]
    assert sentences == [
        "gemm is launched 2 more times (4 → 6) a step",
        "copy is launched 0.5 more times (0.5 → 1) a step",
    ]


def test_what_leans_the_other_way_is_no_cause() -> None:
    pair = Machine(4, pace=0.0).pair(slower=0.5)
    assert named(pair, slower()) == []
    (faster,) = named(pair, slower(-0.1, verdict=Verdict.FASTER))
    assert faster.name == "kernel_0"
    assert named(pair, slower(0.0, verdict=Verdict.EQUIVALENT)) == []


def test_operators_are_told_and_the_host_beside_them() -> None:
    def event(name: str, ts: float, dur: float, cat: str = "cpu_op") -> Event:
        return Event(name, ts, dur, cat, 1, 1)

    base = [event("aten::mm", 0, 50), event("ProfilerStep#3", 0, 100, "user_annotation")]
    extra = [event("aten::clone", 60, 20), event("aten::copy_", 62, 15)]
    head = [*base[:1], *extra, event("ProfilerStep#3", 0, 120, "user_annotation")]
    before, after = summarize_trace(base), summarize_trace(head)
    assert (before.span_us, before.idle_us, after.idle_us) == (100, 50, 50)
    found = {one.sentence: one.part for one in pair_of(3 * [before], 3 * [after]).clues()}
    words = "is called 1 more time (0 → 1) a step"
    assert found == pytest.approx({f"aten::copy_ {words}": 0.15, f"aten::clone {words}": 0.05})


class Spread:
    """Traces of a step that ranks share: four sums, each when the last rank has come to it."""

    def __init__(self, seed: int, *, ranks: int = 2, sums: str = "gloo:all_gather") -> None:
        self._random, self._ranks, self._sums = random.Random(seed), ranks, sums

    def trace(self, *more: float) -> list[TraceSummary]:
        """One trace of each rank, of 16 steps; some take so many microseconds more in each."""
        on_gpu = not self._sums.startswith("gloo")
        work, wait = ("kernel", "kernel") if on_gpu else ("cpu_op", "user_annotation")
        events: list[list[Event]] = [[] for _ in range(self._ranks)]
        now = 0.0
        for piece in range(4 * 16):
            # A busy machine keeps a rank from its core now and then.
            taken = [
                100 * self._random.lognormvariate(0, 0.05) + 3000 * (self._random.random() < 0.04)
                for _ in range(self._ranks)
            ]
            for rank, us in enumerate(more):
                taken[rank] += us * (piece % 4 == 0)
            met = now + max(taken) + 5
            for rank, us in enumerate(taken):
                events[rank].append(Event("gemm", now, us, work, rank, 1))
                arrived = now + us
                if rank and piece % 4 == 3 and not on_gpu:
                    told = Event("wait for rank 0", arrived, 2, wait, rank, 1)
                    events[rank].append(told)
                    arrived += 2
                if self._sums == "add_ranks_to_row":
                    # Launched early.
                    arrived -= 0.7 * us
                events[rank].append(Event(self._sums, arrived, met - arrived, wait, rank, 2))
            now = met
        return [summarize_trace(one, 16) for one in events]

    def pair(self, *more: float) -> TracePair:
        base, head = ([self.trace(*each) for _ in range(TRACES)] for each in ((), more))
        return TracePair(base, head)


@pytest.mark.parametrize(
    "sums", ["gloo:all_gather", "one_shot_all_reduce_kernel", "add_ranks_to_row"]
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_rank_that_others_wait_for_is_named(ranks: int, sums: str) -> None:
    pair = Spread(1, ranks=ranks, sums=sums).pair(0, 1000)
    first = explanation_of(pair.clues(), traces=pair, effect=slower(1)).causes[0]
    assert (first.name, first.what, first.leaning) == ("rank 1", "µs a step by itself", 1)
    assert float(first.after or 0) - float(first.before or 0) == pytest.approx(1000, rel=0.05)
    others = "rank 0 waits" if ranks == 2 else "rank 0 and rank 2 and rank 3 wait"
    assert first.sentence.startswith("Rank 1 takes ")
    assert first.sentence.endswith(f", and {others} for it")
    # The other way round, they wait less.
    back = TracePair(*[[Spread(2).trace(0, us) for _ in range(TRACES)] for us in (1000, 0)])
    [told] = back.slow_rank()
    assert told.leaning == -1
    assert " less by itself (" in told.sentence
    assert told.sentence.endswith("and rank 0 waits less for it")


def test_no_rank_is_named_where_all_are_as_before_or_slower_alike() -> None:
    for seed in range(10):
        for more in ((), (1000, 1000)):
            names = [one.name for one in Spread(seed).pair(*more).clues()]
            assert not any(name.startswith("rank") for name in names)
