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
    """Replays of `ModelRunner.decode`; every bucket is captured when the engine is built."""

    def __init__(self, runner: ModelRunner, max_batch_size: int) -> None:
        self._runner = runner
        self._buckets = bucket_sizes(max_batch_size)
        self._graphs = self._capture()

    def decode(self, num_rows: int) -> torch.Tensor:
        """As `ModelRunner.decode`, in one launch; what it returns may have more rows."""
        bucket = self._buckets[bisect_left(self._buckets, num_rows)]
        graph, states = self._graphs[bucket]
        graph.replay()
        return states

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
