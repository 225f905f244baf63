"""Searches on machines that mislead, fail, discard pairs or lose devices."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest
from searched_range import COMMITS, GOOD, QUIET, named, search, times

from asv_bench.bisect.finding import Outcome
from asv_bench.compare.comparison import MOST_FAILURES
from asv_bench.compare.verdict import Verdict
from asv_bench.errors import MeasurementFailed
from asv_bench.measure.samples import DeviceLost, Pair, SampleFailed
from tests.simulations.commits import SIMULATED_BENCHMARK, SimulatedCommits


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


def test_a_commit_whose_processes_keep_failing_is_left_out_and_not_asked_again() -> None:
    finding, _, asked = search({}, machine=Unsteady([COMMITS[15]]))
    assert finding.suspects == (COMMITS[14],)
    assert "it died" in finding.unmeasurable[COMMITS[15]]
    assert asked["search"].count((GOOD, COMMITS[15])) == MOST_FAILURES


def test_ends_whose_processes_keep_failing_are_a_failure() -> None:
    with pytest.raises(MeasurementFailed, match="it died"):
        search({}, machine=Unsteady([COMMITS[-1]]))


class Watched(SimulatedCommits):
    """Notes which pairs are measured at the same time."""

    def __init__(self, devices: Sequence[str]) -> None:
        super().__init__(times({14: 0.04}), QUIET, 1, devices)
        self.barrier = threading.Barrier(len(devices), timeout=60)
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
