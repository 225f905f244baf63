"""What machine a figure was measured on, and what else it does.

Every figure is stored beside these facts. Versions are read from package metadata, so
asking for them does not import torch.
"""

from __future__ import annotations

import os
import platform
import re
import runpy
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

from asv_bench.errors import Refused
from asv_bench.process.gpu import GpuState, GpuUse, gpu_facts, gpu_use, visible_gpus

MACHINE_VARIABLE = "KVTRAIL_MACHINE"
_IMAGE_VARIABLES = ("KVTRAIL_IMAGE", "CI_JOB_IMAGE")
"""Name the image of the container, the first that is set; the second one by GitLab."""
OWN_PREFIX = "own-"
REFERENCE_MACHINES = {
    "h200": ("NVIDIA H200", 16),
    "h100": ("NVIDIA H100 80GB HBM3", 16),
    "cpu-2core": (None, 2),
}
"""Machines whose results git keeps: their only GPU, which torch can use, and their cores."""
_BY_HARDWARE = "h200"
"""Is recognised by its hardware alone. Others are common enough to be somebody's own, so they are
recognised only where `KVTRAIL_MACHINE` names them too."""
MOMENT_SECONDS = 0.2
"""How long the CPU is watched."""
BUSY_CORES, BUSY_SHARE = 0.25, 0.05
"""Others' work on the CPU is worth a word where it is above both: so many cores, and such a share
of all cores."""
BUSY_GPU = 5
"""Per cent of the time that a GPU works before anything of ours does."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Hardware and versions that a figure depends on; memory in GiB, clocks in MHz, power in W."""

    name: str
    cpu: str
    cores: int
    memory_gib: float | None
    os: str
    kernel: str
    python: str
    torch: str | None
    triton: str | None
    numpy: str | None
    cuda: str | None
    gpu: str | None = None
    gpu_count: int = 0
    gpu_memory_gib: float | None = None
    driver: str | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    power_limit_w: float | None = None
    image: str | None = None
    state: GpuState | None = None

    @property
    def is_reference(self) -> bool:
        """Whether git keeps what is measured here."""
        return self.name in REFERENCE_MACHINES

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON-ready values."""
        state = None if self.state is None else self.state.to_json()
        return {**asdict(self), "reference": self.is_reference, "state": state}


def machine_facts() -> MachineFacts:
    """The facts of this machine, under the name of `machine_name`."""
    versions = _torch_versions()
    unnamed = MachineFacts(
        name="",
        cpu=_cpu_model(),
        cores=os.cpu_count() or 1,
        memory_gib=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        os=_os_name(),
        kernel=platform.release(),
        python=platform.python_version(),
        torch=versions.get("__version__"),
        triton=_version("triton"),
        numpy=_version("numpy"),
        cuda=versions.get("cuda"),
        image=next(filter(None, map(os.environ.get, _IMAGE_VARIABLES)), None),
        **gpu_facts(),
    )
    return replace(unnamed, name=machine_name(unnamed, os.environ.get(MACHINE_VARIABLE)))


def machine_name(facts: MachineFacts, wanted: str | None = None) -> str:
    """A reference machine's where it is one, else `own-` and a slug of its hardware or of `wanted`.

    Raises Refused if a reference machine is wanted that this one is not.
    """
    name = wanted or _BY_HARDWARE
    is_usable = facts.gpu is None or (facts.gpu_count == 1 and facts.cuda is not None)
    if REFERENCE_MACHINES.get(name) == (facts.gpu, facts.cores) and is_usable:
        return name
    if not wanted:
        return OWN_PREFIX + _slug(f"{facts.gpu or facts.cpu}-{facts.cores}-cores")
    if wanted in REFERENCE_MACHINES:
        raise Refused(
            f"{MACHINE_VARIABLE}={wanted} names a reference machine, which this one is not "
            f"({facts.gpu or 'no GPU'}, {facts.cores} cores); unset it or choose a name of your "
            f"own."
        )
    return wanted if wanted.startswith(OWN_PREFIX) else OWN_PREFIX + _slug(wanted)


def has_cuda_gpu() -> bool:
    """Whether this machine has a GPU and the torch installed here can use it."""
    return _torch_versions().get("cuda") is not None and bool(visible_gpus())


def chosen_device(device: str) -> str:
    """`device` with "auto" decided: the GPU where torch can use one, else the CPU."""
    return device if device != "auto" else "cuda" if has_cuda_gpu() else "cpu"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What else the machine did just before a measurement; None, or nothing, where it is not known.

    `busy_cores` are what other processes kept busy on average over a moment, `load` is the load
    average over the last minute, `governors` choose the frequencies of cores.
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
        if swaying := [name for name in self.governors if name != "performance"]:
            said.append(
                f"Warning: the frequency governor of the CPU is {' and '.join(swaying)}, so clocks "
                f"follow the load (`cpupower frequency-set -g performance` keeps them up)."
            )
        for gpu in self.gpus:
            if gpu.processes:
                pids = ", ".join(map(str, gpu.processes))
                what = f"other processes hold GPU {gpu.device} (pid {pids})"
            elif (gpu.busy_percent or 0) > BUSY_GPU:
                what = f"GPU {gpu.device} is busy {gpu.busy_percent} % of the time"
            else:
                continue
            said.append(
                f"Warning: {what} before anything is measured, which takes time and bandwidth. End "
                f"what runs there, or choose another GPU."
            )
        return said


def look_around(
    devices: Sequence[str], *, proc: Path = Path("/proc"), sys: Path = Path("/sys")
) -> Surroundings:
    """See for a moment what else the machine does, whose `devices` (see `gpu_use`) are measured."""
    governors: set[str] = set()
    for path in sys.glob("devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"):
        with suppress(OSError):  # of a core that is switched off
            governors.add(path.read_text().strip())
    return Surroundings(
        cores=os.cpu_count() or 1,
        busy_cores=_busy_cores(proc / "stat"),
        load=os.getloadavg()[0],
        governors=tuple(sorted(governors)),
        gpus=tuple(gpu_use(devices)),
    )


def _busy_cores(stat: Path) -> float | None:
    """Cores that others keep busy over a moment, this process's own work taken off."""

    def read() -> tuple[float, float]:
        """When it is, and seconds that cores have worked for others, or for a hypervisor."""
        # user, nice, system, idle, iowait, irq, softirq, steal; guests are part of the first two.
        ticks = [int(text) for text in stat.read_text().split("\n")[0].split()[1:9]]
        busy = (sum(ticks) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), busy - sum(os.times()[:4])

    try:
        began, before = read()
        time.sleep(MOMENT_SECONDS)
        ended, after = read()
    except (OSError, ValueError):
        return None
    return max(0.0, (after - before) / (ended - began))


@cache
def _torch_versions() -> dict[str, Any]:
    """torch's own version file, run without importing torch."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    version_file = Path(spec.origin).with_name("version.py")
    return runpy.run_path(str(version_file)) if version_file.is_file() else {}


def _version(package: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    return found[1].strip() if found else platform.machine()


def _os_name() -> str:
    with suppress(OSError, KeyError):
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    return f"{platform.system()} {platform.release()}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
