"""How each kernel is cut into tiles: the constants it is compiled with and its warps and stages.

Everything here follows from dtypes and head shapes alone, never from the batch or the lengths, so
that the arithmetic of one sequence cannot depend on its neighbours. Launchers and the codegen
check read the same tables.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from kernels.hopper.limits import (
    GIVEN_SHARED_BYTES,
    RESERVED_BYTES,
    SHARED_BYTES,
    SHARED_UNIT,
)
from kernels.tiles.table import committed_table
from kernels.tiles.tile import RingTile

# Tokens of one split of a decode context. Fixed: a count of splits taken from the batch would make
# a sequence's result depend on its neighbours.
SPLIT_TOKENS = 256

# With this many (sequence, KV head) pairs for each multiprocessor one program per pair fills the
# device, and splitting a context over programs would only add traffic. Figures behind this and the
# other constants: reports/decode.md.
PAIRS_PER_MULTIPROCESSOR = 1.5
# Wide heads take so much shared memory that fewer programs run at once: their splits come in waves
# sooner. One threshold for both kernels keeps latency from falling where a program begins to walk
# a whole context.
WIDE_PAIRS_PER_MULTIPROCESSOR = 0.54

# Programs of a cluster that shares the splits of a pair, and how many of them a multiprocessor may
# have before there are fewer.
GATHERING_PROGRAMS = (8, 4)
GATHERING_EACH = 6
# Splits beyond which they become longer, see `split_tokens`.
MOST_SPLITS = 16

# Beside a ring: what the compiler exchanges in.
_SMALL_BYTES = 1024

# Of the parts of a pair, which its cluster's first program receives beside a ring.
MOST_GATHERED_WORDS = 12 * 1024

# Rows up to which `kv_append` has a program for each with all its heads; of more, each has a few
# heads of four rows.
MOST_WHOLE_APPENDS = 160


@dataclass(frozen=True, slots=True)
class Tile:
    """Compile-time constants of one kernel variant, with its warps and pipeline stages."""

    constants: dict[str, int]
    num_warps: int
    num_stages: int


def padded(size: int, least: int = 16) -> int:
    """The next power of two, `least` or more: what Triton's ranges and tensor cores take."""
    return max(least, 1 << (size - 1).bit_length())


def append_tile(heads: int, head_dim: int, rows: int) -> Tile:
    """How `kv_append` is cut for so many rows, about 8 elements a thread."""
    whole, shared = append_tiles(heads, head_dim)
    return whole if rows <= MOST_WHOLE_APPENDS else shared


@cache
def append_tiles(heads: int, head_dim: int) -> tuple[Tile, Tile]:
    """The two ways: whole rows, and some heads of a few rows."""
    dim = padded(head_dim, 1)

    def cut(rows: int, heads_each: int) -> Tile:
        warps = max(1, min(8, rows * heads_each * dim // 256))
        return Tile({"ROWS": rows, "HEADS": heads_each, "D_PAD": dim}, warps, num_stages=1)

    return cut(1, padded(heads, 1)), cut(4, min(padded(heads, 1), max(1, 128 // dim)))


@cache
def residual_norm_tile(width: int) -> Tile:
    """One row in one program, 8 elements a thread."""
    columns = padded(width)
    return Tile({"E_PAD": columns}, num_warps=max(1, min(16, columns // 256)), num_stages=1)


@cache
def decode_tile(element_bytes: int, head_dim: int, group: int) -> Tile:
    """One KV head's query group against `BLOCK_N` tokens at a time.

    The group is padded to 16 rows, the least that tensor cores take.
    """
    dim = padded(head_dim)
    rows = padded(group)
    if element_bytes == 2:
        tokens = 64 if dim <= 128 else 32
        stages = 2 if dim <= 64 else 3
    else:
        tokens = 32 if dim <= 64 else 16
        stages = 2
    constants = {"G_PAD": rows, "D_PAD": dim, "BLOCK_N": tokens, "SPLIT": SPLIT_TOKENS}
    # Full precision multiplies on plain cores, whose operands live in registers.
    warps = 8 if element_bytes == 4 and dim > 128 else 4
    return Tile(constants, num_warps=warps, num_stages=stages)


@cache
def prefill_tile(element_bytes: int, head_dim: int, group: int) -> Tile:
    """`BLOCK_Q` query tokens of one KV head's whole group against `BLOCK_N` tokens at a time."""
    dim = padded(head_dim)
    if element_bytes == 2:
        rows = max(64, padded(group))
        tokens = 64 if dim <= 128 else 32
    else:
        rows = max(16, padded(group))
        tokens = 32 if dim <= 64 else 16
    constants = {
        "BLOCK_M": rows,
        "BLOCK_Q": rows // group,
        "BLOCK_N": tokens,
        "D_PAD": dim,
    }
    warps = 8 if element_bytes == 4 and rows * dim > 4096 else 4
    return Tile(constants, num_warps=warps, num_stages=2)


def decode_is_serial(
    pairs: int, splits: int, multiprocessors: int, pairs_each: float = PAIRS_PER_MULTIPROCESSOR
) -> bool:
    """Whether one program should walk all splits of a (sequence, KV head) pair.

    Either way the arithmetic is the same, bit for bit: splits are combined from the first to the
    last by one function. Only shapes decide, so a captured graph stays right for any lengths.
    `pairs_each` is how many pairs a multiprocessor fill it.
    """
    return splits == 1 or pairs >= pairs_each * multiprocessors


def gathering_programs(batch: int, kv_heads: int, words: int, multiprocessors: int) -> int:
    """Programs of the cluster that shares a (sequence, KV head) pair's splits; 1 for none.

    Without a cluster there is a program for each split, and their parts, of so many `words` a pair,
    meet in memory. Either way the arithmetic is the same.
    """
    if words > MOST_GATHERED_WORDS:
        return 1
    wide, narrow = GATHERING_PROGRAMS
    fit = batch * kv_heads * wide <= GATHERING_EACH * multiprocessors
    return wide if fit else narrow


def inbox_spare(own: int, inbox: int) -> int:
    """Bytes of shared memory that a program leaves unused, so that an inbox behind them fits.

    Triton lets a program have more than `GIVEN_SHARED_BYTES` only where it needs more by its own
    account, in which inboxes are not.
    """
    if own + inbox + _SMALL_BYTES <= GIVEN_SHARED_BYTES or own > GIVEN_SHARED_BYTES:
        return 0
    return GIVEN_SHARED_BYTES + 8 - own


def filling_pairs(head_dim: int) -> float:
    """Pairs a multiprocessor that fill the device in paged decode attention."""
    return WIDE_PAIRS_PER_MULTIPROCESSOR if head_dim > 64 else PAIRS_PER_MULTIPROCESSOR


@cache
def fused_attention_tile(element_bytes: int, head_dim: int, group: int) -> Tile:
    """As `decode_tile`, for attention with the append fused in.

    Half precision keeps three stages: with two, Triton 3.6's assembler spills at heads of 64.
    """
    tile = decode_tile(element_bytes, head_dim, group)
    return replace(tile, num_stages=3) if element_bytes == 2 else tile


@cache
def ring_tile(head_dim: int, group: int = 1) -> RingTile:
    """The committed ring for heads of `head_dim`, of which `group` share keys and values."""
    return committed_table().ring(head_dim, group)


def split_tokens(max_context: int, ring: RingTile) -> int:
    """Tokens of a split of contexts in tables of so many.

    As many as the ring says, or as leave `MOST_SPLITS`: one program adds a pair's parts one after
    another. But never more than `SPLIT_TOKENS`.
    """
    split = ring.split
    while split < SPLIT_TOKENS and max_context > MOST_SPLITS * split:
        split *= 2
    return split


def ring_stages(
    head_dim: int,
    programs: int,
    multiprocessors: int,
    ring: RingTile | None = None,
    *,
    in_clusters: bool = False,
) -> int:
    """Stages of the ring for a launch of so many programs; no result depends on them.

    Programs on one multiprocessor share its memory: with more stages each, fewer run at once.
    """
    tile = ring or ring_tile(head_dim)
    return tile.stages(programs / multiprocessors, in_clusters=in_clusters)


def ring_spare(
    head_dim: int,
    stages: int,
    programs: int,
    multiprocessors: int,
    ring: RingTile | None = None,
) -> int:
    """Bytes of shared memory that each program of the launch leaves unused, a multiple of 8.

    They keep a multiprocessor from taking more programs than its even share. 0 where no more would
    fit anyway, where there is at most one program for each, or where the ring is not `even`. No
    result depends on them. Of a ring in eight bits the `head_dim` is half the head's.
    """
    tile = ring or ring_tile(head_dim)
    share = -(-programs // multiprocessors)
    if programs == 2 * multiprocessors:
        # Two on each leave the programs of the next launch no place to begin early, so that one
        # sequence more was faster. Three and four on each want no more room.
        share = 3
    own = stages * tile.stage_bytes(head_dim)
    fits_more = (own + RESERVED_BYTES) * (share + 1) <= SHARED_BYTES
    if not tile.even or share == 1 or not fits_more:
        return 0
    units = SHARED_BYTES // share // SHARED_UNIT
    return units * SHARED_UNIT - RESERVED_BYTES - own
