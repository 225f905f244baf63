"""The course of a comparison: order, looks, replaced pairs, several devices, and the verdicts."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from simulated_pairs import BASE, FIRST_LOOK, HEAD, ScriptedPairs, pair_of, seconds

from asv_bench.compare import noise_pools
from asv_bench.compare.comparison import (
    MOST_FAILURES,
    CommitComparison,
    Headway,
    Suspicion,
    confirm,
    with_pairs,
)
from asv_bench.compare.judging import within_commit
from asv_bench.compare.noise_pools import NoisePools, Pool
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.tables import clock_findings
from asv_bench.compare.verdict import Comparison, Standing, Verdict
from asv_bench.errors import MeasurementFailed
from asv_bench.measure.rounds import two_cells
from asv_bench.measure.samples import Absence, Metric, Pair, SampleFailed
from asv_bench.output.record import Record
from asv_bench.process.gpu import GpuConditions

NOISE = np.random.default_rng(1).normal(0, 0.001, 1000)
NOISE[:24] -= np.median(NOISE[:24])
PLAN = ComparisonPlan()
DESIGN = two_cells(BASE, HEAD)


def ratio_of(**effects: float) -> Callable[[str, int], float]:
    return lambda name, number: (1 + effects[name]) * math.exp(NOISE[number])


def compare(source: ScriptedPairs, plan: ComparisonPlan = PLAN, **extra) -> list[Comparison]:
    return CommitComparison(DESIGN, seconds(*source.benchmarks), plan).run(source, **extra)


@pytest.mark.parametrize(
    ("effect", "verdict"),
    [
        (0.03, Verdict.SLOWER),
        (-0.03, Verdict.FASTER),
        (0.0, Verdict.EQUIVALENT),
        (-0.004, Verdict.EQUIVALENT),  # beyond doubt there, and too small to matter
    ],
)
def test_a_clear_answer_is_given_at_the_first_look(effect: float, verdict: Verdict) -> None:
    source = ScriptedPairs(ratio_of(b=effect))
    (answer,) = compare(source)
    assert answer.verdict is verdict
    assert answer.pairs_used == len(source.asked) == FIRST_LOOK
    assert answer.effect == pytest.approx(effect, abs=0.001)
    assert answer.interval[0] < answer.effect < answer.interval[1] < answer.interval[0] + 0.005
    orders = [asked.head_first for asked in source.asked]
    assert orders == ([False, True, True, False] * 2)[:FIRST_LOOK]


@pytest.mark.parametrize("effect", [0.0098, -0.0098])
def test_an_effect_at_the_margin_is_inconclusive_after_the_cap(effect: float) -> None:
    source = ScriptedPairs(lambda name, number: 1 + effect + (0.004 if number % 2 else -0.004))
    (answer,) = compare(source)
    assert answer.verdict is Verdict.INCONCLUSIVE
    assert answer.pairs_used == len(source.asked) == PLAN.cap


def test_a_fall_of_what_should_be_high_is_slower_and_shown_as_a_fall() -> None:
    pairs = [
        replace(pair_of(100.0, 95.0 * math.exp(noise)), higher_is_better=True)
        for noise in NOISE[:FIRST_LOOK]
    ]
    answer = with_pairs(Comparison("b", BASE, HEAD, Verdict.INCONCLUSIVE), pairs, PLAN)
    assert pairs[0].log_ratio > 0
    assert answer.interval[0] < -0.05 < answer.interval[1] < -0.04
    assert (answer.base_value, answer.head_value) == pytest.approx((100, 95), rel=0.002)
    assert msgspec.convert(pairs[0].to_json(), Pair) == pairs[0]
    with pytest.raises(MeasurementFailed, match="only positive figures can be compared"):
        pair_of(math.nan, 1.0)


def test_the_margin_of_all_or_of_one_benchmark_is_what_a_difference_is_held_to() -> None:
    for margin, verdict in ((0.02, Verdict.SLOWER), (0.05, Verdict.EQUIVALENT)):
        (answer,) = compare(ScriptedPairs(ratio_of(b=0.03)), PLAN.with_margin(margin))
        assert answer.verdict is verdict
    source = ScriptedPairs(ratio_of(a=0.03, b=0.03), benchmarks=("a", "b"))
    metrics = [*seconds("a"), *seconds("b", margin=0.05)]
    answers = CommitComparison(DESIGN, metrics, PLAN).run(source)
    assert [answer.verdict for answer in answers] == [Verdict.SLOWER, Verdict.EQUIVALENT]


def test_each_device_alternates_and_none_waits_for_another() -> None:
    both = threading.Barrier(2, timeout=60)

    class Meeting(ScriptedPairs):
        def prepare(self, commit: str, device: str | None = None) -> Mapping[str, Absence]:
            both.wait()  # both commits are prepared at once
            return super().prepare(commit, device)

    devices = ("gpu0", "gpu1", "gpu2", "gpu3")
    source = Meeting(ratio_of(b=0.0), devices=devices, seconds=0.03)
    compare(source)
    assert sorted(source.prepared) == sorted([BASE, HEAD])
    assert len(source.asked) == FIRST_LOOK
    assert source.most_busy == 4
    for device in devices:
        orders = [asked.head_first for asked in source.asked if asked.device == device]
        assert orders in ([False, True, True][: len(orders)], [True, False, False][: len(orders)])
    # Devices begin in turn with either order.
    assert 2 <= sum(asked.head_first for asked in source.asked) <= FIRST_LOOK - 2


def test_discarded_pairs_are_replaced_and_never_judged_by() -> None:
    def discarded(name: str, number: int) -> str | None:
        return "the clock moved" if number % 3 == 0 else None

    def ratio(name: str, number: int) -> float:
        return 2.0 if discarded(name, number) else math.exp(NOISE[number])

    (answer,) = compare(ScriptedPairs(ratio, discard=discarded))
    assert answer.verdict is Verdict.EQUIVALENT
    assert (answer.pairs_used, answer.pairs_discarded) == (FIRST_LOOK, 3)
    source = ScriptedPairs(ratio, discard=lambda name, number: "the clock moved")
    (answer,) = compare(source)
    assert (answer.verdict, answer.effect) == (Verdict.INCONCLUSIVE, None)
    assert len(source.asked) == answer.pairs_discarded == PLAN.max_discarded
    assert "throttled during both" in answer.reason


def test_a_look_judges_by_the_pairs_that_were_planned_and_an_answer_ends_measuring() -> None:
    source = ScriptedPairs(
        ratio_of(clear=0.05, unclear=0.0098),
        benchmarks=("clear", "unclear"),
        discard=lambda name, number: "hot" if name == "unclear" and number < 4 else None,
    )
    clear, unclear = compare(source)
    # With two benchmarks, 6 and 8 pairs cannot be significant any more: the next look is.
    assert (clear.verdict, clear.pairs_used) == (Verdict.SLOWER, 10)
    assert (unclear.verdict, unclear.pairs_used) == (Verdict.INCONCLUSIVE, PLAN.cap)
    asked = [set(entry.benchmarks) for entry in source.asked]
    assert asked == [{"clear", "unclear"}] * 14 + [{"unclear"}] * 20


def test_more_benchmarks_need_more_evidence() -> None:
    """A difference that one benchmark alone would be convicted by is not enough among fifty."""

    def ratio(name: str, number: int) -> float:
        if name == "suspect":
            return (0.985 if number % 4 == 1 else 1.02) * math.exp(NOISE[number])
        return math.exp(9 * NOISE[(number * 7 + 13 * int(name[1:])) % 1000])

    (alone,) = compare(ScriptedPairs(ratio, benchmarks=("suspect",)))
    assert alone.verdict is Verdict.SLOWER
    others = tuple(f"b{number}" for number in range(50))
    among = compare(ScriptedPairs(ratio, benchmarks=("suspect", *others)))[0]
    assert among.p < 2 * PLAN.difference_level(len(PLAN.looks) - 1, 1)
    assert among.verdict is Verdict.INCONCLUSIVE


def test_a_process_that_fails_is_replaced_and_a_benchmark_that_keeps_failing_given_up() -> None:
    def ratio(name: str, number: int) -> float:
        if name == "bad" or (name == "once" and number == 4):
            raise SampleFailed(HEAD, (name,), "out of memory")
        return math.exp(NOISE[number])

    (answer,) = compare(ScriptedPairs(ratio, benchmarks=("once",)))
    assert answer.verdict is Verdict.EQUIVALENT
    assert (answer.pairs_used, answer.pairs_discarded) == (FIRST_LOOK, 1)
    good, bad = compare(ScriptedPairs(ratio, benchmarks=("good", "bad")))
    assert good.verdict is Verdict.EQUIVALENT
    assert (bad.verdict, bad.pairs_discarded) == (Verdict.FAILED, MOST_FAILURES)
    assert "out of memory" in bad.reason


def test_benchmarks_that_a_commit_lacks_are_left_out_of_everything() -> None:
    lacking = Absence("it has no such feature", has_failed=False)
    broken_there = {"broken": Absence("ZeroDivisionError", has_failed=True)}
    absent = {BASE: {"young": lacking}, HEAD: broken_there}
    names = ("young", "old", "broken")
    young, old, broken = compare(ScriptedPairs(ratio_of(old=0.03), names, absent=absent))
    assert (young.verdict, broken.verdict) == (Verdict.NOT_MEASURED, Verdict.FAILED)
    assert young.reason == "commit bbbbbbbb: it has no such feature"
    # They do not count as hypotheses either: 6 pairs suffice for one benchmark only.
    assert (old.verdict, old.pairs_used) == (Verdict.SLOWER, FIRST_LOOK)


def test_an_interruption_stops_what_runs_and_answers_stand_while_others_say_why() -> None:
    def ratio(name: str, number: int) -> float:
        scatter = (-1) ** (number // 2)
        return {"slower": 1.03 + 0.001 * scatter, "noisy": 1.0 + 0.2 * scatter}[name]

    def interrupt(progress: Headway, pairs: Mapping[str, Pair]) -> None:
        if progress.measured == PLAN.cap - 3:
            # A pair that was not stopped would take ten minutes.
            source.seconds = 600
        if progress.measured == PLAN.cap - 2:
            raise KeyboardInterrupt

    source = ScriptedPairs(ratio, ("noisy", "slower"), devices=("gpu0", "gpu1"), seconds=0.02)
    comparison = CommitComparison(DESIGN, seconds(*source.benchmarks), PLAN)
    with pytest.raises(KeyboardInterrupt) as interruption:
        comparison.run(source, interrupt)
    assert source.stopped
    noisy, slower = comparison.answers_after(interruption.value)
    assert (noisy.verdict, noisy.pairs_used) == (Verdict.INCONCLUSIVE, PLAN.cap - 2)
    assert "interrupted" in noisy.reason
    assert (slower.verdict, slower.reason) == (Verdict.SLOWER, "")
    assert slower.pairs_used < noisy.pairs_used


def test_a_seam_of_two_pairs_is_a_difference_within_one_commit() -> None:
    orders = (False, True, True, False)
    pairs = [
        pair_of(2.0**number, 3.0**number, head_first=order) for number, order in enumerate(orders)
    ]
    # base head, head base, base head, base head: the head after itself, then the base.
    assert within_commit(pairs) == pytest.approx([math.log(3), math.log(2)])
    assert within_commit([pairs[0], pair_of(1, 1, head_first=True, device="gpu1")]) == []


@pytest.mark.parametrize(
    ("effect", "noise", "sessions", "test", "pairs"),
    [
        (0.02, 0.2, 8, "pooled ranks", 3),
        (-0.02, 0.2, 8, "pooled ranks", 3),
        (0.0, 0.2, 8, "pooled ranks", 4),
        # Three or four pairs need the noise of several sessions.
        (0.02, 0.2, 1, "pooled ranks", 5),
        (0.02, 0.2, 7, "pooled ranks", 5),
        # A run that is noisier than the pool.
        (0.02, 20, 8, "signed ranks and signs", 24),
    ],
)
def test_few_pairs_are_enough_where_the_noise_is_known_and_the_run_is_as_quiet(
    effect: float, noise: float, sessions: int, test: str, pairs: int
) -> None:
    pool = Pool(np.random.default_rng(5).normal(0, 0.001, 40).tolist(), sessions)
    source = ScriptedPairs(lambda name, number: (1 + effect) * math.exp(noise * pool[number]))
    (answer,) = CommitComparison(DESIGN, seconds("b"), pools={"b": pool}).run(source)
    verdicts = {0.02: Verdict.SLOWER, -0.02: Verdict.FASTER, 0.0: Verdict.EQUIVALENT}
    assert answer.verdict is verdicts[effect]
    assert (answer.test, answer.pairs_used, answer.confidence) == (test, pairs, 0.95)
    if test == "pooled ranks":
        # As wide as the noise that is known lets so few pairs be off, not as they happen to lie.
        half = (answer.interval[1] - answer.interval[0]) / 2
        assert half == pytest.approx((1 + effect) * 2.02 * np.std(pool) / pairs**0.5, rel=0.02)


def test_the_latest_differences_of_a_benchmark_are_kept(tmp_path: Path) -> None:
    record = Record("compare", {})
    pools = NoisePools(record, tmp_path)
    assert pools.of(["a", "b"]) == {}
    orders = [number % 4 in (1, 2) for number in range(60)]
    pairs = [pair_of(1.0, 1.0 + number / 100, head_first=one) for number, one in enumerate(orders)]
    pools.add({"a": pairs, "b": pairs[:8]})
    # 30 seams are not enough yet.
    assert NoisePools(record, tmp_path).of(["a", "b"]) == {}
    NoisePools(record, tmp_path).add({"a": pairs})
    again = NoisePools(record, tmp_path).of(["a", "b"])
    assert {name: len(pool) for name, pool in again.items()} == {"a": 40}
    assert again["a"][-1] == within_commit(pairs)[-1]


def test_a_pool_knows_from_how_many_sessions_it_comes(tmp_path: Path) -> None:
    record = Record("compare", {})
    pairs = [pair_of(1.0, 1.1, head_first=number % 4 in (1, 2)) for number in range(90)]
    NoisePools(record, tmp_path).add({"a": pairs[:40]}, are_same=True)
    for sessions in range(1, 9):
        pool = NoisePools(record, tmp_path).of(["a"])["a"]
        assert (len(pool), pool.sessions, pool.pair_s) == (40, sessions, 1.0)
        NoisePools(record, tmp_path).add({"a": pairs[:12]})
    calibrating = NoisePools(record, tmp_path / "calibrated")
    calibrating.add({"a": pairs[:20]}, are_same=True)
    calibrating.add({"a": pairs[:30]}, are_same=True)
    pool = NoisePools(record, tmp_path / "calibrated").of(["a"])["a"]
    assert (len(pool), pool.sessions) == (40, 1)


@pytest.mark.parametrize(
    ("figures", "unit", "verdict"),
    [
        # A difference of the margin, 1 %, may hide in the last digit, or may not.
        ((64.0, 64.0), "ms", Verdict.INCONCLUSIVE),
        ((0.64, 0.64), "", Verdict.INCONCLUSIVE),
        ((0.641, 0.641), "", Verdict.EQUIVALENT),
        ((1000.0, 1000.0), "ms", Verdict.EQUIVALENT),
        # What is counted is exact.
        ((12.0, 12.0), "launches", Verdict.EQUIVALENT),
        ((1.2, 1.2), "MB", Verdict.INCONCLUSIVE),
        ((12.0, 12.0), "tokens/s", Verdict.INCONCLUSIVE),
        ((100.0, 120.0), "ms", Verdict.SLOWER),
        ((1_000_000.0, 1_006_000.0), "bytes", Verdict.EQUIVALENT),
        ((1_000_000.0, 1_006_000.0), "", Verdict.EQUIVALENT),
    ],
)
def test_a_figure_with_few_digits_equals_no_other(
    figures: tuple[float, float], unit: str, verdict: Verdict
) -> None:
    source = ScriptedPairs(lambda name, number: 1.0)
    base, head = figures
    source.pair = lambda *_, head_first, benchmarks, **__: {  # type: ignore[method-assign]
        name: pair_of(base, head, benchmark=name, head_first=head_first) for name in benchmarks
    }
    (answer,) = CommitComparison(DESIGN, [Metric("b", unit)], PLAN).run(source)
    assert answer.verdict is verdict
    assert ("too few digits for this margin" in answer.reason) == (verdict is Verdict.INCONCLUSIVE)


@pytest.mark.parametrize("found", ["[NaN]", '["x"]', "3", None])
def test_a_line_of_noise_that_is_none_is_named_and_the_others_count(
    found: str | None, tmp_path: Path
) -> None:
    record = Record("compare", {})
    pools = NoisePools(record, tmp_path)
    pairs = [pair_of(1.0, 1.1, head_first=False)] * 40
    pools.add({"a": pairs}, are_same=True)
    line = f'{{"type": "noise", "session": 1, "differences": {{"a": {found}}}}}' if found else "[]"
    with pools.path.open("a") as file:
        file.write(f"{line}\n")
    again = NoisePools(record, tmp_path)
    assert again.complaints[0].startswith(f"line 2 of {pools.path} is not ")
    assert len(again.of(["a"])["a"]) == 40


def test_noise_that_no_pool_holds_any_more_is_left_out_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise_pools, "_MOST_LINES", 50)
    record, pairs = Record("compare", {}), [pair_of(1.0, 1.1, head_first=False)]
    NoisePools(record, tmp_path).add({"rare": pairs * 40}, are_same=True)
    pools = NoisePools(record, tmp_path)
    for _ in range(60):
        pools.add({"a": pairs}, are_same=True)
    known = NoisePools(record, tmp_path).of(["rare", "a"])
    assert len(pools.path.read_text().splitlines()) == 2
    assert NoisePools(record, tmp_path).of(["rare", "a"]) == known
    assert {name: len(pool) for name, pool in known.items()} == {"rare": 40, "a": 40}


def gpu(clock: float, *events: str) -> GpuConditions:
    return GpuConditions(clock, clock, clock, events, 60, 9)


COOL, HOT = gpu(1980), gpu(1980, "sw_thermal_slowdown")


@pytest.mark.parametrize(
    ("both", "found"),
    [
        ([(gpu(1980), gpu(1950))] * 4, "1980 MHz for the base, 1950 MHz for the head (-1.5 %"),
        ([(COOL, HOT)] * 9 + [(COOL, COOL)] * 3, "while 9 of 12 processes of the head ran"),
        # Too few pairs, too small a difference, and clocks that nobody could read.
        ([(gpu(1980), gpu(1950))] * 3, None),
        ([(gpu(1980), gpu(1978))] * 30, None),
        ([(gpu(1980), None)] * 30, None),
        ([(COOL, HOT), (HOT, COOL)] * 6, None),
        # Clocks that wander alike in both.
        ([(gpu(1980), gpu(1950)), (gpu(1950), gpu(1980))] * 6, None),
    ],
)  # fmt: skip
def test_a_head_that_lowers_its_clock_or_is_throttled_more_often_is_said(
    both: Sequence[tuple[GpuConditions, GpuConditions]], found: str | None
) -> None:
    one = pair_of(1.0, 1.0)
    pairs = [
        replace(
            one,
            base=replace(one.base, gpu=base, started_at=2.0 * number),
            head=replace(one.head, gpu=head, started_at=2.0 * number + 1),
        )
        for number, (base, head) in enumerate(both)
    ]
    # Benchmarks share processes, which count once.
    sentences = clock_findings([*pairs, *pairs])
    assert len(sentences) == (0 if found is None else 1)
    assert all(found in sentence for sentence in sentences)


def test_each_stored_suspicion_gets_its_standing_and_equal_commits_one_comparison() -> None:
    other, gone = "d" * 40, "e" * 40
    effects = {"slow": 1.05, "fast": 0.95, "same": 1.0, "unclear": 1.0}
    seemed = {
        Suspicion(BASE, HEAD, "slow"): (True, Standing.REGRESSION),
        Suspicion(BASE, other, "slow"): (False, Standing.REFUTED),
        Suspicion(BASE, HEAD, "fast"): (False, Standing.IMPROVEMENT),
        Suspicion(BASE, HEAD, "same"): (True, Standing.REFUTED),
        Suspicion(BASE, HEAD, "unclear"): (True, Standing.UNRESOLVED),
        # It cannot be measured now, which stops nothing.
        Suspicion(BASE, gone, "slow"): (True, Standing.NOT_COMPARED),
    }

    def ratio(name: str, number: int) -> float:
        swing = 0.05 if name == "unclear" else 0.0001
        return effects[name] + (swing if number % 2 else -swing)

    source = ScriptedPairs(ratio, tuple(effects), unusable={gone: "it has no engine"})
    metrics = {metric.name: metric for metric in seconds(*effects)}
    answers, is_interrupted = confirm(seemed, metrics, source)
    assert not is_interrupted
    for suspicion, (is_worse, standing) in seemed.items():
        assert Standing.of(answers[suspicion], is_worse=is_worse) is standing
    assert source.asked[0].benchmarks == ("slow", "fast", "same", "unclear")
