"""Counters of decode steps as a table."""

from __future__ import annotations

from asv_bench.lab.counters.counter_baselines import Counters
from asv_bench.output.table import Column, Table

STEP_COLUMNS = (
    Column("what", "path, batch, span", kind="name"),
    Column("operators", "operators"),
    Column("new_tensors", "new", "tensors"),
    Column("new_bytes", "new", "bytes"),
    Column("copies_to_device", "to", "device"),
    Column("copies_to_host", "to", "host"),
    Column("graph_replays", "replays"),
    Column("launches", "launches"),
    Column("engine_python_calls", "engine's", "calls"),
    Column("python_calls", "all", "calls"),
)
"""The other counters are in the file."""


def step_table(steps: Counters, key: str) -> Table:
    """A row for each path, batch and span."""
    rows = [
        (name, *(values[column.key] for column in STEP_COLUMNS[1:]))
        for name, values in steps.items()
    ]
    return Table(STEP_COLUMNS, rows, f"what a decode step does ({key})")
