"""What else the machine does just before a measurement, and warnings about it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asv_bench.process.gpu import GpuUse, gpu_use

MOMENT_SECONDS = 0.2
"""How long the CPU is watched."""
BUSY_CORES = 0.25
BUSY_SHARE = 0.05
"""Others' work on the CPU is worth a word where it is above both: so many cores, and of all cores
such a share."""
BUSY_GPU = 5
"""Per cent of the time that a GPU works before anything of ours does."""
STEADY_GOVERNOR = "performance"

_TICKS_AT_REST = (3, 4)
"""Columns of /proc/stat, the name not counted, in which a core does nothing: idle and iowait."""
_TICKS_COUNTED_TWICE = 8
"""From this column on: guests, whose time is part of the first two."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What else the machine did just before a measurement.

    `busy_cores` are what other processes kept busy on average over a moment, `load` is the load
    average over the last minute, `governors` are the ways in which frequencies of cores are chosen.
    None, or nothing, where the system does not say.
    """

    cores: int
    busy_cores: float | None
    load: float | None
    governors: tuple[str, ...]
    gpus: tuple[GpuUse, ...]

    def sentences(self) -> list[str]:
        """A warning for each thing that may spoil figures."""
        said: list[str] = []
        busy = self.busy_cores
        if busy is not None and busy > max(BUSY_CORES, BUSY_SHARE * self.cores):
            load = "" if self.load is None else f" (load average {self.load:.1f})"
            said.append(
                f"Warning: other programs use {busy:.1f} of {self.cores} cores{load}. Times will "
                f"be longer and noisier. Stop them, or measure later."
            )
        swaying = [name for name in self.governors if name != STEADY_GOVERNOR]
        if swaying:
            said.append(
                f"Warning: the frequency governor of the CPU is {' and '.join(swaying)}, so clocks "
                f"follow the load; {STEADY_GOVERNOR} keeps them up "
                f"(`cpupower frequency-set -g {STEADY_GOVERNOR}`)."
            )
        for gpu in self.gpus:
            if gpu.processes:
                who = ", ".join(map(str, gpu.processes))
                many = len(gpu.processes) > 1
                said.append(
                    f"Warning: {'other processes hold' if many else 'another process holds'} GPU "
                    f"{gpu.device} ({'pids' if many else 'pid'} {who}) and may take time and "
                    f"bandwidth from what is measured; end {'them' if many else 'it'}, or choose "
                    f"another GPU."
                )
            elif gpu.busy_percent is not None and gpu.busy_percent > BUSY_GPU:
                said.append(
                    f"Warning: GPU {gpu.device} is busy {gpu.busy_percent} % of the time before "
                    f"anything is measured; end what runs there, or choose another GPU."
                )
        return said

    def to_json(self) -> dict[str, Any]:
        """What was seen as JSON-ready values."""
        return asdict(self)


def look_around(
    devices: Sequence[str] | None = None,
    *,
    proc: Path = Path("/proc"),
    sys: Path = Path("/sys"),
) -> Surroundings:
    """See what else the machine does now; takes a fraction of a second.

    `devices`: what is measured: "cpu", or GPUs by UUID or number; None: the first GPU that CUDA may
    see. `proc` and `sys`: where the kernel tells of processes and of devices.
    """
    return Surroundings(
        cores=os.cpu_count() or 1,
        busy_cores=_busy_cores(proc / "stat"),
        load=_load(proc / "loadavg"),
        governors=_governors(sys / "devices" / "system" / "cpu"),
        gpus=tuple(gpu_use(devices)),
    )


def _busy_cores(stat: Path) -> float | None:
    """Cores that others keep busy over a moment, this process's own work taken off."""
    before, own_before, began = _busy_ticks(stat), sum(os.times()[:4]), time.monotonic()
    time.sleep(MOMENT_SECONDS)
    after, own_after, ended = _busy_ticks(stat), sum(os.times()[:4]), time.monotonic()
    if before is None or after is None:
        return None
    seconds = (after - before) / os.sysconf("SC_CLK_TCK") - (own_after - own_before)
    return max(0.0, seconds / (ended - began))


def _busy_ticks(stat: Path) -> int | None:
    """Clock ticks in which cores were busy, or taken by a hypervisor, since the machine started."""
    try:
        ticks = [int(text) for text in stat.read_text().splitlines()[0].split()[1:]]
    except (OSError, ValueError, IndexError):
        return None
    counted = ticks[:_TICKS_COUNTED_TWICE]
    return sum(count for place, count in enumerate(counted) if place not in _TICKS_AT_REST)


def _load(loadavg: Path) -> float | None:
    try:
        return float(loadavg.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _governors(cpu: Path) -> tuple[str, ...]:
    found: set[str] = set()
    for path in cpu.glob("cpu[0-9]*/cpufreq/scaling_governor"):
        try:
            found.add(path.read_text().strip())
        except OSError:
            continue
    return tuple(sorted(found - {""}))
