"""Which benchmarks asv finds, with which parameters, and what is skipped."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from asv_runner.benchmarks.mark import SkipNotImplemented
from toy_project import ROOT

from asv_bench.benchmarks import decode, host, kernels
from asv_bench.history.asv_results import read_benchmarks


@pytest.fixture(scope="module")
def discovered() -> dict[str, dict[str, Any]]:
    """What asv's own discovery exports, and whether that imported anything heavy."""
    code = (
        "import json, sys\n"
        "from asv_runner.discovery import disc_benchmarks, update_sys_path\n"
        f"root = {str(ROOT / 'asv_bench' / 'benchmarks')!r}\n"
        "update_sys_path(root)\n"
        "found = {b.name: {k: v for k, v in vars(b).items() if isinstance(v, (str, int, float,"
        " list))} for b in disc_benchmarks(root)}\n"
        "heavy = [name for name in ('torch', 'engine', 'kernels') if name in sys.modules]\n"
        "json.dump({'found': found, 'heavy': heavy, 'path': sys.path}, sys.stdout, default=str)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    content: dict[str, Any] = json.loads(done.stdout)
    assert content["heavy"] == [], "a listing would pay for these"
    assert str(ROOT) not in content["path"], "the working tree's engine could be imported"
    found: dict[str, dict[str, Any]] = content["found"]
    return found


def test_the_list_that_git_tracks_is_that_of_today(discovered: dict[str, dict[str, Any]]) -> None:
    """Otherwise `bench` leaves a clone with a change, and figures of a new version are not read."""
    tracked = read_benchmarks(ROOT / "reports" / "asv" / "benchmarks.json", [])
    keys = ("version", "unit", "param_names", "params")
    assert {name: [found[key] for key in keys] for name, found in discovered.items()} == {
        name: json.loads(json.dumps([getattr(benchmark, key) for key in keys]))
        for name, benchmark in tracked.items()
    }


def test_every_benchmark_says_what_asv_must_know(discovered: dict[str, dict[str, Any]]) -> None:
    for name, benchmark in discovered.items():
        assert benchmark["type"] == "track", name
        assert benchmark["unit"] in ("seconds", "floors"), name
        # An explicit version: a reworded docstring must not start a new series.
        assert benchmark["version"] == "1", name
        assert len(benchmark["params"]) == len(benchmark["param_names"]), name


def test_each_machine_skips_the_others_parameters(
    any_engine: None, on_gpu: Callable[[bool], None]
) -> None:
    def kept(benchmark: Any) -> list[tuple[Any, ...]]:
        combinations = []
        for params in itertools.product(*benchmark.params):
            try:
                benchmark().setup(*params)
            except SkipNotImplemented:
                continue
            combinations.append(params)
        return combinations

    on_gpu(False)
    assert {model for model, _, _ in kept(decode.Decode)} == {"gpt2-tiny"}
    assert ("gpt2-tiny", 64, 128) in kept(decode.Decode)
    assert ("gpt2-tiny", 256, 900) not in kept(decode.Decode)
    assert kept(kernels.DecodeAttention) == [("cpu-small",)]
    assert kept(decode.BucketPadding) == kept(host.HostShare) == kept(decode.GraphCapture) == []
    on_gpu(True)
    assert len(kept(decode.Decode)) == 12
    assert kept(host.HostShare) == [("gpt2", batch) for batch in (8, 64, 256)]
    assert len(kept(decode.BucketPadding)) == 5
    assert kept(decode.GraphCapture) == [("gpt2",)]
    assert {model for model, _, _ in kept(decode.Decode)} == {"gpt2"}
    assert {shape for _, shape in kept(kernels.Append)} == set(kernels.SHAPES) - {"cpu-small"}
