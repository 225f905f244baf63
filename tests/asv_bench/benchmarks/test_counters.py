"""Exact counters as benchmarks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NoReturn

import pytest
from asv_runner.benchmarks.mark import SkipNotImplemented

from asv_bench.benchmarks import counters
from asv_bench.errors import MeasurementFailed


def test_counters_are_per_step(any_engine: Path) -> None:
    instance = counters.Steps()
    instance.setup("cpu", 8)
    ranges = {
        "operators": (100, 300),
        "launches": (0, 0),
        "copies": (0, 0),
        "new_tensors": (20, 90),
    }
    for figure, (least, most) in ranges.items():
        (value,) = getattr(instance, f"track_{figure}")("cpu", 8)["samples"]
        assert least <= value <= most, figure


def test_counters_skip_an_engine_without_the_option(
    any_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("device", "dtype", "decode")
    monkeypatch.setattr("engine.EngineConfig", dataclasses.make_dataclass("OlderConfig", options))
    counters.Steps().setup("cpu", 8)
    counters.Steps().setup("graph", 8)
    for path in ("fused", "plain"):
        with pytest.raises(SkipNotImplemented, match="no option fuse"):
            counters.Steps().setup(path, 8)
    with pytest.raises(SkipNotImplemented, match="no option fuse"):
        counters.Kernels().setup()


def test_kernels_that_no_rule_names_are_skipped(
    any_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launched_kernels(**_: object) -> NoReturn:
        raise MeasurementFailed("no rule names the kernel of_long_ago")

    monkeypatch.setattr("asv_bench.lab.launched_kernels.launched_kernels", launched_kernels)
    with pytest.raises(SkipNotImplemented, match="of_long_ago"):
        counters.Kernels().track_spills()
