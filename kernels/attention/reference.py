"""What the three operations mean, in float64 and plain loops.

Written to be read and trusted, not to be fast: tests compare every other implementation to these.
"""

from __future__ import annotations

import torch

from kernels.linear.fp8 import LARGEST


def reference_append(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    block_idx: torch.Tensor,
    pos: int | torch.Tensor,
    batch_idx: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
) -> None:
    """Write rows of `key` and `value` into their slots of the caches, in place.

    Parameters and meaning as in :func:`kernels.kv_append`.
    """
    for i in range(block_idx.shape[0]):
        block = int(block_idx[i])
        if block < 0:
            continue
        row = i if batch_idx is None else int(batch_idx[i])
        if isinstance(pos, int):
            position = pos
        else:
            position = int(pos.reshape(-1)[i if pos.numel() > 1 else 0])
        for place, (cache, heads) in enumerate(((k_cache, key), (v_cache, value))):
            new = heads[row]
            if scales is not None:
                new = (new.double() / scales[place, :, None]).clamp(-LARGEST, LARGEST)
            cache[block, :, position] = new.to(cache.dtype)


def reference_decode(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float | None = None,
    scales: torch.Tensor | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """Attention of one query a sequence over its cached context.

    Parameters as in :func:`kernels.paged_attention_decode`.

    Returns
    -------
    torch.Tensor
        ``[B, H_q, D]``, float64. A zero row where the context is empty.
    """
    of_keys, of_values = (None, None) if scales is None else scales
    out = torch.zeros(query.shape, dtype=torch.float64, device=query.device)
    for b in range(query.shape[0]):
        length = int(context_lens[b])
        if length:
            keys = gather_context(k_cache, block_tables[b], length, of_keys)
            values = gather_context(v_cache, block_tables[b], length, of_values)
            out[b] = _attend(query[b : b + 1], keys, values, scale, window)[0]
    return out


def reference_prefill(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float | None = None,
    scales: torch.Tensor | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """Causal attention of each sequence's chunk of queries over its cached context.

    Parameters as in :func:`kernels.paged_attention_prefill`.

    Returns
    -------
    torch.Tensor
        ``[total_tokens, H_q, D]``, float64. Zero in rows that belong to no sequence.
    """
    of_keys, of_values = (None, None) if scales is None else scales
    out = torch.zeros(query.shape, dtype=torch.float64, device=query.device)
    for b in range(context_lens.shape[0]):
        first, last = int(query_start_loc[b]), int(query_start_loc[b + 1])
        length = int(context_lens[b])
        if first < last:
            keys = gather_context(k_cache, block_tables[b], length, of_keys)
            values = gather_context(v_cache, block_tables[b], length, of_values)
            out[first:last] = _attend(query[first:last], keys, values, scale, window)
    return out


def reference_rotation(
    heads: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    norm: torch.Tensor | None = None,
    epsilon: float = 0.0,
) -> torch.Tensor:
    """Heads of queries and keys at `positions`, normed and turned.

    Parameters as :class:`kernels.attention.rotation.Rotation` has them.

    Returns
    -------
    torch.Tensor
        ``[B, H, D]``, float64.
    """
    exact = heads.double()
    if norm is not None:
        mean_square = exact.square().mean(dim=2, keepdim=True)
        exact = exact / (mean_square + epsilon).sqrt() * norm.double()
    pairs = torch.complex(*exact.chunk(2, dim=2))
    turn = torch.complex(*table.double()[positions.long()].chunk(2, dim=1))
    turned = pairs * turn[:, None]
    return torch.cat((turned.real, turned.imag), dim=2)


def gather_context(
    cache: torch.Tensor, table: torch.Tensor, length: int, scales: torch.Tensor | None = None
) -> torch.Tensor:
    """The first `length` tokens of a sequence: ``[H_kv, length, D]`` in float64.

    Times the heads' `scales` [H_kv], where the cache is of eight bits.
    """
    block_size = cache.shape[2]
    blocks = [int(table[i]) for i in range(-(-length // block_size))]
    tokens = torch.cat([cache[block] for block in blocks], dim=1)
    exact = tokens[:, :length].double()
    return exact if scales is None else exact * scales[:, None, None]


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float | None,
    window: int | None,
) -> torch.Tensor:
    """Causal attention: the last of `query`'s rows sits at the last of `keys`.

    Each row attends to its own key and those before it, of which a `window` has so many with it.
    """
    rows, query_heads, head_dim = query.shape
    kv_heads, length, _ = keys.shape
    group = query_heads // kv_heads
    factor = head_dim**-0.5 if scale is None else scale
    keys = keys.repeat_interleave(group, dim=0)
    values = values.repeat_interleave(group, dim=0)
    scores = torch.einsum("ihd,hjd->hij", query.double(), keys) * factor
    own_position = torch.arange(length - rows, length, device=query.device)
    distance = own_position[:, None] - torch.arange(length, device=query.device)[None, :]
    is_hidden = distance < 0
    if window is not None:
        is_hidden |= distance >= window
        # What no row sees may be anything.
        values = values.masked_fill(is_hidden.all(0)[None, :, None], 0.0)
    weights = scores.masked_fill(is_hidden, float("-inf")).softmax(dim=-1)
    return torch.einsum("hij,hjd->ihd", weights, values)
