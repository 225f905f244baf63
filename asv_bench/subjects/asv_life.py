"""What runs inside a life of an asv suite: benchmarks through asv's own runner.

Started as a script in the environment of a commit, where nothing but `asv_runner` and the project
is installed, so nothing of the ruler is imported here. `list FOLDER FILE` writes what asv knows of
all benchmarks; `run FOLDER` runs those of $KVTRAIL_BENCHMARKS, asv's identifiers by name, and
leaves the samples of each in $KVTRAIL_RESULT. Where $KVTRAIL_DELAY_S is set, what a `time_`
benchmark times takes so many seconds more.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented
from asv_runner.discovery import get_benchmark_from_name, list_benchmarks

DELAY = "KVTRAIL_DELAY_S"


def main() -> None:
    """Do what the command line says."""
    verb, folder, *rest = sys.argv[1:]
    if verb == "list":
        with Path(rest[0]).open("w") as file:
            list_benchmarks(folder, file)
        return
    wanted: dict[str, str] = json.loads(os.environ["KVTRAIL_BENCHMARKS"])
    samples = {name: _samples(folder, identifier) for name, identifier in wanted.items()}
    found = {name: values for name, values in samples.items() if values}
    Path(os.environ["KVTRAIL_RESULT"]).write_text(json.dumps(found))


def _samples(folder: str, identifier: str) -> list[float]:
    """The samples of one benchmark; none where it is skipped or fails, which is printed."""
    try:
        benchmark = get_benchmark_from_name(folder, identifier)
        if benchmark.type == "time" and DELAY in os.environ:
            benchmark.func = _longer(benchmark.func, float(os.environ[DELAY]))
        if benchmark.setup_cache_key is not None:
            benchmark.set_cache(benchmark.do_setup_cache())
        if benchmark.do_setup():
            return []
        try:
            result: Any = benchmark.do_run()
        finally:
            benchmark.do_teardown()
    except SkipNotImplemented as skip:
        print(f"{identifier} is skipped: {skip}")
        return []
    except Exception:
        traceback.print_exc()
        return []
    values = result["samples"] if isinstance(result, dict) else [result]
    return [float(value) for value in values]


def _longer(function: Callable[..., Any], seconds: float) -> Callable[..., None]:
    """A function, and so many seconds after it, which a sleep would not keep to."""

    def longer(*arguments: Any) -> None:
        function(*arguments)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass

    return longer


if __name__ == "__main__":
    main()
