"""Opening a fleet for one command: a Ray cluster finds hosts and carries everything to them."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Annotated, Any

import typer
from rich.console import Console

from asv_bench.errors import MeasurementFailed, Refused, require_packages
from asv_bench.fleet.fleet import Fleet, FleetHost, HostGone
from asv_bench.fleet.host import Host, Look, Order, Told, disturbances
from asv_bench.measure.log import RULER
from asv_bench.output.console import print_sentences
from asv_bench.process.environment import THREADS_VARIABLE, users_environment
from asv_bench.process.gpu import visible_gpus
from asv_bench.subjects.declared import DeclaredSubject

LOCAL = "local"
START_SECONDS = 300.0
"""For a host to say that it is there; until then the cluster may have other work."""
_PANEL = "Measure on many hosts"
_HARDWARE = ("cpu", "cores", "gpu", "driver")
"""What hosts of one kind have in common, by the names of `MachineFacts`."""


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """What the user says of where lives run; without an address they run on this machine."""

    address: Annotated[
        str | None,
        typer.Option(
            "--fleet",
            metavar="ADDRESS",
            help="Spread lives over the hosts of a Ray cluster: HOST:PORT of its head, auto for "
            "that of $RAY_ADDRESS or of this machine, local for this machine alone.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    kind: Annotated[
        str | None,
        typer.Option(
            help="Only on hosts of this kind, as records name machines (default: all).",
            rich_help_panel=_PANEL,
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.kind is not None and self.address is None:
            raise Refused("--kind chooses among the hosts of a fleet; say --fleet too.")
        if self.address is not None:
            require_packages("ray")


@contextmanager
def opened_fleet(
    options: FleetOptions,
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
    if options.address is None:
        yield None
        return
    with _connected(options.address), ExitStack() as stack:
        found, refusals = _started(Order.of(subject, names), disturbances)
        print_sentences(console, refusals, "yellow")
        for host in found:
            stack.callback(host.end)
        hosts = of_kind(found, options.kind, is_for_one_kind=is_for_one_kind)
        for host in found:
            if host not in hosts:
                host.end()
        if not hosts:
            table = subject.work.table
            needed = f"{table.devices} GPUs" if table.devices else f"{table.cores or 1} cores"
            raise Refused(
                f"no host of the fleet can run a life, which needs {needed}"
                f"{': ' if refusals else ''}{'; '.join(refusals)}."
            )
        fleet = Fleet(
            hosts,
            lambda sentence: print_sentences(console, [sentence], "yellow"),
            spares_last=not require_quiet,
        )
        fleet.remarks += refusals
        subject.run_on(fleet)
        kinds = " and ".join(dict.fromkeys(host.machine.name for host in hosts))
        slots = len(fleet.devices)
        console.print(
            f"on a fleet of {len(hosts)} {'host' if len(hosts) == 1 else 'hosts'}, "
            f"{slots} {'life' if slots == 1 else 'lives'} at once: {kinds}"
        )
        yield fleet


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Be part of a Ray cluster meanwhile; Refused if there is none at this address."""
    import ray

    if "://" in address:
        raise Refused(
            f"--fleet {address}: the command must run on a host of the cluster; give HOST:PORT of "
            f"its head, or auto."
        )
    variables = {
        THREADS_VARIABLE: users_environment().get(THREADS_VARIABLE, ""),
        # What starts a life ends it when the actor is gone, and must outlive that for a moment.
        "RAY_kill_child_processes_on_worker_exit": "0",
    }
    options: dict[str, Any] = {"address": address, "log_to_driver": False}
    options["runtime_env"] = {"py_modules": [str(RULER)], "env_vars": variables}
    if address == LOCAL:
        # Logical sizes: lives are given real cores and GPUs by their numbers.
        options |= {"num_cpus": len(os.sched_getaffinity(0)), "num_gpus": len(visible_gpus())}
        options |= {"include_dashboard": False}
    try:
        ray.init(**options, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise Refused(
            f"--fleet {address}: there is no Ray cluster to join ({_first_line(error)}). Start one "
            f"with `ray start --head`, or say --fleet local to use this machine's GPUs."
        ) from None
    # Without a public name: its nodes' last words would go to standard output, as a record may.
    ray._private.worker._worker_logs_enabled = False
    try:
        yield
    finally:
        ray.shutdown()


def _started(order: Order, look: Look) -> tuple[list[FleetHost], list[str]]:
    """A host for each node that has room for a life, and why others are none, in sentences."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # To each node once, through the cluster's object store.
    carried, table = ray.put(order), order.work.table
    named: Counter[str] = Counter()
    begun: list[tuple[str, int, Any, Any]] = []
    alive = [node for node in ray.nodes() if node["Alive"]]
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
                max_concurrency=slots,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            )
            host = actor.remote(carried, slots, name, look)
            begun.append((name, slots, host, host.begin.remote()))
    hosts, refusals = [], []
    deadline = time.monotonic() + START_SECONDS
    for name, slots, host, machine in begun:
        ask, end = partial(_ask, host), partial(ray.kill, host)
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


def _ask(actor: Any, *arguments: Any, **more: Any) -> Told:
    """What a host measures; HostGone where it does not answer."""
    import ray

    try:
        told: Told = ray.get(actor.measure.remote(*arguments, **more))
    except ray.exceptions.RayTaskError as error:
        raise MeasurementFailed(str(error)) from None
    except ray.exceptions.RayError as error:
        raise HostGone(_first_line(error)) from None
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
        for fact in _HARDWARE:
            values = {str(getattr(host.machine, fact)): host.name for host in alike}
            if len(values) > 1:
                said = ", ".join(f"{value} on {where}" for value, where in values.items())
                raise Refused(
                    f"hosts that are all called {name} differ in their {fact}: {said}. Figures of "
                    f"one name are one series: set KVTRAIL_MACHINE to another name on some."
                )
    counted = ", ".join(f"{name} ({len(alike)})" for name, alike in kinds.items())
    if kind is not None:
        if kinds and kind not in kinds:
            raise Refused(f"no host is of the kind {kind}; there are {counted}.")
        return kinds.get(kind, [])
    if is_for_one_kind and len(kinds) > 1:
        raise Refused(
            f"the fleet has hosts of several kinds, whose figures cannot be taken together: "
            f"{counted}. Choose one with --kind."
        )
    return list(hosts)


def _first_line(error: BaseException) -> str:
    """What an error says, without Ray's own traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("ray::", "File", "\x1b"))]
    return (said or lines or [type(error).__name__])[-1].removesuffix(".")
