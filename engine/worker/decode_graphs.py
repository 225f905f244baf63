"""The decode step as captured CUDA graphs, one for each batch bucket: one launch a step.

A second graph of each bucket draws the tokens of rows that sample.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial

import torch

from engine.errors import DeviceError
from engine.worker.graph_capture import GraphPool, capturing
from engine.worker.runner import ModelRunner

_SMALL_BUCKETS = (1, 2, 4, 8)
_BUCKET_STEP = 16


def bucket_sizes(max_batch_size: int) -> list[int]:
    """Batch sizes that are captured: 1, 2, 4, 8, then multiples of 16, up to the maximum.

    A batch runs in the smallest bucket that holds it, so above 8 fewer than 16 rows are padding.
    """
    sizes = [size for size in _SMALL_BUCKETS if size < max_batch_size]
    sizes += range(_BUCKET_STEP, max_batch_size, _BUCKET_STEP)
    return [*sizes, max_batch_size]


class DecodeGraphs:
    """Replays of `ModelRunner.decode` and `ModelRunner.redraw`.

    The step of every bucket is captured when the engine is built. Many engines never draw, and
    drawing takes memory for logits: a bucket draws without a graph the first time,
    and its graph is captured then. Where memory does not suffice for one, it never has a graph.
    """

    def __init__(self, runner: ModelRunner, max_batch_size: int) -> None:
        self._runner = runner
        self._buckets = bucket_sizes(max_batch_size)
        self._budgets = torch.zeros_like(runner.rows.fields.remaining[:max_batch_size])
        self._draw_pool = GraphPool()
        self._draws: dict[int, torch.cuda.CUDAGraph | None] = {}
        self._graphs = self._capture()

    def decode(self, num_rows: int) -> torch.Tensor:
        """As `ModelRunner.decode`, in one launch; what it returns may have more rows."""
        # Not by a function of its own: it would be one more call in every step.
        graph, states = self._graphs[self._buckets[bisect_left(self._buckets, num_rows)]]
        graph.replay()
        return states

    def budgets(self, num_rows: int) -> torch.Tensor:
        """As `ModelRunner.budgets`, of all rows of the bucket; valid until the next call."""
        bucket = self._buckets[bisect_left(self._buckets, num_rows)]
        budgets = self._budgets[:bucket]
        return budgets.copy_(self._runner.rows.fields.remaining[:bucket])

    def redraw(self, states: torch.Tensor, budgets: torch.Tensor) -> None:
        """As `ModelRunner.redraw`, for what `decode` and `budgets` of one bucket returned."""
        bucket = len(budgets)
        graph = self._draws.get(bucket)
        if graph is not None:
            graph.replay()
            return
        self._runner.redraw(states, budgets)
        if bucket not in self._draws:
            self._draws[bucket] = self._captured_draw(states, budgets)

    def _captured_draw(
        self, states: torch.Tensor, budgets: torch.Tensor
    ) -> torch.cuda.CUDAGraph | None:
        try:
            with capturing("draw of a decode step", "lower max_batch_size or num_kv_blocks"):
                # Drawing again draws the same tokens.
                draw = partial(self._runner.redraw, states, budgets)
                return self._draw_pool.capture(draw)[0]
        except DeviceError:
            if not self._runner.is_alone:
                raise
            return None

    def _capture(self) -> dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]]:
        """Capture every bucket, the largest first, so that the smaller reuse its memory.

        No row has a budget yet, and without one a step changes nothing that is read.
        """
        pool = GraphPool()
        with capturing("decode step", "lower max_batch_size or num_kv_blocks"):
            return {
                bucket: pool.capture(partial(self._runner.decode, bucket))
                for bucket in reversed(self._buckets)
            }
