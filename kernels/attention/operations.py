"""The three operations: checked, planned and carried out for one layer."""

from __future__ import annotations

import torch

from kernels.attention.checks import check_append, check_decode, check_prefill
from kernels.attention.plans import plan_append, plan_decode, plan_prefill


def kv_append(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    block_idx: torch.Tensor,
    pos: int | torch.Tensor,
    batch_idx: torch.Tensor | None = None,
    *,
    scales: torch.Tensor | None = None,
) -> None:
    """Write new keys and values into their slots of one layer's cache, in place.

    Row ``i`` writes ``k_cache[block_idx[i], h, pos[i]] = key[r, h]`` for every head ``h``, and
    the same for values, where ``r`` is ``batch_idx[i]``, or ``i`` without `batch_idx`.

    Parameters
    ----------
    k_cache, v_cache : torch.Tensor
        ``[num_blocks, H_kv, block_size, D]``, float32, float16 or bfloat16, or float8_e4m3fn
        where `scales` are given; of equal strides, the last of them 1.
    key, value : torch.Tensor
        ``[B, H_kv, D]``, the caches' dtype, or any float dtype where `scales` are given; may be
        strided slices with a contiguous last dimension.
    block_idx : torch.Tensor
        ``[N]`` int32, the block of each row. A negative block skips the row. ``N == B`` unless
        `batch_idx` is given.
    pos : int or torch.Tensor
        The position inside the block, 0 to ``block_size - 1``. An int, or an int32 tensor of one
        element, is common to all rows; an int32 tensor ``[N]`` gives each row its own. In a CUDA
        graph an int stays what it was at capture: give a tensor there.
    batch_idx : torch.Tensor, optional
        ``[N]`` int32, the row of `key` and `value` to write.
    scales : torch.Tensor, optional
        ``[2, H_kv]`` float32, contiguous and above zero: what stands in the caches, times its
        head's number in row 0, is a key, and in row 1 a value. Values beyond the range of
        float8_e4m3fn become its largest.

    Raises
    ------
    KernelArgumentError
        A shape, dtype, device or stride that does not fit; on the CPU also an index out of range
        and two rows bound for one slot (on a GPU only with ``KVTRAIL_CHECK_VALUES=1``).
    """
    check_append(k_cache, v_cache, key, value, block_idx, pos, batch_idx, scales)
    with torch.no_grad():
        append = plan_append(k_cache, key.shape[0], block_idx, pos, batch_idx)
        append(k_cache, v_cache, key, value, scales)


def paged_attention_decode(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """Attention of one query token a sequence over its paged context.

    A sequence's result depends, bit for bit, on nothing but that sequence: neither on its
    neighbours nor on the batch size. No host synchronisation; fit for CUDA graph capture once a
    call of the same shapes has run outside capture.

    Parameters
    ----------
    query : torch.Tensor
        ``[B, H_q, D]``, the caches' dtype, or any float dtype where `scales` are given; ``H_q`` a
        multiple of ``H_kv``. May be a strided slice with a contiguous last dimension.
    k_cache, v_cache : torch.Tensor
        ``[num_blocks, H_kv, block_size, D]`` of equal strides, the last of them 1; ``D`` at most
        256. Hopper's own kernel wants slots that lie evenly, as in contiguous caches, or in one
        ``[num_blocks, H_kv, block_size, 2, D]`` where every value stands behind its key.
    block_tables : torch.Tensor
        ``[B, max_blocks]`` int32, the block of each ``block_size`` tokens; rows may be strided.
        Entries that a context does not reach may hold anything.
    context_lens : torch.Tensor
        ``[B]`` int32, tokens in the cache, the query's own included. 0 gives a zero row.
    scale : float, optional
        Factor on the scores; ``D ** -0.5`` by default.
    out : torch.Tensor, optional
        ``[B, H_q, D]``, written and returned; allocated by default.
    scales : torch.Tensor, optional
        As in :func:`kv_append`, of caches of float8_e4m3fn.
    window : int, optional
        Tokens that are attended to at most: the query's own and the last before it. What lies
        before them may be anything. All by default.

    Returns
    -------
    torch.Tensor
        ``[B, H_q, D]`` in the query's dtype.

    Raises
    ------
    KernelArgumentError
        An argument that does not fit, by name.
    """
    check_decode(query, k_cache, v_cache, block_tables, context_lens, scale, out, scales, window)
    factor = query.shape[2] ** -0.5 if scale is None else scale
    if out is None:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    with torch.no_grad():
        attend = plan_decode(
            k_cache, v_cache, query.shape[1], block_tables, context_lens, query.dtype, window
        )
        return attend(query, k_cache, v_cache, factor, out, scales)


def paged_attention_prefill(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    *,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """Causal attention of ragged chunks of query tokens over their paged contexts.

    The chunks' own keys and values are in the cache already. The last query of a sequence sits at
    position ``context_lens - 1``. No host synchronisation.

    Parameters
    ----------
    query : torch.Tensor
        ``[total_tokens, H_q, D]``, the chunks one after another.
    k_cache, v_cache, block_tables : torch.Tensor
        As in :func:`paged_attention_decode`.
    context_lens : torch.Tensor
        ``[B]`` int32, tokens in the cache with the chunk included.
    query_start_loc : torch.Tensor
        ``[B + 1]`` int32, rising from 0: sequence ``b`` owns query rows
        ``query_start_loc[b]`` to ``query_start_loc[b + 1] - 1``, possibly none.
    scale : float, optional
        Factor on the scores; ``D ** -0.5`` by default.
    out : torch.Tensor, optional
        ``[total_tokens, H_q, D]``, written and returned; allocated by default. Rows from
        ``query_start_loc[-1]`` on belong to no sequence and are left as they are.
    scales : torch.Tensor, optional
        As in :func:`kv_append`, of caches of float8_e4m3fn.
    window : int, optional
        As in :func:`paged_attention_decode`, for each query.

    Returns
    -------
    torch.Tensor
        ``[total_tokens, H_q, D]`` in the query's dtype.

    Raises
    ------
    KernelArgumentError
        An argument that does not fit, by name.
    """
    check_prefill(
        query,
        k_cache,
        v_cache,
        block_tables,
        context_lens,
        query_start_loc,
        scale,
        out,
        scales,
        window,
    )
    factor = query.shape[2] ** -0.5 if scale is None else scale
    if out is None:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    with torch.no_grad():
        attend = plan_prefill(
            k_cache, query.shape[0], block_tables, context_lens, query_start_loc, window
        )
        return attend(query, k_cache, v_cache, factor, out, scales)
