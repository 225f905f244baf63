"""The attention of a single row, with the linear map that makes its query, key and value."""

from __future__ import annotations

import torch

from kernels.attention.arguments import FusedArguments
from kernels.attention.checks import check_fused_attention
from kernels.attention.rotation import Rotation
from kernels.attention.row_plan import CHUNK, RowPlan, row_plan
from kernels.attention.running_softmax import LOG2_E
from kernels.backend import capability, device_of, slot_stride
from kernels.dependent_launch import launch_options, launches_early
from kernels.errors import KernelArgumentError
from kernels.linear.folded import NO_NORM, FoldedLinear


def row_attention_serves(
    rows: int,
    linear: FoldedLinear,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    rotation: Rotation | None = None,
) -> bool:
    """Whether one Hopper kernel makes and attends to a step's queries, rather than two.

    It takes a single row of half precision behind a LayerNorm or an RMS norm, and evenly spaced
    slots in pages of whole tiles: query heads of 64 with keys of their own, or of 128 of which two
    share keys, normed and turned or not, as far as weights fit into registers
    (`kernels.attention.row_plan`). More rows would each read the weights anew.
    """
    if rows != 1 or not k_cache.is_cuda or capability(k_cache.device) != (9, 0):
        return False
    _, plan = _cut(linear, k_cache)
    return (
        plan is not None
        and k_cache.dtype in (torch.float16, torch.bfloat16)
        and linear.weight.dtype == k_cache.dtype
        and linear.norm != NO_NORM
        and k_cache.shape[2] % plan.tile == 0
        and slot_stride(k_cache) is not None
        and k_cache.stride() == v_cache.stride()
        and (rotation is None or rotation.table.shape[1] == k_cache.shape[3])
    )


def _cut(linear: FoldedLinear, k_cache: torch.Tensor) -> tuple[int, RowPlan | None]:
    """Query heads of each KV head, and how they are cut; None where the map makes no such heads."""
    _, kv_heads, _, head_dim = k_cache.shape
    heads, rest = divmod(linear.out_features, kv_heads * head_dim)
    group = heads - 2
    if rest or group < 1:
        return 0, None
    return group, row_plan(group, head_dim, linear.in_features, k_cache.dtype)


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
    rotation: Rotation | None = None,
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
        A norm and the map to ``(H_q + 2 * H_kv) * D`` features: queries, keys and values, heads one
        after another.
    k_cache, v_cache, block_tables, positions, is_running, out, scale, pdl, rotation
        As `kernels.attention.fused.fused_attention` has them, for one row.

    Returns
    -------
    torch.Tensor
        `out`, ``[1, H_q * D]``.

    Raises
    ------
    KernelArgumentError
        An argument that does not fit, by name.
    """
    # As long as the row of queries, keys and values that is never in memory.
    made = linear.weight.view(-1)[None, : linear.out_features]
    check_fused_attention(
        FusedArguments(
            made, k_cache, v_cache, block_tables, positions, is_running, out, scale, rotation
        )
    )
    if x.shape != (1, linear.in_features) or x.dtype != k_cache.dtype or x.device != k_cache.device:
        raise KernelArgumentError(
            f"x must be [1, {linear.in_features}] of {k_cache.dtype} on {k_cache.device}, but is "
            f"{list(x.shape)} of {x.dtype} on {x.device}"
        )
    group, plan = _cut(linear, k_cache)
    is_served = row_attention_serves(1, linear, k_cache, v_cache, rotation)
    if plan is None or not (x.is_contiguous() and is_served):
        raise KernelArgumentError(
            "x must be contiguous, and linear and the caches such as row_attention_serves takes: "
            "heads of 64 or 128, evenly spaced slots in pages of whole tiles and a norm over "
            f"chunks of {CHUNK} whose weights fit into registers; they are {linear.in_features} "
            f"features to {linear.out_features} and caches of {list(k_cache.shape)} with strides "
            f"{k_cache.stride()}"
        )
    from kernels.attention.hopper.row_attention import inbox_bytes
    from kernels.attention.hopper.row_attention import row_attention as kernel
    from kernels.hopper.cluster import launch_clusters

    _, kv_heads, block_size, head_dim = k_cache.shape
    merge = plan.merges(group, head_dim)
    with device_of(k_cache):
        launch_clusters(
            kernel,
            (kv_heads,),
            plan.cluster,
            inbox_bytes(group, head_dim, plan.cluster, plan.warps, merge),
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
            None if rotation is None else rotation.table,
            None if rotation is None else rotation.norm,
            linear.epsilon,
            scale * LOG2_E,
            block_tables.shape[1] * block_size,
            K=x.shape[1],
            HEADS=kv_heads,
            G=group,
            D=head_dim,
            PAGE=block_size,
            SLOT_STRIDE=k_cache.stride(2),
            CLUSTER=plan.cluster,
            TILE=plan.tile,
            MERGE=merge,
            EPSILON=0.0 if rotation is None else rotation.epsilon,
            num_warps=plan.warps,
            maxnreg=plan.registers,
            **launch_options(pdl and launches_early(k_cache)),
        )
    return out
