"""The decode step as captured CUDA graphs, one for each batch bucket: one launch a step."""

from __future__ import annotations

from bisect import bisect_left
from functools import partial

import torch

from engine.running.graph_capture import GraphPool, capturing
from engine.running.runner import ModelRunner

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
    """Replays of `ModelRunner.decode`.

    Greedy steps of every bucket are captured at once, when the engine is built. Sampling sorts
    the vocabulary, which greedy batches should not pay, so it has graphs of its own; they are
    captured when the first request samples.
    """

    def __init__(self, runner: ModelRunner, max_batch_size: int) -> None:
        self._runner = runner
        self._buckets = bucket_sizes(max_batch_size)
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self._pool = GraphPool()
        self._capture(is_sampled=False)

    def replay(self, num_rows: int, *, is_sampled: bool) -> None:
        """Launch the decode step of rows 0 to `num_rows - 1`."""
        if (self._buckets[0], is_sampled) not in self._graphs:
            self._capture(is_sampled=is_sampled)
        bucket = self._buckets[bisect_left(self._buckets, num_rows)]
        self._graphs[bucket, is_sampled].replay()

    def _capture(self, *, is_sampled: bool) -> None:
        """Capture every bucket, the largest first, so that the smaller reuse its memory.

        Rows that are running meanwhile are paused: with no budget a step changes nothing that is
        read.
        """
        with capturing("decode step", "lower max_batch_size or num_kv_blocks"):
            remaining = self._runner.state.device_rows.remaining
            paused = remaining.clone()
            remaining.zero_()
            try:
                for bucket in reversed(self._buckets):
                    step = partial(self._runner.decode, bucket, is_sampled=is_sampled)
                    self._graphs[bucket, is_sampled], _ = self._pool.capture(step)
            finally:
                remaining.copy_(paused)
