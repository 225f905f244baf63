"""What NVML says of GPUs: which are visible to CUDA, their facts, their state, other users."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

from asv_bench.errors import Refused

# Bits of NVML's clock event mask, lowest first.
CLOCK_EVENTS = (
    *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost"),
    *("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"),
    "display_clock_setting",
)
ALL_DEVICES = "all"
NO_GPU = ("cpu", "host")
"""Names of devices that are none: a measured CPU, and a command that may use what there is."""
# An idle GPU and clocks that somebody set on purpose are states, not throttling.
NOT_THROTTLING = frozenset({"gpu_idle", "applications_clocks_setting", "display_clock_setting"})


@dataclass(frozen=True, slots=True)
class GpuState:
    """The GPU at one moment: clocks in MHz, temperature in degrees Celsius, power in watts."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    clock_events: tuple[str, ...]
    temperature_c: int | None
    power_w: float | None
    memory_used_bytes: int | None = None

    @property
    def throttled(self) -> bool:
        """Whether something is holding the clocks below what was asked for."""
        return any(event not in NOT_THROTTLING for event in self.clock_events)

    def to_json(self) -> dict[str, Any]:
        """The state as JSON-ready values, with the throttling verdict beside the flags."""
        return {**asdict(self), "throttled": self.throttled}


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Other processes on a GPU, and the share of time in which it is busy.

    `busy_percent` is of the driver's last reading; None where it gives none.
    """

    device: str
    processes: tuple[int, ...]
    busy_percent: int | None


class _Gpu:
    """One GPU while NVML is open; `device` is its number or UUID, as CUDA's variable has it."""

    def __init__(self, nvml: ModuleType, device: str) -> None:
        self._nvml, self.device = nvml, device
        is_number = device.isdigit()
        find = nvml.nvmlDeviceGetHandleByIndex if is_number else nvml.nvmlDeviceGetHandleByUUID
        self._handle: Any = find(int(device) if is_number else device)

    def ask(self, what: str, *arguments: Any) -> Any:
        """What NVML says of this GPU; None if the driver does not offer it."""
        call = getattr(self._nvml, f"nvmlDeviceGet{what}", None)
        try:
            return None if call is None else call(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None

    def state(self) -> GpuState:
        mask = self.ask("CurrentClocksEventReasons") or self.ask("CurrentClocksThrottleReasons")
        memory = self.ask("MemoryInfo")
        return GpuState(
            sm_clock_mhz=self.ask("ClockInfo", self._nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self.ask("ClockInfo", self._nvml.NVML_CLOCK_MEM),
            clock_events=clock_events(int(mask or 0)),
            temperature_c=self.ask("Temperature", self._nvml.NVML_TEMPERATURE_GPU),
            power_w=_watts(self.ask("PowerUsage")),
            memory_used_bytes=None if memory is None else int(memory.used),
        )

    def use(self) -> GpuUse:
        kinds = ("ComputeRunningProcesses", "GraphicsRunningProcesses")
        running = {process.pid for kind in kinds for process in self.ask(kind) or ()}
        rates = self.ask("UtilizationRates")
        others = tuple(sorted(running - {os.getpid()}))
        return GpuUse(self.device, others, None if rates is None else int(rates.gpu))

    def facts(self) -> dict[str, Any]:
        memory = self.ask("MemoryInfo")
        return {
            "gpu": self.ask("Name"),
            "gpu_memory_gib": None if memory is None else round(memory.total / 2**30, 1),
            "driver": self._nvml.nvmlSystemGetDriverVersion(),
            "sm_clock_max_mhz": self.ask("MaxClockInfo", self._nvml.NVML_CLOCK_SM),
            "memory_clock_max_mhz": self.ask("MaxClockInfo", self._nvml.NVML_CLOCK_MEM),
            "power_limit_w": _watts(self.ask("EnforcedPowerLimit")),
            "state": self.state(),
        }


def gpu_facts() -> dict[str, Any]:
    """Fields of `MachineFacts`: the number of visible GPUs, and the facts of the first."""
    with _visible() as gpus:
        return {**(gpus[0].facts() if gpus else {}), "gpu_count": len(gpus)}


def gpu_state() -> GpuState | None:
    """The state of the first GPU that CUDA may see; None where there is none."""
    with _visible() as gpus:
        return gpus[0].state() if gpus else None


def visible_gpus() -> list[str]:
    """The UUIDs of the GPUs that CUDA may see, in CUDA's order of the variable or of the bus."""
    with _visible() as gpus:
        return [gpu.ask("UUID") or gpu.device for gpu in gpus]


def chosen_gpus(devices: str | None) -> tuple[str, ...]:
    """The UUIDs of some of the GPUs that CUDA may see.

    `devices` are numbers among them, or UUIDs, separated by commas; or "all"; None: the first only,
    as others may be somebody else's. Raises Refused if there are no such GPUs.
    """
    gpus = visible_gpus()
    if devices in (None, ALL_DEVICES):
        if not gpus:
            raise Refused("there is no GPU here that CUDA may see, and a life needs one.")
        return tuple(gpus if devices else gpus[:1])
    known = f"there are the GPUs 0 to {len(gpus) - 1} ({', '.join(gpus)})"
    by_name = {name: gpu for place, gpu in enumerate(gpus) for name in (str(place), gpu)}
    chosen: list[str] = []
    for part in map(str.strip, devices.split(",")):
        name = str(int(part)) if part.isdecimal() else part
        if name not in by_name:
            raise Refused(f"GPU {part!r} is asked for, and {known if gpus else 'there is none'}.")
        chosen.append(by_name[name])
    if len(set(chosen)) < len(chosen):
        raise Refused(f"{devices} names a GPU twice; each measures one pair at a time.")
    return tuple(chosen)


@contextmanager
def gpu_reader(device: str) -> Iterator[Callable[[], GpuState]]:
    """A function that reads the state of one GPU, named by UUID or index, again and again.

    Raises Refused if NVML cannot be asked here.
    """
    with _nvml() as nvml:
        if nvml is None:
            raise Refused(f"the clocks of GPU {device} cannot be read: there is no NVML here.")
        yield _Gpu(nvml, device).state


def gpu_use(devices: Sequence[str] | None = None) -> list[GpuUse]:
    """What other processes do on GPUs, as far as the driver tells.

    `devices` are GPUs by UUID, number or torch's name ("cuda:1" is among those that CUDA may see);
    others are left out. None: the first visible one.
    """
    with _nvml() as nvml:
        visible = _visible_devices(nvml)
        found: list[str] = []
        wanted = ["cuda"] if devices is None else devices
        for device in (one for several in wanted for one in several.split(",")):
            kind, _, number = device.partition(":")
            if kind == "cuda":
                place = int(number) if number.isdigit() else 0
                found += visible[place : place + 1]
            elif kind not in NO_GPU and visible:
                found.append(device)
        return [] if nvml is None else [_Gpu(nvml, device).use() for device in found]


def clock_events(mask: int) -> tuple[str, ...]:
    """Names of the set bits in NVML's clock event mask."""
    return tuple(name for bit, name in enumerate(CLOCK_EVENTS) if mask >> bit & 1)


@contextmanager
def _nvml() -> Iterator[ModuleType | None]:
    """NVML, or None where there is none; it is shut down on leaving."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


@contextmanager
def _visible() -> Iterator[list[_Gpu]]:
    """The GPUs that CUDA may see; none where there is no NVML."""
    with _nvml() as nvml:
        yield [] if nvml is None else [_Gpu(nvml, device) for device in _visible_devices(nvml)]


def _visible_devices(nvml: ModuleType | None) -> list[str]:
    count = 0 if nvml is None else nvml.nvmlDeviceGetCount()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count))))
    visible: list[str] = []
    for entry in map(str.strip, chosen.split(",") if count else []):
        # CUDA ignores everything from the first entry that names no device.
        if not entry or (entry.lstrip("-").isdigit() and not 0 <= int(entry) < count):
            break
        visible.append(entry)
    return visible


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
