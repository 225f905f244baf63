"""The course of a comparison: order, looks, replaced pairs, several devices, and the verdicts."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from simulated_pairs import BASE, FIRST_LOOK, HEAD, ScriptedPairs, pair_of, seconds

from asv_bench.compare.comparison import CommitComparison, Headway, summarize_pairs
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import MeasurementFailed
from asv_bench.measure.rounds import two_cells
from asv_bench.measure.samples import Absence, CommitUnusable, Pair, SampleFailed

NOISE = np.random.default_rng(1).normal(0, 0.001, 1000)
NOISE[:24] -= np.median(NOISE[:24])
PLAN = ComparisonPlan()
DESIGN = two_cells(BASE, HEAD)


def ratio_of(effects: Mapping[str, float], noise: float = 1.0):
    return lambda name, number: (1 + effects[name]) * math.exp(noise * NOISE[number])


def compare(source: ScriptedPairs, plan: ComparisonPlan = PLAN, **extra) -> list[Comparison]:
    return CommitComparison(DESIGN, seconds(*source.benchmarks), plan).run(source, **extra)


@pytest.mark.parametrize(
    ("effect", "verdict"),
    [
        (0.03, Verdict.SLOWER),
        (-0.03, Verdict.FASTER),
        (0.0, Verdict.EQUIVALENT),
        # Beyond doubt there, and too small to matter.
        (0.004, Verdict.EQUIVALENT),
        (-0.004, Verdict.EQUIVALENT),
    ],
)
def test_a_clear_answer_is_given_at_the_first_look(effect: float, verdict: Verdict) -> None:
    source = ScriptedPairs(ratio_of({"b": effect}))
    (answer,) = compare(source)
    assert answer.verdict is verdict
    assert answer.pairs_used == len(source.asked) == FIRST_LOOK
    assert answer.effect == pytest.approx(effect, abs=0.001)
    assert answer.interval is not None
    assert answer.interval[0] < answer.effect < answer.interval[1]
    assert answer.interval[1] - answer.interval[0] < 0.005


def test_a_fall_of_what_should_be_high_is_slower_and_shown_as_a_fall() -> None:
    pairs = [
        replace(pair_of(100.0, 95.0 * math.exp(noise)), higher_is_better=True)
        for noise in NOISE[:FIRST_LOOK]
    ]
    assert pairs[0].log_ratio > 0
    answer = summarize_pairs(BASE, HEAD, "b", pairs, PLAN)
    assert answer.effect == pytest.approx(-0.05, abs=0.001)
    assert answer.interval is not None
    assert answer.interval[0] < answer.effect < answer.interval[1]
    assert msgspec.convert(pairs[0].to_json(), Pair) == pairs[0]


def test_the_margin_of_all_or_of_one_benchmark_is_what_a_difference_is_held_to() -> None:
    for margin, verdict in ((0.02, Verdict.SLOWER), (0.05, Verdict.EQUIVALENT)):
        (answer,) = compare(ScriptedPairs(ratio_of({"b": 0.03})), PLAN.with_margin(margin))
        assert answer.verdict is verdict
    source = ScriptedPairs(ratio_of({"a": 0.03, "b": 0.03}), benchmarks=("a", "b"))
    metrics = [*seconds("a"), *seconds("b", margin=0.05)]
    answers = CommitComparison(DESIGN, metrics, PLAN).run(source)
    assert [answer.verdict for answer in answers] == [Verdict.SLOWER, Verdict.EQUIVALENT]


@pytest.mark.parametrize("effect", [0.0098, -0.0098])
def test_an_effect_at_the_margin_is_inconclusive_after_the_cap(effect: float) -> None:
    source = ScriptedPairs(lambda name, number: 1 + effect + (0.004 if number % 2 else -0.004))
    (answer,) = compare(source)
    assert answer.verdict is Verdict.INCONCLUSIVE
    assert answer.pairs_used == len(source.asked) == PLAN.cap


def test_pairs_alternate_in_order() -> None:
    source = ScriptedPairs(ratio_of({"b": 0.0}))
    compare(source)
    orders = [asked.head_first for asked in source.asked]
    assert orders == ([False, True, True, False] * 2)[:FIRST_LOOK]


def test_each_device_alternates_and_none_waits_for_another() -> None:
    source = ScriptedPairs(
        ratio_of({"b": 0.0}), devices=("gpu0", "gpu1", "gpu2", "gpu3"), seconds=0.03
    )
    compare(source)
    assert len(source.asked) == FIRST_LOOK
    assert source.most_busy == 4
    for device in source.devices:
        orders = [asked.head_first for asked in source.asked if asked.device == device]
        assert orders in ([False, True, True][: len(orders)], [True, False, False][: len(orders)])
    # Devices begin in turn with either order.
    assert min(Counter(asked.head_first for asked in source.asked).values()) >= 2


@pytest.mark.parametrize(
    ("devices", "prepares_together"), [(("gpu0", "gpu1"), False), (("gpu0",), True)]
)
def test_both_commits_are_prepared_at_once(
    devices: tuple[str, ...], prepares_together: bool
) -> None:
    both = threading.Barrier(2, timeout=60)

    class Meeting(ScriptedPairs):
        def prepare(self, commit: str, device: str | None = None) -> Mapping[str, Absence]:
            both.wait()
            return super().prepare(commit, device)

    source = Meeting(ratio_of({"b": 0.0}), devices=devices, prepares_together=prepares_together)
    CommitComparison(DESIGN, seconds("b")).run(source)
    assert sorted(source.prepared) == sorted([BASE, HEAD])


def test_discarded_pairs_are_replaced_and_never_judged_by() -> None:
    def ratio(name: str, number: int) -> float:
        return 2.0 if number % 3 == 0 else math.exp(NOISE[number])

    source = ScriptedPairs(
        ratio, discard=lambda name, number: "the clock moved" if number % 3 == 0 else None
    )
    (answer,) = compare(source)
    assert answer.verdict is Verdict.EQUIVALENT
    assert (answer.pairs_used, answer.pairs_discarded) == (FIRST_LOOK, 3)


def test_a_look_judges_by_as_many_pairs_as_were_planned() -> None:
    """A benchmark that lost no pair has more of them by then than the one that did."""

    def discard(name: str, number: int) -> str | None:
        return "hot" if name == "unlucky" and number < 4 else None

    source = ScriptedPairs(
        ratio_of({"lucky": 0.03, "unlucky": 0.03}), ("lucky", "unlucky"), discard=discard
    )
    answers = compare(source)
    # Of two benchmarks, 6 and 8 pairs of one cannot be significant any more: the next look is.
    assert len(source.asked) == 10 + 4
    assert [answer.pairs_used for answer in answers] == [10] * 2


def test_replacements_are_bounded() -> None:
    source = ScriptedPairs(ratio_of({"b": 0.03}), discard=lambda name, number: "the clock moved")
    (answer,) = compare(source)
    assert answer.verdict is Verdict.INCONCLUSIVE
    assert len(source.asked) == answer.pairs_discarded == PLAN.max_discarded
    assert answer.effect is None
    assert "12 pairs were discarded or failed" in answer.reason
    assert "throttled during both" in answer.reason


def test_what_has_an_answer_is_measured_no_further() -> None:
    source = ScriptedPairs(
        ratio_of({"clear": 0.05, "unclear": 0.0098}), benchmarks=("clear", "unclear")
    )
    clear, unclear = compare(source)
    # With two benchmarks, 6 and 8 pairs cannot be significant any more: the next look is.
    assert (clear.verdict, clear.pairs_used) == (Verdict.SLOWER, 10)
    assert (unclear.verdict, unclear.pairs_used) == (Verdict.INCONCLUSIVE, PLAN.cap)
    asked = [set(entry.benchmarks) for entry in source.asked]
    assert asked == [{"clear", "unclear"}] * 10 + [{"unclear"}] * 20


def test_more_benchmarks_need_more_evidence() -> None:
    """A difference that one benchmark alone would be convicted by is not enough among fifty."""

    def ratio(name: str, number: int) -> float:
        return (
            (0.985 if number % 4 == 1 else 1.02) * math.exp(NOISE[number])
            if (name == "suspect")
            else math.exp(9 * NOISE[(number * 7 + 13 * int(name[1:])) % 1000])
        )

    alone = compare(ScriptedPairs(ratio, benchmarks=("suspect",)))
    assert alone[0].verdict is Verdict.SLOWER
    others = tuple(f"b{number}" for number in range(50))
    many = compare(ScriptedPairs(ratio, benchmarks=("suspect", *others)))
    assert many[0].p is not None
    assert many[0].p < 2 * PLAN.difference_level(len(PLAN.looks) - 1, 1)
    assert many[0].verdict is Verdict.INCONCLUSIVE


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
    assert bad.verdict is Verdict.FAILED
    assert "out of memory" in bad.reason


def test_a_commit_that_cannot_be_measured_ends_it_before_any_pair() -> None:
    source = ScriptedPairs(ratio_of({"b": 0.0}), unusable={HEAD: "it has no engine"})
    with pytest.raises(CommitUnusable, match="commit cccccccc cannot be measured: it has no eng"):
        compare(source)
    assert source.prepared == [BASE]
    assert not source.asked


def test_benchmarks_that_a_commit_lacks_are_left_out_of_everything() -> None:
    lacking = Absence("it has no such feature", has_failed=False)
    broken_there = {"broken": Absence("ZeroDivisionError", has_failed=True)}
    absent = {BASE: {"young": lacking}, HEAD: broken_there}
    names = ("young", "old", "broken")
    young, old, broken = compare(ScriptedPairs(ratio_of({"old": 0.03}), names, absent=absent))
    assert young.verdict is Verdict.NOT_MEASURED
    assert young.reason == "commit bbbbbbbb: it has no such feature"
    assert broken.verdict is Verdict.FAILED
    # They do not count as hypotheses either: 6 pairs suffice for one benchmark only.
    assert (old.verdict, old.pairs_used) == (Verdict.SLOWER, FIRST_LOOK)
    source = ScriptedPairs(ratio_of({"b": 0.03}), absent={HEAD: {"b": lacking}})
    (answer,) = compare(source)
    assert answer.verdict is Verdict.NOT_MEASURED
    assert not source.asked


def test_progress_is_told_after_each_pair() -> None:
    heard: list[tuple[Headway, Mapping[str, Pair]]] = []
    source = ScriptedPairs(
        lambda name, number: 1.0098 + (0.004 if number % 2 else -0.004),
        discard=lambda name, number: "hot" if number == 2 else None,
    )
    compare(source, on_pair=lambda progress, pairs: heard.append((progress, pairs)))
    assert [progress.measured for progress, _ in heard] == list(range(1, 32))
    assert [progress.kept for progress, _ in heard][:4] == [1, 2, 2, 3]
    assert {progress.next_look for progress, _ in heard} == {look.pairs for look in PLAN.looks[3:]}
    assert "throttled" in (heard[2][1]["b"].discarded or "")


def test_after_an_interruption_answers_stand_and_others_say_why() -> None:
    interrupted_at = PLAN.cap - 2

    def ratio(name: str, number: int) -> float:
        if number == interrupted_at:
            raise KeyboardInterrupt
        scatter = (-1) ** (number // 2)
        return {"slower": 1.03 + 0.001 * scatter, "noisy": 1.0 + 0.2 * scatter}[name]

    source = ScriptedPairs(ratio, benchmarks=("noisy", "slower"))
    comparison = CommitComparison(DESIGN, seconds(*source.benchmarks), PLAN)
    with pytest.raises(KeyboardInterrupt) as interruption:
        comparison.run(source)
    noisy, slower = comparison.answers_after(interruption.value)
    assert (noisy.verdict, noisy.pairs_used) == (Verdict.INCONCLUSIVE, interrupted_at)
    assert "interrupted" in noisy.reason
    assert slower.verdict is Verdict.SLOWER
    assert slower.pairs_used < interrupted_at
    assert not slower.reason


@pytest.mark.parametrize(
    ("is_lacking", "verdict"), [(True, Verdict.NOT_MEASURED), (False, Verdict.FAILED)]
)
def test_a_commit_that_is_unusable_is_every_benchmarks_answer(
    is_lacking: bool, verdict: Verdict
) -> None:
    error = CommitUnusable(HEAD, "it cannot be imported", is_lacking=is_lacking)
    answers = CommitComparison(DESIGN, seconds("a", "b")).answers_after(error)
    assert [answer.verdict for answer in answers] == [verdict, verdict]
    assert "it cannot be imported" in answers[0].reason


def test_an_interruption_stops_what_is_running_at_once() -> None:
    source = ScriptedPairs(ratio_of({"b": 0.0}), devices=("gpu0", "gpu1"), seconds=0.05)

    def interrupt(progress: Headway, pairs: Mapping[str, Pair]) -> None:
        if progress.measured == 3:
            source.seconds = 600
        if progress.measured == 4:
            raise KeyboardInterrupt

    # A pair that was not stopped would take ten minutes.
    with pytest.raises(KeyboardInterrupt):
        compare(source, on_pair=interrupt)
    assert source.stopped


def test_values_are_medians_of_the_pairs_used() -> None:
    pairs = [pair_of(2.0, 4.0), pair_of(3.0, 6.0), pair_of(10.0, 20.0)]
    answer = summarize_pairs(BASE, HEAD, "b", pairs, PLAN)
    assert (answer.base_value, answer.head_value) == (3.0, 6.0)
    assert answer.effect == pytest.approx(1.0)
    assert answer.to_json()["verdict"] == "inconclusive"


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_figure_without_a_ratio_is_refused(value: float) -> None:
    with pytest.raises(MeasurementFailed, match="only positive figures can be compared"):
        pair_of(value, 1.0)
