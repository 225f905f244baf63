"""`compare` on a GPU whose clock the head lowers, without processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from simulated_pairs import BASE, HEAD, ScriptedPairs

from asv_bench.compare import noise_pools
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.git.repository import Commit
from asv_bench.measure import log
from asv_bench.measure.samples import GpuConditions, Pair, Reading
from asv_bench.output.table_files import TableFiles
from asv_bench.session.comparing import Comparing
from asv_bench.session.options import MeasuringOptions
from asv_bench.subjects.subject import Metric


class OnGpu:
    """A subject without processes, whose head lowers the GPU's clock."""

    name, metrics, devices, remarks = "toy", [Metric("b", "seconds")], ["cpu"], ()
    fixed, has_engine = "", False
    known, cells, others = metrics, MappingProxyType({}), MappingProxyType({})

    def sentence(self) -> str:
        return "nothing"

    def to_json(self) -> dict[str, Any]:
        return {}

    @contextmanager
    def pairs(self) -> Iterator[ScriptedPairs]:
        yield Slowed(lambda name, number: 1.03 + number / 1e5)


class Slowed(ScriptedPairs):
    def pair(self, *arguments: Any, **options: Any) -> dict[str, Pair]:
        def at(reading: Reading, clock: float) -> Reading:
            gpu = GpuConditions(clock, clock, clock, (), 50, 9)
            return replace(reading, gpu=gpu, started_at=len(self.asked) + clock / 1e4)

        measured = super().pair(*arguments, **options)
        return {
            name: replace(pair, base=at(pair.base, 1980.0), head=at(pair.head, 1920.0))
            for name, pair in measured.items()
        }


def test_a_clock_that_the_head_lowers_is_said_before_the_verdict_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (log, noise_pools):
        monkeypatch.setattr(module, "FOLDER", tmp_path)
    record = tmp_path / "record.json"
    ends = [("HEAD~1", Commit(BASE, "before")), ("HEAD", Commit(HEAD, "after"))]
    files, how = TableFiles(record=record), MeasuringOptions(resume=False, anyway=True)
    comparing = Comparing(OnGpu(), ends, ComparisonPlan(), files, how)
    comparing.show(comparing.settle(), record)
    said = " ".join(capsys.readouterr().out.split())
    finding = "1980 MHz for the base, 1920 MHz for the head (-3.0 %"
    assert said.index(finding) < said.index("b: slower")
    assert any(finding in warning for warning in json.loads(record.read_text())["warnings"])
