"""Sharing this machine's GPUs and cores out to lives that run at the same time."""

from __future__ import annotations

import os
from collections.abc import Sequence

from asv_bench.errors import Refused
from asv_bench.measure.lives import Place
from asv_bench.process.gpu import chosen_gpus
from asv_bench.subjects.subject_file import SubjectTable

CPU = "cpu"
"""The device of kvtrail's own benchmarks where there is no GPU."""


def shared_out(devices: Sequence[str]) -> list[Place]:
    """Places on these devices, the CPU or GPUs; several of them share the cores equally."""
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // len(devices))
    return [
        Place(
            () if device == CPU else (device,),
            tuple(cores[number * share % len(cores) :][:share]) if len(devices) > 1 else (),
            CPU if device == CPU else "",
        )
        for number, device in enumerate(devices)
    ]


def places(table: SubjectTable, devices: str | None) -> list[Place]:
    """Where lives may run, a place for each group of GPUs that one life needs.

    Raises Refused where there are too few GPUs or cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    needed = table.devices
    groups: list[tuple[str, ...]] = [()]
    if not needed:
        if devices:
            raise Refused(
                "--devices spreads lives over GPUs; say in [subject] devices how many a life needs."
            )
    else:
        groups = _groups(needed, devices)
    if table.cores * len(groups) > len(cores):
        raise Refused(
            f"{len(groups)} lives at a time with {table.cores} cores each need more than the "
            f"{len(cores)} cores here."
        )
    return [
        Place(group, tuple(cores[place * table.cores :][: table.cores]))
        for place, group in enumerate(groups)
    ]


def _groups(needed: int, devices: str | None) -> list[tuple[str, ...]]:
    gpus = chosen_gpus(devices or ",".join(map(str, range(needed))))
    if len(gpus) % needed:
        raise Refused(f"a life needs {needed} GPUs, and {len(gpus)} cannot be shared out.")
    return [tuple(gpus[start : start + needed]) for start in range(0, len(gpus), needed)]
