"""Watch a GPU's clocks while a process measures on it, and discard the pairs its host spoils."""

from __future__ import annotations

import statistics
import threading
import time

from asv_bench.measure.samples import GpuConditions
from asv_bench.process.gpu import GpuState, gpu_reader

POLL_SECONDS = 0.05
THROTTLING = frozenset(
    {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}
)
"""What holds a GPU below its usual clock. The power cap does not: under load it is normal."""
FROM_OUTSIDE = frozenset({"hw_power_brake_slowdown"})
"""Of these, what the host's power supply asks for, whatever runs."""


class GpuWatch:
    """Reads the state of a GPU, by UUID or index, in a thread of its own until it is left."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._readings: list[tuple[float, GpuState]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> GpuWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        with gpu_reader(self._device) as read:
            while not self._over.is_set():
                self._readings.append((time.monotonic(), read()))
                self._over.wait(POLL_SECONDS)

    def conditions(self, begun: float, ended: float) -> GpuConditions | None:
        """What was read between two moments of `time.monotonic`; None where nothing was."""
        return conditions_of([state for at, state in self._readings if begun <= at <= ended])

    def peak_memory_bytes(self) -> int | None:
        """What the GPU's processes held at most, less what they held at first; None unread."""
        used = [state.memory_used_bytes for _, state in self._readings]
        known = [one for one in used if one is not None]
        return max(known) - known[0] if known and max(known) > known[0] else None


def conditions_of(states: list[GpuState]) -> GpuConditions | None:
    """Sum up states; idle moments count only if there are no others."""
    working = [state for state in states if "gpu_idle" not in state.clock_events] or states
    clocks = [state.sm_clock_mhz for state in working if state.sm_clock_mhz is not None]
    if not clocks:
        return None
    temperatures = [state.temperature_c for state in working if state.temperature_c is not None]
    return GpuConditions(
        sm_clock_mhz=float(statistics.median(clocks)),
        sm_clock_lowest_mhz=float(min(clocks)),
        sm_clock_highest_mhz=float(max(clocks)),
        clock_events=tuple(sorted({event for state in working for event in state.clock_events})),
        temperature_c=max(temperatures, default=None),
        readings=len(clocks),
    )


def why_discarded(base: GpuConditions | None, head: GpuConditions | None) -> str | None:
    """Why a pair measured under these conditions must be discarded; None if it need not.

    Discards may depend on the machine, never on the commit: one that draws more power may lower the
    clock or heat the GPU until it is throttled, and pairs without that would hide it. So a pair is
    discarded where the power supply held the GPU back, and where the GPU was throttled during both
    processes. All else is kept, and said beside the verdict where it differs between the commits
    (`compare.tables.clock_findings`).
    """
    first, second = throttling(base), throttling(head)
    outside = (first | second) & FROM_OUTSIDE
    if outside:
        return f"The host held the GPU back during the pair ({', '.join(sorted(outside))})."
    if first and second:
        return f"The GPU was throttled during both processes ({', '.join(sorted(first | second))})."
    return None


def throttling(conditions: GpuConditions | None) -> frozenset[str]:
    """What throttled the GPU meanwhile."""
    return THROTTLING.intersection(conditions.clock_events if conditions else ())
