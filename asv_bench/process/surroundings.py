"""What else the machine does just before a measurement, and warnings about it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What else the machine did just before a measurement.

    `busy_cores` are what other processes kept busy on average over a moment, `load` is the load
    average over the last minute, `governors` are the ways in which frequencies of cores are chosen.
    None, or nothing, where the system does not say.
    """

    cores: int
    busy_cores: float | None
    load: float
    governors: tuple[str, ...]
    gpus: tuple[GpuUse, ...]

    def sentences(self) -> list[str]:
        """A warning for each thing that may spoil figures."""
        said: list[str] = []
        busy = self.busy_cores
        if busy is not None and busy > max(BUSY_CORES, BUSY_SHARE * self.cores):
            said.append(
                f"Warning: other programs use {busy:.1f} of {self.cores} cores (load average "
                f"{self.load:.1f}). Times will be longer and noisier. Stop them, or measure later."
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
                said.append(
                    f"Warning: other processes hold GPU {gpu.device} "
                    f"(pid {', '.join(map(str, gpu.processes))}) and may take time and bandwidth "
                    f"from what is measured; end them, or choose another GPU."
                )
            elif (gpu.busy_percent or 0) > BUSY_GPU:
                said.append(
                    f"Warning: GPU {gpu.device} is busy {gpu.busy_percent} % of the time before "
                    f"anything is measured; end what runs there, or choose another GPU."
                )
        return said


def look_around(
    devices: Sequence[str] | None = None,
    *,
    proc: Path = Path("/proc"),
    sys: Path = Path("/sys"),
) -> Surroundings:
    """See what else the machine does now; takes a fraction of a second.

    `devices` are measured, as `gpu_use` takes them. The kernel tells of processes below `proc`, and
    of devices below `sys`.
    """
    governors: set[str] = set()
    for path in (sys / "devices" / "system" / "cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"):
        with suppress(OSError):
            governors.add(path.read_text().strip())
    return Surroundings(
        cores=os.cpu_count() or 1,
        busy_cores=_busy_cores(proc / "stat"),
        load=os.getloadavg()[0],
        governors=tuple(sorted(governors - {""})),
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
    # user, nice, system, idle, iowait, irq, softirq, steal; guests are part of the first two.
    try:
        ticks = [int(text) for text in stat.read_text().split("\n")[0].split()[1:9]]
        return sum(ticks) - sum(ticks[3:5]) if ticks else None
    except (OSError, ValueError):
        return None
