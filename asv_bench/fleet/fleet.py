"""A fleet of hosts as one source of rounds, each slot of a host being a device.

A round never leaves its slot. A host that is lost or disturbed is taken out and named, and what it
was asked to measure is asked again of another (`DeviceLost`). A commit counts as unusable only
where a second host, if there is one, cannot measure it either.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from asv_bench.errors import MeasurementFailed
from asv_bench.fleet.host import Disturbed, Told
from asv_bench.git.repository import short
from asv_bench.measure.samples import Absence, CommitUnusable, DeviceLost, Reading, Round
from asv_bench.measure.software import Software, differences
from asv_bench.output.progress import doing
from asv_bench.output.record import Record
from asv_bench.process.gpu import throttling
from asv_bench.process.machine import MachineFacts
from asv_bench.subjects.declared import DeclaredSubject

MOST_THROTTLED = 3
"""Lives or pairs in a row of a throttled GPU, after which its host is taken out."""


class HostGone(Exception):
    """A host does not answer any more; the message is a clause that says why."""


@dataclass(slots=True)
class FleetHost:
    """A host as the fleet sees it.

    `ask` is `Host.measure` there, `HostGone` where no answer comes. `why_out` is a clause that says
    why it was taken out, "" while it is in use. `usable` are the commits that it has measured, and
    `throttled` counts lives or pairs in a row on a throttled GPU.
    """

    name: str
    slots: int
    ask: Callable[..., Told]
    end: Callable[[], None]
    machine: MachineFacts
    why_out: str = ""
    usable: set[str] = field(default_factory=set)
    throttled: int = 0
    is_warned_of: bool = False


@dataclass(frozen=True, slots=True)
class HostSlot:
    """Where one life runs at a time: of which host, and its number there."""

    host: FleetHost
    number: int
    lock: threading.Lock = field(default_factory=threading.Lock)


class Fleet:
    """Hosts that measure one subject (`LivesElsewhere`).

    `tell` is told, in sentences, which hosts are taken out and why. `spares_last`: the last host is
    used with a warning though it is disturbed.
    """

    prepares_together = False

    def __init__(
        self, hosts: Sequence[FleetHost], tell: Callable[[str], None], *, spares_last: bool = True
    ) -> None:
        self.hosts = tuple(hosts)
        self.tell = tell
        self._spares_last = spares_last
        self._slots = {
            f"{host.name}/{number}": HostSlot(host, number)
            for host in hosts
            for number in range(host.slots)
        }
        self._lock = threading.Lock()
        self._is_over = False
        self._unusable: dict[str, CommitUnusable] = {}
        self.cells: dict[str, Software] = {}
        self.others: dict[str, dict[str, list[float]]] = {}
        self.remarks: list[str] = []
        self._first: dict[str, tuple[str, Software]] = {}

    @property
    def devices(self) -> Sequence[str]:
        """The slots of the hosts in use."""
        return [device for device, slot in self._slots.items() if not slot.host.why_out]

    def kind_of(self, device: str) -> str:
        """The kind of a device's host."""
        return self._slots[device].host.machine.name

    def stop(self) -> None:
        self._is_over = True
        for host in self.hosts:
            host.end()

    def prepare(self, commit: str, device: str | None = None) -> Mapping[str, Absence]:
        """See `RoundSource`; without a device, on the first host that can."""
        with doing(f"setting up {short(commit)} on the hosts"):
            absences: Mapping[str, Absence] = self._measured(
                "prepare", device, commit, commits=[commit]
            )
        return absences

    def round(
        self,
        cells: Sequence[str],
        order: Sequence[int] | None = None,
        *,
        metrics: Collection[str] | None = None,
        device: str | None = None,
    ) -> Round:
        measured: Round = self._measured(
            "round", device, tuple(cells), order, commits=cells, metrics=metrics
        )
        self._note_clocks([one for of_cell in measured.readings for one in of_cell.values()])
        return measured

    def to_json(self) -> dict[str, dict[str, Any]]:
        """What a record says of each host, by its name."""
        return {
            host.name: {
                "machine": host.machine.to_json(),
                "slots": host.slots,
                "taken_out": host.why_out or None,
            }
            for host in self.hosts
        }

    def _measured(
        self,
        method: str,
        device: str | None,
        *asked: Any,
        commits: Sequence[str],
        **more: Any,
    ) -> Any:
        """What a method of `Lives` measures of commits in a slot; None: in the first that can."""
        while device is None:
            if not self.devices:
                raise MeasurementFailed("no host of the fleet is left to measure on.")
            with contextlib.suppress(DeviceLost):
                return self._measured(method, self.devices[0], *asked, commits=commits, **more)
        slot = self._slots[device]
        host = slot.host
        with slot.lock:
            # To look takes seconds, and the last host is used whatever is seen.
            told = self._told(slot, method, not host.is_warned_of, *asked, **more)
            if isinstance(told.error, Disturbed):
                why = f"is disturbed: {told.error}"
                if self._take_out(host, why, spares_last=self._spares_last):
                    raise DeviceLost(f"{host.name} {why}")
                with self._lock:
                    is_new, host.is_warned_of = not host.is_warned_of, True
                if is_new:
                    self.tell(f"{host.name}, the last host, {why}")
                told = self._told(slot, method, False, *asked, **more)
        if isinstance(told.error, CommitUnusable):
            raise self._second_opinion(host, told.error)
        if told.error is not None:
            raise told.error
        host.usable.update(commits)
        return told.value

    def _told(self, slot: HostSlot, method: str, may_leave: bool, *asked: Any, **more: Any) -> Told:
        """What a host in use says; what else it has learnt is added to what is known."""
        host = slot.host
        if host.why_out:
            raise DeviceLost(f"{host.name} {host.why_out}")
        try:
            told = host.ask(method, slot.number, may_leave, *asked, **more)
        except HostGone as error:
            why = f"is lost: {error}"
            if not self._is_over:
                self._take_out(host, why)
            raise DeviceLost(f"{host.name} {why}") from None
        with self._lock:
            self.remarks += [one for one in told.remarks if one not in self.remarks]
            for name, of_metric in told.others.items():
                known = self.others.setdefault(name, {})
                for commit, values in of_metric.items():
                    known.setdefault(commit, []).extend(values)
            for commit, cell in told.cells.items():
                ran_on, first = self._first.setdefault(commit, (host.name, cell))
                if commit not in self.cells or cell.elsewhere:
                    self.cells[commit] = cell
                self.remarks += [
                    f"{short(commit)} ran with other packages on {host.name} than on {ran_on}: "
                    f"{sentence.partition(': ')[2]}"
                    for sentence in differences(first, cell)
                ]
        return told

    def _take_out(self, host: FleetHost, why: str, *, spares_last: bool = False) -> bool:
        """Use a host no longer and say so, once; False where the last one is spared."""
        with self._lock:
            left = [one for one in self.hosts if not one.why_out]
            if spares_last and left == [host]:
                return False
            is_new, host.why_out = not host.why_out, host.why_out or why
        if is_new:
            self.tell(f"{host.name} is taken out of the fleet, as it {why}")
        return True

    def _second_opinion(self, host: FleetHost, error: CommitUnusable) -> MeasurementFailed:
        """What to raise where a host cannot measure a commit."""
        commit = error.commit
        while commit not in self._unusable:
            others = [one for one in self.hosts if one is not host and not one.why_out]
            knows = next((one for one in others if commit in one.usable), None)
            if knows is None and others:
                slot = self._slots[f"{others[0].name}/0"]
                try:
                    with slot.lock:
                        other = self._told(slot, "prepare", False, commit)
                except DeviceLost:
                    continue
                if not isinstance(other.error, CommitUnusable):
                    knows = others[0]
            if knows is not None:
                why = f"cannot measure {short(commit)}, which {knows.name} can: {error.reason}"
                self._take_out(host, why)
                return DeviceLost(f"{host.name} {why}")
            self._unusable[commit] = error
        return self._unusable[commit]

    def _note_clocks(self, readings: Sequence[Reading]) -> None:
        """Take a host out whose GPU was throttled too often; what it measured stays."""
        if not readings:
            return
        host = self._slots[readings[0].device].host
        events = sorted({event for reading in readings for event in throttling(reading.gpu)})
        host.throttled = host.throttled + 1 if events else 0
        if host.throttled >= MOST_THROTTLED:
            self._take_out(host, f"throttles its GPU ({', '.join(events)})", spares_last=True)


def record_of(command: str, settings: Mapping[str, Any], fleet: Fleet | None) -> Record:
    """The record of a command; of a fleet the facts are those of its hosts, not of this machine."""
    if fleet is None:
        return Record(command, settings)
    return Record(command, settings, machine=fleet.hosts[0].machine, before=None)


def machines_of(record: Record, fleet: Fleet | None) -> dict[str, MachineFacts]:
    """A machine of each kind that measures, by the name of the kind."""
    machines = [record.machine] if fleet is None else [host.machine for host in fleet.hosts[::-1]]
    return {machine.name: machine for machine in machines}


def look_around(
    record: Record,
    console: Console,
    subject: DeclaredSubject,
    fleet: Fleet | None,
    *,
    require_quiet: bool = False,
) -> None:
    """Record what else this machine does; hosts of a fleet look themselves, before each life."""
    if fleet is None:
        record.look_around(console, subject.devices, require_quiet=require_quiet)
    else:
        fleet.tell = lambda sentence: record.warn(console, [sentence])


def hosts_json(fleet: Fleet | None) -> dict[str, Any]:
    """The part of a record's results that names the hosts; nothing where there is no fleet."""
    return {} if fleet is None else {"hosts": fleet.to_json()}
