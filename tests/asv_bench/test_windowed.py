"""Benchmarks in turns: both processes make their engines before either measures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from toy_project import ROOT

from asv_bench.process.turns import in_turns

SCRIPT = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from asv_bench.benchmarks import engine_runs
from asv_bench.workloads import drive

def make_engine():
    number, folder = sys.argv[1], Path(sys.argv[2])
    (folder / number).touch()
    until = time.monotonic() + 10
    while len(list(folder.iterdir())) < 2:
        assert time.monotonic() < until, "the other makes none meanwhile"
        time.sleep(0.01)
    time.sleep(0.3 * int(number))
    print("made", time.monotonic(), flush=True)

def run_workload(*_):
    print("runs", time.monotonic(), flush=True)
    return SimpleNamespace(wall_s=2.0)

drive.run_workload = run_workload
found = engine_runs.windowed(make_engine, None, "gpt2-tiny", lambda run: {"step_time": 1.0})
assert len(found["step_time"].windows) >= 3
"""


def test_engines_are_made_at_the_same_time_and_none_measures_meanwhile(tmp_path: Path) -> None:
    def run(number: int, variables: Mapping[str, str]) -> list[tuple[str, float]]:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(number), str(tmp_path)],
            env={**os.environ, **variables, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        rows = (line.split() for line in done.stdout.splitlines())
        return [(what, float(moment)) for what, moment in rows]

    came = sorted((moment, what) for rows in in_turns(run) for what, moment in rows)
    order = [what for _, what in came]
    assert order[:2] == ["made", "made"]
    assert set(order[2:]) == {"runs"}
