"""Facts of a machine, with and without a GPU, and what its results are called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from fake_nvml import FakeNvml

import asv_bench.process.machine as machine
from asv_bench.errors import Refused
from asv_bench.process.gpu import (
    GpuState,
    chosen_gpus,
    gpu_reader,
    gpu_state,
    visible_gpus,
)
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
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_facts_are_json_and_name_the_versions() -> None:
    facts = json.loads(json.dumps(machine_facts().to_json()))
    assert (facts["torch"], facts["cuda"]) == (torch.__version__, torch.version.cuda)
    assert (facts["cores"], facts["python"]) == (os.cpu_count(), sys.version.split()[0])
    assert facts["memory_gib"] > 0


def test_reading_facts_does_not_import_torch() -> None:
    code = (
        "import sys; from asv_bench.process.machine import machine_facts; machine_facts();"
        "print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_gpu_facts(nvml: FakeNvml) -> None:
    facts = machine_facts()
    assert (facts.gpu, facts.gpu_count, facts.driver) == ("NVIDIA H200", 2, "580.1")
    assert (facts.gpu_memory_gib, facts.power_limit_w) == (140.0, None)
    assert (facts.sm_clock_max_mhz, facts.memory_clock_max_mhz) == (1980, 3201)
    assert facts.state == GpuState(1700, 3201, ("gpu_idle",), 41, 125.5, 0)
    assert not facts.state.throttled
    assert nvml.users == 0


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        *((None, ["GPU-aa", "GPU-bb"]), ("1,0", ["GPU-bb", "GPU-aa"]), ("1", ["GPU-bb"])),
        *(("GPU-bb", ["GPU-bb"]), ("", []), ("-1", []), ("7", [])),
    ],
)
def test_the_gpus_that_cuda_may_see_count_and_the_first_is_described(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[str]
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus() == expected
    names = {"GPU-aa": "NVIDIA H200", "GPU-bb": "NVIDIA L4"}
    assert machine_facts().gpu == (names[expected[0]] if expected else None)
    state = gpu_state()
    assert (state is None) == (not expected)
    if state is not None and expected[0] == "GPU-bb":
        assert state.clock_events == ("sw_thermal_slowdown", "hw_thermal_slowdown")
        assert state.to_json()["throttled"] is True
    assert nvml.users == 0


def test_gpus_are_chosen_by_number_or_name(nvml: FakeNvml) -> None:
    assert chosen_gpus(None) == ("GPU-aa",)
    assert chosen_gpus("all") == chosen_gpus("0, GPU-bb") == ("GPU-aa", "GPU-bb")
    for devices, said in (("2", "there are the GPUs 0 to 1"), ("1,GPU-bb", "names a GPU twice")):
        with pytest.raises(Refused, match=said):
            chosen_gpus(devices)


def test_a_gpu_is_read_again_and_again_while_nvml_is_held(nvml: FakeNvml) -> None:
    with gpu_reader("GPU-bb") as read:
        assert [read().throttled, read().throttled] == [True, True]
        assert nvml.users == 1
    assert nvml.users == 0
    nvml.is_driverless = True
    assert (machine_facts().gpu, gpu_state(), visible_gpus()) == (None, None, [])
    with pytest.raises(Refused, match="there is no NVML here"), gpu_reader("GPU-aa"):
        raise AssertionError("a reader was given")


@pytest.mark.parametrize("cuda", ["13.0", None])
def test_a_gpu_counts_only_with_a_torch_that_can_use_it(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, cuda: str | None
) -> None:
    monkeypatch.setattr(machine, "_torch_versions", lambda: {"cuda": cuda})
    assert has_cuda_gpu() == (cuda is not None)


def test_the_reference_gpu_host_is_recognised(facts: MachineFacts) -> None:
    h200 = replace(facts, gpu="NVIDIA H200", gpu_count=1, cores=16, cuda="13.0")
    assert machine_name(h200) == "h200"
    for changed in ({"gpu_count": 8}, {"cores": 32}, {"cuda": None}, {"gpu": "NVIDIA H200 NVL"}):
        assert machine_name(replace(h200, **changed)).startswith("own-")


def test_own_machines_are_named_after_their_hardware_or_by_their_user(
    facts: MachineFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine_name(facts) == "own-amd-epyc-9j14-6-cores"
    assert machine_name(replace(facts, gpu="NVIDIA L4")) == "own-nvidia-l4-6-cores"
    assert machine_name(facts, "My Box") == "own-my-box"
    assert machine_name(facts, "own-box") == "own-box"
    monkeypatch.setenv(MACHINE_VARIABLE, "desk")
    assert machine_facts().name == "own-desk"


def test_a_machine_is_a_reference_only_where_it_can_be_and_a_common_one_is_named(
    facts: MachineFacts,
) -> None:
    two_cores = replace(facts, cores=2)
    assert machine_name(two_cores).startswith("own-")
    assert machine_name(two_cores, "cpu-2core") == "cpu-2core"
    assert replace(two_cores, name="cpu-2core").is_reference
    assert not replace(two_cores, name="own-x").is_reference
    for name in REFERENCE_MACHINES:
        with pytest.raises(Refused, match="which this one is not"):
            machine_name(facts, name)
