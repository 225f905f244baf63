"""Which devices and which benchmarks a comparison is of."""

from __future__ import annotations

from pathlib import Path

import pytest

from asv_bench.compare import bench_setup
from asv_bench.compare.bench_setup import devices_named
from asv_bench.compare.catalog import Entry, entries_of, select
from asv_bench.errors import Refused
from asv_bench.process import gpu
from asv_bench.process.measured_process import ProcessRunner


def test_devices_by_number_uuid_and_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_setup, "has_cuda_gpu", lambda: True)
    monkeypatch.setattr(gpu, "visible_gpus", lambda: ["GPU-a", "GPU-b", "GPU-c"])
    assert devices_named(None) == ("GPU-a",)
    assert devices_named("all") == ("GPU-a", "GPU-b", "GPU-c")
    assert devices_named("2, GPU-a") == ("GPU-c", "GPU-a")
    for wrong, complaint in (("3", "GPU '3'"), ("", "GPU ''"), ("0,GPU-a", "twice")):
        with pytest.raises(Refused, match=complaint):
            devices_named(wrong)


def test_without_a_gpu_there_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_setup, "has_cuda_gpu", lambda: False)
    assert devices_named(None) == devices_named("cpu") == devices_named("all") == ("cpu",)
    with pytest.raises(Refused, match="names GPUs, and there is none"):
        devices_named("0,1")


def test_names_are_asvs_and_ids_are_its_runners() -> None:
    described = [
        {"name": "m.C.track_x", "params": [["'p'", "'q'"], ["1", "2"]], "unit": "seconds"},
        {"name": "m.f", "params": [], "unit": "floors"},
    ]
    assert entries_of(described) == [
        Entry("m.C.track_x('p', 1)", "m.C.track_x-0", "seconds"),
        Entry("m.C.track_x('p', 2)", "m.C.track_x-1", "seconds"),
        Entry("m.C.track_x('q', 1)", "m.C.track_x-2", "seconds"),
        Entry("m.C.track_x('q', 2)", "m.C.track_x-3", "seconds"),
        Entry("m.f", "m.f", "floors"),
    ]


def test_a_selection_is_of_what_this_machine_measures() -> None:
    entries = [
        Entry(name, name, "seconds")
        for name in ("s.track_step('gpt2-tiny')", "s.track_step('gpt2')", "host.track_import")
    ]
    assert [entry.name for entry in select(entries, ["track_step", "import"], has_gpu=False)] == [
        "s.track_step('gpt2-tiny')",
        "host.track_import",
    ]
    assert [entry.name for entry in select(entries, ["track_step"], has_gpu=True)] == [
        "s.track_step('gpt2')"
    ]
    with pytest.raises(Refused, match="measured on a GPU only"):
        select(entries, [r"'gpt2'"], has_gpu=False)
    with pytest.raises(Refused, match="found in none of the 3"):
        select(entries, ["track_step", "typo"], has_gpu=False)


def test_the_real_benchmarks_are_found_by_asvs_names() -> None:
    folder = Path(bench_setup.__file__).parents[1] / "benchmarks"
    names = {entry.name for entry in entries_of(ProcessRunner(folder, folder).discover())}
    assert "scheduler.Scheduler.track_step_time('gpt2')" in names
    assert "host.Startup.track_import" in names
