"""The kernels, one call at a time: seconds, and time over the floor that bandwidth sets."""

from __future__ import annotations

from typing import ClassVar

from .kernel_calls import SHAPES, Shape, make_problem, measure_call, shape_for_here
from .sharing import Run, SharesRuns, shared

PREFILL_QUERIES = 64
"""Tokens of each sequence that a prefill chunk computes; the rest are cached already."""


TIME = "Seconds per call, nothing cached."


class Append(SharesRuns):
    """Writing one token's K and V for each sequence, by the three kinds of append."""

    params = (["full_batch", "identity", "generic"], list(SHAPES))
    param_names: ClassVar = ["kind", "shape"]

    def prepare(self, kind: str, shape: str) -> None:
        shape_for_here(shape)

    def run(self, kind: str, shape: str) -> Run:
        return f"append-{kind}-{shape}", lambda: _append(kind, SHAPES[shape])

    track_time = shared("time", TIME)
    track_time_over_floor = shared(
        "time_over_floor",
        "Time over that of moving the bytes read and written at the measured bandwidth.",
        unit="floors",
    )


class _Attention(SharesRuns):
    params = (list(SHAPES),)
    param_names: ClassVar = ["shape"]

    def prepare(self, shape: str) -> None:
        shape_for_here(shape)

    track_time = shared("time", TIME)
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
