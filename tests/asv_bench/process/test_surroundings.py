"""What else a machine does before it is measured: seen, said in sentences, and recorded."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_nvml import FakeNvml
from rich.console import Console

from asv_bench.output.record import Record
from asv_bench.process import surroundings
from asv_bench.process.gpu import GpuUse
from asv_bench.process.surroundings import Surroundings, look_around

QUIET = Surroundings(cores=8, busy_cores=0.1, load=0.2, governors=("performance",), gpus=())


def write_system(folder: Path, ticks: str, governor: str) -> None:
    (folder / "stat").write_text(f"cpu  {ticks}\ncpu0 1 1\n")
    for core in range(2):
        policy = folder / "devices" / "system" / "cpu" / f"cpu{core}" / "cpufreq"
        policy.mkdir(parents=True, exist_ok=True)
        (policy / "scaling_governor").write_text(f"{governor}\n")


def test_others_on_the_cpu_are_counted_over_a_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # user nice system idle iowait irq softirq steal guest guest_nice
    write_system(tmp_path, "100 0 50 5000 900 0 0 0 70 0", "powersave")
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    monkeypatch.setattr("os.getloadavg", lambda: (3.25, 0.0, 0.0))

    def sleep(seconds: float) -> None:
        # 30 ticks of work, stolen ones among them; idling, waiting and guests are none.
        write_system(tmp_path, "110 0 55 6000 999 2 3 10 99 0", "powersave")

    monkeypatch.setattr(surroundings.time, "sleep", sleep)
    moments = iter((10.0, 10.2))
    monkeypatch.setattr(surroundings.time, "monotonic", lambda: next(moments))
    monkeypatch.setattr("os.times", lambda: (0.0,) * 5)
    seen = look_around(["cpu"], proc=tmp_path, sys=tmp_path)
    assert seen.busy_cores == pytest.approx(1.5)
    busy, governor = Surroundings(2, seen.busy_cores, seen.load, seen.governors, ()).sentences()
    assert "other programs use 1.5 of 2 cores (load average 3.2)" in busy
    assert "governor of the CPU is powersave" in governor
    assert "performance" in governor


def test_a_system_that_tells_nothing_is_not_worth_a_word(tmp_path: Path) -> None:
    seen = look_around(["cpu"], proc=tmp_path, sys=tmp_path)
    assert (seen.busy_cores, seen.governors) == (None, ())
    assert seen.sentences() == QUIET.sentences() == []


@pytest.mark.parametrize(
    ("pids", "busy_percent", "said"),
    [
        ((4242,), 90, "other processes hold GPU {} (pid 4242)"),
        ((7, 8), 0, "other processes hold GPU {} (pid 7, 8)"),
        # In a container the processes of others have no numbers.
        ((), 37, "GPU {} is busy 37 % of the time"),
    ],
)
@pytest.mark.parametrize("devices", [None, ["cuda:0"], ["GPU-aa"]])
def test_others_on_the_gpu_are_named(
    monkeypatch: pytest.MonkeyPatch,
    devices: list[str] | None,
    pids: tuple[int, ...],
    busy_percent: int,
    said: str,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(pids, busy_percent))
    (gpu,) = look_around(devices).gpus
    assert gpu == GpuUse("GPU-aa" if devices == ["GPU-aa"] else "0", pids, busy_percent)
    (sentence,) = replace(QUIET, gpus=(gpu,)).sentences()
    assert said.format(gpu.device) in sentence
    assert look_around(["cpu"]).gpus == ()


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
