# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Where a token lies in the paged cache, for Hopper kernels; as `kernels.attention.cache_tile`.

They count in slots of a cache [blocks, KV heads, block size], of which descriptors make rows.

Of a cache of eight bits a row is words of two bytes, each of which holds an even dimension and the
odd one behind it. So tiles come into shared memory and from there into registers as those of
16 bits do, also transposed, and there each pair of words becomes numbers. That leaves the even
dimensions of a tile before the odd ones: `dimension_at` says which stands where.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.hopper.softmax import LEFT
from kernels.linear import fp8

LARGEST = gl.constexpr(fp8.LARGEST)

# Of two words: the even dimension of each, and the odd one of each, in float16.
_HALVES = gl.constexpr(
    """{
    .reg .b16 first, second;
    .reg .b32 of_first, of_second;
    mov.b32 {first, second}, $2;
    cvt.rn.f16x2.e4m3x2 of_first, first;
    cvt.rn.f16x2.e4m3x2 of_second, second;
    prmt.b32 $0, of_first, of_second, 0x5410;
    prmt.b32 $1, of_first, of_second, 0x7632;
    }"""
)


@gluon.jit
def block_at(table, token, is_there, PAGE: gl.constexpr):
    """The block that a token lies in, 0 where it is not there."""
    return gl.load(table + token // PAGE, mask=is_there, other=0)


@gluon.jit
def slot_at(block, kv_head, token, KV_HEADS: gl.constexpr, PAGE: gl.constexpr):
    """The slot of a token of a head, given its block; as wide as the block's number is."""
    return (block * KV_HEADS + kv_head) * PAGE + token % PAGE


@gluon.constexpr_function
def slot_words(D, eight_bits):
    """Words of two bytes that a key or a value takes."""
    return D // 2 if eight_bits else D


@gluon.jit
def dimension_at(place, D: gl.constexpr, EIGHT_BITS: gl.constexpr):
    """The dimensions of a head that stand at these places of a tile."""
    if EIGHT_BITS:
        return place % (D // 2) * 2 + place // (D // 2)
    else:
        return place


@gluon.jit
def arranged(line, D: gl.constexpr, EIGHT_BITS: gl.constexpr):
    """All dimensions [D] of a head in the order of a tile's."""
    if EIGHT_BITS:
        pairs = gl.reshape(line, [D // 2, 2])
        line = gl.reshape(gl.permute(pairs, (1, 0)), [D])
    return line


@gluon.jit
def key_tile(words, TYPE: gl.constexpr, EIGHT_BITS: gl.constexpr):
    """Keys [tokens, D] in registers, of words that were loaded as the left operand of a product."""
    if EIGHT_BITS:
        shape: gl.constexpr = [words.shape[0], 2 * words.shape[1]]
        tile = gl.reshape(gl.permute(_halves(words), (0, 2, 1)), shape)
        if gl.float16 != TYPE:
            # By way of float32, as `kernels.linear.vector.unpacked`.
            tile = tile.to(gl.float32).to(TYPE)
        return gl.convert_layout(tile, LEFT, assert_trivial=True)
    else:
        return words


@gluon.jit
def value_tile(words, EIGHT_BITS: gl.constexpr):
    """As `key_tile`, of values [D, tokens].

    Those of eight bits in float16 whatever the type of queries: it has all of e4m3, and weights of
    a softmax to 11 bits.
    """
    if EIGHT_BITS:
        shape: gl.constexpr = [2 * words.shape[0], words.shape[1]]
        tile = gl.reshape(gl.permute(_halves(words), (2, 0, 1)), shape)
        return gl.convert_layout(tile, LEFT, assert_trivial=True)
    else:
        return words


@gluon.jit
def _halves(words):
    """The even and the odd dimension of each word, the last axis."""
    even, odd = gl.inline_asm_elementwise(
        _HALVES, "=r,=r,r", [words], dtype=(gl.float16, gl.float16), is_pure=True, pack=2
    )
    return gl.join(even, odd)


@gluon.jit
def head_scales(scales, kv_head, KV_HEADS: gl.constexpr):
    """As `kernels.attention.cache_tile.head_scales`."""
    if scales is None:
        return 1.0, 1.0
    else:
        return gl.load(scales + kv_head), gl.load(scales + KV_HEADS + kv_head)


@gluon.jit
def rounded(values, scale, EIGHT_BITS: gl.constexpr):
    """As `kernels.attention.cache_tile.rounded`."""
    if EIGHT_BITS:
        values = values.to(gl.float32) / scale
        values = gl.where(values > LARGEST, LARGEST, values)
        values = gl.where(values < -LARGEST, -LARGEST, values).to(gl.float8e4nv)
    return values
