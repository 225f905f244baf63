"""Hosts of a fleet without a cluster: what one measures, and which ones a fleet goes on with."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from declared_repository import STEP, DeclaredRepository
from measured_rounds import one_life
from rich.console import Console

import record_schema
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.fleet import host
from asv_bench.fleet.fleet import MOST_THROTTLED, Fleet, FleetHost, of_kind
from asv_bench.fleet.host import Disturbed, Host, Packed, Told, disturbances
from asv_bench.git.repository import Repository
from asv_bench.git.trees import PartCommits, changes_between
from asv_bench.measure.delay import Delay
from asv_bench.measure.log import RULER
from asv_bench.measure.places import Place
from asv_bench.measure.samples import CommitUnusable, DeviceLost, Reading, Round
from asv_bench.process.gpu import GpuConditions, GpuUse
from asv_bench.process.machine import Surroundings, machine_facts
from asv_bench.session.options import RunningOptions
from asv_bench.subjects.declared import DeclaredSubject

TABLES = """
[subject]
name = "toy"
measure = "sh pinned/life.sh"
pinned = ["pinned"]
setup = "cp bench.py $KVTRAIL_OUT/figure; echo x >> $LOG"

[metrics.step]
path = "step"
"""
LIFE = """
case "$RAY_JOB_ID$PYTHONPATH" in /own) ;; *) exit 1;; esac
read figure < "$KVTRAIL_OUT/figure"
printf '{"step": %s}' "$figure" > "$KVTRAIL_RESULT"
"""

LIB_LIFE = """read a < lib/a; read b < lib/b; echo '{\\"step\\": '$a$b'}' > $KVTRAIL_RESULT"""


def begun(subject: DeclaredSubject, commits: Sequence[str]) -> Host:
    """A host of two slots, which was told of commits as Ray tells it."""
    told = subject.work, subject.pinned, Packed.of(subject, commits)
    made = Host()
    made.begin(*pickle.loads(pickle.dumps(told)), 2, "here", lambda *_: ())
    return made


def test_a_host_measures_in_all_slots_with_files_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits of figures 5 and 6, and one that cannot be measured."""
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("asv_bench.measure.trees.CACHE", tmp_path / "cache")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    # As Ray sets them; what is the user's own stays.
    monkeypatch.setenv("RAY_JOB_ID", "1")
    monkeypatch.setenv("PYTHONPATH", f"{RULER.parent}:/own")
    toy = DeclaredRepository.make(tmp_path / "toy", TABLES, "5\n", "6\n", "exit")
    (toy.root / "pinned").mkdir()
    (toy.root / "pinned" / "life.sh").write_text(LIFE)
    five, six, lacking = commits = toy.git("rev-list", "--reverse", "HEAD").split()
    made = begun(toy.subject, commits)

    def pair_in(slot: int) -> Told:
        return made.measure("round", slot, True, [five, six], (slot, 1 - slot), ())

    with ThreadPoolExecutor(2) as pool:
        pairs = list(pool.map(pair_in, (0, 1)))
    for slot, one in enumerate(pairs):
        assert one.error is None
        base, head = (of_cell["step"] for of_cell in one.value.readings)
        assert (base.value, head.value, one.value.order) == (5.0, 6.0, (slot, 1 - slot))
        assert {base.device, head.device} == {f"here/{slot}"}
    # Both slots asked at once, and a commit is set up once on a machine.
    assert (tmp_path / "log").read_text() == "x\n" * 2
    assert set().union(*(one.cells for one in pairs)) == {five, six}
    assert {name for one in pairs for name in one.others} == {"wall_s", "cpu_s", "peak_rss_bytes"}
    failed = pickle.loads(pickle.dumps(made.measure("round", 0, False, [lacking], (0,), ()).error))
    assert isinstance(failed, CommitUnusable)
    assert failed.commit == lacking


def test_a_host_is_given_what_it_lacks_when_it_is_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that was made when the host had begun, by two slots at once."""
    monkeypatch.setattr("tempfile.tempdir", None)
    toy = DeclaredRepository.make(tmp_path / "toy", STEP.replace("python bench.py", LIB_LIFE))
    before, after = (toy.change(one, {f"lib/{name}": one for name in "ab"}) for one in "12")
    subject, ends = toy.subject, [before, after]
    made = begun(subject, ends)
    parts = PartCommits(before, Repository(toy.root), tmp_path)
    one, other = changes_between(before, after, Repository(toy.root))
    part, later = parts.commit([one]), parts.commit([other])
    for commit in (part, later):
        subject.axis.add(commit, parts.repository)
    delayed = Delay(0.001, is_told=False).named(part)
    lacking = made.measure("round", 0, True, (before, delayed), (0, 1), ())
    assert (lacking.value, lacking.error, lacking.lacking) == (None, None, {part})
    packed = pickle.loads(pickle.dumps(Packed.of(subject, lacking.lacking, held=ends)))
    # The commit and its two folders: their files are there.
    assert [int.from_bytes(pack[8:12], "big") for pack in packed.packs] == [3]

    def measured_in(slot: int) -> list[float]:
        told = made.measure("round", slot, True, (before, part), (0, 1), (), given=packed)
        assert told.error is None
        return [of_cell["step"].value for of_cell in told.value.readings]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(measured_in, (0, 1))) == [[11.0, 21.0]] * 2
    assert not made.measure("round", 1, True, (delayed, after), (0, 1), ()).lacking
    # Another host may have room for what this one cannot take.
    broken = replace(Packed.of(subject, [later], held=ends), packs=(b"PACK",))
    for _ in range(2):
        told = made.measure("prepare", 0, False, later, given=broken)
        assert isinstance(told.error, CommitUnusable)
        assert told.error.commit == later
        assert "git could not unpack it: " in told.error.reason


@pytest.mark.parametrize(
    ("looks", "alone", "found"),
    [
        # The GPU was busy with the life before.
        ([(0.0, 90), (0.0, 0)], [True] * 4, ""),
        ([(9.0, 0)] * host.LOOKS, [True] * 6, "9.0 of 16 cores"),
        # Another slot's life is ours, also one that begins or ends while the host is looked at.
        ([(9.0, 0)], [True, False], ""),
        ([(9.0, 0)], [False], ""),
        ([(0.0, 90)] * host.LOOKS, [False] * 3, "GPU-a is busy 90 %"),
    ],
)
def test_a_place_is_disturbed_by_what_lasts_and_is_not_ours(
    looks: list[tuple[float, int]], alone: list[bool], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(devices: object) -> Surroundings:
        busy_cores, gpu_percent = looks.pop(0)
        gpus = (GpuUse("GPU-a", processes=(), busy_percent=gpu_percent),)
        return Surroundings(16, busy_cores, 1.0, ("powersave",), gpus)

    monkeypatch.setattr(host, "look_around", seen)
    monkeypatch.setattr(host, "PAUSE_SECONDS", 0.0)
    sentences = disturbances(Place(("GPU-a",), (0, 1), "here/0"), lambda: alone.pop(0))
    assert len(sentences) == bool(found)
    assert found in "".join(sentences)
    assert looks == alone == []


Fails = Callable[[str, bool], MeasurementFailed | None]
"""Why a host measures nothing that is asked for a commit and may leave."""
GOOD, BAD = "a" * 40, "b" * 40


def host_of(
    name: str, fails: Fails = lambda *_: None, *events: str, kind: str = "own-x", **more: Any
) -> FleetHost:
    facts = replace(machine_facts(), name=kind, **more)
    gpu = GpuConditions(1.0, 1.0, 1.0, events, None, 1)
    read = Round((0,), ({"step": Reading(GOOD, "step", 1.0, (1.0,), f"{name}/0", 0.0, 1.0, gpu)},))

    def ask(method: str, slot: int, may_leave: bool, cells: Any, *_: Any, **__: Any) -> Told:
        error = fails(cells if isinstance(cells, str) else cells[0], may_leave)
        if isinstance(error, DeviceLost):
            raise error
        return Told(read, error)

    return FleetHost(name, 1, ask, lambda: None, facts)


def fleet_of(one: Fails, two: Fails = lambda *_: None, **options: Any) -> Fleet:
    return Fleet([host_of("one", one), host_of("two", two)], Console(), **options)


def gone(commit: str, may_leave: bool) -> DeviceLost:
    return DeviceLost("no route")


def disturbed(commit: str, may_leave: bool) -> Disturbed | None:
    return Disturbed("other load") if may_leave else None


def cannot(commit: str) -> Fails:
    error = CommitUnusable(commit, "the disk is full")
    return lambda asked, _: error if asked == commit else None


def test_a_host_that_does_not_answer_is_taken_out_and_named_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fleet = fleet_of(gone)
    for _ in range(2):
        with pytest.raises(DeviceLost, match="one is lost: no route"):
            one_life(fleet, GOOD, device="one/0")
    assert fleet.warnings == ["one is taken out of the fleet, as it is lost: no route"]
    assert capsys.readouterr().out == f"{fleet.warnings[0]}\n"
    assert fleet.devices == ["two/0"]
    # Where no host is named, the next one is asked.
    assert one_life(fleet, GOOD)["step"].device == "two/0"
    told = json.loads(json.dumps(fleet.to_json()))
    hosts = msgspec.convert(told, dict[str, record_schema.Host])
    assert [hosts[name].taken_out for name in ("one", "two")] == ["is lost: no route", None]
    # Hosts that the command has ended are not lost.
    fleet = fleet_of(gone)
    fleet.stop()
    with pytest.raises(DeviceLost):
        one_life(fleet, GOOD, device="one/0")
    assert fleet.warnings == []
    assert fleet.to_json()["one"]["taken_out"] is None


def test_a_commit_is_unusable_only_if_a_second_host_says_so_too() -> None:
    fleet = fleet_of(cannot(BAD), cannot(BAD))
    for device in ("one/0", "two/0"):
        with pytest.raises(CommitUnusable, match="the disk is full"):
            one_life(fleet, BAD, device=device)
    assert fleet.warnings == []
    # A host that alone cannot measure it is at fault, and the last one is believed.
    fleet = fleet_of(cannot(BAD), cannot(GOOD))
    with pytest.raises(DeviceLost, match="one cannot measure bbbbbbbb, which two can"):
        one_life(fleet, BAD, device="one/0")
    assert len(fleet.warnings) == 1
    with pytest.raises(CommitUnusable):
        one_life(fleet, GOOD)
    assert fleet.devices == ["two/0"]


def test_the_last_host_is_used_though_it_is_disturbed_unless_quiet_is_required() -> None:
    fleet = fleet_of(disturbed, disturbed)
    with pytest.raises(DeviceLost, match="one is disturbed: other load"):
        one_life(fleet, GOOD, device="one/0")
    for _ in range(2):
        assert one_life(fleet, GOOD, device="two/0")["step"].value == 1.0
    assert fleet.warnings[1:] == ["two, the last host, is disturbed: other load"]
    fleet = fleet_of(disturbed, disturbed, spares_last=False)
    with pytest.raises(MeasurementFailed, match="no host of the fleet is left"):
        one_life(fleet, GOOD)


def test_a_host_that_throttles_is_taken_out_and_what_it_measured_counts() -> None:
    hot = host_of("one", lambda *_: None, "hw_thermal_slowdown")
    fleet = Fleet([hot, host_of("two")], Console())
    for _ in range(MOST_THROTTLED):
        assert one_life(fleet, GOOD, device="one/0")["step"].value == 1.0
    assert fleet.warnings == [
        "one is taken out of the fleet, as it throttles its GPU (hw_thermal_slowdown)"
    ]
    assert fleet.devices == ["two/0"]


def test_hosts_are_chosen_by_their_kind() -> None:
    one, two = host_of("one"), host_of("two")
    other, newer = host_of("other", kind="own-y"), host_of("three", driver="560")
    hosts = [one, two, other]
    assert of_kind(hosts, None, is_for_one_kind=False) == hosts
    assert of_kind(hosts, "own-x", is_for_one_kind=True) == [one, two]
    for among, kind, is_for_one, sentence in (
        (hosts, None, True, r"several kinds.*own-x \(2\), own-y \(1\)"),
        ([other], "own-z", True, "no host is of the kind own-z"),
        ([one, newer], None, False, r"differ in their driver: .+ on one, 560 on three"),
    ):
        with pytest.raises(Refused, match=sentence):
            of_kind(among, kind, is_for_one_kind=is_for_one)
    with pytest.raises(Refused, match="--fleet"):
        RunningOptions(kind="own-x")
