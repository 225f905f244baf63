# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Where a token lies in the paged cache, for Hopper kernels; as `kernels.attention.cache_tile`.

They count in slots of a cache [blocks, KV heads, block size], of which descriptors make rows.

Of a cache of eight bits a row is words of two bytes, each of which holds an even dimension and the
odd one behind it. So tiles come into shared memory and from there into registers as those of
16 bits do, also transposed, and there each pair of words becomes numbers. That leaves the
dimensions of a tile in another order: `key_dimension_at` and `value_dimension_at` say which stands
where.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.hopper.softmax import LEFT
from kernels.linear import fp8

LARGEST = gl.constexpr(fp8.LARGEST)

# Of two words of keys: all of the first, and all of the second, in float16.
_BY_WORD = gl.constexpr(
    """{
    .reg .b16 first, second;
    mov.b32 {first, second}, $2;
    cvt.rn.f16x2.e4m3x2 $0, first;
    cvt.rn.f16x2.e4m3x2 $1, second;
    }"""
)
# Of two words of values, one of each token: the even dimension of both, and the odd one.
_BY_DIMENSION = gl.constexpr(
    """{
    .reg .b16 even, odd;
    .reg .b32 turned;
    prmt.b32 turned, $2, 0, 0x3120;
    mov.b32 {even, odd}, turned;
    cvt.rn.f16x2.e4m3x2 $0, even;
    cvt.rn.f16x2.e4m3x2 $1, odd;
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
def key_dimension_at(place, D: gl.constexpr, EIGHT_BITS: gl.constexpr):
    """The dimensions of a head that stand at these places of a tile of keys."""
    if EIGHT_BITS:
        half, within = place // (D // 2), place % (D // 2)
        return within // 2 * 4 + half * 2 + within % 2
    else:
        return place


@gluon.jit
def value_dimension_at(place, D: gl.constexpr, EIGHT_BITS: gl.constexpr):
    """As `key_dimension_at`, of a tile of values."""
    if EIGHT_BITS:
        return place % (D // 2) * 2 + place // (D // 2)
    else:
        return place


@gluon.jit
def arranged(line, D: gl.constexpr, EIGHT_BITS: gl.constexpr):
    """All dimensions [D] of a head in the order of a tile of keys."""
    if EIGHT_BITS:
        pairs = gl.reshape(line, [D // 4, 2, 2])
        line = gl.reshape(gl.permute(pairs, (1, 0, 2)), [D])
    return line


@gluon.jit
def scaled_query(q):
    """Queries [D, heads] as float16, and what each head's must be multiplied by then, float32.

    Keys of eight bits are float16 as they come out of a word. Of bfloat16 that has all bits, but
    not the range: a power of two for each head brings its largest to between 1 and 2.
    """
    largest = gl.max(gl.abs(q.to(gl.float32)), 0)
    exponent = largest.to(gl.int32, bitcast=True) & 0x7F800000
    power = gl.where(exponent > 0, exponent, 0x3F800000).to(gl.float32, bitcast=True)
    return (q.to(gl.float32) / power[None, :]).to(gl.float16), power


@gluon.jit
def key_tile(words, EIGHT_BITS: gl.constexpr):
    """Keys [tokens, D] in registers, of words that were loaded as the left operand of a product.

    Those of eight bits are float16, which has all of e4m3.
    """
    if EIGHT_BITS:
        shape: gl.constexpr = [words.shape[0], 2 * words.shape[1]]
        tile = gl.reshape(gl.permute(_unpacked(words, _BY_WORD), (0, 2, 1)), shape)
        return gl.convert_layout(tile, LEFT, assert_trivial=True)
    else:
        return words


@gluon.jit
def value_tile(words, EIGHT_BITS: gl.constexpr):
    """As `key_tile`, of values [D, tokens]; weights of a softmax have 11 bits then."""
    if EIGHT_BITS:
        shape: gl.constexpr = [2 * words.shape[0], words.shape[1]]
        tile = gl.reshape(gl.permute(_unpacked(words, _BY_DIMENSION), (2, 0, 1)), shape)
        return gl.convert_layout(tile, LEFT, assert_trivial=True)
    else:
        return words


@gluon.jit
def _unpacked(words, HOW: gl.constexpr):
    """Two numbers of each word, the last axis."""
    first, second = gl.inline_asm_elementwise(
        HOW, "=r,=r,r", [words], dtype=(gl.float16, gl.float16), is_pure=True, pack=2
    )
    return gl.join(first, second)


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
