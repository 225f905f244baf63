"""GPUs: which there are, what is read of them meanwhile, and which pairs are discarded for it."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest
from fake_nvml import FakeNvml

from asv_bench.errors import Refused
from asv_bench.process.gpu import (
    GpuConditions,
    GpuState,
    GpuWatch,
    chosen_gpus,
    gpu_state,
    visible_gpus,
    why_discarded,
)
from asv_bench.process.machine import machine_facts


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def test_gpu_facts(nvml: FakeNvml) -> None:
    facts = machine_facts()
    assert (facts.gpu, facts.gpu_count, facts.driver) == ("NVIDIA H200", 2, "580.1")
    assert (facts.gpu_memory_gib, facts.power_limit_w) == (140.0, None)
    assert (facts.sm_clock_max_mhz, facts.memory_clock_max_mhz) == (1980, 3201)
    assert facts.state == GpuState(1700, 3201, ("gpu_idle",), 41, 125.5, 0)
    assert facts.to_json()["state"]["throttled"] is False
    nvml.is_driverless = True
    assert (machine_facts().gpu, gpu_state(), visible_gpus()) == (None, None, [])


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
    for devices, said in (("2", "CUDA may see 0 to 1 "), ("1,GPU-bb", "names a GPU twice")):
        with pytest.raises(Refused, match=said):
            chosen_gpus(devices)
    nvml.is_driverless = True
    for nothing in (None, "all", "0"):
        with pytest.raises(Refused, match="CUDA may see none"):
            chosen_gpus(nothing)


def conditions(clock: float, *events: str) -> GpuConditions:
    return GpuConditions(clock, clock, clock, events, 60, 10)


@pytest.mark.parametrize(
    ("base", "head", "sentence"),
    [
        # A commit may lower the clock, by the power that it draws: that is its doing.
        (conditions(1980), conditions(1500), None),
        (conditions(1755, "sw_power_cap"), conditions(1755, "sw_power_cap"), None),
        (conditions(1980), conditions(1980, "sw_thermal_slowdown"), None),
        (
            conditions(1980, "hw_slowdown"),
            conditions(1980, "sw_thermal_slowdown"),
            "throttled during both processes (hw_slowdown, sw_thermal_slowdown)",
        ),
        (conditions(1980, "hw_power_brake_slowdown"), None, "The host held the GPU back"),
        (None, conditions(1980), None),
    ],
)
def test_pairs_are_discarded_for_what_the_machine_does_and_no_commit(
    base: GpuConditions | None, head: GpuConditions | None, sentence: str | None
) -> None:
    discarded = why_discarded(base, head)
    assert (discarded is None) == (sentence is None)
    assert (sentence or "") in (discarded or "")


def test_a_watch_reads_until_it_is_left_and_leaves_idle_moments_out(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks: list[int] = []
    memory = iter([5, 9])

    def clock(_: int, kind: int) -> int:
        if kind == nvml.NVML_CLOCK_SM:
            clocks.append(1000 + len(clocks))
        return clocks[-1]

    nvml.answers |= {
        "ClockInfo": clock,
        "CurrentClocksThrottleReasons": lambda _: 0x1 if len(clocks) < 3 else 0x24,
        "MemoryInfo": lambda _: SimpleNamespace(used=next(memory, 7)),
    }
    monkeypatch.setattr("asv_bench.process.gpu.POLL_SECONDS", 0.005)
    begun = time.monotonic()
    with GpuWatch("GPU-bb") as watch:
        time.sleep(0.3)
        middle = time.monotonic()
        time.sleep(0.3)
        assert nvml.users == 1
    assert nvml.users == 0
    early, late = watch.conditions(begun, middle), watch.conditions(middle, time.monotonic())
    assert early is not None
    assert late is not None
    assert (early.sm_clock_lowest_mhz, early.temperature_c) == (1003, 41)
    assert early.clock_events == ("sw_power_cap", "sw_thermal_slowdown")
    assert early.readings > 3
    assert early.sm_clock_lowest_mhz < early.sm_clock_mhz < early.sm_clock_highest_mhz
    assert early.sm_clock_highest_mhz < late.sm_clock_lowest_mhz
    assert watch.conditions(begun - 2, begun - 1) is None
    assert watch.peak_memory_bytes() == 4
