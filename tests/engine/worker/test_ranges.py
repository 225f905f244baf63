"""Profiler ranges: all of them when asked for, nothing at all when not."""

from __future__ import annotations

from engine.worker import ranges
from tests.fresh_python import forked_python

PROFILED = """
import torch
from engine import Engine, EngineConfig, SamplingParams
from engine.worker.ranges import RANGE_NAMES

engine = Engine(EngineConfig(device="cpu", block_size=16))
with torch.profiler.profile() as profile:
    engine.generate([[1] * 20, [1] * 20], SamplingParams(max_new_tokens=3))
names = {event.key for event in profile.key_averages()}
print(*sorted(names.intersection(RANGE_NAMES)))
"""

SILENT = """
import sys
import engine
from engine.worker.ranges import span
assert span("forward") is span("append")
assert "nvtx" not in sys.modules
"""


def _run(code: str, **variables: str) -> str:
    done = forked_python(code, **({"KVTRAIL_NVTX": ""} | variables))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_range_is_recorded_when_asked_for():
    assert _run(PROFILED, KVTRAIL_NVTX="1").split() == sorted(ranges.RANGE_NAMES)


def test_nothing_is_imported_or_made_when_not():
    _run(SILENT)
