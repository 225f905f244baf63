"""The course of a bisection: the gate, the search, the confirmation, and what each may come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from searched_range import COMMITS, GOOD, INSIDE, QUIET, named, search, times
from simulated_pairs import FIRST_LOOK

from asv_bench.bisect import search as module
from asv_bench.bisect.answer import LASTING
from asv_bench.bisect.finding import Direction, Outcome, RangeShape, SearchPlan, Stage
from asv_bench.bisect.search import LOOKED_AT
from asv_bench.compare.comparison import CommitComparison
from asv_bench.compare.plan import EARLY_LOOKS
from asv_bench.compare.verdict import Verdict
from asv_bench.measure.samples import CommitUnusable, Pair
from tests.simulations.bisect import Scenario, bisect_often
from tests.simulations.commits import SIMULATED, SimulatedCommits
from tests.simulations.noise import Noise


@pytest.mark.parametrize("place", [0, 13, 31])
def test_the_first_slow_commit_is_found_and_confirmed_against_its_parent(place: int) -> None:
    finding, probes, asked = search({place: 0.03})
    assert finding.outcome is Outcome.FOUND
    assert finding.suspects == (COMMITS[place],)
    assert finding.probability is not None
    assert finding.probability >= LASTING
    parent = GOOD if place == 0 else COMMITS[place - 1]
    [confirmation] = finding.confirmations
    assert (confirmation.base, confirmation.head) == (parent, COMMITS[place])
    assert confirmation.verdict is Verdict.SLOWER
    assert confirmation.effect == pytest.approx(0.03, abs=0.004)
    assert finding.remark == ""
    assert set(asked["gate"]) == {(GOOD, COMMITS[-1])}
    assert set(asked["confirmation 1"]) == {(parent, COMMITS[place])}
    assert {base for base, _ in asked["search"]} == {GOOD}
    assert len(asked["search"]) <= 16
    assert [probe.stage for probe in probes] == (
        [Stage.GATE] * len(asked["gate"])
        + [Stage.SEARCH] * len(asked["search"])
        + [Stage.CONFIRMATION] * len(asked["confirmation 1"])
    )
    guesses = [probe.guess for probe in probes if probe.stage is Stage.SEARCH]
    assert guesses[-1].commits == (COMMITS[place],)
    assert guesses[-1].probability >= 0.99


def test_after_the_ends_were_proven_to_differ_none_is_no_answer() -> None:
    # Steps here and there, and so much noise that no commit is suspect for long.
    steps = dict.fromkeys(range(2, 32, 3), 0.05)
    finding, probes, asked = search(steps, Noise(process=0.15), plan=SearchPlan(most_pairs=10))
    assert (finding.outcome, finding.gate.verdict) == (Outcome.INCONCLUSIVE, Verdict.SLOWER)
    assert len(asked["search"]) == 10
    guesses = [probe.guess for probe in probes if probe.guess]
    assert all(guess.commits for guess in guesses)
    # The range in which it must lie, where no commits are suspect; else those.
    assert {*finding.suspects} == {*guesses[-1].commits}
    assert finding.probability == pytest.approx(guesses[-1].probability)


def test_what_made_it_faster_is_found_where_that_is_asked_and_is_else_no_regression() -> None:
    finding, _, asked = search({9: -0.05})
    assert finding.outcome is Outcome.NONE
    assert finding.gate.verdict is Verdict.FASTER
    assert list(asked) == ["gate"]
    finding, _, _ = search({9: -0.05}, direction=Direction.IMPROVEMENT)
    assert finding.outcome is Outcome.FOUND
    assert finding.suspects == (COMMITS[9],)
    assert finding.confirmations[-1].effect == pytest.approx(-0.05, abs=0.005)


def test_ends_of_which_nothing_can_be_told_are_said_to_be_inconclusive() -> None:
    finding, _, asked = search({9: 0.01}, Noise(process=0.1))
    assert finding.outcome is Outcome.INCONCLUSIVE
    assert finding.gate.verdict is Verdict.INCONCLUSIVE
    assert "nor that there is none" in finding.reason
    assert list(asked) == ["gate"]
    assert len(asked["gate"]) == SearchPlan().comparison.cap


def test_commits_that_cannot_be_measured_are_left_out_and_said() -> None:
    log_times = times({14: 0.04})
    for number in (12, 13, 14, 20):
        del log_times[COMMITS[number]]
    finding, probes, _ = search({}, machine=SimulatedCommits(log_times, QUIET, 1))
    assert finding.outcome is Outcome.FOUND
    assert finding.suspects == tuple(COMMITS[12:16])
    assert finding.confirmations[-1].base == COMMITS[11]
    assert finding.confirmations[-1].head == COMMITS[15]
    assert finding.unmeasurable is not None
    assert set(COMMITS[12:15]) <= set(finding.unmeasurable) <= {*COMMITS[12:15], COMMITS[20]}
    failed = [probe for probe in probes if probe.pair is None]
    assert {probe.commit for probe in failed} == set(finding.unmeasurable)
    assert all(probe.failure for probe in failed)


@pytest.mark.parametrize("end", [GOOD, COMMITS[-1]])
def test_an_end_that_cannot_be_measured_ends_it(end: str) -> None:
    log_times = times({14: 0.04})
    del log_times[end]
    with pytest.raises(CommitUnusable, match=end[:8]):
        search({}, machine=SimulatedCommits(log_times, QUIET, 1))


def test_several_steps_are_all_named() -> None:
    finding, _, asked = search({8: 0.03, 21: 0.05})
    assert finding.outcome is Outcome.FOUND
    assert finding.shape is RangeShape.SEVERAL_STEPS
    assert named(finding) == pytest.approx({COMMITS[8]: 0.03, COMMITS[21]: 0.05}, abs=0.005)
    assert finding.suspects == (COMMITS[21],)
    pairs = {frozenset(asked[f"confirmation {number}"]) for number in (1, 2)}
    assert pairs == {frozenset({(COMMITS[n - 1], COMMITS[n])}) for n in (8, 21)}
    assert finding.remark == ""


def test_a_step_that_is_partly_taken_back_is_named_beside_the_one_that_takes_it_back() -> None:
    finding, _, _ = search({8: 0.06, 24: -0.03})
    assert named(finding) == pytest.approx({COMMITS[8]: 0.06, COMMITS[24]: -0.03}, abs=0.005)
    assert finding.suspects == (COMMITS[8],)
    assert finding.confirmations[1].verdict is Verdict.FASTER


def test_several_named_commits_share_the_error_of_one() -> None:
    alpha = SearchPlan().comparison.alpha
    seen: list[float] = []

    class Spied(CommitComparison):
        def __init__(self, design, metrics, plan, pools) -> None:
            seen.append(plan.alpha)
            super().__init__(design, metrics, plan, pools)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CommitComparison", Spied)
        search({8: 0.03, 21: 0.05})
        search({8: 0.03})
    assert seen == [alpha, alpha / 2, alpha / 2, alpha, alpha]


def test_a_change_that_is_taken_back_is_found_inside_and_else_the_answer_says_so() -> None:
    steps = {9: 0.05, 20: 1 / 1.05 - 1}
    finding, probes, asked = search(steps)
    assert (finding.outcome, finding.gate.verdict) == (Outcome.NONE, Verdict.EQUIVALENT)
    assert finding.suspects == ()
    assert "--inside" in finding.remark
    assert list(asked) == ["gate"]
    assert len(probes) == FIRST_LOOK
    finding, _, _ = search(steps, plan=INSIDE)
    assert finding.outcome is Outcome.FOUND
    assert finding.gate.verdict is Verdict.EQUIVALENT
    assert named(finding) == pytest.approx({COMMITS[9]: 0.05, COMMITS[20]: -0.048}, abs=0.005)
    assert finding.suspects == (COMMITS[9],)


def test_nothing_is_found_inside_where_there_is_nothing() -> None:
    finding, _, asked = search({}, plan=INSIDE)
    assert finding.outcome is Outcome.NONE
    assert finding.shape is RangeShape.NOTHING
    looked_at = {head for _, head in asked["search"]}
    assert len(looked_at) == LOOKED_AT
    assert f"{LOOKED_AT} commits measured between" in finding.reason
    assert finding.remark == ""


def test_the_curve_gives_the_level_of_every_measured_commit() -> None:
    finding, probes, _ = search({13: 0.05})
    measured = [probe.commit for probe in probes if probe.stage is not Stage.CONFIRMATION]
    measured += finding.confirmations[0].base, finding.confirmations[0].head
    assert [point.commit for point in finding.curve] == sorted(set(measured) - {GOOD})
    for point in finding.curve:
        level = 0.05 if point.commit >= COMMITS[13] else 0.0
        assert point.effect == pytest.approx(level, abs=0.005)
        assert point.interval[0] <= point.effect <= point.interval[1]
        assert point.pairs == sum(
            (probe.reference, probe.commit) == (GOOD, point.commit) for probe in probes
        )


class HigherIsBetter(SimulatedCommits):
    """A machine whose figures are throughputs."""

    def pair(self, base: str, head: str, **options) -> Mapping[str, Pair]:
        [(name, pair)] = super().pair(base, head, **options).items()
        turned = [replace(one, value=1 / one.value) for one in (pair.base, pair.head)]
        return {name: Pair(*turned, pair.head_first, higher_is_better=True)}


def test_a_fall_of_what_should_be_high_is_a_regression_and_shown_as_a_fall() -> None:
    machine = HigherIsBetter(times({8: 1 / 0.9 - 1, 20: 1 / 1.05 - 1}), QUIET, 1)
    metric = replace(SIMULATED, better="higher")
    finding, _, _ = search({}, machine=machine, metric=metric)
    assert finding.outcome is Outcome.FOUND
    assert finding.suspects == (COMMITS[8],)
    assert named(finding) == pytest.approx({COMMITS[8]: -0.10, COMMITS[20]: 0.05}, abs=0.01)
    [bad] = [point for point in finding.curve if point.commit == COMMITS[-1]]
    assert bad.effect == pytest.approx(0.9 * 1.05 - 1, abs=0.01)
    assert bad.interval[0] <= bad.effect <= bad.interval[1]


def test_a_known_noise_lets_few_pairs_show_a_large_change() -> None:
    pool = [0.001 * step for step in range(-20, 20)]
    finding, _, asked = search({13: 0.30}, pool=pool)
    assert finding.suspects == (COMMITS[13],)
    assert len(asked["gate"]) == len(asked["confirmation 1"]) == EARLY_LOOKS[0].pairs


class Loaded(SimulatedCommits):
    """A machine that gets slow for new commits from some pair on, as another load makes it."""

    def __init__(self, log_times: Mapping[str, float], since: int, factor: float) -> None:
        super().__init__(log_times, QUIET, 1)
        self.since = since
        self.factor = factor

    def _process(self, commit: str, device: str):
        reading = super()._process(commit, device)
        if self.measured["simulated"] <= self.since:
            return reading
        # What is slower in itself suffers more, so that all effects grow alike.
        return replace(reading, value=reading.value**self.factor)


@pytest.mark.parametrize("factor", [2.0, 0.6])
def test_another_load_is_no_second_step(factor: float) -> None:
    gate = FIRST_LOOK
    machine = Loaded(times({13: 0.05}), gate, factor)
    finding, _, _ = search({}, machine=machine)
    assert finding.gate.effect == pytest.approx(0.05, abs=0.005)
    assert list(named(finding)) == [COMMITS[13]]
    assert named(finding)[COMMITS[13]] == pytest.approx(1.05**factor - 1, abs=0.005)


def test_steps_below_the_margin_are_not_named() -> None:
    """The range is 1.3 % slower; one commit did most of it, but less than what matters."""
    finding, _, _ = search({8: 0.007, 31: 0.006})
    assert finding.outcome is Outcome.INCONCLUSIVE
    assert named(finding) == {}


def test_what_noise_explains_is_no_second_step() -> None:
    row = bisect_often(Scenario("", (0.15,), noise=Noise(process=0.03)), runs=20, seed=1000)
    assert row["wrong_commit"] == 0
    assert row["right"] >= 19


def test_a_slow_creep_names_nobody() -> None:
    finding, _, _ = search(dict.fromkeys(range(32), 0.0015))
    assert finding.gate.verdict is Verdict.SLOWER
    assert finding.outcome is Outcome.INCONCLUSIVE
    assert finding.shape is RangeShape.SLOPE
    assert "no single commit: +" in finding.reason
    assert named(finding) == {}
