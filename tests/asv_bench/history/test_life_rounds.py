"""Rounds of lives over many devices, some of which are lost, and after an interruption."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from asv_bench.errors import MeasurementFailed
from asv_bench.history.history_session import MeasuringHistory
from asv_bench.measure.log import Log
from asv_bench.measure.samples import (
    Absence,
    CommitUnusable,
    DeviceLost,
    Metric,
    Reading,
    Round,
    SampleFailed,
)
from asv_bench.output.console import Progress

COMMITS = [f"{number:040x}" for number in range(12)]
ROUNDS = 3
UNUSABLE = COMMITS[5]


class Machines:
    """Devices called KIND/NUMBER, each of which is lost after so many lives."""

    def __init__(self, lasts: Mapping[str, int]) -> None:
        self.lasts = dict(lasts)
        self.lived: list[tuple[str, str]] = []
        self.lock = threading.Lock()

    @property
    def devices(self) -> list[str]:
        return [device for device, left in self.lasts.items() if left > 0]

    def prepare(self, commit: str, device: str | None = None) -> Mapping[str, Absence]:
        if commit == UNUSABLE:
            raise CommitUnusable(commit, "it does not build")
        return {"peak": Absence("it crashed", has_failed=True)}

    def round(self, cells: Sequence[str], order: Any, metrics: Any, device: str) -> Round:
        [commit] = cells
        with self.lock:
            self.lasts[device] -= 1
            if self.lasts[device] < 0:
                raise DeviceLost(f"{device} is lost")
            self.lived.append((device, commit))
        value = 1.0 + COMMITS.index(commit)
        return Round((0,), ({"step": Reading(commit, "step", value, (value,), device, 0.0, 1.0)},))

    def stop(self) -> None:
        self.lasts = dict.fromkeys(self.lasts, 0)


class Rounds(MeasuringHistory):
    """A session on such devices."""

    def __init__(self, machines: Machines, kept: Log) -> None:
        metrics = [Metric("step", "s"), Metric("peak", "bytes")]
        pairs = lambda: nullcontext(machines)  # noqa: E731
        subject: Any = SimpleNamespace(metrics=metrics, checks=[], pairs=pairs)
        histories: Any = SimpleNamespace(is_own=False, labels=COMMITS, results=None)
        super().__init__("bench", subject, histories, COMMITS, ROUNDS, "", yes=True)
        kinds = dict.fromkeys(map(kind_of, machines.lasts))
        hosts = [SimpleNamespace(machine=SimpleNamespace(name=kind)) for kind in kinds]
        fleet: Any = SimpleNamespace(kind_of=kind_of, hosts=hosts)
        self._fleet, self._log, self._console = fleet, kept, Console(file=StringIO())
        self.told: list[float] = []

    def agree(self, seconds: float) -> None:
        self.told.append(seconds)

    def run(self) -> Rounds:
        self.begin()
        with self.source() as source:
            self.measure(source)
        return self

    def assert_complete(self) -> None:
        assert self._unusable[UNUSABLE].reason == "it does not build"
        for results in self._of_kind.values():
            measured = {
                commit: [one.value for one in of_commit["step"]]
                for commit, of_commit in results.readings.items()
            }
            assert measured == {
                commit: [1.0 + number] * ROUNDS
                for number, commit in enumerate(COMMITS)
                if commit != UNUSABLE
            }
            assert set(results.failed[COMMITS[0]]) == {"peak"}


def kind_of(device: str) -> str:
    return device.partition("/")[0]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "kept.jsonl")


def test_lives_of_lost_devices_are_measured_by_others_and_none_twice(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = Machines({"a/0": 999, "a/1": 4, "a/2": 1, "b/0": 7, "b/1": 999})
    told: list[int] = []
    monkeypatch.setattr(Progress, "show", lambda bar, done, what: told.append(done))
    Rounds(machines, log).run().assert_complete()
    counted = Counter((kind_of(device), commit) for device, commit in machines.lived)
    assert set(counted.values()) == {ROUNDS}
    assert max(told) < 2 * ROUNDS * len(COMMITS)


def test_all_devices_begin_at_once_and_it_is_told_once_how_long_it_takes(log: Log) -> None:
    together, begun = threading.Barrier(3, timeout=60), itertools.count()

    class Meeting(Machines):
        def round(self, *asked: Any) -> Round:
            if next(begun) < 3:
                together.wait()
            return super().round(*asked)

    machines = Meeting({"a/0": 999, "a/1": 999, "a/2": 999})
    rounds = Rounds(machines, log).run()
    rounds.assert_complete()
    assert len(machines.lived) == ROUNDS * (len(COMMITS) - 1)
    assert len(rounds.told) == 1


def test_nothing_is_measured_where_a_life_of_a_first_commit_fails(log: Log) -> None:
    class Failing(Machines):
        def round(self, cells: Sequence[str], *_: Any) -> Round:
            raise SampleFailed(cells[0], ("step",), "it printed no number")

    with pytest.raises(MeasurementFailed, match=r"nothing was measured: .*it printed no number"):
        Rounds(Failing({"a/0": 9, "a/1": 9}), log).run()


def test_one_device_goes_back_and_forth_and_several_share_what_they_have_not_measured(
    log: Log, tmp_path: Path
) -> None:
    machines = Machines({"a/0": 999})
    Rounds(machines, log).run()
    usable = [commit for commit in COMMITS if commit != UNUSABLE]
    assert [commit for _, commit in machines.lived] == usable[::-1] + usable + usable[::-1]
    machines = Machines({"a/0": 999, "a/1": 999, "a/2": 999})
    Rounds(machines, Log(tmp_path / "other.jsonl")).run()
    # The last that is left of a round goes to whichever device is idle.
    assert len(set(machines.lived)) >= 0.8 * len(machines.lived)


def test_a_session_whose_last_device_of_a_kind_is_lost_goes_on_with_its_lives(
    tmp_path: Path,
) -> None:
    path = tmp_path / "kept.jsonl"
    with pytest.raises(MeasurementFailed, match="on b are not measured"):
        Rounds(Machines({"a/0": 999, "b/0": 7}), Log(path)).run()
    with path.open("a") as file:
        file.write('{"kind": "b", "commit"')  # as a process leaves it that is killed
    kept = Log(path)
    assert kept.restored == ROUNDS * (len(COMMITS) - 1) + 7
    machines = Machines({"a/0": 999, "b/0": 999})
    Rounds(machines, kept).run().assert_complete()
    assert {kind_of(device) for device, _ in machines.lived} == {"b"}
    assert len(machines.lived) == ROUNDS * (len(COMMITS) - 1) - 7
    assert Log(path).restored == kept.count == 2 * ROUNDS * (len(COMMITS) - 1)
