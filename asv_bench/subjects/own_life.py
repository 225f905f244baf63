"""What runs inside a life of kvtrail's own benchmarks: asv's discovery and runner, in one process.

Started as a script by `own_suite`, with the search path of a commit. asv's benchmarks bring the
ruler in by themselves, so nothing of it is imported here.

`list SUITE` leaves asv's descriptions of all benchmarks at $KVTRAIL_RESULT, and `run SUITE REPEATS
NAME...` the outcomes of some.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented
from asv_runner.discovery import get_benchmark_from_name, list_benchmarks


def main() -> None:
    """Do what the command line says."""
    verb, suite, *asked = sys.argv[1:]
    result = Path(os.environ["KVTRAIL_RESULT"])
    if verb == "list":
        with result.open("w") as answer:
            list_benchmarks(suite, answer)
        return
    repeats, *names = asked
    begun = time.monotonic()
    outcomes = [measure(suite, name) for _ in range(int(repeats)) for name in names]
    result.write_text(json.dumps({"span": (begun, time.monotonic()), "outcomes": outcomes}))


def measure(folder: str, name: str) -> dict[str, Any]:
    """Run one benchmark, named as asv's runner does: with the number of its parameters.

    Gives "name", "samples", "windows" (what each sample was made of, where it says so), "seconds",
    as "absence" why there is no sample and whether that is a failure, and as "run" the name of the
    run of the engine that the figure was taken from, where it says so.
    """
    outcome: dict[str, Any] = {"name": name, "samples": [], "windows": []}
    outcome |= {"absence": None, "run": None}
    started = time.monotonic()
    try:
        benchmark = get_benchmark_from_name(folder, name)
        if reason := _skipped_by_setup(benchmark):
            outcome["absence"] = (reason, False)
        else:
            try:
                result = benchmark.do_run()
            finally:
                benchmark.do_teardown()
            outcome["samples"] = _samples(result)
            if isinstance(result, dict):
                outcome |= {key: result[key] for key in ("windows", "run") if key in result}
    except SkipNotImplemented as skip:
        outcome["absence"] = (str(skip) or "the benchmark was skipped", False)
    except Exception as error:
        traceback.print_exc()
        outcome["absence"] = (f"{type(error).__name__}: {error}", True)
    outcome["seconds"] = time.monotonic() - started
    return outcome


def _skipped_by_setup(benchmark: Any) -> str:
    """Set a benchmark up; why it is skipped, or "" where it is not."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        is_skipped = benchmark.do_setup()
    print(said.getvalue(), end="")
    if not is_skipped:
        return ""
    return said.getvalue().strip().removeprefix("asv: skipped: ") or "its parameters are skipped"


def _samples(result: Any) -> list[float]:
    """The samples in whatever form a benchmark of asv gives its result."""
    samples = result["samples"] if isinstance(result, dict) else [result]
    values = [float(sample) for sample in samples]
    if not values or not all(math.isfinite(value) for value in values):
        raise ValueError(f"the benchmark gave {result!r}, which is no figure.")
    return values


if __name__ == "__main__":
    main()
