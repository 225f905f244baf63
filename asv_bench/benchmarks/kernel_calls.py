"""Problems for the kernel benchmarks, and the timing of one call."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asv_runner.benchmarks.mark import SkipNotImplemented

from asv_bench.memory.bandwidth import read_bandwidth
from asv_bench.process.machine import has_cuda_gpu

if TYPE_CHECKING:
    import torch

REPEATS = 50
WARMUPS = 5
FLUSHED_BYTES = 256 * 2**20
"""More than any L2 cache holds: a call must find its data in memory, as it does between layers."""


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
    def blocks_each(self) -> int:
        """Blocks of one sequence."""
        return -(-self.context // self.block_size)

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


def shape_for_here(name: str) -> Shape:
    """The shape called `name`.

    Raises
    ------
    SkipNotImplemented
        If it is not measured on this machine.
    """
    shape = SHAPES[name]
    if shape.on_gpu != has_cuda_gpu():
        raise SkipNotImplemented(f"{name} is not measured {'off' if shape.on_gpu else 'on'} a GPU")
    return shape


@dataclass(frozen=True, slots=True)
class Problem:
    """Tensors of one call: caches [blocks, H_kv, block_size, D] with tables in random order."""

    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_tables: torch.Tensor  # int32 [B, blocks of a sequence]
    context_lens: torch.Tensor  # int32 [B]
    query: torch.Tensor  # [B, H_q, D]
    key: torch.Tensor  # [B, H_kv, D]
    value: torch.Tensor  # [B, H_kv, D]

    @property
    def cached(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """What attention reads beside its queries."""
        return self.k_cache, self.v_cache, self.block_tables, self.context_lens


def make_problem(shape: Shape) -> Problem:
    """A problem of this shape, float16 on the GPU and float32 on the CPU, the same each time."""
    import torch

    device = torch.device("cuda" if shape.on_gpu else "cpu")
    dtype = torch.float16 if shape.on_gpu else torch.float32
    generator = torch.Generator(device).manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, device=device, dtype=dtype, generator=generator)

    num_blocks = shape.batch * shape.blocks_each
    cache = (num_blocks, shape.kv_heads, shape.block_size, shape.head_dim)
    order = torch.randperm(num_blocks, device=device, generator=generator).to(torch.int32)
    return Problem(
        k_cache=normal(*cache),
        v_cache=normal(*cache),
        block_tables=order.reshape(shape.batch, shape.blocks_each),
        context_lens=torch.full((shape.batch,), shape.context, dtype=torch.int32, device=device),
        query=normal(shape.batch, shape.query_heads, shape.head_dim),
        key=normal(shape.batch, shape.kv_heads, shape.head_dim),
        value=normal(shape.batch, shape.kv_heads, shape.head_dim),
    )


def measure_call(call: Callable[[], object], shape: Shape, bytes_moved: int) -> dict[str, float]:
    """Median seconds of a call, and on a GPU its ratio to the floor that its bytes set.

    The call is made in inference mode, as the engine makes it. On the GPU it is captured in a CUDA
    graph and replayed with a cold cache; the device's own clock is read around it.

    Returns
    -------
    dict
        "time", and on a GPU "time_over_floor".
    """
    import torch

    with torch.inference_mode():
        seconds = _seconds_on_gpu(call) if shape.on_gpu else _seconds_on_cpu(call)
    figures = {"time": seconds}
    if shape.on_gpu:
        bandwidth = read_bandwidth("cuda")
        if bandwidth is None:
            raise RuntimeError("no read bandwidth could be measured on this GPU.")
        floor = bytes_moved / bandwidth.bytes_per_second
        figures["time_over_floor"] = seconds / floor
    return figures


def _seconds_on_cpu(call: Callable[[], object]) -> float:
    readings = []
    for _ in range(WARMUPS + 4 * REPEATS):
        started = time.perf_counter()
        call()
        readings.append(time.perf_counter() - started)
    return statistics.median(readings[WARMUPS:])


def _seconds_on_gpu(call: Callable[[], object]) -> float:
    import torch

    flush = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()  # compiles what is not compiled yet, which capture forbids
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    readings: list[float] = []
    for _ in range(WARMUPS + REPEATS):
        before = torch.cuda.Event(enable_timing=True)
        after = torch.cuda.Event(enable_timing=True)
        # Long enough that the replay is queued before the device comes to it.
        flush.zero_()
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        readings.append(1e-3 * before.elapsed_time(after))
    return statistics.median(readings[WARMUPS:])
