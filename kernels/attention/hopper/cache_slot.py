# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Where a token lies in the paged cache, for Hopper kernels; as `kernels.attention.cache_tile`.

They count in slots of a cache [blocks, KV heads, block size], of which descriptors make rows.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def block_at(table, token, is_there, PAGE: gl.constexpr):
    """The block that a token lies in, 0 where it is not there."""
    return gl.load(table + token // PAGE, mask=is_there, other=0)


@gluon.jit
def slot_at(block, kv_head, token, KV_HEADS: gl.constexpr, PAGE: gl.constexpr):
    """The slot of a token of a head, given its block; as wide as the block's number is."""
    return (block * KV_HEADS + kv_head) * PAGE + token % PAGE
