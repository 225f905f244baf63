"""The course of a bisection: the gate, the search, the confirmation, and what each may come to."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest
from simulated_pairs import FIRST_LOOK

from asv_bench.bisect import search as module
from asv_bench.bisect.finding import Direction, Finding, Outcome, Probe, Shape, Stage
from asv_bench.bisect.plan import SearchPlan
from asv_bench.bisect.search import LASTING, LOOKED_AT, Search
from asv_bench.compare.comparison import MOST_FAILURES, CommitComparison
from asv_bench.compare.plan import EARLY_LOOKS
from asv_bench.compare.verdict import Verdict
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.lab.calibration.simulate_bisect import Scenario, bisect_often, bisect_once
from asv_bench.lab.calibration.simulated_commits import SIMULATED_BENCHMARK, SimulatedCommits
from asv_bench.lab.calibration.simulated_noise import Noise
from asv_bench.process.samples import CommitUnusable, DeviceLost, Pair, SampleFailed

GOOD = "good"
COMMITS = [f"commit {number:02d}" for number in range(32)]
QUIET = Noise(process=0.002, drift=0.002, outliers=0.0)
INSIDE = SearchPlan(is_inside=True)


def times(steps: Mapping[int, float]) -> dict[str, float]:
    """Log times of commits whose steps are at these places."""
    return {GOOD: 0.0} | {
        commit: math.fsum(math.log1p(effect) for place, effect in steps.items() if number >= place)
        for number, commit in enumerate(COMMITS)
    }


class Parts:
    """A source for each part, of the same machine; counts pairs by part."""

    def __init__(self, machine: SimulatedCommits) -> None:
        self.machine = machine
        self.asked: dict[str, list[tuple[str, str]]] = {}

    def __call__(self, part: str) -> SimulatedCommits:
        asked = self.asked.setdefault(part, [])
        machine = self.machine

        class Counted(SimulatedCommits):
            def __init__(self) -> None:
                self._devices = tuple(machine.devices)

            def prepare(self, commit: str, device: str | None = None):
                return machine.prepare(commit, device)

            def pair(self, base: str, head: str, **options) -> Mapping[str, Pair]:
                asked.append((base, head))
                return machine.pair(base, head, **options)

        return Counted()


def search(
    steps: Mapping[int, float],
    noise: Noise = QUIET,
    machine: SimulatedCommits | None = None,
    **options,
) -> tuple[Finding, list[Probe], dict[str, list[tuple[str, str]]]]:
    parts = Parts(machine or SimulatedCommits(times(steps), noise, 1))
    probes: list[Probe] = []
    finding = Search(
        parts, GOOD, COMMITS, SIMULATED_BENCHMARK, on_probe=probes.append, **options
    ).run()
    return finding, probes, parts.asked


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


def test_ends_that_are_equal_are_not_searched() -> None:
    finding, probes, asked = search({})
    assert finding.outcome is Outcome.NONE
    assert finding.gate.verdict is Verdict.EQUIVALENT
    assert finding.suspects == ()
    assert list(asked) == ["gate"]
    assert len(probes) == FIRST_LOOK


def test_a_range_that_got_faster_has_no_regression() -> None:
    finding, _, asked = search({9: -0.05})
    assert finding.outcome is Outcome.NONE
    assert finding.gate.verdict is Verdict.FASTER
    assert list(asked) == ["gate"]


def test_what_made_it_faster_is_found_where_that_is_asked() -> None:
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


def named(finding: Finding) -> dict[str, float]:
    """The effects of the commits that are named."""
    return {step.commit: step.effect for step in finding.confirmed_steps}


def test_several_steps_are_all_named() -> None:
    finding, _, asked = search({8: 0.03, 21: 0.05})
    assert finding.outcome is Outcome.FOUND
    assert finding.shape is Shape.SEVERAL_STEPS
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
        def __init__(self, base, head, benchmarks, plan, pools) -> None:
            seen.append(plan.alpha)
            super().__init__(base, head, benchmarks, plan, pools)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CommitComparison", Spied)
        search({8: 0.03, 21: 0.05})
        search({8: 0.03})
    assert seen == [alpha, alpha / 2, alpha / 2, alpha, alpha]


def test_a_change_that_is_taken_back_is_not_looked_for_and_the_answer_says_so() -> None:
    finding, _, asked = search({9: 0.05, 20: 1 / 1.05 - 1})
    assert finding.outcome is Outcome.NONE
    assert "--inside" in finding.remark
    assert list(asked) == ["gate"]


def test_a_change_that_is_taken_back_is_found_inside() -> None:
    finding, _, _ = search({9: 0.05, 20: 1 / 1.05 - 1}, plan=INSIDE)
    assert finding.outcome is Outcome.FOUND
    assert finding.gate.verdict is Verdict.EQUIVALENT
    assert named(finding) == pytest.approx({COMMITS[9]: 0.05, COMMITS[20]: -0.048}, abs=0.005)
    assert finding.suspects == (COMMITS[9],)


def test_nothing_is_found_inside_where_there_is_nothing() -> None:
    finding, _, asked = search({}, plan=INSIDE)
    assert finding.outcome is Outcome.NONE
    assert finding.shape is Shape.NOTHING
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
    finding, _, _ = search({}, machine=machine)
    assert finding.outcome is Outcome.FOUND
    assert finding.suspects == (COMMITS[8],)
    assert named(finding) == pytest.approx({COMMITS[8]: -0.10, COMMITS[20]: 0.05}, abs=0.01)
    [bad] = [point for point in finding.curve if point.commit == COMMITS[-1]]
    assert bad.effect == pytest.approx(0.9 * 1.05 - 1, abs=0.01)
    assert bad.interval[0] <= bad.effect <= bad.interval[1]


def test_a_known_noise_lets_four_pairs_show_a_large_change() -> None:
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
    assert finding.shape is Shape.SLOPE
    assert "no single commit: +" in finding.reason
    assert named(finding) == {}


def test_a_search_that_takes_too_long_gives_up_with_its_best_guess() -> None:
    noise = Noise(process=0.02)
    finding, _, asked = search({9: 0.03}, noise, plan=SearchPlan(most_pairs=5))
    assert finding.outcome is Outcome.INCONCLUSIVE
    assert len(asked["search"]) == 5
    assert finding.probability is not None
    assert finding.probability < 0.99


class Misleading(SimulatedCommits):
    """A machine on which one harmless commit looks slow until it is confirmed."""

    def pair(self, base: str, head: str, **options) -> Mapping[str, Pair]:
        [(name, pair)] = super().pair(base, head, **options).items()
        if base == GOOD and COMMITS[12] <= head < COMMITS[20]:
            slow = replace(pair.head, value=pair.head.value * 1.03)
            pair = replace(pair, head=slow)
        return {name: pair}


def test_a_culprit_that_fails_its_confirmation_is_not_named() -> None:
    machine = Misleading(times({20: 0.03}), QUIET, 1)
    finding, _, asked = search({}, machine=machine)
    assert asked["confirmation 1"][0] == (COMMITS[11], COMMITS[12])
    assert finding.confirmations[0].verdict is Verdict.EQUIVALENT
    assert finding.outcome is Outcome.INCONCLUSIVE or finding.suspects == (COMMITS[20],)


class Throttling(SimulatedCommits):
    """A machine all of whose pairs without the good end are discarded."""

    def pair(self, base: str, head: str, **options) -> Mapping[str, Pair]:
        [(name, pair)] = super().pair(base, head, **options).items()
        return {name: pair if base == GOOD else replace(pair, discarded="the GPU throttled")}


def test_a_confirmation_that_told_nothing_is_not_repeated() -> None:
    finding, _, asked = search({}, machine=Throttling(times({14: 0.03}), QUIET, 1))
    assert finding.outcome is Outcome.INCONCLUSIVE
    assert finding.suspects == (COMMITS[14],)
    assert list(asked) == ["gate", "search", "confirmation 1"]


class Unsteady(SimulatedCommits):
    """A machine that discards some pairs and whose processes of one commit fail."""

    def __init__(self, fails: Sequence[str]) -> None:
        super().__init__(times({14: 0.04}), QUIET, 1)
        self.fails = fails
        self.calls = 0

    def pair(
        self, base: str, head: str, *, benchmarks: Collection[str] | None = None, **options
    ) -> Mapping[str, Pair]:
        self.calls += 1
        if head in self.fails:
            raise SampleFailed(head, (SIMULATED_BENCHMARK,), "it died")
        [(name, pair)] = super().pair(base, head, **options).items()
        if self.calls % 2 == 0:
            # A throttled GPU makes harmless commits look like the culprit.
            slow = replace(pair.head, value=pair.base.value * 1.04)
            pair = replace(pair, head=slow, discarded="the GPU throttled")
        return {name: pair}


def test_discarded_pairs_count_for_nothing() -> None:
    finding, probes, _ = search({}, machine=Unsteady([]))
    assert finding.suspects == (COMMITS[14],)
    assert sum(probe.pair is not None and bool(probe.pair.discarded) for probe in probes) > 5


def test_a_commit_whose_processes_keep_failing_is_left_out() -> None:
    finding, _, _ = search({}, machine=Unsteady([COMMITS[15]]))
    assert finding.suspects == (COMMITS[14],)
    assert finding.unmeasurable is not None
    assert "it died" in finding.unmeasurable[COMMITS[15]]


def test_a_commit_whose_processes_keep_failing_is_not_asked_again() -> None:
    _, _, asked = search({}, machine=Unsteady([COMMITS[15]]))
    assert asked["search"].count((GOOD, COMMITS[15])) == MOST_FAILURES


def test_ends_whose_processes_keep_failing_are_a_failure() -> None:
    with pytest.raises(MeasurementFailed, match="it died"):
        search({}, machine=Unsteady([COMMITS[-1]]))


class Watched(SimulatedCommits):
    """Notes which pairs are measured at the same time."""

    def __init__(self, devices: Sequence[str]) -> None:
        super().__init__(times({14: 0.04}), QUIET, 1, devices)
        self.barrier = threading.Barrier(len(devices), timeout=5)
        self.order: list[tuple[str, bool]] = []

    def pair(self, base: str, head: str, **options) -> Mapping[str, Pair]:
        self.order.append((options["device"], options["head_first"]))
        return super().pair(base, head, **options)


def test_several_devices_measure_different_commits_in_both_orders() -> None:
    machine = Watched(["a", "b", "c", "d"])
    finding, _, asked = search({}, machine=machine)
    assert finding.suspects == (COMMITS[14],)
    first = [head for _, head in asked["search"][:4]]
    assert len(set(first)) >= 3
    for device in machine.devices:
        orders = [head_first for name, head_first in machine.order if name == device]
        assert abs(sum(orders) - len(orders) / 2) <= 2


class Losing(SimulatedCommits):
    """A machine that loses all of its devices but the first, each after so many pairs."""

    def __init__(self, log_times: Mapping[str, float], lasts: int) -> None:
        super().__init__(log_times, QUIET, 1, [f"device {number}" for number in range(8)])
        self.lasts = lasts

    def pair(self, base: str, head: str, **options) -> Mapping[str, Pair]:
        device = options["device"]
        if device != self.devices[0] and self.measured[device] >= self.lasts:
            raise DeviceLost(f"{device} is lost")
        return super().pair(base, head, **options)


@pytest.mark.parametrize("lasts", [1000, 2])
def test_eight_devices_at_once_come_to_the_same_answer_also_where_they_are_lost(lasts: int) -> None:
    steps = {8: 0.03, 21: 0.05}
    finding, probes, asked = search({}, machine=Losing(times(steps), lasts))
    assert finding.outcome is Outcome.FOUND
    assert named(finding) == pytest.approx({COMMITS[8]: 0.03, COMMITS[21]: 0.05}, abs=0.005)
    assert all(probe.pair is not None for probe in probes)
    if lasts == 1000:
        assert len(set(asked["search"][:8])) >= 6


def test_without_a_device_that_is_left_it_ends() -> None:
    class Gone(SimulatedCommits):
        def pair(self, base: str, head: str, **options) -> Mapping[str, Pair]:
            raise DeviceLost("the last one is lost")

    with pytest.raises(DeviceLost, match="the last one"):
        search({}, machine=Gone(times({}), QUIET, 1, ["a", "b"]))


def test_a_guess_accompanies_each_probe_of_the_search() -> None:
    _, probes, _ = search({14: 0.04})
    searched = [probe.guess for probe in probes if probe.stage is Stage.SEARCH]
    assert all(guess is not None and guess.pairs_left is not None for guess in searched)
    last = searched[-1]
    assert last is not None
    assert last.commits == (COMMITS[14],)
    assert last.probability >= 0.99


@pytest.mark.parametrize("options", [{"certain": 1.0}, {"certain": 0.3}, {"most_pairs": 0}])
def test_a_plan_that_makes_no_sense_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(Refused):
        SearchPlan(**options)


@pytest.mark.parametrize(("effect", "pairs"), [(0.02, 120), (0.03, 80), (0.05, 60)])
def test_simulated_searches_are_right_on_a_noisy_machine(effect: float, pairs: int) -> None:
    row = bisect_often(Scenario("", (effect,)), runs=40, seed=1000)
    assert row["right"] >= 39
    assert row["pairs_mean"] < pairs


def test_a_simulated_range_without_a_step_is_said_to_have_none() -> None:
    row = bisect_often(Scenario("nothing", ()), runs=40, seed=1000)
    assert row["right"] >= 39
    assert row["wrong_commit"] == 0


def test_a_simulated_search_can_be_wrong() -> None:
    """The simulation must not judge kindly: an answer without certainty is not a right one."""
    trials = [
        bisect_once(Scenario("", (0.03,)), seed, plan=SearchPlan(most_pairs=1)) for seed in range(5)
    ]
    assert not any(trial.right for trial in trials)


def test_a_commit_with_an_offset_is_neither_asked_for_ever_nor_named() -> None:
    """Its pairs all have the same offset: more of them say nothing new of the curve."""
    scenario = Scenario("", (0.02,), jitter=0.005)
    for seed in (1, 4, 8):
        trial = bisect_once(scenario, seed)
        assert not trial.is_wrong
        assert max(point.pairs for point in trial.finding.curve[:-1]) < 100
