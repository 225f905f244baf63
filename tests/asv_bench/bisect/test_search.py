"""The course of a bisection: the gate, the search, the confirmation, and what each may come to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from simulated_pairs import FIRST_LOOK

from asv_bench.bisect import search as module
from asv_bench.bisect.finding import Finding, Outcome, Probe, RangeShape, SearchPlan
from asv_bench.bisect.search import LOOKED_AT, Search
from asv_bench.bisect.searched import LASTING
from asv_bench.compare.comparison import MOST_FAILURES, CommitComparison
from asv_bench.compare.plan import EARLY_LOOKS
from asv_bench.compare.verdict import Verdict
from asv_bench.errors import MeasurementFailed, TimeIsUp
from asv_bench.measure.samples import CommitUnusable, DeviceLost, Pair, SampleFailed
from tests.simulations.bisect import Scenario, bisect_often
from tests.simulations.commits import SIMULATED, SIMULATED_BENCHMARK, SimulatedCommits
from tests.simulations.noise import Noise

GOOD = "good"
COMMITS = [f"commit {number:02d}" for number in range(32)]
QUIET = Noise(process=0.002, drift=0.002, outliers=0.0)

Happens = Callable[["Machine", str, str, Pair], Pair]


class Machine(SimulatedCommits):
    """Commits in a row, with steps at these places but for what is `lost`; notes what is asked.

    What `happens` to a pair of two commits may change it or raise.
    """

    def __init__(
        self,
        steps: Mapping[int, float],
        happens: Happens = lambda machine, base, head, pair: pair,
        noise: Noise = QUIET,
        devices: Sequence[str] = ("simulated",),
        lost: Sequence[str] = (),
    ) -> None:
        times = {GOOD: 0.0} | {
            commit: math.fsum(math.log1p(steps[place]) for place in steps if number >= place)
            for number, commit in enumerate(COMMITS)
        }
        known = {commit: time for commit, time in times.items() if commit not in lost}
        super().__init__(known, noise, 1, devices)
        self.happens = happens
        self.asked: dict[str, list[tuple[str, str]]] = {}
        self.orders: list[tuple[str, bool]] = []

    def part(self, name: str) -> Machine:
        """The source for a part of the search."""
        self.now = self.asked.setdefault(name, [])
        return self

    def pair(self, base: str, head: str, **options) -> Mapping[str, Pair]:
        self.now.append((base, head))
        self.orders.append((options["device"], options["head_first"]))
        [(name, pair)] = super().pair(base, head, **options).items()
        return {name: self.happens(self, base, head, pair)}


def search(machine: Machine, **options) -> tuple[Finding, list[Probe]]:
    probes: list[Probe] = []
    ends = {"source_of": machine.part, "good": GOOD, "candidates": COMMITS}
    options = {**ends, "metric": SIMULATED, "on_probe": probes.append, **options}
    return Search(**options).run(), probes


def named(finding: Finding) -> dict[int, float]:
    """The effects of the commits that are named, by their places."""
    return {COMMITS.index(step.commit): step.effect for step in finding.confirmed_steps}


def of_head(pair: Pair, value: float, **changes) -> Pair:
    return replace(pair, head=replace(pair.head, value=value), **changes)


@pytest.mark.parametrize("place", [0, 13, 31])
def test_the_first_slow_commit_is_found_and_confirmed_against_its_parent(place: int) -> None:
    machine = Machine({place: 0.03})
    finding, probes = search(machine)
    assert finding.outcome is Outcome.FOUND
    assert finding.suspects == (COMMITS[place],)
    assert finding.probability >= LASTING
    parent = GOOD if place == 0 else COMMITS[place - 1]
    [confirmation] = finding.confirmations
    assert (confirmation.base, confirmation.head) == (parent, COMMITS[place])
    assert confirmation.verdict is Verdict.SLOWER
    assert confirmation.effect == pytest.approx(0.03, abs=0.004)
    assert set(machine.asked["gate"]) == {(GOOD, COMMITS[-1])}
    assert set(machine.asked["confirmation 1"]) == {(parent, COMMITS[place])}
    assert {base for base, _ in machine.asked["search"]} == {GOOD}
    assert len(machine.asked["search"]) <= 16
    assert [str(probe.stage) for probe in probes] == [
        part.removesuffix(" 1") for part, pairs in machine.asked.items() for _ in pairs
    ]
    last_guess = [probe.guess for probe in probes if probe.guess][-1]
    assert last_guess.commits == (COMMITS[place],)


def test_the_curve_gives_the_level_of_every_measured_commit() -> None:
    finding, probes = search(Machine({13: 0.05}))
    assert {COMMITS[12], COMMITS[13], COMMITS[-1]} <= {point.commit for point in finding.curve}
    for point in finding.curve:
        level = 0.05 if point.commit >= COMMITS[13] else 0.0
        assert point.effect == pytest.approx(level, abs=0.005)
        assert point.interval[0] <= point.effect <= point.interval[1]
        pairs = [(probe.reference, probe.commit) for probe in probes]
        assert point.pairs == pairs.count((GOOD, point.commit))


@pytest.mark.parametrize(
    ("steps", "suspect"), [({8: 0.03, 21: 0.05}, 21), ({8: 0.06, 24: -0.03}, 8)]
)
def test_several_steps_are_all_named_and_share_the_error_of_one(
    steps: dict[int, float], suspect: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    alphas: list[float] = []

    class Spied(CommitComparison):
        def __init__(self, design, metrics, plan, pools) -> None:
            alphas.append(plan.alpha)
            super().__init__(design, metrics, plan, pools)

    monkeypatch.setattr(module, "CommitComparison", Spied)
    finding, _ = search(Machine(steps))
    assert finding.shape is RangeShape.SEVERAL_STEPS
    assert named(finding) == pytest.approx(steps, abs=0.005)
    assert finding.suspects == (COMMITS[suspect],)
    # The gate, the step that comes first, alone, and the one that is left.
    assert alphas == [SearchPlan().comparison.alpha / share for share in (1, 1, 2)]


def test_after_the_ends_were_proven_to_differ_none_is_no_answer() -> None:
    # Steps here and there, and so much noise that no commit is suspect for long.
    machine = Machine(dict.fromkeys(range(2, 32, 3), 0.05), noise=Noise(process=0.2))
    finding, probes = search(machine, plan=SearchPlan(most_pairs=10))
    assert (finding.outcome, finding.gate.verdict) == (Outcome.INCONCLUSIVE, Verdict.SLOWER)
    assert len(machine.asked["search"]) == 10
    # The range in which it must lie.
    [*_, guess] = [probe.guess for probe in probes if probe.guess]
    assert {*finding.suspects} == {*guess.commits} != set()


@pytest.mark.parametrize(
    ("steps", "shape"),
    [
        # The range is 1.3 % slower; one commit did most of it, but less than what matters.
        ({8: 0.007, 31: 0.006}, None),
        (dict.fromkeys(range(32), 0.0015), RangeShape.SLOPE),
    ],
)
def test_steps_below_the_margin_and_a_slow_creep_name_nobody(
    steps: dict[int, float], shape: RangeShape | None
) -> None:
    finding, _ = search(Machine(steps))
    assert finding.outcome is Outcome.INCONCLUSIVE
    assert shape in (None, finding.shape)
    assert named(finding) == {}


@pytest.mark.parametrize(
    ("scenario", "runs"),
    [
        (Scenario("", (0.15,), noise=Noise(process=0.03)), 10),
        # Few commits are all measured before the end.
        (Scenario("", (0.10, 1 / 1.10 - 1, 0.05), commits=8), 4),
    ],
)
def test_noise_is_no_second_step_and_among_few_commits_none_is_missed(
    scenario: Scenario, runs: int
) -> None:
    row = bisect_often(scenario, runs, seed=1000)
    assert (row["wrong_commit"], row["right"]) == (0, runs)


@pytest.mark.parametrize("seed", [26, 91, 153])
def test_a_commits_own_offset_is_not_named_in_place_of_a_small_step(seed: int) -> None:
    offsets_of_half_a_margin = Scenario("", (0.02,), jitter=0.005, commits=16)
    assert bisect_often(offsets_of_half_a_margin, 1, seed)["wrong_commit"] == 0


def test_a_change_that_is_taken_back_is_found_inside_and_else_the_answer_says_so() -> None:
    steps = {9: 0.05, 20: 1 / 1.05 - 1}
    finding, probes = search(Machine(steps))
    assert (finding.outcome, finding.gate.verdict) == (Outcome.NONE, Verdict.EQUIVALENT)
    assert finding.suspects == ()
    assert "--inside" in finding.remark
    assert len(probes) == FIRST_LOOK
    finding, _ = search(Machine(steps), plan=SearchPlan(is_inside=True))
    assert named(finding) == pytest.approx({9: 0.05, 20: -0.048}, abs=0.005)
    assert finding.suspects == (COMMITS[9],)
    nothing = Machine({})
    finding, _ = search(nothing, plan=SearchPlan(is_inside=True))
    assert (finding.outcome, finding.shape) == (Outcome.NONE, RangeShape.NOTHING)
    assert len({head for _, head in nothing.asked["search"]}) == LOOKED_AT


@pytest.mark.parametrize("last", [21, 10])
def test_all_measures_each_commit_so_that_steps_that_cancel_are_found(last: int) -> None:
    # Also where one commit alone is slower, between those that are measured without it.
    steps = {9: 0.05, last: 1 / 1.05 - 1}
    machine = Machine(steps)
    finding, _ = search(machine, plan=SearchPlan(is_all=True, is_inside=True))
    assert named(finding) == pytest.approx({9: 0.05, last: -0.048}, abs=0.005)
    assert {head for _, head in machine.asked["search"]} == {*COMMITS[:-1]}
    assert "changes that cancel each other are seen 9 times of 10 from about 1." in finding.remark
    nothing = Machine({})
    finding, probes = search(nothing, plan=SearchPlan(is_all=True, is_inside=True))
    assert (finding.outcome, named(finding)) == (Outcome.NONE, {})
    assert len(probes) < 2 * len(COMMITS)


@pytest.mark.parametrize(("spare_s", "is_asked"), [(0.0, False), (29.0, False), (300.0, True)])
def test_what_was_not_measured_is_measured_before_the_end_where_there_is_time(
    spare_s: float, *, is_asked: bool
) -> None:
    def slowly(machine: Machine, base: str, head: str, pair: Pair) -> Pair:
        ends = (replace(one, process_s=5.0) for one in (pair.base, pair.head))
        return replace(pair, **dict(zip(("base", "head"), ends, strict=True)))

    # The largest step is taken back, so that the ends differ by a lesser one.
    steps = {3: 0.30, 5: 1 / 1.30 - 1, 20: 0.10}
    machine = Machine(steps, slowly)
    finding, _ = search(machine, spare_s=lambda: spare_s)
    found = named(finding)
    assert finding.suspects == (COMMITS[3 if is_asked else 20],)
    assert list(found) == ([3, 5, 20] if is_asked else [20])
    levels = {point.commit: point.effect for point in finding.curve}
    assert not is_asked or levels[COMMITS[4]] == pytest.approx(0.30, abs=0.02)
    count = len(COMMITS) - len(finding.curve)
    assert (f"{count} labels of 32 were not measured" in finding.remark) != is_asked


def test_commits_that_cannot_be_measured_are_left_out_and_an_end_is_an_error() -> None:
    lost = [COMMITS[number] for number in (12, 13, 14, 20)]
    finding, probes = search(Machine({14: 0.04}, lost=lost))
    assert finding.outcome is Outcome.FOUND
    assert finding.suspects == tuple(COMMITS[12:16])
    assert finding.confirmations[-1].base == COMMITS[11]
    assert set(lost[:3]) <= set(finding.unmeasurable) <= set(lost)
    failed = [probe for probe in probes if probe.pair is None]
    assert {probe.commit for probe in failed if probe.failure} == set(finding.unmeasurable)
    for end in (GOOD, COMMITS[-1]):
        with pytest.raises(CommitUnusable, match=end[:8]):
            search(Machine({14: 0.04}, lost=[end]))


def test_a_fall_of_what_should_be_high_is_a_regression_and_shown_as_a_fall() -> None:
    def turned(machine: Machine, base: str, head: str, pair: Pair) -> Pair:
        sides = [replace(one, value=1 / one.value) for one in (pair.base, pair.head)]
        return Pair(*sides, pair.head_first, higher_is_better=True)

    machine = Machine({8: 1 / 0.9 - 1, 20: 1 / 1.05 - 1}, turned)
    finding, _ = search(machine, metric=replace(SIMULATED, better="higher"))
    assert finding.suspects == (COMMITS[8],)
    assert named(finding) == pytest.approx({8: -0.10, 20: 0.05}, abs=0.01)
    [bad] = [point for point in finding.curve if point.commit == COMMITS[-1]]
    assert bad.effect == pytest.approx(0.9 * 1.05 - 1, abs=0.01)


def test_a_known_noise_lets_few_pairs_show_a_large_change() -> None:
    machine = Machine({13: 0.30})
    finding, _ = search(machine, pool=[0.001 * step for step in range(-20, 20)])
    assert finding.suspects == (COMMITS[13],)
    pairs = [len(machine.asked[part]) for part in ("gate", "confirmation 1")]
    assert pairs == [EARLY_LOOKS[0].pairs] * 2


@pytest.mark.parametrize("factor", [2.0, 0.6])
def test_another_load_is_no_second_step(factor: float) -> None:
    def loaded(machine: Machine, base: str, head: str, pair: Pair) -> Pair:
        # From some pair on, what is slower in itself suffers more, so that all effects grow alike.
        if machine.measured["simulated"] <= FIRST_LOOK:
            return pair
        return of_head(pair, pair.base.value * (pair.head.value / pair.base.value) ** factor)

    finding, _ = search(Machine({13: 0.05}, loaded))
    assert named(finding) == pytest.approx({13: 1.05**factor - 1}, abs=0.005)


def test_a_culprit_that_fails_its_confirmation_is_not_named() -> None:
    def misleading(machine: Machine, base: str, head: str, pair: Pair) -> Pair:
        is_misread = base == GOOD and COMMITS[12] <= head < COMMITS[20]
        return of_head(pair, pair.head.value * 1.03) if is_misread else pair

    machine = Machine({20: 0.03}, misleading)
    finding, _ = search(machine)
    assert machine.asked["confirmation 1"][0] == (COMMITS[11], COMMITS[12])
    assert finding.confirmations[0].verdict is Verdict.EQUIVALENT
    assert finding.outcome is Outcome.INCONCLUSIVE or finding.suspects == (COMMITS[20],)


@pytest.mark.parametrize("fails", ["", COMMITS[15], COMMITS[-1]])
def test_discarded_pairs_count_for_nothing_and_a_commit_that_keeps_failing_is_left_out(
    fails: str,
) -> None:
    def unsteady(machine: Machine, base: str, head: str, pair: Pair) -> Pair:
        if head == fails:
            raise SampleFailed(head, (SIMULATED_BENCHMARK,), "it died")
        if len(machine.orders) % 2:
            return pair
        # A throttled GPU makes harmless commits look like the culprit.
        return of_head(pair, pair.base.value * 1.04, discarded="the GPU throttled")

    machine = Machine({14: 0.04}, unsteady)
    if fails == COMMITS[-1]:
        with pytest.raises(MeasurementFailed, match="it died"):
            search(machine)
        return
    finding, _ = search(machine)
    assert finding.suspects == (COMMITS[14],)
    if fails:
        assert "it died" in finding.unmeasurable[fails]
        assert machine.asked["search"].count((GOOD, fails)) == MOST_FAILURES


@pytest.mark.parametrize("lasts", [1000, 2, 0])
def test_eight_devices_at_once_come_to_the_same_answer_also_where_they_are_lost(lasts: int) -> None:
    def losing(machine: Machine, base: str, head: str, pair: Pair) -> Pair:
        if (lasts == 0 or pair.base.device != "0") and machine.measured[pair.base.device] > lasts:
            raise DeviceLost(f"{pair.base.device} is lost")
        return pair

    machine = Machine({8: 0.03, 21: 0.05}, losing, devices=[*"01234567"])
    if lasts == 0:
        with pytest.raises(DeviceLost):
            search(machine)
        return
    finding, probes = search(machine)
    assert named(finding) == pytest.approx({8: 0.03, 21: 0.05}, abs=0.005)
    assert all(probe.pair is not None for probe in probes)
    if lasts == 1000:
        assert len(set(machine.asked["search"][:8])) >= 6
        for device in machine.devices:
            orders = [head_first for name, head_first in machine.orders if name == device]
            assert abs(sum(orders) - len(orders) / 2) <= 2


def test_the_search_ends_once_the_largest_step_explains_the_ends_and_all_goes_on() -> None:
    steps = {8: 0.02, 21: 0.40}
    confirmed = []
    finding, probes = search(Machine(steps), on_confirmed=confirmed.append)
    assert named(finding) == pytest.approx({21: 0.40}, abs=0.01)
    assert [one.head for one in confirmed] == [COMMITS[21]]
    assert "+2." in finding.remark
    assert "--all" in finding.remark
    every, more = search(Machine(steps), plan=SearchPlan(is_all=True))
    assert named(every) == pytest.approx(steps, abs=0.01)
    assert every.remark.startswith("Every label that can be measured was: changes that cancel")
    assert len(more) > 1.5 * len(probes)


def test_a_large_step_is_confirmed_before_smaller_ones_are_looked_for() -> None:
    confirmed: list[tuple[str, int]] = []
    probes: list[Probe] = []
    machine = Machine({8: 0.25, 21: 0.50})
    finding, _ = search(
        machine,
        on_probe=probes.append,
        on_confirmed=lambda step: confirmed.append((step.head, len(probes))),
    )
    assert [head for head, _ in confirmed] == [COMMITS[21], COMMITS[8]]
    assert confirmed[0][1] < 0.7 * len(probes)
    assert finding.shape is RangeShape.SEVERAL_STEPS


@pytest.mark.parametrize(
    ("step", "process", "is_single"), [(1.5, 0.002, True), (0.5, 0.002, False), (1.5, 0.15, False)]
)
def test_single_lives_search_where_the_ends_are_far_apart_and_lives_steady(
    step: float, process: float, is_single: bool
) -> None:
    machine = Machine({13: step}, noise=replace(QUIET, process=process))
    finding, _ = search(machine)
    assert named(finding) == pytest.approx({13: step}, rel=25 * process)
    # The machine is asked for a life of one commit as for a pair with itself.
    assert {base == head for base, head in machine.asked["search"]} == {is_single}
    assert all(base != head for base, head in machine.asked["confirmation 1"])


@pytest.mark.parametrize(
    ("error", "said"), [(KeyboardInterrupt, "it was interrupted"), (TimeIsUp, "time was up")]
)
@pytest.mark.parametrize("after", [4, 14])
def test_what_ends_a_search_leaves_the_best_answer_so_far(
    error: type[KeyboardInterrupt], said: str, after: int
) -> None:
    def stop(machine: Machine, base: str, head: str, pair: Pair) -> Pair:
        if len(machine.orders) > after:
            raise error
        return pair

    finding, probes = search(Machine({13: 0.05}, happens=stop))
    assert (finding.outcome, len(probes)) == (Outcome.INCONCLUSIVE, after)
    assert finding.reason.startswith(said)
    assert finding.gate.effect == pytest.approx(0.05, abs=0.01)
    if probes[-1].guess is not None:
        assert finding.suspects == probes[-1].guess.commits
        assert finding.probability == pytest.approx(probes[-1].guess.probability)


def test_an_interruption_after_a_confirmation_keeps_what_was_confirmed() -> None:
    def stop(machine: Machine, base: str, head: str, pair: Pair) -> Pair:
        if "confirmation 1" in machine.asked and machine.now is machine.asked["search"]:
            raise KeyboardInterrupt
        return pair

    finding, _ = search(Machine({8: 0.25, 21: 0.50}, happens=stop))
    assert finding.outcome is Outcome.FOUND
    assert list(named(finding)) == [21]
    assert "not explained" in finding.remark
