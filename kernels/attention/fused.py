"""Decode attention with the new token's append fused in: what a fused decode step calls a layer.

Which implementation serves a call depends on the device, the dtype and the shapes of one
sequence alone, never on the batch or the lengths, so a sequence's result does not depend on its
neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from kernels.attention.arguments import FusedArguments
from kernels.attention.checks import check_fused_attention
from kernels.attention.rotation import Rotation
from kernels.attention.torch_ops import TorchAppend, TorchDecode
from kernels.attention.value_checks import used_blocks
from kernels.backend import device_of, ring_serves, uses_triton
from kernels.tiles.tile import RingTile


def fused_attention(
    qkv: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    positions: torch.Tensor,
    is_running: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    pdl: bool = False,
    ring: RingTile | None = None,
    rotation: Rotation | None = None,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Append each running row's new token to its pages and attend over it and all before it.

    No host synchronisation; fit for CUDA graph capture once a call of the same shapes has run
    outside capture. A row's result depends, bit for bit, on nothing but that row.

    Parameters
    ----------
    qkv : torch.Tensor
        ``[B, (H_q + 2 * H_kv) * D]``, the caches' dtype, or any float dtype where `scales` are
        given: queries, keys and values of the new tokens, heads one after another. Rows may be
        strided.
    k_cache, v_cache : torch.Tensor
        ``[num_blocks, H_kv, block_size, D]`` of equal strides, the last of them 1; ``D`` at most
        256; float8_e4m3fn where `scales` are given. The new token is written to slot
        ``positions % block_size`` of its block.
    block_tables : torch.Tensor
        ``[B, max_blocks]`` int32, the block of each ``block_size`` tokens; rows may be strided.
        Entries that a row does not reach may hold anything. No two running rows may append to
        one block.
    positions : torch.Tensor
        ``[B]`` int32, the new token's position, which is the number of tokens already in the
        cache. Where a row does not run it may hold anything.
    is_running : torch.Tensor
        ``[B]`` bool, or int32 where above zero means running (tokens left to make, say). A row
        that does not run appends nothing and gets zeros.
    out : torch.Tensor
        ``[B, H_q * D]``, written and returned. Rows may be strided.
    scale : float
        Factor on the scores.
    pdl : bool
        Launch dependently on the kernel before (`kernels.dependent_launch`) where the device
        can. Positions, tables, `is_running`, scales and the cached tokens are then read before that
        kernel has ended: they must stand since before the last kernel that was launched without
        it, as `kv_append` is not. `qkv` is read, and everything written, after.
    ring : RingTile or None
        How the Hopper kernel streams a context; None: as the committed table says.
    rotation : Rotation or None
        How the new tokens' queries and keys are normed and turned first. Keys are appended turned.
    scales : torch.Tensor or None
        As `kernels.kv_append` has them. The new token, too, is attended to as it is stored.

    Returns
    -------
    torch.Tensor
        `out`.

    Raises
    ------
    KernelArgumentError
        An argument that does not fit, by name.
    """
    arguments = FusedArguments(
        qkv,
        k_cache,
        v_cache,
        block_tables,
        positions,
        is_running,
        out,
        scale,
        rotation,
        scales,
    )
    check_fused_attention(arguments)
    if not uses_triton(k_cache):
        _append_then_attend(arguments)
        return out
    from kernels.dependent_launch import launches_early

    launch: Callable[..., None]
    group = out.shape[1] // (k_cache.shape[1] * k_cache.shape[3])
    if ring_serves(k_cache, v_cache, group, append=True, ring=ring, dtype=qkv.dtype):
        from kernels.attention.hopper.ring_launch import launch_ring_append

        launch = partial(launch_ring_append, ring=ring)
    else:
        from kernels.attention.decode_append import launch_fused as launch

    with device_of(k_cache):
        launch(arguments, pdl and launches_early(k_cache))
    return out


@torch.no_grad()
def _append_then_attend(arguments: FusedArguments) -> None:
    """The same in torch, one operation after the other."""
    qkv, k_cache, v_cache, block_tables, positions, is_running, out = arguments[:7]
    scale, rotation, scales = arguments[7:]
    num_blocks, kv_heads, block_size, head_dim = k_cache.shape
    query, key, value = split_heads(qkv, kv_heads, head_dim)
    runs = is_running > 0
    if rotation is not None:
        heads = torch.cat((query, key), 1)
        turned = rotation.turned(heads, torch.where(runs, positions, 0))
        query, key = turned.split_with_sizes((query.shape[1], kv_heads), 1)
    columns = torch.where(runs, positions // block_size, 0).to(torch.int64)
    blocks = torch.where(runs, block_tables.gather(1, columns[:, None])[:, 0], -1)
    slots = torch.where(runs, positions % block_size, 0)
    TorchAppend(blocks, slots, None)(k_cache, v_cache, key, value, scales)
    lengths, used = used_blocks(
        num_blocks, block_size, block_tables, torch.where(runs, positions + 1, 0)
    )
    attend = TorchDecode(k_cache, lengths, used)
    attend(query, k_cache, v_cache, scale, out.view(query.shape), scales)


def split_heads(
    qkv: torch.Tensor, kv_heads: int, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Views of `qkv` as queries ``[B, H_q, D]``, keys and values ``[B, H_kv, D]`` each."""
    heads = qkv.unflatten(1, (-1, head_dim))
    query_heads = heads.shape[1] - 2 * kv_heads
    query, key, value = heads.split([query_heads, kv_heads, kv_heads], dim=1)
    return query, key, value
