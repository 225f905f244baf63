# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""A Triton kernel that only reads memory."""

import triton
import triton.language as tl

TILE = 8192


@triton.jit
def read_kernel(
    data,  # float32 [tiles * TILE_SIZE]
    sums,  # float32 [programs]
    tiles,
    TILE_SIZE: tl.constexpr,
):
    """Each program sums every `programs`-th tile, so that the compiler keeps all reads."""
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    # 64-bit: several GB are more elements than 32 bits can count.
    lanes = data + program.to(tl.int64) * TILE_SIZE + tl.arange(0, TILE_SIZE)
    stride = programs.to(tl.int64) * TILE_SIZE
    total = tl.zeros([TILE_SIZE], tl.float32)
    for _ in range(program, tiles, programs):
        total += tl.load(lanes)
        lanes += stride
    tl.store(sums + program, tl.sum(total))
