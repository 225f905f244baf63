"""Decode steps out of a profiler's trace: the time of each kernel, and the gaps between kernels.

Under programmatic dependent launch a kernel starts before its producer has ended, and its traced
time includes that wait. So traced times add up to more than the step. A kernel's own time begins at
its start, or at the end of all kernels before it if that is later. Own times and gaps add up to the
step exactly.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from asv_bench.errors import MeasurementFailed
from asv_bench.explain.trace import DEVICE_CATEGORIES, Event
from asv_bench.memory.floor import Role

KERNEL_ROLES = {
    "embed_rows": Role.EMBED,
    "ring_attention": Role.ATTENTION,
    "row_attention": Role.WHOLE_ATTENTION,
    "decode_attention_append": Role.ATTENTION,
    "head_row": Role.HEAD,
    "head_stream": Role.HEAD,
    "head_tiles": Role.HEAD,
    "pick_tokens": Role.PICK,
}
"""Kernels of a fused step that have one role each."""

LINEAR_KERNELS = ("linear_row", "linear_tiles", "linear_stream")
"""Kernels of its linear maps, whose role follows from their place."""

_PRODUCTS = re.compile(r"nvjet|gemm|xmma|cutlass", re.IGNORECASE)
"""What names of cuBLAS's kernels for such maps hold."""

_BEFORE_A_MAP = re.compile(r"rms_norm_rows|memset", re.IGNORECASE)
_BEHIND_A_MAP = re.compile(r"gated_rows|statistics_rows|splitKreduce", re.IGNORECASE)
"""Launches beside a product of cuBLAS's: their time is that of the map after them, or before."""

_FIRST, _LAST = Role.EMBED, Role.PICK
_AFTER_ATTENTION = (
    Role.ATTENTION_OUT,
    Role.FEED_FORWARD_IN,
    Role.FEED_FORWARD_OUT,
    Role.ATTENTION_IN,
)


@dataclass(frozen=True, slots=True)
class StepKernel:
    """One kernel of a step, microseconds: as traced, its own, and the idle time before it."""

    name: str
    role: Role
    traced_us: float
    own_us: float
    gap_us: float


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One step of the window, microseconds."""

    kernels: tuple[StepKernel, ...]  # in the order they started
    idle_before_us: float  # idle time since the step before
    # Other kernels' and copies' own time since the step before, such as changed block tables.
    work_before_us: float

    @property
    def inside_us(self) -> float:
        """From the first kernel's start to the last one's end."""
        return sum(kernel.own_us + kernel.gap_us for kernel in self.kernels)

    @property
    def period_us(self) -> float:
        """From the end of the step before to this one's."""
        return self.inside_us + self.idle_before_us + self.work_before_us


def timed_steps(events: Sequence[Event]) -> list[TimedStep]:
    """The steps of a trace without the first, which has no step before it.

    Work on other streams is left out: it overlaps with the step by design.

    Raises MeasurementFailed if the trace holds no two fused decode steps, or kernels whose role is
    not known.
    """
    work = [event for event in events if event.cat in DEVICE_CATEGORIES]
    streams = Counter(event.args.stream for event in work if _role(event) == _FIRST)
    if not streams:
        raise MeasurementFailed(
            "the trace holds no fused decode step (no kernel of its embedding); the roofline knows "
            "the fused kernels: use half precision on CUDA, and leave fuse on."
        )
    [(stream, _)] = streams.most_common(1)
    ordered = sorted((e for e in work if e.args.stream == stream), key=lambda e: e.ts)

    steps: list[TimedStep] = []
    opened: list[StepKernel] | None = None
    idle = other = 0.0
    reached: float | None = None
    place = 0
    for event in ordered:
        start, end = event.ts, event.end
        before = start if reached is None else reached
        gap, own = max(0.0, start - before), max(0.0, end - max(start, before))
        reached = max(before, end)
        role = _role(event)
        if opened is None:
            if role != _FIRST:
                idle, other = idle + gap, other + own
                continue
            # What lies before a step's first kernel is no part of the step.
            opened, idle, gap = [], idle + gap, 0.0
            place = len(_AFTER_ATTENTION) - 1
        if role is None:
            name = event.name
            behind = _BEHIND_A_MAP.search(name) is not None
            role = _AFTER_ATTENTION[(place - behind) % len(_AFTER_ATTENTION)]
            if not (behind or _BEFORE_A_MAP.search(name)):
                if name not in LINEAR_KERNELS and not _PRODUCTS.search(name):
                    raise MeasurementFailed(
                        f"the step holds a kernel {name!r} whose role is not known; name it in "
                        f"asv_bench/lab/roofline/step_timeline.py."
                    )
                place += 1
        elif role in (Role.ATTENTION, Role.WHOLE_ATTENTION):
            place = 0
        opened.append(StepKernel(event.name, role, event.dur, own, gap))
        if role == _LAST:
            steps.append(TimedStep(tuple(opened), idle, other))
            opened, idle, other = None, 0.0, 0.0
    if len(steps) < 2:
        raise MeasurementFailed(
            f"the trace holds {len(steps)} whole decode steps; gaps between steps need two or more."
        )
    return steps[1:]


def _role(event: Event) -> Role | None:
    return KERNEL_ROLES.get(event.name)
