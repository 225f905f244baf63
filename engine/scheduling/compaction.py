"""Moving sequences to lower rows, so that a step is no wider than what runs in it.

A step covers the rows from 0 to the highest that runs. Rows are dealt so that those who run longest
have the lowest; but who comes late takes what is left, and may then run on alone.
"""

from __future__ import annotations

from engine.kv.integrity import Int32Array
from engine.scheduling.rows import Rows
from engine.transport.device_rows import DeviceRows

LEAST_WIDTH_TO_LEAVE = 4
"""Steps that cover fewer rows take hardly longer than those of one."""

LEAST_STEPS_TO_MOVE_FOR = 8
"""Before a move the host waits for the device, which costs about one step; so many must follow."""


def move_to_lowest_rows(rows: Rows, device_rows: DeviceRows) -> None:
    """Move running sequences from the highest rows to the lowest that are free.

    All launched tokens must have been seen: the device is told each sequence's last one, as if it
    started again. What is still to be launched finds every sequence in its new row.
    """
    running, free = rows.running(), rows.free()
    count = min(len(running), len(free))
    sources, targets = running[::-1][:count], free[:count]
    is_lower = targets < sources
    sources, targets = sources[is_lower], targets[is_lower]
    if len(sources):
        rows.move(sources, targets)
        device_rows.stop(sources)
        fed = [_tokens_to_feed(rows, row) for row in targets.tolist()]
        device_rows.start(rows.starts(targets, fed))


def _tokens_to_feed(rows: Rows, row: int) -> Int32Array:
    """The known tokens that are still to be fed, or else the last one sampled."""
    length, num_received = int(rows.length[row]), int(rows.received[row])
    if length < rows.known_len[row]:
        return rows.holder(row).known_tokens[length:]
    return rows.tokens[row, num_received - 1 : num_received].copy()
