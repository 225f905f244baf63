"""What the device must hold beside weights and KV cache, bounded from above before any is there."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import torch

from engine.fused.weights import folding_bytes, step_shapes
from engine.models.spec import DecoderSpec
from engine.worker.prefill_graphs import prefill_bucket_sizes, sampled_bucket_sizes
from kernels.tiles.launch import ring_tile, split_tokens

_FLOAT32 = 4

_GATHERED_BYTES = 4096 * 8
"""What a row gathers while a token is drawn: `kernels.sampling.draw`."""

_ROWS_A_BUCKET, _SMALL_BUCKETS = 16, 5
"""Decode graphs there are at most: `engine.worker.decode_graphs.bucket_sizes`."""

_LAUNCHES_A_LAYER = 16
_LAUNCH_BYTES = 16 << 10
"""Of a launch in a captured graph: its node, its arguments, its share of what the driver keeps."""

_LIBRARY_BYTES = 4 * (32 << 20)
"""cuBLAS has 32 MiB on Hopper for the engine's stream and for each of the three pools of graphs."""

_MOST_SPLIT_PAIRS = 512
"""Pairs of a sequence and a KV head whose context is split on any GPU: with more, one program walks
all of a pair's."""

_PART_HEADER = 16
"""Beside the D of a query head's part, padded to a power of two."""

_PARTS_OF_A_SUM = 8
"""Into how many parts the sums of a fused linear map are split at most."""


@dataclass(frozen=True, slots=True)
class WorkingMemory:
    """Bytes of each part.

    Attributes
    ----------
    activations
        Of a prefill, in a graph's memory and in that of its first, eager run; with the largest of
        the quantized maps.
    logits
        Of a prefill's last tokens, of a step and of a draw, with what a draw gathers.
    splits
        Partial sums of attention and of linear maps.
    graphs
        Captured launches, and cuBLAS's own memory.
    folding
        Weights that fused steps have copies of, and scratch to make them.
    """

    activations: int
    logits: int
    splits: int
    graphs: int
    folding: int

    @property
    def total(self) -> int:
        """All parts."""
        return sum(astuple(self))


def working_memory(
    spec: DecoderSpec,
    *,
    dtype: torch.dtype,
    max_batch_size: int,
    max_model_len: int,
    prefill_max_tokens: int,
    uses_graphs: bool,
    fuses: bool,
    is_quantized: bool = False,
) -> WorkingMemory:
    """What decode steps of `max_batch_size` rows and prefills of so many tokens take at most.

    Of quantized maps, the plain layers hold one at a time in `dtype`.
    """
    rows = max_batch_size
    tokens = max(min(prefill_max_tokens, rows * max_model_len), rows)
    runs = 2 if uses_graphs else 1
    logits_bytes = runs * 3 * rows * spec.vocab_size * max(dtype.itemsize, _FLOAT32)
    largest_map = dtype.itemsize * step_shapes(spec).most_weights if is_quantized else 0
    return WorkingMemory(
        activations=runs * (tokens * _bytes_a_token(spec, dtype.itemsize) + largest_map),
        logits=logits_bytes + rows * _GATHERED_BYTES,
        splits=runs * _split_bytes(spec, rows, max_model_len),
        graphs=_graph_bytes(spec, rows, tokens) if uses_graphs else 0,
        folding=folding_bytes(spec, dtype) if fuses else 0,
    )


def _bytes_a_token(spec: DecoderSpec, size: int) -> int:
    """What the layers hold of one token while they compute it, as if nothing of a block were freed.

    The residual stream before and after, normed, and what a block adds to it, twice where that is
    normed; q, k and v, twice where they are turned, in float32 then, with the cosines and sines of
    their positions, of local layers as well; what attention returns; and the feed-forward layer's
    two or, gated, four intermediate results.
    """
    attended = spec.num_heads * spec.head_dim
    turned = attended + spec.num_kv_heads * spec.head_dim
    qkv = turned + spec.num_kv_heads * spec.head_dim
    mapped = (4 if spec.is_gated else 2) * spec.inner_size
    streams = 8 if spec.output_norms else 6
    stored = streams * spec.hidden_size + qkv + 2 * attended + mapped
    exact = 2 * spec.hidden_size
    if spec.rotary is not None:
        stored += turned
        exact += 5 * turned + (6 if spec.local_rotary is None else 12) * spec.head_dim
    return size * stored + _FLOAT32 * exact


def _split_bytes(spec: DecoderSpec, rows: int, max_model_len: int) -> int:
    pairs = min(rows * spec.num_kv_heads, _MOST_SPLIT_PAIRS)
    group = spec.group
    split = split_tokens(max_model_len, ring_tile(spec.head_dim, group))
    parts = pairs * group * -(-max_model_len // split) * (2 * spec.head_dim + _PART_HEADER)
    inner = 2 * spec.inner_size if spec.is_gated else spec.inner_size
    sums = rows * max(inner, spec.hidden_size) * _PARTS_OF_A_SUM
    return _FLOAT32 * (parts + sums)


def _graph_bytes(spec: DecoderSpec, rows: int, tokens: int) -> int:
    """Of the graphs of steps, draws and prefills, with the last states that each leaves."""
    prefills = len(prefill_bucket_sizes(tokens))
    steps = rows // _ROWS_A_BUCKET + _SMALL_BUCKETS
    small = steps + prefills * len(sampled_bucket_sizes(rows))
    launches = (steps + prefills) * (spec.num_layers + 1) + small
    states = (steps + prefills) * rows * spec.hidden_size * _FLOAT32
    return launches * _LAUNCHES_A_LAYER * _LAUNCH_BYTES + states + _LIBRARY_BYTES
