"""Where the time of a traced step goes, so that two traces can be laid side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asv_bench.errors import MeasurementFailed
from asv_bench.explain.trace import (
    DEVICE_CATEGORIES,
    LAUNCH_CATEGORIES,
    Event,
    read_events,
    summarize_trace,
)
from asv_bench.output.stored_json import UnreadableFile

_STEP = re.compile(r"ProfilerStep#\d+")
_LAUNCH = re.compile(r"cu(da)?(Launch|GraphLaunch)")
_HOST = "cpu_op"


@dataclass(frozen=True, slots=True)
class Work:
    """Calls a step of one kernel or operator, and their microseconds a step.

    `whole_us` holds the time of the operators that it calls, too.
    """

    calls: float
    own_us: float
    whole_us: float


@dataclass(frozen=True, slots=True)
class StepProfile:
    """One trace, a step.

    Attributes
    ----------
    is_device
        Whether a device worked, whose kernels and copies are the work; else it is the host's
        operators.
    has_steps
        Whether figures are of one step; False: of the whole trace.
    work
        By name.
    total_us
        From the first event of the trace to its last.
    idle_us
        The time in which no work ran: gaps on the device, or the host's time outside operators.
    launches, launch_us
        What the host launched, and the time of one launch on the host.
    """

    is_device: bool
    has_steps: bool
    work: Mapping[str, Work]
    total_us: float
    idle_us: float
    launches: float = 0.0
    launch_us: float = 0.0


def profile_at(path: Path, steps: int | None = None) -> StepProfile:
    """The profile of a Chrome trace, or of a folder of them, whose times are added.

    `steps` is how many the trace holds; None: as many as torch's profiler marked, or one.

    Raises
    ------
    MeasurementFailed
        If there is no trace, or none of what it holds is work.
    """
    files = sorted(_traces_below(path))
    if not files:
        raise MeasurementFailed("it left no trace at $KVTRAIL_TRACE.")
    profiles = []
    for file in files:
        try:
            profiles.append(step_profile(read_events(file), steps))
        except UnreadableFile as error:
            raise MeasurementFailed(str(error)) from None
    return profiles[0] if len(profiles) == 1 else _added(profiles)


def _traces_below(path: Path) -> list[Path]:
    """The files of a trace: the file, the same name with .gz behind, or those of a folder."""
    if path.is_dir():
        return [one for one in path.rglob("*") if one.name.endswith((".json", ".json.gz"))]
    return [one for one in (path, path.with_name(f"{path.name}.gz")) if one.is_file()]


def step_profile(events: Sequence[Event], steps: int | None = None) -> StepProfile:
    """The profile of the events of a Chrome trace; see `profile_at`."""
    timed = [event for event in events if event.get("ph") == "X" and "dur" in event]
    device = [event for event in timed if event.get("cat") in DEVICE_CATEGORIES]
    host = [event for event in timed if event.get("cat") == _HOST]
    launches = [
        event
        for event in timed
        if event.get("cat") in LAUNCH_CATEGORIES and _LAUNCH.match(str(event.get("name")))
    ]
    work = device or host
    if not work:
        raise MeasurementFailed(
            "the trace holds no kernel, copy or operator: events of the categories kernel, "
            "gpu_memcpy, gpu_memset and cpu_op."
        )
    marks = [event for event in timed if _STEP.fullmatch(str(event.get("name")))]
    # The device's own marks repeat the host's.
    marks = [event for event in marks if event.get("cat") == "user_annotation"] or marks
    count = steps or len(marks) or 1
    summary = summarize_trace(timed)
    of_names: dict[str, tuple[int, float]] = {}
    for event in work:
        calls, spent = of_names.get(event["name"], (0, 0.0))
        of_names[event["name"]] = (calls + 1, spent + float(event["dur"]))
    entries = summary.kernels if device else summary.operators
    begun, ended = _span([*marks, *work, *launches])
    if ended <= begun:
        raise MeasurementFailed("no event of the trace takes any time.")
    busiest = _busiest(work)
    return StepProfile(
        is_device=bool(device),
        has_steps=bool(steps or marks),
        work={
            entry.name: Work(
                entry.calls / count, entry.total_us / count, of_names[entry.name][1] / count
            )
            for entry in entries
        },
        total_us=(ended - begun) / count,
        idle_us=max(0.0, ended - begun - _covered(busiest)) / count,
        launches=len(launches) / count,
        launch_us=sum(float(event["dur"]) for event in launches) / max(1, len(launches)),
    )


def _span(events: Sequence[Event]) -> tuple[float, float]:
    starts = [float(event["ts"]) for event in events]
    return min(starts), max(float(event["ts"]) + float(event["dur"]) for event in events)


def _busiest(work: Sequence[Event]) -> list[Event]:
    """The work of the process, or device, that had the most of it."""
    by_place: dict[object, list[Event]] = {}
    for event in work:
        by_place.setdefault(event.get("pid"), []).append(event)
    return max(by_place.values(), key=_covered)


def _covered(events: Sequence[Event]) -> float:
    """Microseconds in which any of the events ran."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted((float(one["ts"]), float(one["ts"]) + one["dur"]) for one in events):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def _added(profiles: Sequence[StepProfile]) -> StepProfile:
    """Several traces of one run, such as those of ranks, as one."""
    work: dict[str, Work] = {}
    for profile in profiles:
        for name, one in profile.work.items():
            old = work.get(name, Work(0.0, 0.0, 0.0))
            work[name] = Work(
                old.calls + one.calls, old.own_us + one.own_us, old.whole_us + one.whole_us
            )
    count = sum(profile.launches for profile in profiles)
    spent = sum(profile.launches * profile.launch_us for profile in profiles)
    return StepProfile(
        is_device=any(profile.is_device for profile in profiles),
        has_steps=all(profile.has_steps for profile in profiles),
        work=work,
        total_us=sum(profile.total_us for profile in profiles),
        idle_us=sum(profile.idle_us for profile in profiles),
        launches=count,
        launch_us=spent / count if count else 0.0,
    )
