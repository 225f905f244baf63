"""Facts of a machine, what its results are called, and what else it does before it is measured."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fake_nvml import FakeNvml
from rich.console import Console

from asv_bench.errors import Refused
from asv_bench.output.record import Record
from asv_bench.process import machine
from asv_bench.process.gpu import GpuUse
from asv_bench.process.machine import (
    MACHINE_VARIABLE,
    REFERENCE_MACHINES,
    MachineFacts,
    Surroundings,
    has_cuda_gpu,
    look_around,
    machine_facts,
    machine_name,
)

QUIET = Surroundings(cores=8, busy_cores=0.1, load=0.2, governors=("performance",), gpus=())


@pytest.fixture(autouse=True)
def _no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MACHINE_VARIABLE, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> MachineFacts:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return replace(machine_facts(), cpu="AMD EPYC 9J14", cores=6, gpu=None)


def test_facts_are_json_and_name_the_versions_without_importing_torch() -> None:
    code = (
        "import json, sys; from asv_bench.process.machine import machine_facts;"
        "print(json.dumps([machine_facts().to_json(), 'torch' in sys.modules]))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    facts, has_torch = json.loads(done.stdout)
    assert (facts["torch"], facts["cuda"]) == (torch.__version__, torch.version.cuda)
    assert (facts["cores"], facts["python"]) == (os.cpu_count(), sys.version.split()[0])
    assert facts["memory_gib"] > 0
    assert not has_torch


def test_a_gpu_counts_only_with_a_torch_that_can_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    for cuda in ("13.0", None):
        monkeypatch.setattr(machine, "_torch_versions", lambda cuda=cuda: {"cuda": cuda})
        assert has_cuda_gpu() == (cuda is not None)


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
    h200 = replace(facts, gpu="NVIDIA H200", gpu_count=1, cores=16, cuda="13.0")
    assert machine_name(h200) == "h200"
    for changed in ({"gpu_count": 8}, {"cores": 32}, {"cuda": None}, {"gpu": "NVIDIA H200 NVL"}):
        assert machine_name(replace(h200, **changed)).startswith("own-")
    two_cores = replace(facts, cores=2)
    assert machine_name(two_cores).startswith("own-")
    assert machine_name(two_cores, "cpu-2core") == "cpu-2core"
    assert replace(two_cores, name="cpu-2core").is_reference
    assert not replace(two_cores, name="own-x").is_reference
    for name in REFERENCE_MACHINES:
        with pytest.raises(Refused, match="which this one is not"):
            machine_name(facts, name)


def write_system(folder: Path, ticks: str, governor: str) -> None:
    (folder / "stat").write_text(f"cpu  {ticks}\ncpu0 1 1\n")
    for core in range(2):
        policy = folder / "devices" / "system" / "cpu" / f"cpu{core}" / "cpufreq"
        policy.mkdir(parents=True, exist_ok=True)
        (policy / "scaling_governor").write_text(f"{governor}\n")


def test_others_on_the_cpu_are_counted_over_a_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = look_around(["cpu"], proc=tmp_path, sys=tmp_path)
    assert (seen.busy_cores, seen.governors) == (None, ())
    assert seen.sentences() == QUIET.sentences() == []
    # user nice system idle iowait irq softirq steal guest guest_nice
    write_system(tmp_path, "100 0 50 5000 900 0 0 0 70 0", "powersave")
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    monkeypatch.setattr("os.getloadavg", lambda: (3.25, 0.0, 0.0))

    def sleep(seconds: float) -> None:
        # 30 ticks of work, stolen ones among them; idling, waiting and guests are none.
        write_system(tmp_path, "110 0 55 6000 999 2 3 10 99 0", "powersave")

    monkeypatch.setattr(machine.time, "sleep", sleep)
    moments = iter((10.0, 10.2))
    monkeypatch.setattr(machine.time, "monotonic", lambda: next(moments))
    monkeypatch.setattr("os.times", lambda: (0.0,) * 5)
    seen = look_around(["cpu"], proc=tmp_path, sys=tmp_path)
    assert seen.busy_cores == pytest.approx(1.5)
    busy, governor = Surroundings(2, seen.busy_cores, seen.load, seen.governors, ()).sentences()
    assert "other programs use 1.5 of 2 cores (load average 3.2)" in busy
    assert "governor of the CPU is powersave" in governor


@pytest.mark.parametrize(
    ("pids", "busy_percent", "said"),
    [
        ((7, 8), 0, "other processes hold GPU {} (pid 7, 8)"),
        # In a container the processes of others have no numbers.
        ((), 37, "GPU {} is busy 37 % of the time"),
    ],
)
@pytest.mark.parametrize("devices", [["cuda"], ["cuda:0"], ["GPU-aa"]])
def test_others_on_the_gpu_are_named(
    monkeypatch: pytest.MonkeyPatch,
    devices: list[str],
    pids: tuple[int, ...],
    busy_percent: int,
    said: str,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(pids, busy_percent))
    (gpu,) = look_around(devices).gpus
    assert gpu == GpuUse("GPU-aa" if devices == ["GPU-aa"] else "0", pids, busy_percent)
    (sentence,) = replace(QUIET, gpus=(gpu,)).sentences()
    assert said.format(gpu.device) in sentence
    assert look_around(["cpu"]).gpus == look_around([]).gpus == ()


def test_it_is_said_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Surroundings(2, 1.9, 2.5, ("powersave",), (GpuUse("0", (7,), 50),))
    monkeypatch.setattr("asv_bench.output.record.look_around", lambda devices: seen)
    file = io.StringIO()
    record = Record("scheduler", {})
    record.look_around(Console(file=file, width=400), ["cpu"])
    content = json.loads(json.dumps(record.to_json()))
    assert content["surroundings"]["gpus"][0]["processes"] == [7]
    assert content["warnings"] == file.getvalue().splitlines() == seen.sentences()
    assert len(seen.sentences()) == 3
