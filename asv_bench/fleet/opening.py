"""Opening a fleet for one command: which hosts measure, and what is said of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console

from asv_bench.errors import Refused
from asv_bench.fleet.fleet import Fleet, FleetHost
from asv_bench.fleet.host import disturbances
from asv_bench.fleet.order import Order
from asv_bench.fleet.ray_cluster import connected, started
from asv_bench.output.console import print_sentences
from asv_bench.packages import require_packages
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.subject import Subject

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
    subject: Subject,
    names: Sequence[str],
    console: Console,
    *,
    is_for_one_kind: bool = True,
    require_quiet: bool = False,
) -> Iterator[Fleet | None]:
    """The fleet that runs the lives of a subject; None where this machine does.

    Parameters
    ----------
    names
        The commits, by full hashes, or labels that may be measured.
    is_for_one_kind
        Whether all hosts must be of one kind, since their figures are taken together.
    require_quiet
        Whether also the last host is taken out when it is disturbed.

    Raises
    ------
    Refused
        If there is no such fleet, or none of its hosts can measure.
    """
    if options.address is None:
        yield None
        return
    # `Choice` has refused other subjects.
    assert isinstance(subject, DeclaredSubject)
    with ExitStack() as stack:
        stack.enter_context(connected(options.address))
        found, refusals = started(Order.of(subject, names), disturbances)
        print_sentences(console, refusals, "yellow")
        for host in found:
            stack.callback(host.link.end)
        hosts = of_kind(found, options.kind, is_for_one_kind=is_for_one_kind)
        for host in found:
            if host not in hosts:
                host.link.end()
        if not hosts:
            raise Refused(_no_room(subject, refusals))
        fleet = Fleet(
            hosts,
            lambda sentence: print_sentences(console, [sentence], "yellow"),
            spares_last=not require_quiet,
        )
        fleet.remarks += refusals
        subject.run_on(fleet)
        console.print(sentence_of(hosts))
        yield fleet


def of_kind(
    hosts: Sequence[FleetHost], kind: str | None, *, is_for_one_kind: bool
) -> list[FleetHost]:
    """The hosts of a kind, or of all.

    Raises
    ------
    Refused
        If there are none of this kind, several where there may be one, or hosts of one name differ.
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


def sentence_of(hosts: Sequence[FleetHost]) -> str:
    """How many lives run at once, and where."""
    slots = sum(host.slots for host in hosts)
    kinds = " and ".join(dict.fromkeys(host.machine.name for host in hosts))
    at_once = "1 life" if slots == 1 else f"{slots} lives"
    where = "1 host" if len(hosts) == 1 else f"{len(hosts)} hosts"
    return f"on a fleet of {where}, {at_once} at once: {kinds}"


def _no_room(subject: DeclaredSubject, refusals: Sequence[str]) -> str:
    table = subject.work.table
    needed = f"{table.devices} GPUs" if table.devices else f"{table.cores or 1} cores"
    said = f": {'; '.join(refusals)}." if refusals else "."
    return f"no host of the fleet can run a life, which needs {needed}{said}"
