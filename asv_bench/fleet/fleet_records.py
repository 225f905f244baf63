"""Records of what a fleet measured: the facts are those of its hosts, not of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from asv_bench.fleet.fleet import Fleet
from asv_bench.output.console import print_sentences
from asv_bench.output.record import Record
from asv_bench.process.machine import MachineFacts
from asv_bench.subjects.declared import DeclaredSubject


def record_of(command: str, settings: Mapping[str, Any], fleet: Fleet | None) -> Record:
    """The record of a command whose lives a fleet runs; None: this machine does."""
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
        return

    def tell(sentence: str) -> None:
        record.warnings.append(sentence)
        print_sentences(console, [sentence], "yellow")

    fleet.tell = tell


def hosts_json(fleet: Fleet | None) -> dict[str, Any]:
    """The part of a record's results that names the hosts; nothing where there is no fleet."""
    return {} if fleet is None else {"hosts": fleet.to_json()}
