"""The attention of a single row, with the linear map that makes its query, key and value."""

from __future__ import annotations

import torch

from kernels.attention.arguments import FusedArguments
from kernels.attention.checks import check_fused_attention
from kernels.attention.running_softmax import LOG2_E
from kernels.backend import capability, device_of, slot_stride
from kernels.dependent_launch import launch_options, launches_early
from kernels.errors import KernelArgumentError
from kernels.linear.folded import FoldedLinear

_MOST_CHUNKS = 5
"""Of a row of weights: the strips of more do not fit a program's registers."""


def row_attention_serves(
    rows: int, linear: FoldedLinear, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> bool:
    """Whether one Hopper kernel makes and attends to a step's queries, rather than two.

    It takes a single row of half precision, heads of 64 with keys and values of their own, and
    evenly spaced slots in pages that tiles of 64 tokens divide. More rows would each read the
    weights anew.
    """
    if rows != 1 or not k_cache.is_cuda or capability(k_cache.device) != (9, 0):
        return False
    from kernels.attention.hopper.row_attention import CHUNK, HEAD_DIM, TILE

    _, heads, block_size, head_dim = k_cache.shape
    chunks, rest = divmod(linear.in_features, CHUNK.value)
    return (
        k_cache.dtype in (torch.float16, torch.bfloat16)
        and linear.weight.dtype == k_cache.dtype
        and linear.column_sums is not None
        and linear.out_features == 3 * heads * head_dim
        and head_dim == HEAD_DIM.value
        and 1 <= chunks <= _MOST_CHUNKS
        and rest == 0
        and block_size % TILE.value == 0
        and slot_stride(k_cache) is not None
        and k_cache.stride() == v_cache.stride()
    )


def _most_registers(linear: FoldedLinear) -> int:
    """Of a thread: as few as leave three programs room on a multiprocessor, if none is spilled.

    In bfloat16, and with longer rows, fewer than 200 are spilled.
    """
    fits = linear.weight.dtype == torch.float16 and linear.in_features <= 768
    return 168 if fits else 200


def row_attention(
    x: torch.Tensor,
    linear: FoldedLinear,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    positions: torch.Tensor,
    is_running: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    pdl: bool = False,
) -> torch.Tensor:
    """A projection to queries, keys and values with the attention of its single row.

    As `kernels.linear.projections.fused_linear` and then `fused_attention`, for one row and what
    `row_attention_serves`; queries, keys and values are rounded to the dtype of `x` as they would
    be in memory.

    Parameters
    ----------
    x : torch.Tensor
        ``[1, K]``, contiguous: a row of the residual stream.
    linear : FoldedLinear
        LayerNorm and the map to ``3 * H * D`` features: queries, keys and values, heads one after
        another.
    k_cache, v_cache, block_tables, positions, is_running, out, scale, pdl
        As `kernels.attention.fused.fused_attention` has them, for one row.

    Returns
    -------
    torch.Tensor
        `out`, ``[1, H * D]``.

    Raises
    ------
    KernelArgumentError
        An argument that does not fit, by name.
    """
    # As long as the row of queries, keys and values that is never in memory.
    made = linear.weight.view(-1)[None, : linear.out_features]
    check_fused_attention(
        FusedArguments(made, k_cache, v_cache, block_tables, positions, is_running, out, scale)
    )
    if x.shape != (1, linear.in_features) or x.dtype != k_cache.dtype or x.device != k_cache.device:
        raise KernelArgumentError(
            f"x must be [1, {linear.in_features}] of {k_cache.dtype} on {k_cache.device}, but is "
            f"{list(x.shape)} of {x.dtype} on {x.device}"
        )
    if not (x.is_contiguous() and row_attention_serves(1, linear, k_cache, v_cache)):
        raise KernelArgumentError(
            "x must be contiguous, and linear and the caches such as row_attention_serves takes: "
            "heads of 64, evenly spaced slots in pages of whole tiles and a LayerNorm over at most "
            f"{_MOST_CHUNKS} chunks of 256; they are {linear.in_features} features to "
            f"{linear.out_features} and caches of {list(k_cache.shape)} with strides "
            f"{k_cache.stride()}"
        )
    from kernels.attention.hopper.row_attention import CLUSTER, INBOX_BYTES, WARPS
    from kernels.attention.hopper.row_attention import row_attention as kernel
    from kernels.hopper.cluster import launch_clusters

    _, heads, block_size, _ = k_cache.shape
    with device_of(k_cache):
        launch_clusters(
            kernel,
            (heads,),
            CLUSTER.value,
            INBOX_BYTES,
            x,
            linear.weight,
            linear.bias,
            linear.column_sums,
            k_cache,
            v_cache,
            block_tables,
            positions,
            is_running,
            out,
            linear.epsilon,
            scale * LOG2_E,
            block_tables.shape[1] * block_size,
            K=x.shape[1],
            HEADS=heads,
            PAGE=block_size,
            SLOT_STRIDE=k_cache.stride(2),
            num_warps=WARPS.value,
            maxnreg=_most_registers(linear),
            **launch_options(pdl and launches_early(k_cache)),
        )
    return out
