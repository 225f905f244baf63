# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""How tiles of keys and values come into the ring of `kernels.attention.hopper.ring_attention`.

A stage of the ring holds one tile of keys and one of values in shared memory; its barrier in
`ready` turns when all their bytes are there.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from kernels.attention.hopper.cache_slot import slot_at
from kernels.hopper.names import copy_tile, program_barrier, reinterpret


@gluon.jit
def request(
    keys, values, tail_keys, tail_values, k_ring, v_ring, ready, block, kv_head, start, last, stage,
    KV_HEADS: gl.constexpr, PAGE: gl.constexpr, BLOCK_N: gl.constexpr, TAIL: gl.constexpr,
    WORDS: gl.constexpr,
):  # fmt: skip
    """Have the copy engine fill a stage with the tile of tokens from `start` on, in page `block`.

    A tile that the context ends in is copied in pieces of TAIL tokens, as many as it takes; the
    rest of the stage is masked.
    """
    row = slot_at(block, kv_head, start, KV_HEADS, PAGE)
    barrier = ready.index(stage)
    PIECES: gl.constexpr = BLOCK_N // TAIL
    # Keys and values of one piece, of 2-byte words.
    PIECE_BYTES: gl.constexpr = 2 * TAIL * WORDS * 2
    pieces = gl.cdiv(last - start, TAIL)
    if pieces >= PIECES:
        mbarrier.expect(barrier, PIECES * PIECE_BYTES)
        copy_tile(keys, [row, 0], barrier, k_ring.index(stage))
        copy_tile(values, [row, 0], barrier, v_ring.index(stage))
    else:
        count: gl.constexpr = k_ring.shape[0] * PIECES
        k_pieces = reinterpret(k_ring, k_ring.dtype, [count, TAIL, WORDS], k_ring.layout)
        v_pieces = reinterpret(v_ring, v_ring.dtype, [count, TAIL, WORDS], v_ring.layout)
        for i in gl.static_range(1, PIECES):
            mbarrier.expect(barrier, i * PIECE_BYTES, pred=pieces == i)
        for i in gl.static_range(PIECES - 1):
            wanted = i < pieces
            piece = stage * PIECES + i
            copy_tile(tail_keys, [row + i * TAIL, 0], barrier, k_pieces.index(piece), pred=wanted)
            copy_tile(tail_values, [row + i * TAIL, 0], barrier, v_pieces.index(piece), pred=wanted)


@gluon.jit
def refill(
    keys, values, tail_keys, tail_values, k_ring, v_ring, ready, block, kv_head, start, last, stage,
    KV_HEADS: gl.constexpr, PAGE: gl.constexpr, BLOCK_N: gl.constexpr, TAIL: gl.constexpr,
    WORDS: gl.constexpr,
):  # fmt: skip
    """`request` into a stage that all threads have read, if the context reaches `start`."""
    program_barrier()
    if start < last:
        request(
            keys, values, tail_keys, tail_values, k_ring, v_ring, ready, block, kv_head,
            start, last, stage, KV_HEADS, PAGE, BLOCK_N, TAIL, WORDS,
        )  # fmt: skip
