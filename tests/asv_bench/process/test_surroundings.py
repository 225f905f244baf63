"""What else a machine does before it is measured: seen, said in sentences, and recorded."""

from __future__ import annotations

import io
import json
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from asv_bench.output.record import Record
from asv_bench.process import surroundings
from asv_bench.process.gpu import GpuUse
from asv_bench.process.surroundings import Surroundings, look_around

QUIET = Surroundings(cores=8, busy_cores=0.1, load=0.2, governors=("performance",), gpus=())


class BusyNvml(ModuleType):
    """pynvml of a host with one GPU that process 4242 holds."""

    class NVMLError(Exception):
        pass

    def __init__(self, pids: tuple[int, ...], busy_percent: int) -> None:
        super().__init__("pynvml")
        self.__spec__ = ModuleSpec("pynvml", None)
        self.pids, self.busy_percent = pids, busy_percent

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=self.busy_percent)


def write_system(folder: Path, ticks: str, load: str, governor: str) -> None:
    (folder / "stat").write_text(f"cpu  {ticks}\ncpu0 1 1\n")
    (folder / "loadavg").write_text(f"{load} 0.00 0.00 1/100 1\n")
    for core in range(2):
        policy = folder / "devices" / "system" / "cpu" / f"cpu{core}" / "cpufreq"
        policy.mkdir(parents=True, exist_ok=True)
        (policy / "scaling_governor").write_text(f"{governor}\n")


def test_a_quiet_machine_is_not_worth_a_word() -> None:
    assert QUIET.sentences() == []


def test_others_on_the_cpu_are_counted_over_a_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # user nice system idle iowait irq softirq steal guest guest_nice
    write_system(tmp_path, "100 0 50 5000 900 0 0 0 70 0", "3.25", "powersave")
    monkeypatch.setattr("os.sysconf", lambda name: 100)

    def sleep(seconds: float) -> None:
        # 30 ticks of work, stolen ones among them; idling, waiting and guests are none.
        write_system(tmp_path, "110 0 55 6000 999 2 3 10 99 0", "3.25", "powersave")

    monkeypatch.setattr(surroundings.time, "sleep", sleep)
    moments = iter((10.0, 10.2))
    monkeypatch.setattr(surroundings.time, "monotonic", lambda: next(moments))
    monkeypatch.setattr("os.times", lambda: (0.0,) * 5)
    seen = look_around(["cpu"], proc=tmp_path, sys=tmp_path)
    assert seen.busy_cores == pytest.approx(1.5)
    assert seen.load == 3.25
    assert seen.governors == ("powersave",)
    busy, governor = Surroundings(2, seen.busy_cores, seen.load, seen.governors, ()).sentences()
    assert "other programs use 1.5 of 2 cores (load average 3.2)" in busy
    assert "governor of the CPU is powersave" in governor
    assert "performance" in governor


def test_a_system_that_tells_nothing_is_not_worth_a_word(tmp_path: Path) -> None:
    seen = look_around(["cpu"], proc=tmp_path, sys=tmp_path)
    assert (seen.busy_cores, seen.load, seen.governors) == (None, None, ())
    assert seen.sentences() == []


def test_looking_around_is_quick() -> None:
    spent: list[float] = []
    for _ in range(3):
        began = time.process_time()
        assert look_around(["cpu"]).busy_cores is not None
        spent.append(time.process_time() - began)
    assert min(spent) < 0.3


@pytest.mark.parametrize("devices", [None, ["cuda"], ["cuda:0"], ["0"], ["GPU-aa"]])
def test_another_process_on_the_gpu_is_named(
    monkeypatch: pytest.MonkeyPatch, devices: list[str] | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", BusyNvml((4242,), 90))
    (gpu,) = look_around(devices).gpus
    assert gpu.processes == (4242,)
    (sentence,) = Surroundings(8, 0.0, 0.0, (), (gpu,)).sentences()
    assert "another process holds GPU" in sentence
    assert "4242" in sentence


def test_a_gpu_that_works_for_nobody_who_is_seen_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the processes of others have no numbers."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", BusyNvml((), 37))
    (sentence,) = Surroundings(8, 0.0, 0.0, (), look_around().gpus).sentences()
    assert "GPU 0 is busy 37 % of the time" in sentence


def test_a_gpu_that_is_not_measured_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", BusyNvml((4242,), 90))
    assert look_around(["cpu"]).gpus == ()


def test_it_is_said_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Surroundings(2, 1.9, 2.5, ("powersave",), (GpuUse("0", (7,), 50),))
    monkeypatch.setattr("asv_bench.output.record.look_around", lambda devices: seen)
    file = io.StringIO()
    record = Record("scheduler", {})
    record.look_around(Console(file=file, width=400), ["cpu"])
    content = json.loads(json.dumps(record.to_json()))
    assert content["surroundings"]["busy_cores"] == 1.9
    assert content["surroundings"]["gpus"][0]["processes"] == [7]
    assert content["warnings"] == seen.sentences()
    assert file.getvalue().splitlines() == seen.sentences()
    assert len(seen.sentences()) == 3
