"""The kernels, one call at a time: seconds, and time over the floor that bandwidth sets."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from asv_runner.benchmarks.mark import SkipNotImplemented

from asv_bench.memory.bandwidth import device_ms, require_bandwidth
from asv_bench.process.machine import has_cuda_gpu

from .sharing import Run, SharesRuns, median_s, shared

if TYPE_CHECKING:
    import torch

PREFILL_QUERIES = 64
"""Tokens of each sequence that a prefill chunk computes; the rest are cached already."""
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


class _OfShape(SharesRuns):
    """Base of benchmarks of one call; the last parameter is the shape."""

    params: ClassVar[Any] = (list(SHAPES),)
    param_names: ClassVar = ["shape"]

    def prepare(self, *values: str) -> None:
        shape = SHAPES[values[-1]]
        if shape.on_gpu != has_cuda_gpu():
            where = "off" if shape.on_gpu else "on"
            raise SkipNotImplemented(f"{values[-1]} is not measured {where} a GPU")

    track_time = shared("time", "Seconds per call, nothing cached.")


class Append(_OfShape):
    """Writing one token's K and V for each sequence, by the three kinds of append."""

    params = (["full_batch", "identity", "generic"], list(SHAPES))
    param_names: ClassVar = ["kind", "shape"]

    def run(self, kind: str, shape: str) -> Run:
        return f"append-{kind}-{shape}", lambda: _append(kind, SHAPES[shape])

    track_time_over_floor = shared(
        "time_over_floor",
        "Time over that of moving the bytes read and written at the measured bandwidth.",
        unit="floors",
    )


class _Attention(_OfShape):
    track_time_over_floor = shared(
        "time_over_floor",
        "Time over that of moving K, V, and a prefill's queries and output, at the measured "
        "bandwidth.",
        unit="floors",
    )


class DecodeAttention(_Attention):
    """Attention of one new token of each sequence over its paged context."""

    def run(self, shape: str) -> Run:
        return f"decode-attention-{shape}", lambda: _decode_attention(SHAPES[shape])


class PrefillAttention(_Attention):
    """Attention of the last tokens of each sequence over its paged context, causal.

    Arithmetic bounds it too, so it stays far above the floor.
    """

    def run(self, shape: str) -> Run:
        return f"prefill-attention-{shape}", lambda: _prefill_attention(SHAPES[shape])


def _append(kind: str, shape: Shape) -> dict[str, float]:
    import torch

    from kernels import kv_append

    problem = make_problem(shape)
    device = problem.key.device
    block_idx = problem.block_tables[:, -1].contiguous()
    # As the engine calls them: tensors, because a graph bakes a plain int in.
    last = (shape.context - 1) % shape.block_size
    common = torch.full((1,), last, dtype=torch.int32, device=device)
    each = torch.full((shape.batch,), last, dtype=torch.int32, device=device)
    rows = torch.arange(shape.batch, dtype=torch.int32, device=device)
    place = {
        "full_batch": (block_idx, common),
        "identity": (block_idx, each),
        "generic": (block_idx, each, rows),
    }[kind]
    written = (problem.k_cache, problem.v_cache, problem.key, problem.value)
    bytes_moved = 2 * shape.batch * shape.kv_row_bytes
    return measure_call(lambda: kv_append(*written, *place), shape, bytes_moved)


def _decode_attention(shape: Shape) -> dict[str, float]:
    import torch

    from kernels import paged_attention_decode

    problem = make_problem(shape)
    out = torch.empty_like(problem.query)
    return measure_call(
        lambda: paged_attention_decode(problem.query, *problem.cached, out=out),
        shape,
        shape.batch * shape.context * shape.kv_row_bytes,
    )


def _prefill_attention(shape: Shape) -> dict[str, float]:
    import torch

    from kernels import paged_attention_prefill

    problem = make_problem(shape)
    queries = min(PREFILL_QUERIES, shape.context)
    query = problem.query.repeat_interleave(queries, dim=0)
    starts = torch.arange(shape.batch + 1, dtype=torch.int32, device=query.device) * queries
    out = torch.empty_like(query)
    cached = shape.batch * shape.context * shape.kv_row_bytes
    computed = 2 * query.numel() * query.element_size()
    return measure_call(
        lambda: paged_attention_prefill(query, *problem.cached, starts, out=out),
        shape,
        cached + computed,
    )


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

    blocks_each = -(-shape.context // shape.block_size)
    num_blocks = shape.batch * blocks_each
    cache = (num_blocks, shape.kv_heads, shape.block_size, shape.head_dim)
    order = torch.randperm(num_blocks, device=device, generator=generator).to(torch.int32)
    return Problem(
        k_cache=normal(*cache),
        v_cache=normal(*cache),
        block_tables=order.reshape(shape.batch, blocks_each),
        context_lens=torch.full((shape.batch,), shape.context, dtype=torch.int32, device=device),
        query=normal(shape.batch, shape.query_heads, shape.head_dim),
        key=normal(shape.batch, shape.kv_heads, shape.head_dim),
        value=normal(shape.batch, shape.kv_heads, shape.head_dim),
    )


def measure_call(call: Callable[[], object], shape: Shape, bytes_moved: int) -> dict[str, float]:
    """Median seconds of a call, and on a GPU its ratio to the floor that its bytes set.

    The call is made in inference mode, as the engine makes it. On the GPU it is captured in a CUDA
    graph and replayed with a cold cache; the device's own clock is read around it.
    """
    import torch

    with torch.inference_mode():
        if shape.on_gpu:
            seconds = _seconds_on_gpu(call)
        else:
            seconds = median_s(call, 4 * REPEATS, warmups=WARMUPS)
    figures = {"time": seconds}
    if shape.on_gpu:
        floor = bytes_moved / require_bandwidth("cuda").bytes_per_second
        figures["time_over_floor"] = seconds / floor
    return figures


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
    # To flush takes so long that the replay is queued before the device comes to it.
    times_ms = device_ms(graph.replay, REPEATS, warmups=WARMUPS, before=flush.zero_)
    return 1e-3 * statistics.median(times_ms)
