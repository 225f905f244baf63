"""What NVML says of GPUs: which are visible to CUDA, their facts, their state, other users.

Pairs that a GPU's host spoils are discarded by it.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

from asv_bench.errors import Refused
from asv_bench.output.stored_json import Count

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
FROM_OUTSIDE = frozenset({"hw_power_brake_slowdown"})
"""What the host's power supply asks for, whatever runs."""
THROTTLING = FROM_OUTSIDE | {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown"}
"""What holds a GPU below its usual clock. The power cap does not: under load it is normal."""
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class GpuState:
    """The GPU at one moment: clocks in MHz, temperature in degrees Celsius, power in watts."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    clock_events: tuple[str, ...]
    temperature_c: int | None
    power_w: float | None
    memory_used_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The state as JSON-ready values, and whether something holds the clocks down."""
        return {**asdict(self), "throttled": not NOT_THROTTLING.issuperset(self.clock_events)}


@dataclass(frozen=True, slots=True)
class GpuConditions:
    """The GPU while a process measured: clocks in MHz, temperature in degrees Celsius.

    The SM clock is the median over the readings, the temperature the highest of them, and
    `clock_events` (of `CLOCK_EVENTS`) are those of any reading.
    """

    sm_clock_mhz: Count
    sm_clock_lowest_mhz: Count
    sm_clock_highest_mhz: Count
    clock_events: tuple[str, ...]
    temperature_c: int | None
    readings: int


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Other processes on a GPU, and per cent of the driver's last reading in which it was busy."""

    device: str
    processes: tuple[int, ...]
    busy_percent: int | None


class _Gpu:
    """One GPU while NVML is open; `device` is its number or UUID, as CUDA's variable has it."""

    def __init__(self, nvml: ModuleType, device: str) -> None:
        self.nvml, self.device = nvml, device
        is_number = device.isdigit()
        find = nvml.nvmlDeviceGetHandleByIndex if is_number else nvml.nvmlDeviceGetHandleByUUID
        self._handle: Any = find(int(device) if is_number else device)

    def ask(self, what: str, *arguments: Any) -> Any:
        """What NVML says of this GPU; None if the driver does not offer it."""
        call = getattr(self.nvml, f"nvmlDeviceGet{what}", None)
        try:
            return None if call is None else call(self._handle, *arguments)
        except self.nvml.NVMLError:
            return None

    def watts(self, what: str) -> float | None:
        milliwatts = self.ask(what)
        return None if milliwatts is None else milliwatts / 1000

    def state(self) -> GpuState:
        mask = self.ask("CurrentClocksEventReasons") or self.ask("CurrentClocksThrottleReasons")
        memory = self.ask("MemoryInfo")
        return GpuState(
            self.ask("ClockInfo", self.nvml.NVML_CLOCK_SM),
            self.ask("ClockInfo", self.nvml.NVML_CLOCK_MEM),
            tuple(name for bit, name in enumerate(CLOCK_EVENTS) if int(mask or 0) >> bit & 1),
            self.ask("Temperature", self.nvml.NVML_TEMPERATURE_GPU),
            self.watts("PowerUsage"),
            memory and int(memory.used),
        )

    def use(self) -> GpuUse:
        kinds = ("ComputeRunningProcesses", "GraphicsRunningProcesses")
        running = {process.pid for kind in kinds for process in self.ask(kind) or ()}
        rates = self.ask("UtilizationRates")
        others = tuple(sorted(running - {os.getpid()}))
        return GpuUse(self.device, others, rates and int(rates.gpu))


def gpu_facts() -> dict[str, Any]:
    """Fields of `MachineFacts`: the number of visible GPUs, and the facts of the first."""
    with _visible() as gpus:
        if not gpus:
            return {"gpu_count": 0}
        first, nvml = gpus[0], gpus[0].nvml
        memory = first.ask("MemoryInfo")
        return {
            "gpu": first.ask("Name"),
            "gpu_count": len(gpus),
            "gpu_memory_gib": memory and round(memory.total / 2**30, 1),
            "driver": nvml.nvmlSystemGetDriverVersion(),
            "sm_clock_max_mhz": first.ask("MaxClockInfo", nvml.NVML_CLOCK_SM),
            "memory_clock_max_mhz": first.ask("MaxClockInfo", nvml.NVML_CLOCK_MEM),
            "power_limit_w": first.watts("EnforcedPowerLimit"),
            "state": first.state(),
        }


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
    wanted = {None: ["0"], ALL_DEVICES: gpus}.get(devices) or (devices or "").split(",")
    by_name = {name: gpu for place, gpu in enumerate(gpus) for name in (str(place), gpu)}
    chosen: list[str] = []
    for name in map(str.strip, wanted):
        if name not in by_name:
            known = f"0 to {len(gpus) - 1} ({', '.join(gpus)})" if gpus else "none"
            raise Refused(f"there is no GPU {name} here: CUDA may see {known}.")
        chosen.append(by_name[name])
    if len(set(chosen)) < len(chosen):
        raise Refused(f"{devices} names a GPU twice; each measures one pair at a time.")
    return tuple(chosen)


def gpu_use(devices: Sequence[str]) -> list[GpuUse]:
    """What other processes do on GPUs, as far as the driver tells.

    `devices` are GPUs by UUID, number or torch's name ("cuda:1" is among those that CUDA may see);
    others are left out.
    """
    used: list[GpuUse] = []
    with _visible() as gpus:
        for device in ",".join(devices).split(",") if gpus else ():
            kind, _, number = device.partition(":")
            if kind == "cuda":
                place = int(number or 0)
                used += [gpu.use() for gpu in gpus[place : place + 1]]
            elif device and kind not in NO_GPU:
                used.append(_Gpu(gpus[0].nvml, device).use())
    return used


class GpuWatch:
    """Reads the state of a GPU, by UUID or index, in a thread of its own until it is left."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._readings: list[tuple[float, GpuState]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> GpuWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        with _visible() as gpus:
            gpu = _Gpu(gpus[0].nvml, self._device) if gpus else None
            while gpu is not None and not self._over.is_set():
                self._readings.append((time.monotonic(), gpu.state()))
                self._over.wait(POLL_SECONDS)

    def conditions(self, begun: float, ended: float) -> GpuConditions | None:
        """What was read between two moments of `time.monotonic`, but for idle ones, if anything."""
        states = [state for at, state in self._readings if begun <= at <= ended]
        working = [state for state in states if "gpu_idle" not in state.clock_events] or states
        clocks = [state.sm_clock_mhz for state in working if state.sm_clock_mhz is not None]
        if not clocks:
            return None
        temperatures = [state.temperature_c for state in working if state.temperature_c is not None]
        return GpuConditions(
            sm_clock_mhz=float(statistics.median(clocks)),
            sm_clock_lowest_mhz=float(min(clocks)),
            sm_clock_highest_mhz=float(max(clocks)),
            clock_events=tuple(sorted({one for state in working for one in state.clock_events})),
            temperature_c=max(temperatures, default=None),
            readings=len(clocks),
        )

    def peak_memory_bytes(self) -> int | None:
        """What the GPU's processes held at most, less what they held at first; None unread."""
        used = [state.memory_used_bytes or 0 for _, state in self._readings]
        return max(used) - used[0] if used and max(used) > used[0] else None


def why_discarded(base: GpuConditions | None, head: GpuConditions | None) -> str | None:
    """Why a pair measured under these conditions must be discarded; None if it need not.

    Discards may depend on the machine, never on the commit: one that draws more power may lower the
    clock or heat the GPU until it is throttled, and pairs without that would hide it. So a pair is
    discarded where the power supply held the GPU back, and where the GPU was throttled during both
    processes. All else is kept, and said beside the verdict where it differs between the commits.
    """
    first, second = throttling(base), throttling(head)
    outside = (first | second) & FROM_OUTSIDE
    if outside:
        return f"The host held the GPU back during the pair ({', '.join(sorted(outside))})."
    if first and second:
        return f"The GPU was throttled during both processes ({', '.join(sorted(first | second))})."
    return None


def throttling(conditions: GpuConditions | None) -> frozenset[str]:
    """What throttled the GPU meanwhile."""
    return THROTTLING.intersection(conditions.clock_events if conditions else ())


@contextmanager
def _visible() -> Iterator[list[_Gpu]]:
    """The GPUs that CUDA may see; none where there is no NVML, which is shut down on leaving."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield []
        return
    try:
        count = pynvml.nvmlDeviceGetCount()
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count))))
        visible: list[_Gpu] = []
        for entry in map(str.strip, chosen.split(",") if count else []):
            # CUDA ignores everything from the first entry that names no device.
            if not entry or (entry.lstrip("-").isdigit() and not 0 <= int(entry) < count):
                break
            visible.append(_Gpu(pynvml, entry))
        yield visible
    finally:
        pynvml.nvmlShutdown()
