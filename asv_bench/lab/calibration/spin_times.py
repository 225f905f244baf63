# mypy: disable-error-code="no-untyped-call"
"""A script that times spinning kernels of some clock cycles as nodes of a CUDA graph.

It prints JSON: seconds for each node, by cycles. Each graph has many nodes, because the events
around a replay have a cost of their own.
"""

from __future__ import annotations

import json
import statistics

import torch

CYCLES = (0, *(1_000 << doublings for doublings in range(1, 11)))
NODES = 200
REPLAYS = 15
WARMUPS = 5


def seconds_of_a_node(cycles: int) -> float:
    """The median over replays of a graph of spins, divided by their number."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(NODES):
            torch.cuda._sleep(cycles)
    readings: list[float] = []
    for _ in range(WARMUPS + REPLAYS):
        before = torch.cuda.Event(enable_timing=True)
        after = torch.cuda.Event(enable_timing=True)
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        readings.append(1e-3 * before.elapsed_time(after) / NODES)
    return statistics.median(readings[WARMUPS:])


def main() -> None:
    """Measure every length, with the clocks up."""
    torch.cuda._sleep(500_000_000)
    torch.cuda.synchronize()
    print(json.dumps({cycles: seconds_of_a_node(cycles) for cycles in CYCLES}))


if __name__ == "__main__":
    main()
