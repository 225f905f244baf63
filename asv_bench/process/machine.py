"""What machine a figure was measured on, and in what state its GPU was.

Every figure is stored beside these facts. Versions are read from package metadata, so
asking for them does not import torch.
"""

from __future__ import annotations

import os
import platform
import re
import runpy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib import metadata, util
from pathlib import Path
from types import ModuleType
from typing import Any

from asv_bench.errors import Refused

MACHINE_VARIABLE = "KVTRAIL_MACHINE"
OWN_PREFIX = "own-"

# Bits of NVML's clock event mask, lowest first.
CLOCK_EVENTS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
)
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

    @property
    def throttled(self) -> bool:
        """Whether something is holding the clocks below what was asked for."""
        return any(event not in NOT_THROTTLING for event in self.clock_events)

    def to_json(self) -> dict[str, Any]:
        """The state as JSON-ready values, with the throttling verdict beside the flags."""
        return {**asdict(self), "throttled": self.throttled}


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
    gpu: str | None
    gpu_count: int
    gpu_memory_gib: float | None
    driver: str | None
    sm_clock_max_mhz: int | None
    memory_clock_max_mhz: int | None
    power_limit_w: float | None
    state: GpuState | None

    @property
    def is_reference(self) -> bool:
        """Whether git keeps what is measured here."""
        return self.name in REFERENCE_MACHINES

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON-ready values."""
        return {
            **asdict(self),
            "reference": self.is_reference,
            "state": None if self.state is None else self.state.to_json(),
        }


@dataclass(frozen=True, slots=True)
class ReferenceMachine:
    """A machine whose results git keeps.

    `automatic` machines are recognised by their hardware alone. The others are common enough
    to be somebody's own, so they are recognised only where `KVTRAIL_MACHINE` names them too.
    """

    description: str
    matches: Callable[[MachineFacts], bool]
    automatic: bool


REFERENCE_MACHINES: dict[str, ReferenceMachine] = {
    "h200": ReferenceMachine(
        description="one NVIDIA H200, 16 cores, a CUDA build of torch",
        matches=lambda facts: (
            facts.gpu == "NVIDIA H200"
            and facts.gpu_count == 1
            and facts.cores == 16
            and facts.cuda is not None
        ),
        automatic=True,
    ),
    "cpu-2core": ReferenceMachine(
        description="2 cores, no GPU",
        matches=lambda facts: facts.gpu is None and facts.cores == 2,
        automatic=False,
    ),
}


def machine_facts() -> MachineFacts:
    """Read the facts of this machine.

    Returns
    -------
    MachineFacts
        `name` is a reference machine's where its rule holds, else `own-` and a slug of the
        hardware, which git ignores. `KVTRAIL_MACHINE` overrides the choice.

    Raises
    ------
    Refused
        If `KVTRAIL_MACHINE` names a reference machine that this one is not.
    """
    versions = _torch_versions()
    facts: dict[str, Any] = {
        "name": "",
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 1,
        "memory_gib": _memory_gib(),
        "os": _os_name(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": versions.get("__version__") or _version("torch"),
        "triton": _version("triton"),
        "numpy": _version("numpy"),
        "cuda": versions.get("cuda"),
        **_gpu_facts(),
    }
    unnamed = MachineFacts(**facts)
    facts["name"] = machine_name(unnamed, os.environ.get(MACHINE_VARIABLE))
    return MachineFacts(**facts)


def machine_name(facts: MachineFacts, wanted: str | None = None) -> str:
    """The asv machine name for `facts`; `wanted` is what the user asked for, if anything."""
    if wanted:
        reference = REFERENCE_MACHINES.get(wanted)
        if reference is None:
            return wanted if wanted.startswith(OWN_PREFIX) else OWN_PREFIX + _slug(wanted)
        if not reference.matches(facts):
            raise Refused(
                f"{MACHINE_VARIABLE}={wanted} names a reference machine ({reference.description}), "
                f"which this one is not ({facts.gpu or 'no GPU'}, {facts.cores} cores); "
                f"unset it or choose a name of your own."
            )
        return wanted
    for name, reference in REFERENCE_MACHINES.items():
        if reference.automatic and reference.matches(facts):
            return name
    return OWN_PREFIX + _slug(f"{facts.gpu or facts.cpu}-{facts.cores}-cores")


def gpu_state() -> GpuState | None:
    """The GPU's clocks, throttle flags, temperature and power now; None where there is no GPU."""
    with _first_gpu() as found:
        return None if found is None else _state(*found)


def visible_gpus() -> list[str]:
    """The UUIDs of the GPUs that CUDA may see, in CUDA's order of the variable or of the bus."""
    with _nvml() as nvml:
        if nvml is None:
            return []
        return [
            _text(nvml.nvmlDeviceGetUUID(_handle(nvml, device))) or device
            for device in _visible_gpus(nvml.nvmlDeviceGetCount())
        ]


@contextmanager
def gpu_reader(device: str) -> Iterator[Callable[[], GpuState]]:
    """A function that reads the state of one GPU, named by UUID or index, again and again.

    Raises
    ------
    Refused
        If NVML cannot be asked here.
    """
    with _nvml() as nvml:
        if nvml is None:
            raise Refused(f"the clocks of GPU {device} cannot be read: there is no NVML here.")
        handle = _handle(nvml, device)
        yield lambda: _state(nvml, handle)


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What other processes do on a GPU: their ids, and how much of the time it works.

    `busy_percent` is of the driver's last reading; None where it gives none.
    """

    device: str
    processes: tuple[int, ...]
    busy_percent: int | None


def gpu_use(devices: Sequence[str] | None = None) -> list[GpuUse]:
    """What other processes do on GPUs, as far as the driver tells.

    Parameters
    ----------
    devices
        GPUs by UUID or number, or what torch calls them; what is no GPU is left out. None: the
        first that CUDA may see.
    """
    with _nvml() as nvml:
        visible = [] if nvml is None else _visible_gpus(nvml.nvmlDeviceGetCount())
        if nvml is None or not visible:
            return []
        if devices is None:
            wanted = visible[:1]
        else:
            wanted = [name for name in map(partial(_gpu_called, visible), devices) if name]
        return [_use(nvml, device) for device in wanted]


def _gpu_called(visible: list[str], device: str) -> str | None:
    """NVML's name of a device: "cuda" and "cuda:N" are of those that CUDA may see."""
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return None
    if kind != "cuda":
        return device
    place = int(number) if number.isdigit() else 0
    return visible[place] if place < len(visible) else None


def _use(nvml: ModuleType, device: str) -> GpuUse:
    handle = _handle(nvml, device)
    running = [
        process.pid
        for question in (
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlDeviceGetGraphicsRunningProcesses",
        )
        for process in _ask(nvml, question, handle) or ()
    ]
    rates = _ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
    return GpuUse(
        device=device,
        processes=tuple(sorted(set(running) - {os.getpid()})),
        busy_percent=None if rates is None else int(rates.gpu),
    )


def has_cuda_gpu() -> bool:
    """Whether this machine has a GPU and the torch installed here can use it."""
    if _torch_versions().get("cuda") is None:
        return False
    with _first_gpu() as found:
        if found is not None:
            return True
    if util.find_spec("pynvml") is not None:
        return False
    import torch  # only where NVML's Python face is missing: importing torch takes a second

    return torch.cuda.is_available()


def chosen_device(device: str) -> str:
    """`device` with "auto" decided: the GPU where torch can use one, else the CPU."""
    if device != "auto":
        return device
    return "cuda" if has_cuda_gpu() else "cpu"


def _gpu_facts() -> dict[str, Any]:
    absent: dict[str, Any] = dict.fromkeys(
        (
            "gpu",
            "gpu_memory_gib",
            "driver",
            "sm_clock_max_mhz",
            "memory_clock_max_mhz",
            "power_limit_w",
            "state",
        )
    )
    with _first_gpu() as found:
        if found is None:
            return {**absent, "gpu_count": 0}
        nvml, handle = found
        memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
        limit = _ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
        return {
            "gpu": _text(nvml.nvmlDeviceGetName(handle)),
            "gpu_count": len(_visible_gpus(nvml.nvmlDeviceGetCount())),
            "gpu_memory_gib": None if memory is None else round(memory.total / 2**30, 1),
            "driver": _text(_ask(nvml, "nvmlSystemGetDriverVersion")),
            "sm_clock_max_mhz": _ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
            "memory_clock_max_mhz": _ask(
                nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_MEM
            ),
            "power_limit_w": None if limit is None else limit / 1000,
            "state": _state(nvml, handle),
        }


def _state(nvml: ModuleType, handle: Any) -> GpuState:
    mask = _ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if mask is None:
        mask = _ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
    milliwatts = _ask(nvml, "nvmlDeviceGetPowerUsage", handle)
    return GpuState(
        sm_clock_mhz=_ask(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        memory_clock_mhz=_ask(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM),
        clock_events=clock_events(int(mask)),
        temperature_c=_ask(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
        power_w=None if milliwatts is None else milliwatts / 1000,
    )


def clock_events(mask: int) -> tuple[str, ...]:
    """Names of the set bits in NVML's clock event mask."""
    return tuple(name for bit, name in enumerate(CLOCK_EVENTS) if mask >> bit & 1)


@contextmanager
def _nvml() -> Iterator[ModuleType | None]:
    """NVML, or None where there is none; it is shut down on leaving."""
    if util.find_spec("pynvml") is None:
        yield None
        return
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
def _first_gpu() -> Iterator[tuple[ModuleType, Any] | None]:
    """NVML and the first GPU that CUDA may see, or None."""
    with _nvml() as nvml:
        visible = [] if nvml is None else _visible_gpus(nvml.nvmlDeviceGetCount())
        yield (nvml, _handle(nvml, visible[0])) if nvml is not None and visible else None


def _visible_gpus(count: int) -> list[str]:
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [str(index) for index in range(count)]
    visible: list[str] = []
    for entry in (part.strip() for part in chosen.split(",")):
        # CUDA ignores everything from the first entry that names no device.
        if not entry or (entry.lstrip("-").isdigit() and not 0 <= int(entry) < count):
            break
        visible.append(entry)
    return visible


def _handle(nvml: ModuleType, device: str) -> Any:
    if device.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(device))
    return nvml.nvmlDeviceGetHandleByUUID(device)


def _ask(nvml: ModuleType, function: str, *arguments: Any) -> Any:
    """Call an NVML function; None where this driver or binding does not offer it."""
    call = getattr(nvml, function, None)
    if call is None:
        return None
    try:
        return call(*arguments)
    except nvml.NVMLError:
        return None


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


@cache
def _torch_versions() -> dict[str, Any]:
    """torch's own version file, run without importing torch."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    version_file = Path(spec.origin).with_name("version.py")
    return runpy.run_path(str(version_file)) if version_file.is_file() else {}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    except (ValueError, OSError):
        return None


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
