"""The operations in torch: what runs where there is no GPU.

Two things dominate on a CPU. Small batches cost what the number of torch calls costs: so index work
is done in numpy, and once for all layers of a step. Large ones cost page faults, because the
allocator returns a large buffer to the system as soon as it is freed: so pages are gathered into a
scratch buffer that is kept, a few sequences at a time, small enough to stay in the processor's
cache.

Gradients must be off: callers see to that.
"""

from __future__ import annotations

import threading

import numpy as np
import torch
import torch.nn.functional as F

from kernels.attention.eight_bits import as_bytes, rounded
from kernels.attention.value_checks import Ints, host_array

_SCRATCH_ELEMENTS = 512 * 1024


class _Scratch(threading.local):
    """Two buffers a thread, for gathered keys and values, that grow and are kept."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def take(self, name: str, dtype: torch.dtype, size: int) -> torch.Tensor:
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < size:
            # Made in inference mode, a tensor could not be written to outside it later.
            with torch.inference_mode(False):
                buffer = torch.empty(max(size, _SCRATCH_ELEMENTS), dtype=dtype)
            self._buffers[name, dtype] = buffer
        return buffer[:size]


_scratch = _Scratch()


class TorchAppend:
    """`kernels.kv_append` of checked rows into any layer's cache."""

    def __init__(
        self, block_idx: torch.Tensor, pos: int | torch.Tensor, batch_idx: torch.Tensor | None
    ) -> None:
        blocks = host_array(block_idx)
        rows = None if batch_idx is None else host_array(batch_idx)
        positions = np.asarray(pos) if isinstance(pos, int) else host_array(pos)
        if positions.size != blocks.size:
            positions = np.broadcast_to(positions.reshape(-1), blocks.shape)
        if blocks.size and int(blocks.min()) < 0:
            kept = np.flatnonzero(blocks >= 0).astype(np.int32)
            rows = kept if rows is None else rows[kept]
            blocks, positions = blocks[kept], positions[kept]
        self._rows = None if rows is None else torch.from_numpy(rows.astype(np.int64))
        self._slots = (
            torch.from_numpy(blocks.astype(np.int64)),
            torch.from_numpy(positions.astype(np.int64).reshape(-1)),
        )

    def __call__(
        self,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scales: torch.Tensor | None = None,
    ) -> None:
        """Write the rows of `key` and `value`, ``[B, H_kv, D]`` each, to their slots."""
        if self._rows is not None:
            key, value = key.index_select(0, self._rows), value.index_select(0, self._rows)
        if scales is not None:
            key, value = as_bytes(rounded(key, scales[0])), as_bytes(rounded(value, scales[1]))
            k_cache, v_cache = as_bytes(k_cache), as_bytes(v_cache)
        k_cache.transpose(1, 2).index_put_(self._slots, key)
        v_cache.transpose(1, 2).index_put_(self._slots, value)


class TorchDecode:
    """`kernels.paged_attention_decode` over what `used_blocks` found, in any layer's cache."""

    def __init__(
        self, k_cache: torch.Tensor, lengths: Ints, blocks: Ints, window: int | None = None
    ) -> None:
        _, kv_heads, block_size, head_dim = k_cache.shape
        hidden: Ints | None = None
        if window is not None:
            lengths, blocks, hidden = _windowed(lengths, blocks, block_size, window)
        sequence_elements = max(1, blocks.shape[1] * kv_heads * block_size * head_dim)
        step = max(1, _SCRATCH_ELEMENTS // sequence_elements)
        self._chunks = [
            _DecodeChunk(
                k_cache,
                first,
                lengths[first : first + step],
                blocks[first:],
                None if hidden is None else hidden[first : first + step],
            )
            for first in range(0, len(lengths), step)
        ]

    def __call__(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        scale: float,
        out: torch.Tensor,
        scales: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend into `out`, which is returned."""
        for chunk in self._chunks:
            chunk.attend(query[chunk.rows], k_cache, v_cache, scale, out[chunk.rows], scales)
        return out


def _windowed(lengths: Ints, blocks: Ints, block_size: int, window: int) -> tuple[Ints, Ints, Ints]:
    """Contexts from the block on that has the first token of the window.

    Their lengths [B] and blocks [B, columns], and how many of their first tokens are before it [B].
    """
    before = np.maximum(lengths - window, 0)
    skipped = before // block_size
    lengths = lengths - skipped * block_size
    columns = -(-int(lengths.max(initial=0)) // block_size)
    # Columns beyond a sequence's own are never looked at.
    wanted = np.minimum(skipped[:, None] + np.arange(columns), blocks.shape[1] - 1)
    return lengths, np.take_along_axis(blocks, wanted, 1), before - skipped * block_size


class _DecodeChunk:
    """Sequences from number `first` on whose contexts fit into the scratch together.

    The first `before` [B] tokens of each are before its window.
    """

    def __init__(
        self,
        k_cache: torch.Tensor,
        first: int,
        lengths: Ints,
        blocks: Ints,
        before: Ints | None,
    ) -> None:
        self.rows = slice(first, first + len(lengths))
        self._shortest, self._longest = int(lengths.min()), int(lengths.max())
        columns = -(-self._longest // k_cache.shape[2])
        self._pages = _Pages(k_cache, blocks[: len(lengths), :columns], self._longest)
        # Which tokens are none of a sequence's own, of a run of places where there are any.
        self._hidden: list[tuple[slice, torch.Tensor]] = []
        places = np.arange(self._shortest, self._longest)
        beyond = torch.from_numpy(places >= lengths[:, None])
        if self._shortest != self._longest:
            self._hidden.append((slice(self._shortest, None), beyond))
        if before is not None and before.any():
            places = np.arange(int(before.max()))
            too_early = torch.from_numpy(places < before[:, None])
            self._hidden.append((slice(0, len(places)), too_early))
        self._is_empty = torch.from_numpy(lengths == 0)

    def attend(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        scale: float,
        out: torch.Tensor,
        scales: torch.Tensor | None,
    ) -> None:
        if self._longest == 0:
            out.zero_()
            return
        batch, query_heads, head_dim = query.shape
        kv_heads = k_cache.shape[1]
        keys, values = self._pages.gather(k_cache, v_cache)
        groups = query.reshape(batch * kv_heads, query_heads // kv_heads, head_dim)
        if query.dtype != torch.float32 or scales is not None:
            groups, keys, values = groups.float(), keys.float(), values.float()
        scores = torch.bmm(groups, keys.transpose(1, 2)).mul_(scale)
        if scales is not None:
            scores.view(batch, kv_heads, -1).mul_(scales[0][:, None])
        for places, is_hidden in self._hidden:
            # A block's unused slots may hold anything, NaN too: mask the score, and zero the value,
            # because a weight of zero times NaN is NaN.
            hidden_scores = scores.view(batch, kv_heads, -1, self._longest)[..., places]
            hidden_scores.masked_fill_(is_hidden[:, None, None], float("-inf"))
            hidden_values = values[:, places].unflatten(0, (batch, kv_heads))
            hidden_values.masked_fill_(is_hidden[:, None, :, None], 0.0)
        attended = torch.bmm(torch.softmax(scores, dim=-1), values)
        if scales is not None:
            attended.view(batch, kv_heads, -1).mul_(scales[1][:, None])
        out.copy_(attended.view(batch, query_heads, head_dim))
        if self._shortest == 0:
            out[self._is_empty] = 0.0


class TorchPrefill:
    """`kernels.paged_attention_prefill` of checked chunks, over any layer's cache."""

    def __init__(
        self,
        k_cache: torch.Tensor,
        block_tables: torch.Tensor,
        context_lens: torch.Tensor,
        query_start_loc: torch.Tensor,
        window: int | None = None,
    ) -> None:
        starts = host_array(query_start_loc).tolist()
        lengths = host_array(context_lens).tolist()
        tables = host_array(block_tables)
        block_size = k_cache.shape[2]
        self._chunks = []
        for first, last, length, blocks in zip(
            starts[:-1], starts[1:], lengths, tables, strict=True
        ):
            count = last - first
            if count == 0:
                continue
            columns = -(-length // block_size)
            before = 0 if window is None else max(0, length - count + 1 - window)
            skipped, first_token = divmod(before, block_size)
            pages = _Pages(
                k_cache, blocks[None, skipped:columns], length - skipped * block_size, first_token
            )
            length -= before
            mask = None
            if 1 < count < length or (window is not None and window < length):
                mask = torch.ones(count, length, dtype=torch.bool).tril_(length - count)
                if window is not None:
                    mask.triu_(length - count + 1 - window)
            self._chunks.append((slice(first, last), pages, mask))

    def __call__(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        scale: float,
        out: torch.Tensor,
        scales: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend into `out`, which is returned."""
        for rows, pages, mask in self._chunks:
            keys, values = pages.gather(k_cache, v_cache)
            chunk = query[rows].transpose(0, 1)
            if query.dtype != torch.float32 or scales is not None:
                chunk, keys, values = chunk.float(), keys.float(), values.float()
            if scales is not None:
                keys.mul_(scales[0][:, None, None])
                values.mul_(scales[1][:, None, None])
            attended = F.scaled_dot_product_attention(
                chunk[None],
                keys[None],
                values[None],
                attn_mask=mask,
                is_causal=mask is None and chunk.shape[1] == keys.shape[1],
                scale=scale,
                enable_gqa=chunk.shape[0] != keys.shape[0],
            )
            out[rows] = attended[0].transpose(0, 1)
        return out


class _Pages:
    """Pages ``[B, columns]`` that hold tokens `first` to `longest` - 1 of B sequences."""

    def __init__(self, k_cache: torch.Tensor, blocks: Ints, longest: int, first: int = 0) -> None:
        _, kv_heads, block_size, head_dim = k_cache.shape
        batch, columns = blocks.shape
        self._tokens = slice(first, longest)
        self._by_page = (batch, kv_heads, columns, block_size, head_dim)
        self._by_token = (batch * kv_heads, columns * block_size, head_dim)
        self._size = batch * kv_heads * columns * block_size * head_dim
        self._is_flat = k_cache.is_contiguous()
        selected = blocks.astype(np.int64)
        if self._is_flat:
            # A (block, head) pair is one row, so one selection gives the heads-first layout.
            selected = selected[:, None, :] * kv_heads + np.arange(kv_heads)[:, None]
        self._selected = torch.from_numpy(selected.reshape(-1))

    def gather(
        self, k_cache: torch.Tensor, v_cache: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, ``[B * H_kv, longest - first, D]`` each.

        Views of this thread's scratch, overwritten by the next call.
        """
        return self._take("keys", k_cache), self._take("values", v_cache)

    def _take(self, name: str, cache: torch.Tensor) -> torch.Tensor:
        gathered = _scratch.take(name, cache.dtype, self._size)
        if self._is_flat:
            pages = cache.view(-1, cache.shape[2] * cache.shape[3])
            torch.index_select(pages, 0, self._selected, out=gathered.view(len(self._selected), -1))
        else:
            pages = cache.index_select(0, self._selected)
            batch, _, columns = self._by_page[:3]
            gathered.view(self._by_page).copy_(pages.unflatten(0, (batch, columns)).transpose(1, 2))
        return gathered.view(self._by_token)[:, self._tokens]
