# mypy: disable-error-code="no-untyped-call"
"""How the Hopper attention kernel is launched: over which programs, and with how deep a ring."""

from __future__ import annotations

import torch
import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.attention.arguments import FusedArguments
from kernels.attention.hopper.gather import gathered_bytes
from kernels.attention.hopper.ring_attention import ring_attention
from kernels.attention.running_softmax import LOG2_E, multiprocessors, part_elements
from kernels.attention.workspace import reserved_workspace
from kernels.dependent_launch import launch_options
from kernels.hopper.cluster import launch_clusters
from kernels.tiles.launch import (
    decode_is_serial,
    filling_pairs,
    gathering_programs,
    inbox_spare,
    padded,
    ring_spare,
    ring_stages,
    ring_tile,
    split_tokens,
)
from kernels.tiles.tile import RingTile

_ELEMENTS = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}


def launch_ring_append(
    arguments: FusedArguments,
    pdl: bool,
    *,
    serial: bool | None = None,
    cluster: int | None = None,
    ring: RingTile | None = None,
) -> None:
    """`kernels.attention.fused.fused_attention` for caches that `ring_serves` accepts.

    `ring` is how the context is streamed; None: as the committed table says. `serial`, and where it
    is False `cluster`, 1 for none, override the choice between launches that agree bit for bit.
    """
    head_dim = arguments.k_cache.shape[3]
    qkv, out = (one.unflatten(1, (-1, head_dim)) for one in (arguments.qkv, arguments.out))
    arguments = arguments._replace(qkv=qkv, out=out)
    _launch(arguments, pdl, serial, cluster, ring, append=True)


def launch_ring_decode(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    scales: torch.Tensor | None = None,
    *,
    serial: bool | None = None,
    cluster: int | None = None,
) -> None:
    """`kernels.paged_attention_decode` for caches that `ring_serves` accepts; others as above."""
    arguments = FusedArguments(
        query,
        k_cache,
        v_cache,
        block_tables,
        context_lens,
        context_lens,
        out,
        scale,
        scales=scales,
    )
    _launch(arguments, False, serial, cluster, None, append=False)


def _launch(
    arguments: FusedArguments,
    pdl: bool,
    serial: bool | None,
    cluster: int | None,
    ring: RingTile | None,
    *,
    append: bool,
) -> None:
    """Queries and outputs as heads [B, H, D].

    To `append`, the new keys and values stand behind the queries. Otherwise all tokens are in the
    cache: `positions` are the contexts' lengths, and `is_running` is not read.
    """
    query, k_cache, v_cache, block_tables, lengths, is_running, out = arguments[:7]
    scale, rotation, scales = arguments[7:]
    _, kv_heads, block_size, head_dim = k_cache.shape
    batch = lengths.shape[0]
    if batch == 0:
        return
    group = out.shape[1] // kv_heads
    tile = ring or ring_tile(head_dim, group)
    # What is copied: words of two bytes, so many a key.
    width, word, copied = head_dim, _ELEMENTS[query.dtype], (k_cache, v_cache)
    if scales is not None:
        width, word, tile = head_dim // 2, gl.int16, tile.in_eight_bits()
        copied = k_cache.view(torch.int16), v_cache.view(torch.int16)
    max_context = block_tables.shape[1] * block_size
    split = split_tokens(max_context, tile) if append else tile.split
    splits = max(1, triton.cdiv(max_context, split))
    pairs = batch * kv_heads
    processors = multiprocessors(query.device)
    if serial is None:
        serial = decode_is_serial(pairs, splits, processors, filling_pairs(head_dim))
    if serial:
        splits, cluster = 1, 1
    words = splits * group * part_elements(head_dim)
    if cluster is None:
        cluster = gathering_programs(batch, kv_heads, words, processors)
    partials = counters = out
    if not serial and cluster == 1:
        workspace = reserved_workspace(query.device, pairs * words, pairs)
        partials, counters = workspace.partials, workspace.counters
    stages, spare, late = tile.alone, 0, False
    shared = cluster > 1
    if append:
        programs = pairs * (cluster if shared else splits)
        stages = ring_stages(width, programs, processors, tile, in_clusters=shared)
        late = tile.appends_late(programs / processors)
        if serial:
            spare = ring_spare(width, stages, pairs, processors, tile)
    if shared:
        spare = inbox_spare(stages * tile.stage_bytes(width), gathered_bytes(words))
    layout = gl.NVMMASharedLayout.get_default_for([tile.block_n, width], word)
    keys, values, tail_keys, tail_values = (
        TensorDescriptor.from_tensor(cache.view(-1, width), [tokens, width], layout)
        for tokens in (tile.block_n, tile.tail)
        for cache in copied
    )
    launch_clusters(
        ring_attention,
        (kv_heads, batch, splits if cluster == 1 else 1),
        cluster,
        gathered_bytes(words),
        query,
        keys,
        values,
        tail_keys,
        tail_values,
        k_cache,
        v_cache,
        block_tables,
        lengths,
        is_running,
        out,
        partials,
        counters,
        None if rotation is None else rotation.table,
        None if rotation is None else rotation.norm,
        scale * LOG2_E,
        max_context,
        query.stride(0),
        query.stride(1),
        k_cache.stride(2),
        block_tables.stride(0),
        out.stride(0),
        out.stride(1),
        scales,
        G=group,
        G_PAD=padded(group, 1),
        D=head_dim,
        KV_HEADS=kv_heads,
        PAGE=block_size,
        BLOCK_N=tile.block_n,
        TAIL=tile.tail,
        STAGES=stages,
        SPARE=spare,
        SPLIT=split,
        SERIAL=serial,
        CLUSTER=cluster,
        APPEND=append,
        LATE=late,
        EPSILON=0.0 if rotation is None else rotation.epsilon,
        **launch_options(pdl),
        num_warps=1,
    )
