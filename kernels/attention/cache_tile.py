# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Where tokens lie in the paged cache, and how Triton kernels read and write them there.

A cache is [blocks, KV heads, block size, head dimension]; offsets into it are 64-bit, as 32 bits
would overflow at 43,691 blocks of 12 heads, 64 tokens and 64 dimensions.
"""

import triton
import triton.language as tl


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
def load_cached(head, slots, mask):
    """What stands at these offsets of a head of the cache.

    Slots past the context are loaded as zero: a weight of zero times NaN is NaN.
    """
    return tl.load(head + slots, mask=mask, other=0.0)


@triton.jit
def slot_of(block, offset, stride_block, stride_slot):
    """The offset of a token's slot, given its block and its place in that."""
    return block.to(tl.int64) * stride_block + offset.to(tl.int64) * stride_slot


@triton.jit
def store_cached(head, slots, values, mask, CACHE: tl.constexpr):
    """Write new keys or values to these offsets of the cache."""
    tl.store(head + slots, values, mask=mask, cache_modifier=CACHE)
