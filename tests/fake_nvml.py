"""pynvml of a host with two GPUs, the second of which is throttled by heat."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

NAMES, UUIDS = ("NVIDIA H200", "NVIDIA L4"), ("GPU-aa", "GPU-bb")


class FakeNvml(ModuleType):
    """Answers what `answers` holds, by GPU; all else the driver does not offer."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self, pids: tuple[int, ...] = (), busy_percent: int = 0) -> None:
        super().__init__("pynvml")
        self.users = 0
        self.is_driverless = False
        self.answers = {
            "UUID": lambda gpu: UUIDS[gpu],
            "Name": lambda gpu: NAMES[gpu],
            "MemoryInfo": lambda gpu: SimpleNamespace(total=(140 - gpu) * 2**30, used=gpu * 2**30),
            "MaxClockInfo": lambda gpu, kind: {1: 1980, 2: 3201}[kind],
            "ClockInfo": lambda gpu, kind: {1: 1700, 2: 3201}[kind],
            "Temperature": lambda gpu, kind: 41,
            "PowerUsage": lambda gpu: 125_500,
            "CurrentClocksThrottleReasons": lambda gpu: (0x1, 0x60)[gpu],
            "ComputeRunningProcesses": lambda gpu: [SimpleNamespace(pid=pid) for pid in pids],
            "UtilizationRates": lambda gpu: SimpleNamespace(gpu=busy_percent),
            "HandleByIndex": lambda index: index,
            "HandleByUUID": lambda uuid: UUIDS.index(uuid),
            "EnforcedPowerLimit": self._refuse,
        }

    def __getattr__(self, name: str) -> Any:
        try:
            return self.answers[name.removeprefix("nvmlDeviceGet")]
        except KeyError:
            raise AttributeError(name) from None

    def _refuse(self, *_: int) -> None:
        raise self.NVMLError("not supported")

    def nvmlInit(self) -> None:  # noqa: N802
        if self.is_driverless:
            raise self.NVMLError("driver not loaded")
        self.users += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.users -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.1"
