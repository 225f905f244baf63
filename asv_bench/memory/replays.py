"""The device's time of a captured graph."""

from __future__ import annotations

import torch


def seconds_per_replay(graph: torch.cuda.CUDAGraph, replays: int, *, warm: int) -> float:
    """Seconds of a replay on the device's clock, of `replays` one after another.

    `warm` replays go before. Whoever captured the graph must keep what it reads and writes alive.
    """
    for _ in range(warm):
        graph.replay()
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(replays):
        graph.replay()
    after.record()
    after.synchronize()
    return 1e-3 * float(before.elapsed_time(after)) / replays
