# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Where tokens lie in the paged cache, and how Triton kernels read and write them there.

A cache is [blocks, KV heads, block size, head dimension]; offsets into it are 64-bit, as 32 bits
would overflow at 43,691 blocks of 12 heads, 64 tokens and 64 dimensions.

A cache of eight bits is e4m3, with scales [2, KV heads]: of keys, and of values. Kernels attend to
what is stored. The scale of a head's keys is multiplied to the scale of its scores, and that of its
values to what it attended to, so that a tile is converted and no more.
"""

import triton
import triton.language as tl

from kernels.linear import fp8
from kernels.linear.vector import unpacked

LARGEST = tl.constexpr(fp8.LARGEST)


@triton.jit
def block_of(table, start, last, PAGE: tl.constexpr):
    """The block of a tile of tokens from `start` on that lies in one page, 0 from `last` on.

    Read a tile ahead, it is off the path from the table to the keys.
    """
    return tl.load(table + start // PAGE, mask=start < last, other=0)


@triton.jit
def tile_slots(
    table, block, start, last, stride_block, stride_slot, token, dim, in_head,
    PAGE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Where the tokens from `start` on lie in a head of the cache: an offset of all, offsets
    [tokens, dimensions] from there, which of these to read, and which tokens are before `last`.

    `block` is used where a tile lies in one page; offsets within a page have 32 bits.
    """
    in_context = start + token < last
    if PAGE % BLOCK_N == 0:
        page = block.to(tl.int64) * stride_block
        slots = (start % PAGE + token)[:, None] * stride_slot
    else:
        page = tl.zeros((), tl.int64)
        position = start + token
        blocks = tl.load(table + position // PAGE, mask=in_context, other=0).to(tl.int64)
        slots = (blocks * stride_block + (position % PAGE) * stride_slot)[:, None]
    return page, slots + dim[None, :], in_context[:, None] & in_head[None, :], in_context


@triton.jit
def window_start(position, WINDOW: tl.constexpr):
    """The first token that a token at `position` attends to, of the WINDOW that end with it."""
    return tl.maximum(position + 1 - WINDOW, 0)


@triton.jit
def load_cached(head, slots, mask, TYPE: tl.constexpr):
    """What stands at these offsets of a head of the cache; as TYPE, where it is of eight bits.

    Slots past the context are loaded as zero: a weight of zero times NaN is NaN.
    """
    tile = tl.load(head + slots, mask=mask, other=0.0)
    if tile.dtype == tl.float8e4nv:
        tile = unpacked(tile, TYPE)
    return tile


@triton.jit
def head_scales(scales, kv_head, kv_heads):
    """The scales of a head's keys and values in a cache of eight bits; 1 and 1 in any other.

    Of heads beyond the last, which are masked, some head's.
    """
    if scales is None:
        return 1.0, 1.0
    else:
        head = tl.minimum(kv_head, kv_heads - 1)
        return tl.load(scales + head), tl.load(scales + kv_heads + head)


@triton.jit
def slot_of(block, offset, stride_block, stride_slot):
    """The offset of a token's slot, given its block and its place in that."""
    return block.to(tl.int64) * stride_block + offset.to(tl.int64) * stride_slot


@triton.jit
def rounded(values, scale, EIGHT_BITS: tl.constexpr):
    """New keys or values as a cache of EIGHT_BITS has them, and others as they are.

    Values beyond its range become the largest that it has. NaN stays NaN.
    """
    if EIGHT_BITS:
        values = values.to(tl.float32) / scale
        values = tl.where(values > LARGEST, LARGEST, values)
        values = tl.where(values < -LARGEST, -LARGEST, values).to(tl.float8e4nv)
    return values


@triton.jit
def store_cached(head, slots, values, mask, CACHE: tl.constexpr):
    """Write new keys or values, `rounded`, to these offsets of the cache."""
    tl.store(head + slots, values, mask=mask, cache_modifier=CACHE)
