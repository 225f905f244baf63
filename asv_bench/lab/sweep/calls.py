# mypy: disable-error-code="no-untyped-call"
"""The calls of a sweep on a GPU, over caches that no L2 holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from asv_bench.lab.sweep.sweep import Call
from asv_bench.memory.replays import seconds_per_replay
from engine.kv.memory import KVCache
from kernels import kv_append, paged_attention_decode
from kernels.attention.fused import fused_attention

BLOCK_SIZE = 64
COLD_BYTES = 256 * 2**20
"""Bytes between two reads of one place: more than any L2 holds."""
LEAST_CALLS, MOST_CALLS = 4, 256
WARM_REPLAYS, REPLAYS = 1, 3


class SweepCalls:
    """Makes a timer of a call for any batch size up to `most`, in float16.

    Parameters
    ----------
    call
        What is timed.
    most
        The largest batch.
    device
        A CUDA device.
    """

    def __init__(self, call: Call, most: int, device: torch.device) -> None:
        self._call = call
        self._device = device
        self._blocks_each = math.ceil(call.context / BLOCK_SIZE)
        block_bytes = BLOCK_SIZE * call.row_bytes
        self._num_blocks = max(most * self._blocks_each, math.ceil(COLD_BYTES / block_bytes))
        self._generator = torch.Generator(device).manual_seed(0)
        # One layer of the engine's own cache, so that its slots lie as in a step.
        cache = KVCache(
            1,
            self._num_blocks,
            call.kv_heads,
            BLOCK_SIZE,
            call.head_dim,
            device=device,
            dtype=torch.float16,
        )
        self._caches = cache.keys[0], cache.values[0]
        for one in self._caches:
            one.normal_(generator=self._generator)
        self._order = torch.empty(self._num_blocks, dtype=torch.int32, device=device)
        self._last_blocks: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.place()

    def place(self) -> None:
        """Put every sequence's blocks elsewhere; timers read them there from now on."""
        order = torch.randperm(self._num_blocks, device=self._device, generator=self._generator)
        self._order.copy_(order)
        with torch.inference_mode():
            for blocks, tables in self._last_blocks:
                blocks.copy_(tables[:, -1])

    def timer(self, batch: int) -> Callable[[], float]:
        """What returns the seconds of a call at this batch, measured anew each time.

        As many calls as it takes to leave every cache behind are captured in one graph, each over
        other blocks; the device's clock is read around a replay.
        """
        with torch.inference_mode(), torch.cuda.device(self._device):
            calls = list(self._calls(batch))
            calls[0]()  # compiles what is not compiled yet, which capture forbids
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for call in calls:
                    call()

        # Holding the calls keeps alive what the graph reads and writes.
        return lambda: seconds_per_replay(graph, REPLAYS, warm=WARM_REPLAYS) / len(calls)

    def _calls(self, batch: int) -> Iterator[Callable[[], object]]:
        count = math.ceil(COLD_BYTES / self._call.bytes_moved(batch))
        count = min(max(count, LEAST_CALLS), MOST_CALLS)
        size = batch * self._blocks_each
        places = max(self._num_blocks // size, 1)
        call = self._call
        last = torch.full((batch,), call.context - 1, dtype=torch.int32, device=self._device)
        query = self._normal(batch, call.query_heads, call.head_dim)
        key, value = (self._normal(batch, call.kv_heads, call.head_dim) for _ in range(2))
        heads = torch.cat([query, key, value], dim=1).flatten(1)
        for number in range(count):
            start = number % places * size
            tables = self._order[start : start + size].view(batch, self._blocks_each)
            if call.kind == "append":
                # In a step no two write to one place, and on an H200 it takes longer where they do.
                yield self._append(tables, last - number // places, key, value)
            elif call.kind == "attention":
                yield self._attention(tables, last + 1, query)
            else:
                yield self._fused(tables, last, heads)

    def _append(
        self, tables: torch.Tensor, place: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> Callable[[], object]:
        blocks, slots = tables[:, -1].contiguous(), place % BLOCK_SIZE
        self._last_blocks.append((blocks, tables))
        return lambda: kv_append(*self._caches, key, value, blocks, slots)

    def _attention(
        self, tables: torch.Tensor, lengths: torch.Tensor, query: torch.Tensor
    ) -> Callable[[], object]:
        out = torch.empty_like(query)
        return lambda: paged_attention_decode(query, *self._caches, tables, lengths, out=out)

    def _fused(
        self, tables: torch.Tensor, last: torch.Tensor, heads: torch.Tensor
    ) -> Callable[[], object]:
        runs = torch.ones_like(last)
        width = self._call.query_heads * self._call.head_dim
        out = torch.empty(len(last), width, dtype=heads.dtype, device=self._device)
        scale = self._call.head_dim**-0.5
        # Dependent launches, as a step makes them: nothing that is read early is ever written.
        return lambda: fused_attention(
            heads, *self._caches, tables, last, runs, out, scale=scale, pdl=True
        )

    def _normal(self, *size: int) -> torch.Tensor:
        return torch.randn(
            *size, device=self._device, dtype=torch.float16, generator=self._generator
        )
