"""Facts of a machine, with and without a GPU, and what its results are called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import asv_bench.process.machine as machine
from asv_bench.errors import Refused
from asv_bench.process.gpu import GpuState, clock_events, gpu_reader, gpu_state, visible_gpus
from asv_bench.process.machine import (
    MACHINE_VARIABLE,
    REFERENCE_MACHINES,
    MachineFacts,
    has_cuda_gpu,
    machine_facts,
    machine_name,
)


@pytest.fixture(autouse=True)
def _no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MACHINE_VARIABLE, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> MachineFacts:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return replace(machine_facts(), cpu="AMD EPYC 9J14", cores=6, gpu=None)


@pytest.fixture
def h200(facts: MachineFacts) -> MachineFacts:
    return replace(facts, gpu="NVIDIA H200", gpu_count=1, cores=16, cuda="13.0")


class FakeNvml(ModuleType):
    """pynvml of a host with two GPUs, the second of which is throttled by heat."""

    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.__spec__ = ModuleSpec("pynvml", None)
        self.users = 0
        self.driverless = False

    def nvmlInit(self) -> None:  # noqa: N802
        if self.driverless:
            raise self.NVMLError("driver not loaded")
        self.users += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.users -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        return {"GPU-aa": 0, "GPU-bb": 1}[uuid]

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:  # noqa: N802
        return [b"GPU-aa", b"GPU-bb"][handle]

    def nvmlDeviceGetName(self, handle: int) -> bytes:  # noqa: N802
        return [b"NVIDIA H200", b"NVIDIA L4"][handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=(140 - handle) * 2**30, used=handle * 2**30)

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.1"

    def nvmlDeviceGetMaxClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        return {1: 1700, 2: 3201}[kind]

    def nvmlDeviceGetTemperature(self, handle: int, kind: int) -> int:  # noqa: N802
        return 41

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        return 125_500

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:  # noqa: N802
        raise self.NVMLError("not supported")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        return [0x1, 0x60][handle]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_facts_are_json_and_name_the_versions() -> None:
    facts = machine_facts().to_json()
    assert json.loads(json.dumps(facts))["name"] == facts["name"]
    import torch

    assert facts["torch"] == torch.__version__
    assert facts["cuda"] == torch.version.cuda
    assert facts["cores"] == os.cpu_count()
    assert facts["python"] == sys.version.split()[0]
    assert facts["memory_gib"] > 0


def test_reading_facts_does_not_import_torch() -> None:
    code = (
        "import sys; from asv_bench.process.machine import machine_facts; machine_facts();"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=os.getcwd()
    )
    assert done.stdout.strip() == "False"


def test_gpu_facts(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = machine_facts()
    assert (facts.gpu, facts.gpu_count, facts.driver) == ("NVIDIA H200", 2, "580.1")
    assert facts.gpu_memory_gib == 140.0
    assert (facts.sm_clock_max_mhz, facts.memory_clock_max_mhz) == (1980, 3201)
    assert facts.power_limit_w is None
    assert facts.state == GpuState(1700, 3201, ("gpu_idle",), 41, 125.5, 0)
    assert not facts.state.throttled
    assert nvml.users == 0


@pytest.mark.parametrize("visible", ["1", "GPU-bb", "1,0"])
def test_the_first_visible_gpu_counts(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine_facts().gpu == "NVIDIA L4"
    state = gpu_state()
    assert state is not None
    assert state.clock_events == ("sw_thermal_slowdown", "hw_thermal_slowdown")
    assert state.throttled
    assert state.to_json()["throttled"] is True


@pytest.mark.parametrize("visible", ["", "-1", "7"])
def test_hidden_gpus_are_not_there(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine_facts().gpu is None
    assert gpu_state() is None


def test_without_a_driver_there_is_no_gpu(nvml: FakeNvml) -> None:
    nvml.driverless = True
    assert machine_facts().gpu is None
    assert gpu_state() is None


def test_a_gpu_counts_only_with_a_torch_that_can_use_it(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_torch_versions", lambda: {"cuda": "13.0"})
    assert has_cuda_gpu()
    monkeypatch.setattr(machine, "_torch_versions", lambda: {"cuda": None})
    assert not has_cuda_gpu()


def test_clock_events_are_the_set_bits() -> None:
    assert clock_events(0) == ()
    assert clock_events(0x1 | 0x4 | 0x80) == ("gpu_idle", "sw_power_cap", "hw_power_brake_slowdown")
    assert GpuState(1, 1, clock_events(0x4), 1, 1.0).throttled
    assert not GpuState(1, 1, clock_events(0x3), 1, 1.0).throttled


def test_the_reference_gpu_host_is_recognised(h200: MachineFacts) -> None:
    assert machine_name(h200) == "h200"
    for changed in ({"gpu_count": 8}, {"cores": 32}, {"cuda": None}, {"gpu": "NVIDIA H200 NVL"}):
        assert machine_name(replace(h200, **changed)).startswith("own-")


def test_own_machines_are_named_after_their_hardware(facts: MachineFacts) -> None:
    assert machine_name(facts) == "own-amd-epyc-9j14-6-cores"
    assert machine_name(replace(facts, gpu="NVIDIA L4")) == "own-nvidia-l4-6-cores"
    assert machine_name(facts, "My Box") == "own-my-box"
    assert machine_name(facts, "own-box") == "own-box"


def test_a_common_machine_is_a_reference_only_where_it_is_named(facts: MachineFacts) -> None:
    two_cores = replace(facts, cores=2)
    assert machine_name(two_cores).startswith("own-")
    assert machine_name(two_cores, "cpu-2core") == "cpu-2core"
    assert replace(two_cores, name="cpu-2core").is_reference
    assert not replace(two_cores, name="own-x").is_reference


def test_a_machine_cannot_pass_for_a_reference(facts: MachineFacts) -> None:
    for name in REFERENCE_MACHINES:
        with pytest.raises(Refused, match="which this one is not"):
            machine_name(facts, name)


def test_the_variable_names_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MACHINE_VARIABLE, "desk")
    assert machine_facts().name == "own-desk"


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["GPU-aa", "GPU-bb"]),
        ("1,0", ["GPU-bb", "GPU-aa"]),
        ("GPU-bb", ["GPU-bb"]),
        ("", []),
    ],
)
def test_visible_gpus_are_told_by_uuid(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[str]
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus() == expected
    assert nvml.users == 0


def test_without_nvml_no_gpu_is_visible_and_none_can_be_read(nvml: FakeNvml) -> None:
    nvml.driverless = True
    assert visible_gpus() == []
    with pytest.raises(Refused, match="there is no NVML here"), gpu_reader("GPU-aa"):
        raise AssertionError("a reader was given")


def test_a_gpu_is_read_again_and_again_while_nvml_is_held(nvml: FakeNvml) -> None:
    with gpu_reader("GPU-bb") as read:
        assert [read().throttled, read().throttled] == [True, True]
        assert nvml.users == 1
    assert nvml.users == 0
