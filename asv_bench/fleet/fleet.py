"""A fleet of hosts as one source of rounds, each slot of a host being a device.

A Ray cluster finds the hosts and carries everything to them. A round never leaves its slot. A host
that is lost or disturbed is taken out and named, and what it was asked to measure is asked again of
another (`DeviceLost`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

from rich.console import Console

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.fleet.host import Disturbed, Host, Packed, Told, disturbances
from asv_bench.git.repository import GitError, short
from asv_bench.measure.log import RULER
from asv_bench.measure.samples import Absence, CommitUnusable, DeviceLost, Round
from asv_bench.measure.software import Software
from asv_bench.output.console import doing, print_sentences
from asv_bench.process.environment import THREADS_VARIABLE, users_environment
from asv_bench.process.gpu import throttling, visible_gpus
from asv_bench.process.machine import MachineFacts
from asv_bench.subjects.declared import DeclaredSubject

MOST_THROTTLED = 3
"""Lives or pairs in a row of a throttled GPU, after which its host is taken out."""
START_SECONDS = 300.0
"""For a host to say that it is there; until then the cluster may have other work."""


@dataclass(slots=True)
class FleetHost:
    """A host as the fleet sees it."""

    name: str
    slots: int
    ask: Callable[..., Told]  # `Host.measure` there; DeviceLost where no answer comes
    end: Callable[[], None]
    machine: MachineFacts
    why_out: str = ""  # a clause that says why it was taken out; "": it is in use
    throttled: int = 0  # lives or pairs in a row on a throttled GPU
    is_warned_of: bool = False  # the last host, which is used though it is disturbed


class Fleet:
    """Hosts that measure one subject (`RoundSource`).

    `spares_last`: the last host is used with a warning though it is disturbed.
    """

    def __init__(
        self, hosts: Sequence[FleetHost], console: Console, *, spares_last: bool = True
    ) -> None:
        self.hosts = tuple(hosts)
        self.warnings: list[str] = []
        """Sentences of hosts that were taken out, and why; they are printed, too."""
        self._console = console
        self._spares_last = spares_last
        slots = [(host, number) for host in hosts for number in range(host.slots)]
        self._slots = {f"{host.name}/{number}": (host, number) for host, number in slots}
        self._lock = threading.Lock()
        self._is_over = False
        self.cells: dict[str, Software] = {}
        self.others: dict[str, dict[str, list[float]]] = {}
        self.remarks: list[str] = []

    @property
    def devices(self) -> Sequence[str]:
        """The slots of the hosts in use."""
        return [device for device, (host, _) in self._slots.items() if not host.why_out]

    def kind_of(self, device: str) -> str:
        """The kind of a device's host."""
        return self._slots[device][0].machine.name

    def to_json(self) -> dict[str, Any]:
        """The hosts, for the record."""
        return {
            host.name: {
                "machine": host.machine.to_json(),
                "slots": host.slots,
                "taken_out": host.why_out or None,
            }
            for host in self.hosts
        }

    def stop(self) -> None:
        self._is_over = True
        for host in self.hosts:
            host.end()

    def prepare(self, commit: str, device: str | None = None) -> Mapping[str, Absence]:
        """See `RoundSource`; without a device, on the first host that can."""
        with doing(f"setting up {short(commit)} on the hosts"):
            absences: Mapping[str, Absence] = self._measured("prepare", device, commit)
        return absences

    def round(
        self, cells: Sequence[str], order: Sequence[int], metrics: Collection[str], device: str = ""
    ) -> Round:
        measured: Round = self._measured("round", device, tuple(cells), order, tuple(metrics))
        readings = [one for of_cell in measured.readings for one in of_cell.values()]
        if readings:
            host, _ = self._slots[readings[0].device]
            events = sorted({event for one in readings for event in throttling(one.gpu)})
            host.throttled = host.throttled + 1 if events else 0
            if host.throttled >= MOST_THROTTLED:
                self._take_out(host, f"throttles its GPU ({', '.join(events)})", spares_last=True)
        return measured

    def _measured(self, method: str, device: str | None, *asked: Any) -> Any:
        """What a method of `Lives` measures in a slot; without one, in the first that can."""
        while not device:
            if not self.devices:
                raise MeasurementFailed("no host of the fleet is left to measure on.")
            with suppress(DeviceLost):
                return self._measured(method, self.devices[0], *asked)
        host, slot = self._slots[device]
        # To look takes seconds, and the last host is used whatever is seen.
        told = self._told(host, method, slot, not host.is_warned_of, *asked)
        if isinstance(told.error, Disturbed):
            why = f"is disturbed: {told.error}"
            if lost := self._take_out(host, why, spares_last=self._spares_last):
                raise lost
            told = self._told(host, method, slot, False, *asked)
        if error := told.error:
            raise self._second_opinion(host, error) if isinstance(error, CommitUnusable) else error
        return told.value

    def _told(self, host: FleetHost, *asked: Any) -> Told:
        """What a host in use says; what else it has learnt is added to what is known."""
        if host.why_out:
            raise DeviceLost(f"{host.name} {host.why_out}")
        try:
            told = host.ask(*asked)
        except DeviceLost as error:
            if self._is_over:
                raise
            raise (self._take_out(host, f"is lost: {error}") or error) from None
        with self._lock:
            for commit, cell in told.cells.items():
                if commit not in self.cells or cell.elsewhere:
                    self.cells[commit] = cell
            self.remarks += [one for one in told.remarks if one not in self.remarks]
            for name, of_metric in told.others.items():
                known = self.others.setdefault(name, {})
                for commit, values in of_metric.items():
                    known.setdefault(commit, []).extend(values)
        return told

    def _take_out(
        self, host: FleetHost, why: str, *, spares_last: bool = False
    ) -> DeviceLost | None:
        """Use a host no longer and say so, once; None where the last one is spared."""
        with self._lock:
            is_spared = spares_last and all(one.why_out for one in self.hosts if one is not host)
            is_new = not (host.is_warned_of if is_spared else host.why_out)
            if is_spared:
                host.is_warned_of = True
            else:
                host.why_out = host.why_out or why
        if is_new:
            what = ", the last host," if is_spared else " is taken out of the fleet, as it"
            sentence = f"{host.name}{what} {why}"
            self.warnings.append(sentence)
            print_sentences(self._console, [sentence], "yellow")
        return None if is_spared else DeviceLost(f"{host.name} {why}")

    def _second_opinion(self, host: FleetHost, error: CommitUnusable) -> MeasurementFailed:
        """What to raise where a host cannot measure a commit: it is at fault if another one can."""
        for other in (one for one in self.hosts if one is not host and not one.why_out):
            with suppress(DeviceLost):
                told = self._told(other, "prepare", 0, False, error.commit)
                if isinstance(told.error, CommitUnusable):
                    break
                which = f"{short(error.commit)}, which {other.name} can"
                return self._take_out(host, f"cannot measure {which}: {error.reason}") or error
        return error


@contextmanager
def opened_fleet(
    address: str | None,  # of a Ray cluster; None: the lives run on this machine
    kind: str | None,  # of hosts, see `of_kind`
    subject: DeclaredSubject,
    names: Sequence[str],  # the commits, by full hashes, or labels that may be measured
    console: Console,
    *,
    is_for_one_kind: bool = True,  # since figures of all hosts are taken together
    require_quiet: bool = False,  # also the last host is taken out when it is disturbed
) -> Iterator[Fleet | None]:
    """The fleet that runs the lives of a subject; None where this machine does.

    Raises Refused if there is no such fleet, or none of its hosts can measure.
    """
    if address is None:
        yield None
        return
    import ray

    _connect(address)
    try:
        found, refusals = _started(subject, names)
        print_sentences(console, refusals, "yellow")
        hosts = of_kind(found, kind, is_for_one_kind=is_for_one_kind)
        for host in found:
            if host not in hosts:
                host.end()
        if not hosts:
            reasons = "; ".join(refusals) or "none of them has the GPUs or cores that a life needs"
            raise Refused(f"no host of the fleet can run a life: {reasons}.")
        fleet = Fleet(hosts, console, spares_last=not require_quiet)
        fleet.remarks += refusals
        subject.elsewhere = fleet
        kinds = " and ".join(dict.fromkeys(host.machine.name for host in hosts))
        console.print(f"fleet: hosts {len(hosts)}, lives at once {len(fleet.devices)}, {kinds}")
        yield fleet
    finally:
        # With what began on the hosts.
        ray.shutdown()


def _connect(address: str) -> None:
    """Join the Ray cluster at this address; Refused if there is none."""
    import ray

    if "://" in address:
        raise Refused(f"--fleet {address}: give HOST:PORT of the cluster's head, or auto.")
    variables = {
        THREADS_VARIABLE: users_environment().get(THREADS_VARIABLE, ""),
        # What starts a life ends it when the actor is gone, and must outlive that for a moment.
        "RAY_kill_child_processes_on_worker_exit": "0",
    }
    options: dict[str, Any] = {"address": address, "log_to_driver": False}
    options["runtime_env"] = {"py_modules": [str(RULER)], "env_vars": variables}
    if address == "local":
        # Logical sizes: lives are given real cores and GPUs by their numbers.
        cores, gpus = len(os.sched_getaffinity(0)), len(visible_gpus())
        options |= {"num_cpus": cores, "num_gpus": gpus, "include_dashboard": False}
    try:
        ray.init(**options, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise Refused(
            f"--fleet {address}: there is no Ray cluster to join ({_first_line(error)}). Start one "
            f"with `ray start --head`, or say --fleet local to use this machine's GPUs."
        ) from None
    # Without a public name: its nodes' last words would go to standard output, as a record may.
    ray._private.worker._worker_logs_enabled = False


def _started(subject: DeclaredSubject, names: Sequence[str]) -> tuple[list[FleetHost], list[str]]:
    """A host for each node that has room for a life, and why others are none, in sentences."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    try:
        commits = Packed.of(subject, names)
    except GitError as error:
        raise Refused(f"the commits cannot be sent to other hosts: {error}") from None
    # To each node once, through the cluster's object store.
    carried = [ray.put(one) for one in (subject.work, subject.pinned, commits)]
    table, more = subject.work.table, partial(Packed.of, subject, held=names)
    named: Counter[str] = Counter()
    begun: list[tuple[str, int, Any, Any]] = []
    alive = filter(itemgetter("Alive"), ray.nodes())
    for node in sorted(alive, key=itemgetter("NodeManagerHostname", "NodeID")):
        name = node["NodeManagerHostname"]
        named[name] += 1
        name += f"-{named[name]}" if named[name] > 1 else ""
        cores, gpus = (int(node["Resources"].get(unit, 0)) for unit in ("CPU", "GPU"))
        # A life has its GPUs, or its cores, or the whole host.
        slots = cores // table.cores if table.cores else min(1, cores)
        if table.devices:
            slots = gpus // table.devices
        if slots:
            actor = ray.remote(Host).options(
                # All cores, so that nothing else of the cluster runs beside what is measured.
                num_cpus=cores,
                num_gpus=slots * (table.devices or 0),
                max_concurrency=slots + 1,  # beside the lives, what another host asks about
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            )
            host = actor.remote()
            machine = host.begin.remote(*carried, slots, name, disturbances)
            begun.append((name, slots, host, machine))
    hosts, refusals = [], []
    deadline = time.monotonic() + START_SECONDS
    for name, slots, host, machine in begun:
        ask, end = partial(_ask, host, more), partial(ray.kill, host)
        try:
            facts = ray.get(machine, timeout=max(0.0, deadline - time.monotonic()))
            hosts.append(FleetHost(name, slots, ask, end, facts))
        except ray.exceptions.RayError as error:
            end()
            why = _first_line(getattr(error, "cause", None) or error)
            if isinstance(error, ray.exceptions.GetTimeoutError):
                why = f"its cores were not free within {START_SECONDS:.0f} s"
            refusals.append(f"{name} is not used: {why}")
    return hosts, refusals


def _ask(actor: Any, packed: Callable[..., Packed], *arguments: Any) -> Told:
    """What a host measures, given what it lacks; DeviceLost where it does not answer."""
    import ray

    try:
        told: Told = ray.get(actor.measure.remote(*arguments))
        if told.lacking:
            told = ray.get(actor.measure.remote(*arguments, given=packed(told.lacking)))
    except ray.exceptions.RayTaskError as error:
        raise MeasurementFailed(str(error)) from None
    except ray.exceptions.RayError as error:
        raise DeviceLost(_first_line(error)) from None
    return told


def of_kind(
    hosts: Sequence[FleetHost], kind: str | None, *, is_for_one_kind: bool
) -> list[FleetHost]:
    """The hosts of a kind, or of all.

    Refused if there are none of this kind, several where there may be one, or hosts of one name
    differ.
    """
    kinds: dict[str, list[FleetHost]] = {}
    for host in hosts:
        kinds.setdefault(host.machine.name, []).append(host)
    for name, alike in kinds.items():
        for fact in ("cpu", "cores", "gpu", "driver"):
            values = {str(getattr(host.machine, fact)): host.name for host in alike}
            if len(values) > 1:
                said = ", ".join(f"{value} on {where}" for value, where in values.items())
                raise Refused(
                    f"hosts that are all called {name} differ in their {fact}: {said}. Figures of "
                    f"one name are one series: set KVTRAIL_MACHINE to another name on some."
                )
    counted = ", ".join(f"{name} ({len(alike)})" for name, alike in kinds.items())
    if kind is None and is_for_one_kind and len(kinds) > 1:
        raise Refused(
            f"the fleet has hosts of several kinds, whose figures cannot be taken together: "
            f"{counted}. Choose one with --kind."
        )
    if kind is not None and kinds and kind not in kinds:
        raise Refused(f"no host is of the kind {kind}; there are {counted}.")
    return [host for host in hosts if kind in (None, host.machine.name)]


def _first_line(error: BaseException) -> str:
    """What an error says, without Ray's own traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("ray::", "File", "\x1b"))]
    return (said or lines or [type(error).__name__])[-1].removesuffix(".")
