"""Profiler ranges: all of them when asked for, nothing at all when not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from engine.running import ranges

ROOT = Path(__file__).resolve().parents[3]

PROFILED = """
import torch
from engine import Engine, EngineConfig, SamplingParams
from engine.running.ranges import RANGE_NAMES

engine = Engine(EngineConfig(device="cpu", block_size=16))
with torch.profiler.profile() as profile:
    engine.generate([[1] * 20, [1] * 20], SamplingParams(max_new_tokens=3))
names = {event.key for event in profile.key_averages()}
print(*sorted(names.intersection(RANGE_NAMES)))
"""

SILENT = """
import sys
import engine
from engine.running.ranges import span
assert span("forward") is span("append")
assert "nvtx" not in sys.modules
"""


def _run(code: str, **variables: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "KVTRAIL_NVTX"}
    environment |= {"PYTHONPATH": str(ROOT)} | variables
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


def test_every_range_is_recorded_when_asked_for():
    assert _run(PROFILED, KVTRAIL_NVTX="1").split() == sorted(ranges.RANGE_NAMES)


def test_nothing_is_imported_or_made_when_not():
    _run(SILENT)
