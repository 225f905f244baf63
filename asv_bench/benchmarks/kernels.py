"""The kernels, one call at a time: seconds, and time over the floor that bandwidth sets."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from asv_runner.benchmarks.mark import SkipNotImplemented

from asv_bench.memory import device_ms, read_bandwidth
from asv_bench.process.machine import has_cuda_gpu

from .sharing import Figures, SharesRuns, median_s, shared

if TYPE_CHECKING:
    import torch

PREFILL_QUERIES = 64
"""Tokens of each sequence that a prefill chunk computes; the rest are cached already."""
REPEATS = 50
WARMUPS = 5
FLUSHED_BYTES = 256 * 2**20
"""More than any L2 cache holds: a call must find its data in memory, as it does between layers."""
Call: TypeAlias = "tuple[Callable[[], object], int]"
"""A call of a kernel, and the bytes that it must move in float16."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One layer's decode batch: sequences, heads, head size, and tokens in each sequence."""

    batch: int
    query_heads: int
    kv_heads: int
    head_dim: int
    context: int
    block_size: int = 64
    on_gpu: bool = True

    @property
    def kv_row_bytes(self) -> int:
        """Bytes of K and V of one token in float16."""
        return 2 * 2 * self.kv_heads * self.head_dim


SHAPES = {
    "cpu-small": Shape(4, 4, 4, 32, 96, block_size=16, on_gpu=False),
    "gpt2-b1-c512": Shape(1, 12, 12, 64, 512),
    "gpt2-b8-c512": Shape(8, 12, 12, 64, 512),
    "gpt2-b256-c512": Shape(256, 12, 12, 64, 512),
    "gpt2-b64-c257": Shape(64, 12, 12, 64, 257),
    "gpt2-b64-c512": Shape(64, 12, 12, 64, 512),
    "gpt2-b256-c256": Shape(256, 12, 12, 64, 256),
    "llama8b-b32-c4096": Shape(32, 32, 8, 128, 4096),
    "llama8b-b1-c1024": Shape(1, 32, 8, 128, 1024),
}


class Problem:
    """Tensors of one call, float16 on the GPU and float32 on the CPU, the same each time.

    Caches are [blocks, H_kv, block_size, D], with tables [B, blocks of a sequence] in random order;
    queries [B, H_q, D], keys and values [B, H_kv, D].
    """

    def __init__(self, shape: Shape) -> None:
        import torch

        self.shape = shape
        self.device = torch.device("cuda" if shape.on_gpu else "cpu")
        dtype = torch.float16 if shape.on_gpu else torch.float32
        generator = torch.Generator(self.device).manual_seed(0)

        def normal(*size: int) -> torch.Tensor:
            return torch.randn(*size, device=self.device, dtype=dtype, generator=generator)

        num_blocks = shape.batch * -(-shape.context // shape.block_size)
        cache = (num_blocks, shape.kv_heads, shape.block_size, shape.head_dim)
        order = torch.randperm(num_blocks, device=self.device, generator=generator)
        self.block_tables = order.to(torch.int32).reshape(shape.batch, -1)
        self.caches = normal(*cache), normal(*cache)
        self.query = normal(shape.batch, shape.query_heads, shape.head_dim)
        new = (shape.batch, shape.kv_heads, shape.head_dim)
        self.key, self.value = normal(*new), normal(*new)
        # What attention reads beside its queries.
        self.cached = (*self.caches, self.block_tables, self.each_row(shape.context))

    def each_row(self, value: int) -> torch.Tensor:
        """The same number for each sequence, int32 [B]."""
        import torch

        return torch.full((self.shape.batch,), value, dtype=torch.int32, device=self.device)


class _Kernel(SharesRuns, shape=list(SHAPES)):
    """Base of benchmarks of one call; the last parameter is the shape."""

    call: Callable[..., Call]
    """What is timed, of a `Problem` and the values of the other parameters."""

    def prepare(self, *values: str) -> None:
        shape = SHAPES[values[-1]]
        if shape.on_gpu != has_cuda_gpu():
            where = "off" if shape.on_gpu else "on"
            raise SkipNotImplemented(f"{values[-1]} is not measured {where} a GPU")

    def run(self, *values: str) -> Figures:
        *others, name = values
        shape = SHAPES[name]
        return measure_call(*self.call(Problem(shape), *others), shape)

    track_time = shared("time", "Seconds per call, nothing cached.")
    track_time_over_floor = shared(
        "time_over_floor",
        "Time over that of moving the bytes read and written at the measured bandwidth.",
        unit="floors",
    )


class Append(_Kernel, kind=["full_batch", "identity", "generic"], shape=list(SHAPES)):
    """Writing one token's K and V for each sequence, by the three kinds of append."""

    def call(self, problem: Problem, kind: str) -> Call:
        import torch

        from kernels import kv_append

        shape = problem.shape
        block_idx = problem.block_tables[:, -1].contiguous()
        # As the engine calls them: tensors, because a graph bakes a plain int in.
        each = problem.each_row((shape.context - 1) % shape.block_size)
        rows = torch.arange(shape.batch, dtype=torch.int32, device=problem.device)
        place = {
            "full_batch": (block_idx, each[:1]),
            "identity": (block_idx, each),
            "generic": (block_idx, each, rows),
        }[kind]
        written = (*problem.caches, problem.key, problem.value)
        return lambda: kv_append(*written, *place), 2 * shape.batch * shape.kv_row_bytes


class DecodeAttention(_Kernel):
    """Attention of one new token of each sequence over its paged context."""

    def call(self, problem: Problem) -> Call:
        import torch

        from kernels import paged_attention_decode

        shape = problem.shape
        read = (problem.query, *problem.cached)
        out = torch.empty_like(problem.query)
        bytes_moved = shape.batch * shape.context * shape.kv_row_bytes
        return lambda: paged_attention_decode(*read, out=out), bytes_moved


class PrefillAttention(_Kernel):
    """Attention of the last tokens of each sequence over its paged context, causal.

    Arithmetic bounds it too, so it stays far above the floor.
    """

    def call(self, problem: Problem) -> Call:
        import torch

        from kernels import paged_attention_prefill

        shape = problem.shape
        queries = min(PREFILL_QUERIES, shape.context)
        query = problem.query.repeat_interleave(queries, dim=0)
        starts = torch.arange(shape.batch + 1, dtype=torch.int32, device=query.device) * queries
        read = (query, *problem.cached, starts)
        out = torch.empty_like(query)
        moved = shape.batch * shape.context * shape.kv_row_bytes
        moved += 2 * query.numel() * query.element_size()
        return lambda: paged_attention_prefill(*read, out=out), moved


def measure_call(call: Callable[[], object], bytes_moved: int, shape: Shape) -> dict[str, float]:
    """Median seconds of a call, and on a GPU its ratio to the floor that its bytes set.

    The call is made in inference mode, as the engine makes it. On the GPU it is captured in a CUDA
    graph and replayed with a cold cache; the device's own clock is read around it.
    """
    import torch

    with torch.inference_mode():
        if not shape.on_gpu:
            return {"time": median_s(call, 4 * REPEATS, warmups=WARMUPS)}
        flush = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()  # compiles what is not compiled yet, which capture forbids
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        # To flush takes so long that the replay is queued before the device comes to it.
        times_ms = device_ms(graph.replay, REPEATS, warmups=WARMUPS, before=flush.zero_)
    seconds = 1e-3 * statistics.median(times_ms)
    bandwidth = read_bandwidth("cuda")
    assert bandwidth is not None, "a GPU has one"
    floor = bytes_moved / bandwidth.bytes_per_second
    return {"time": seconds, "time_over_floor": seconds / floor}
