"""Watch a GPU's clocks while a process measures on it, and discard the pairs they spoil."""

from __future__ import annotations

import statistics
import threading
import time
from types import TracebackType

from asv_bench.process.gpu import GpuState, gpu_reader
from asv_bench.process.samples import GpuConditions

POLL_SECONDS = 0.05
CLOCK_TOLERANCE = 0.01
"""Relative difference of the SM clocks of a pair's processes beyond which they cannot be compared.

The clock moves in steps of 15 MHz, which is less than 1 % of what a GPU of this kind runs at."""

THROTTLING = frozenset(
    {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}
)
"""What spoils a pair by itself. The power cap does not: under load it is a GPU's normal state, the
same for both processes, and where it is not the clocks tell."""


class GpuWatch:
    """Reads a GPU's state in a thread of its own until it is left.

    Parameters
    ----------
    device
        UUID or index.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._readings: list[tuple[float, GpuState]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> GpuWatch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
    """Why a pair measured under these conditions must be discarded; None if it need not."""
    for name, conditions in (("base", base), ("head", head)):
        held = sorted(THROTTLING.intersection(conditions.clock_events)) if conditions else []
        if held:
            return f"The GPU was throttled while the {name} was measured ({', '.join(held)})."
    if base is None or head is None:
        return None
    moved = abs(head.sm_clock_mhz / base.sm_clock_mhz - 1)
    if moved > CLOCK_TOLERANCE:
        return (
            f"The SM clock moved by {100 * moved:.1f} %, from {base.sm_clock_mhz:.0f} MHz for the "
            f"base to {head.sm_clock_mhz:.0f} MHz for the head; up to "
            f"{100 * CLOCK_TOLERANCE:.0f} % is tolerated."
        )
    return None
