"""Where lives run: GPUs and CPU cores, shared out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from asv_bench.errors import Refused
from asv_bench.process.environment import measured_threads
from asv_bench.process.gpu import chosen_gpus
from asv_bench.subjects.subject_file import SubjectTable

HOST = "host"
"""The device of lives that are given no GPU of their own."""
CPU = "cpu"
"""The device of kvtrail's own benchmarks where there is no GPU."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where lives run, one at a time: GPUs by UUID, and CPU cores; none: what the user may use.

    `name` is that of one of many places in a fleet; "": the GPUs say enough.
    """

    gpus: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()
    name: str = ""

    @property
    def device(self) -> str:
        """As readings name it."""
        return self.name or ",".join(self.gpus) or HOST

    def for_turns(self) -> Place:
        """Where two lives take turns: on the same cores, as many as either has threads.

        Cores differ for as long as a neighbour works beside one of them. Were each life on a core
        of its own, one would have the slower in all its turns. That holds on a GPU, too, where the
        host works longer than the GPU.
        """
        cores = self.cores or tuple(sorted(os.sched_getaffinity(0)))
        return replace(self, cores=cores[-measured_threads() :])

    def variables(self) -> dict[str, str]:
        """What shows a life these GPUs only."""
        if not self.gpus:
            return {}
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def shared_out(devices: Sequence[str]) -> list[Place]:
    """Places on these devices, the CPU or GPUs; several of them share the cores equally."""
    if len(devices) == 1:
        return [Place(name=CPU) if devices[0] == CPU else Place((devices[0],))]
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // len(devices))
    starts = (number * share % len(cores) for number in range(len(devices)))
    shares = (tuple(cores[start:][:share]) for start in starts)
    return [Place((device,), own) for device, own in zip(devices, shares, strict=True)]


def places(table: SubjectTable, devices: str | None) -> list[Place]:
    """Where lives may run, a place for each group of GPUs that one life needs.

    Raises Refused where there are too few GPUs or cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    needed = table.devices
    groups: list[tuple[str, ...]] = [()]
    if devices and not needed:
        raise Refused(
            "--devices spreads lives over GPUs; say in [subject] devices how many a life needs."
        )
    if needed:
        gpus = chosen_gpus(devices or ",".join(map(str, range(needed))))
        if len(gpus) % needed:
            raise Refused(f"a life needs {needed} GPUs, and {len(gpus)} cannot be shared out.")
        groups = [tuple(gpus[start : start + needed]) for start in range(0, len(gpus), needed)]
    if table.cores * len(groups) > len(cores):
        raise Refused(
            f"{len(groups)} lives at a time with {table.cores} cores each need more than the "
            f"{len(cores)} cores here."
        )
    return [
        Place(group, tuple(cores[place * table.cores :][: table.cores]))
        for place, group in enumerate(groups)
    ]
