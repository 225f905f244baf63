"""Taking traces of both ends in turns: of kvtrail's own engine, or of a subject's `[trace]`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from asv_bench.errors import MeasurementFailed
from asv_bench.explain.engine_process import run_on_engine
from asv_bench.explain.profile_child import Window
from asv_bench.explain.step_profile import StepProfile, profile_at
from asv_bench.explain.trace_pair import TracePair
from asv_bench.process.run_apart import last_words
from asv_bench.subjects.ends import Ends

_MODULE = "asv_bench.explain.profile_child"


def in_turns(
    take: Callable[[str], StepProfile],
    ends: tuple[str, str],
    count: int,
    on_trace: Callable[[], object],
) -> TracePair:
    """So many traces of each end, base and head in turns, every second time in the other order.

    Parameters
    ----------
    take
        Takes a trace of an end.
    ends
        Base and head.
    count
        Traces of each.
    on_trace
        Called after each.
    """
    taken: dict[str, list[StepProfile]] = {"base": [], "head": []}
    for number in range(count):
        order = list(zip(taken, ends, strict=True))
        for end, name in order if number % 2 == 0 else reversed(order):
            try:
                taken[end].append(take(name))
            except MeasurementFailed as error:
                raise MeasurementFailed(f"the {end} gave no trace: {error}") from None
            on_trace()
    return TracePair(taken["base"], taken["head"])


def subject_trace(ends: Ends, name: str) -> StepProfile:
    """A trace of a variant, by the subject's own `[trace]`."""
    with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
        target = Path(scratch) / "trace.json"
        ends.trace(name, target)
        return profile_at(target)


def engine_trace(folder: Path, window: Window, variables: dict[str, str]) -> StepProfile:
    """A trace of decode steps of the engine that lies in a folder."""
    with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
        target = Path(scratch) / "trace.json"
        argument = replace(window, trace=str(target)).to_argument()
        done = run_on_engine(folder, _MODULE, argument, {"KVTRAIL_NVTX": "0", **variables})
        if done.returncode:
            raise MeasurementFailed(last_words(done.stdout + done.stderr, 3))
        steps: int = json.loads(done.stdout.splitlines()[-1])["steps"]
        return profile_at(target, steps)
